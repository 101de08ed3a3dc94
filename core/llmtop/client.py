"""The one interface between a view and a core: snapshots out, commands in.

``EmbeddedClient`` (``llmtop.embed``) talks to a core in this process, ``RemoteClient`` (``llmtop.remote``) to one
elsewhere over HTTP.
A view calls these methods from its own event loop; none of them blocks it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, Protocol

import msgspec

from llmtop.errors import Refusal
from llmtop.snapshot import LogLine, Snapshot

ModelVerb = Literal["load", "evict", "pin", "unpin", "kill"]
QueueVerb = Literal["hold", "resume", "step"]


class Reply(msgspec.Struct, frozen=True):
    """What became of a command.

    Args:
        success: It was carried out, or had been before.
        changed: It changed something.
        refusal: Why not, when it was not.
    """

    success: bool
    changed: bool = False
    refusal: Refusal | None = None


class CoreClient(Protocol):
    """What a view knows of a core."""

    @property
    def url(self) -> str:
        """Where the front door listens."""
        ...

    @property
    def embedded(self) -> bool:
        """The core runs in this process and ends with it."""
        ...

    @property
    def latest(self) -> Snapshot | None:
        """Newest snapshot, None before the first."""
        ...

    def changes(self) -> AsyncIterator[Snapshot]:
        """Yield each newer snapshot, one to ten a second. A slow reader skips, it never holds the core up."""
        ...

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Say a verb to a model; ``instance`` refuses it (``conflict``) when another child of that name runs by now."""
        ...

    async def queue(self, verb: QueueVerb) -> Reply:
        """Hold, resume or step the queue."""
        ...

    async def cancel(self, request: str) -> Reply:
        """Cancel a queued or running request."""
        ...

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """Lines of the model's last child that are still kept, oldest first."""
        ...

    async def acknowledge_oom(self) -> Reply:
        """Take the sticky out-of-memory line off every screen."""
        ...
