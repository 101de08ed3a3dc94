"""What can happen to the scheduler. Each event comes with the time; late or repeated news is ignored."""

from __future__ import annotations

import msgspec

from llmtop.snapshot import Failure


class Limits(msgspec.Struct, frozen=True):
    """The numbers that bound the scheduler.

    Args:
        models_max: Most children at once [1]; 0 = no cap.
        max_wait_s: How long the head waits before busy models are drained for it [s]; None = for ever, 0 = not at all.
        max_queue: Requests that may wait for one model [1]; 0 = any number. Four times that for all together.
        drain_timeout_s: What is still in flight on a draining model after that is cut [s]; None = never.
        autoload: A request may load its model.
    """

    models_max: int = 4
    max_wait_s: float | None = 15.0
    max_queue: int = 512
    drain_timeout_s: float | None = None
    autoload: bool = True


class Facts(msgspec.Struct, frozen=True):
    """What is known of a model before it runs.

    Args:
        declared: Footprint the user declared, everything included [bytes].
        measured: Footprint of an earlier load [bytes].
        estimated: Footprint computed from the file's header [bytes].
        pinned: Pinned in the preset.
        idle_unload_s: Stop an unpinned child after that much idleness [s]; None = never.
        evict_on_sleep: Stop an unpinned child that goes to sleep.
        load_s: How long an earlier load took [s]; None when there was none.
        stop_s: How long an earlier stop took, settling included [s].
    """

    name: str
    declared: int | None = None
    measured: int | None = None
    estimated: int | None = None
    pinned: bool = False
    idle_unload_s: float | None = None
    evict_on_sleep: bool = False
    load_s: float | None = None
    stop_s: float | None = None


class Event(msgspec.Struct, frozen=True, tag=True):
    """Something that happened."""


# --- requests


class Arrived(Event, frozen=True):
    """A request for a model. ``autoload`` overrides the limit for this one."""

    request: int
    model: str
    autoload: bool | None = None


class Left(Event, frozen=True):
    """A request is over: answered whole, or its client is gone.

    ``good`` tells a good answer (True) from a failing one (False); None when the client left or nothing can be said.
    """

    request: int
    good: bool | None = None


# --- news of children


class Ready(Event, frozen=True):
    """The child answers."""

    instance: int


class Slept(Event, frozen=True):
    """The child went to sleep."""

    instance: int


class Woke(Event, frozen=True):
    """The child woke up."""

    instance: int


class LoadFailed(Event, frozen=True):
    """The load is lost though the process lives."""

    instance: int
    failure: Failure


class Sick(Event, frozen=True):
    """A loaded child will only fail from now on."""

    instance: int
    failure: Failure


class Stuck(Event, frozen=True):
    """The child survived SIGKILL."""

    instance: int


class Exited(Event, frozen=True):
    """The child was reaped. ``failure`` is the cause when it was not asked to leave."""

    instance: int
    failure: Failure | None = None


class Settled(Event, frozen=True):
    """The reaped child's memory is back, or what has not come back is counted as stranded."""

    instance: int


# --- memory and configuration


class Measured(Event, frozen=True):
    """A model's footprint was measured [bytes]."""

    model: str
    footprint: int


class Budget(Event, frozen=True):
    """The byte budget changed [bytes]. ``total`` None = bytes do not count; ``stranded`` is out of it for now."""

    total: int | None
    stranded: int = 0


class Configured(Event, frozen=True):
    """A model is known, or known better."""

    facts: Facts


class Removed(Event, frozen=True):
    """A model is no longer configured: it drains and goes."""

    model: str


class Checked(Event, frozen=True):
    """A look at a model's files: a failure that stays until they change, or None when they are fine."""

    model: str
    failure: Failure | None


class Limited(Event, frozen=True):
    """The limits changed."""

    limits: Limits


class Tick(Event, frozen=True):
    """The time that ``Machine.wake_at`` asked for has come."""


# --- the operator's verbs


class Load(Event, frozen=True):
    """Load a model. A ``startup`` load evicts nobody."""

    model: str
    startup: bool = False


class Evict(Event, frozen=True):
    """Drain a model, then stop it; end its load. ``instance`` None means whichever runs."""

    model: str
    instance: int | None = None


class KillNow(Event, frozen=True):
    """End a model's process at once."""

    model: str
    instance: int | None = None


class Pin(Event, frozen=True):
    """Never evict this model, until restart."""

    model: str


class Unpin(Event, frozen=True):
    """Let this model be evicted again, until restart."""

    model: str


class Cancel(Event, frozen=True):
    """End a request, queued or running."""

    request: int


class Hold(Event, frozen=True):
    """Stop claiming, evicting, draining, idle-unloading."""


class Resume(Event, frozen=True):
    """Go on."""


class Step(Event, frozen=True):
    """While held: let the entry that is head now make one claim."""


class Close(Event, frozen=True):
    """No new requests; everybody who waits is told."""


class StopAll(Event, frozen=True):
    """Stop every child."""
