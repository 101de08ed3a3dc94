"""A core in this process, for a view: ``client.CoreClient`` over the seam between two threads.

Snapshots and commands are all that crosses it. A slow view skips snapshots; one that is gone is noticed by nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError
from typing import TypeVar

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.core import Core
from llmtop.engine.control import EngineControl
from llmtop.errors import Refusal
from llmtop.snapshot import LogLine, Snapshot

T = TypeVar("T")
GONE = Reply(False, refusal=Refusal("shutting_down", "the core has ended"))


class EmbeddedClient:
    """Talks to the core of this process.

    Args:
        core: It has been started.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._latest: Snapshot | None = None

    @property
    def url(self) -> str:
        """Where the front door listens."""
        return self._core.house.url

    @property
    def embedded(self) -> bool:
        """The core ends with this process."""
        return True

    @property
    def latest(self) -> Snapshot | None:
        """Newest snapshot, None before the first."""
        return self._latest

    async def changes(self) -> AsyncIterator[Snapshot]:
        """Yield each newer snapshot, the newest there is whenever the view asks."""
        view = asyncio.get_running_loop()
        news: asyncio.Event = asyncio.Event()

        def tell(snapshot: Snapshot) -> None:
            self._latest = snapshot
            with contextlib.suppress(RuntimeError):  # the view's loop has ended
                view.call_soon_threadsafe(news.set)

        async def follow() -> None:
            control = self._core.house.control
            tell(control.snapshot())
            async for _ in control.subscribe():
                tell(control.snapshot())

        following = asyncio.run_coroutine_threadsafe(follow(), self._core.loop)
        try:
            while not self._core.over:
                await news.wait()
                news.clear()
                if self._latest is not None:
                    yield self._latest
        finally:
            following.cancel()

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Say a verb to a model."""
        return await self._ask(lambda control: control.model_verb(verb, model, instance), GONE)

    async def queue(self, verb: QueueVerb) -> Reply:
        """Hold, resume or step the queue."""
        return await self._ask(lambda control: control.queue_verb(verb), GONE)

    async def cancel(self, request: str) -> Reply:
        """Cancel a request."""
        return await self._ask(lambda control: control.cancel(request), GONE)

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """Lines of the model's last child."""
        return await self._ask(lambda control: control.log(model, 0), ())

    async def acknowledge_oom(self) -> Reply:
        """The out-of-memory line was seen."""
        return await self._ask(lambda control: control.acknowledge_oom(), GONE)

    async def _ask(self, question: Callable[[EngineControl], T], gone: T) -> T:
        """Put a question on the core's loop, and wait for the answer on the view's."""

        async def ask() -> T:
            return question(self._core.house.control)

        if self._core.over:
            return gone
        asking = ask()
        try:
            future = asyncio.run_coroutine_threadsafe(asking, self._core.loop)
        except RuntimeError:
            asking.close()
            return gone
        try:
            return await asyncio.wrap_future(future)
        except (CancelledError, asyncio.CancelledError):
            if self._core.over:
                return gone
            raise
