"""What the supervisor tells the engine. ``instance`` is a start number.

Late news of an old child never hits its successor.
"""

from __future__ import annotations

import msgspec

from llmtop.snapshot import Failure


class News(msgspec.Struct, frozen=True):
    """Something happened to a child."""

    instance: int


class Started(News, frozen=True):
    """The process exists."""

    pid: int
    port: int
    args: tuple[str, ...]
    """Its command line, secrets masked."""
    api_key: str


class Loading(News, frozen=True):
    """The load moved on; ``value`` is a fraction, None when not known."""

    phase: str
    value: float | None


class Ready(News, frozen=True):
    """It answers, and it is the living child that answered."""

    slots: int | None = None


class Slept(News, frozen=True):
    """It went to sleep."""


class Woke(News, frozen=True):
    """It woke up."""


class LoadFailed(News, frozen=True):
    """The load is lost though the process lives: an out-of-memory line, no progress for load-timeout.

    It must be stopped.
    """

    failure: Failure


class Sick(News, frozen=True):
    """A LOADED child will only fail from now on (a poisoned backend, out of memory)."""

    failure: Failure


class Stopping(News, frozen=True):
    """It was asked to leave; SIGKILL follows after ``kill_in_s`` [s]."""

    kill_in_s: float
    how: str = ""
    """``exit line``, ``SIGTERM`` or ``stop-cmd``."""


class Killed(News, frozen=True):
    """SIGKILL was sent to its group."""


class Stuck(News, frozen=True):
    """It is alive 10 s after SIGKILL; ``process_state`` as ps writes it (``D``, ``U`` …)."""

    process_state: str


class Exited(News, frozen=True):
    """The process was reaped and its group is empty. Always the last news of an instance."""

    exit_code: int | None
    signal: int | None
    failure: Failure | None
    """The cause where it was not asked to leave, or did not become ready; None for an orderly stop."""
    asked: bool
    """It had been told to stop."""
    sigkilled: bool


class OomSeen(News, frozen=True):
    """A line that says out of memory, for the screen; told apart from what is done about it."""

    text: str
    count: int


class Line(News, frozen=True):
    """A line of output, made safe to show. Sent in batches at most ten times a second; the ring holds the rest."""

    lines: tuple[str, ...]


class Sized(News, frozen=True):
    """What the child's own size lines add up to [bytes]."""

    total: int


class Slots(News, frozen=True):
    """How many requests it works on side by side, read from ``/props`` a moment after ``Ready``."""

    total: int
