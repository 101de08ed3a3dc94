"""What the scheduler asks for. Whoever carries these out reports back with events; nothing here has a result."""

from __future__ import annotations

import msgspec

from llmtop.errors import Refusal


class Action(msgspec.Struct, frozen=True, tag=True):
    """Something to do."""


class Spawn(Action, frozen=True):
    """Start a child. Its slot and bytes are reserved already.

    Args:
        instance: Start number; every event about this child carries it.
        reserved: Bytes set aside for it [bytes].
        reason: Why now: ``request``, ``operator``, ``startup``, ``pinned``, ``retry``.
        waited_s: How long its entry had waited [s].
    """

    instance: int
    model: str
    reserved: int
    reason: str
    waited_s: float


class Stop(Action, frozen=True):
    """Ask a child to leave, by the ladder of its state.

    Args:
        loading: It is still loading: signals at once instead of a polite wait.
        reason: ``cap``, ``bytes``, ``max-wait``, ``idle``, ``sleep``, ``operator``, ``sick``, ``unwanted``,
            ``load-failed``, ``shutdown`` or ``removed``.
        wanted_by: The model whose need this is; empty for none.
    """

    instance: int
    model: str
    reason: str
    wanted_by: str = ""
    loading: bool = False


class Kill(Action, frozen=True):
    """SIGKILL to the child's group."""

    instance: int
    model: str


class Settle(Action, frozen=True):
    """Wait until a reaped child's memory is back, then say ``Settled``."""

    instance: int
    model: str


class Grant(Action, frozen=True):
    """Send this request to this child."""

    request: int
    instance: int
    model: str


class Refuse(Action, frozen=True):
    """Tell a request that it will not be served."""

    request: int
    model: str
    refusal: Refusal


class Cut(Action, frozen=True):
    """End a granted request."""

    request: int
    model: str
    refusal: Refusal


class Drain(Action, frozen=True):
    """The child takes no new requests; ``reason`` is ``max-wait``, ``operator``, ``sick`` or ``removed``."""

    instance: int
    model: str
    reason: str
    wanted_by: str = ""


class Lift(Action, frozen=True):
    """The child takes requests again: the head's need is met or over."""

    instance: int
    model: str


class Dropped(Action, frozen=True):
    """A load that nobody waits for was given up, with the reason in words."""

    model: str
    refusal: Refusal


class Replied(Action, frozen=True):
    """The answer to an operator's verb."""

    changed: bool
    refusal: Refusal | None = None
