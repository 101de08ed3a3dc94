"""A core that stands still, for tests and for the pictures in the documentation."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.snapshot import LogLine, Snapshot


class SceneClient:
    """A core that stands still: it shows the snapshots it is given and notes what it is told.

    Args:
        snapshot: The first picture.
        embedded: What the view is told of where the core runs.
    """

    def __init__(self, snapshot: Snapshot, *, embedded: bool = True) -> None:
        self._snapshot = snapshot
        self._embedded = embedded
        self._changed = asyncio.Event()
        self.said: list[tuple[str, ...]] = []
        self.reply = Reply(True, True)
        self.lines: tuple[LogLine, ...] = ()
        self.fault = ""
        self.stale_s = 0.0
        self.asked = 0

    @property
    def url(self) -> str:
        """Where the front door would listen."""
        return self._snapshot.url

    @property
    def embedded(self) -> bool:
        """As it was made."""
        return self._embedded

    @property
    def latest(self) -> Snapshot | None:
        """The picture shown now."""
        return self._snapshot

    def publish(self, snapshot: Snapshot) -> None:
        """Show another picture."""
        self._snapshot = snapshot
        self._changed.set()

    async def changes(self) -> AsyncIterator[Snapshot]:
        """Yield the picture, and each new one."""
        while True:
            self._changed.clear()
            yield self._snapshot
            await self._changed.wait()

    async def refresh(self) -> Snapshot:
        """The picture; counts how often it was asked for."""
        self.asked += 1
        return self._snapshot

    def _note(self, *words: str) -> Reply:
        self.said.append(words)
        return self.reply

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Note the verb."""
        return self._note(verb, model, "" if instance is None else str(instance))

    async def queue(self, verb: QueueVerb) -> Reply:
        """Note the verb."""
        return self._note(verb)

    async def cancel(self, request: str) -> Reply:
        """Note the request."""
        return self._note("cancel", request)

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """The lines given, else those of the picture."""
        return self.lines or tuple(line for line in self._snapshot.log if line.model == model)

    async def acknowledge_oom(self) -> Reply:
        """Note it."""
        return self._note("acknowledge")
