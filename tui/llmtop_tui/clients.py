"""What some cores can do besides, asked by ``isinstance``: a recording is played, a core elsewhere is out of reach."""

from __future__ import annotations

from typing import Literal, Protocol, runtime_checkable

from llmtop.snapshot import Snapshot


@runtime_checkable
class Player(Protocol):
    """A recording (``llmtop.replay.ReplayClient``)."""

    speed: float
    paused: bool
    position_s: float
    ended: bool

    async def seek_next(self, kind: Literal["swap", "oom"]) -> bool:
        """Move on to the next of its kind; False where there is none."""
        ...


@runtime_checkable
class Distant(Protocol):
    """A core that is asked over a network (``llmtop.remote.RemoteClient``)."""

    @property
    def stale_s(self) -> float:
        """Age of the newest snapshot while the core cannot be reached [s]; 0 while it can."""
        ...

    @property
    def fault(self) -> str:
        """Why it cannot be reached; empty while it can."""
        ...

    async def refresh(self) -> Snapshot:
        """Ask it now."""
        ...


@runtime_checkable
class Other(Protocol):
    """A core that is no llmtop (``llmtop.remote_router.RouterClient``)."""

    kind: str
