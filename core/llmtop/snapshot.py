"""What every view sees: one immutable picture of the core, the very object that ``GET /api/state`` sends.

Times are seconds; ``at`` is seconds since the epoch, ages (``…_s``) are the core's as of ``at``. Sizes are bytes.
All text in here is already safe to show: control characters, escapes and direction marks were made visible on entry.
"""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["unloaded", "loading", "loaded", "sleeping", "stopping"]
Phase = Literal["queued", "loading", "running"]
HELD = ", when the queue is released"
"""How ``next_swap`` ends while the queue is held; a step does not wait for that."""


class Failure(msgspec.Struct, frozen=True):
    """Why a load failed or a child died.

    Args:
        kind: ``oom``, ``bad_file``, ``bad_argument``, ``not_found``, ``port``, ``killed``, ``timeout``, ``crash``,
            ``sick``.
        message: The cause in one line, picked from the child's whole tail.
        exit_code: Exit status, None if killed by a signal or still alive.
        signal: Signal number, None if it exited.
        lines: Last lines of the child.
        at: When it was seen [s since the epoch].
        hint: What to do about it; empty when nothing is known.
    """

    kind: str
    message: str
    exit_code: int | None = None
    signal: int | None = None
    lines: tuple[str, ...] = ()
    at: float = 0.0
    hint: str = ""


class Progress(msgspec.Struct, frozen=True):
    """How far a load is.

    Args:
        phase: What is being loaded (``text_model`` …), empty when the child does not tell.
        value: Fraction done, 0 to 1; None when the child does not tell.
        elapsed_s: Seconds since the spawn [s].
        expected_s: Seconds the last load took [s]; None when it was never loaded.
    """

    phase: str = ""
    value: float | None = None
    elapsed_s: float = 0.0
    expected_s: float | None = None


class Model(msgspec.Struct, frozen=True):
    """A model and its child, if it has one."""

    id: str
    state: State = "unloaded"
    instance: int | None = None
    pid: int | None = None
    port: int | None = None
    pinned: bool = False
    pinned_by: str = ""
    """``preset`` survives a restart, ``operator`` does not."""
    draining: bool = False
    sick: bool = False
    settling: bool = False
    stuck: bool = False
    quarantined_s: float = 0.0
    in_flight: int = 0
    waiting: int = 0
    reserved_bytes: int = 0
    footprint_bytes: int | None = None
    estimate_bytes: int | None = None
    idle_s: float | None = None
    progress: Progress | None = None
    reason: str = ""
    """One short sentence for the NOTE column: what it does or waits for, and what ends that."""
    failure: Failure | None = None
    args: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    slots: int | None = None
    kill_in_s: float | None = None
    """While stopping: seconds until SIGKILL [s]."""
    loads: int = 0
    problem: str = ""
    """Why this model cannot be loaded at all (not a GGUF file, shard missing); empty when it can."""
    stale_config: bool = False
    """Its settings have changed since its child was started: they hold from its next load on."""


class QueueEntry(msgspec.Struct, frozen=True):
    """One model that is waited for. Requests for one model share an entry."""

    model: str
    position: int
    waiters: int
    waited_s: float
    reason: str
    eta_s: float | None = None
    operator: bool = False


class Request(msgspec.Struct, frozen=True):
    """One request that is not over."""

    id: str
    model: str
    phase: Phase
    age_s: float
    path: str
    client: str
    stream: bool = False


class Memory(msgspec.Struct, frozen=True):
    """The machine's memory and the budget made of it. None is "not known"; ``sources`` says from where, or why not."""

    total: int | None = None
    wired: int | None = None
    available: int | None = None
    limit: int | None = None
    budget: int | None = None
    reserved: int = 0
    stranded: int = 0
    label: str = "MEM"
    """What the gauge counts: ``WIRED`` on macOS, ``VRAM`` with a GPU, else ``MEM``."""
    used: int | None = None
    """What the gauge shows as used in all."""
    ours: int | None = None
    """What the children hold of that, as measured."""
    others: int | None = None
    """What other programs hold: used, less ours, less what is stranded."""
    pressure: str | None = None
    """The system's own word for it (``normal``, ``warn``, ``critical``); None when it tells none."""
    sources: dict[str, str] = {}


class Stop(msgspec.Struct, frozen=True):
    """One child ended for a swap."""

    model: str
    signal: str
    footprint_bytes: int | None = None
    returned_bytes: int | None = None
    settle_s: float | None = None


class Phases(msgspec.Struct, frozen=True):
    """Where the time of a swap went [s]; None for a phase that did not occur."""

    queued_s: float | None = None
    drain_s: float | None = None
    stop_s: float | None = None
    settle_s: float | None = None
    spawn_s: float | None = None
    load_s: float | None = None


class Swap(msgspec.Struct, frozen=True):
    """One load, with what was evicted for it."""

    id: int
    model: str
    reason: str
    at: float
    evicted: tuple[str, ...] = ()
    result: str = ""
    """Empty while under way; ``ok``, ``failed``, ``cancelled``."""
    phases: Phases = Phases()
    stops: tuple[Stop, ...] = ()


class Swaps(msgspec.Struct, frozen=True):
    """How many swaps there were, and the last ones (newest last)."""

    count: int = 0
    last: Swap | None = None
    recent: tuple[Swap, ...] = ()


class OomLine(msgspec.Struct, frozen=True):
    """An out-of-memory line, kept until somebody has seen it."""

    at: float
    model: str
    text: str
    count: int
    """How often it came from this child."""


class Oom(msgspec.Struct, frozen=True):
    """Out-of-memory lines since the start."""

    count: int = 0
    last: OomLine | None = None
    acknowledged: bool = False


class EventLine(msgspec.Struct, frozen=True):
    """One thing that happened, for the events panel. ``seq`` grows by one; a gap shows what was dropped."""

    seq: int
    at: float
    kind: str
    """``load``, ``ready``, ``evict``, ``stop``, ``exit``, ``oom``, ``sick``, ``pin``, ``hold``, ``note`` …"""
    model: str
    text: str


class LogLine(msgspec.Struct, frozen=True):
    """One line of a child's output."""

    seq: int
    at: float
    model: str
    text: str


class Snapshot(msgspec.Struct, frozen=True):
    """The whole picture."""

    version: str
    pid: int
    at: float
    url: str
    uptime_s: float = 0.0
    models_max: int = 4
    models_max_source: str = "default"
    hold: bool = False
    shutting_down: bool = False
    exposed: bool = False
    """Reachable from other machines without a key."""
    running: int = 0
    server: str = ""
    """The llama-server in use, with its build, or what stands in for it."""
    requests_total: int = 0
    errors_total: int = 0
    models: tuple[Model, ...] = ()
    queue: tuple[QueueEntry, ...] = ()
    next_swap: str = ""
    """The next swap in words, empty when none is due."""
    requests: tuple[Request, ...] = ()
    memory: Memory = Memory()
    swaps: Swaps = Swaps()
    oom: Oom = Oom()
    events: tuple[EventLine, ...] = ()
    log: tuple[LogLine, ...] = ()
    faults: tuple[str, ...] = ()
    """Broken invariants and a stalled core loop: bugs of llmtop, shown and never fatal."""
