"""The engine's face towards the management API, and towards a view in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.config.spec import ModelSpec, Settings
from llmtop.engine.driver import Engine
from llmtop.engine.picture import picture
from llmtop.errors import Refusal
from llmtop.scheduler import events
from llmtop.scheduler.actions import Action, Replied
from llmtop.snapshot import EventLine, LogLine, Snapshot, Swap

QUEUE_VERBS: dict[QueueVerb, Callable[[], events.Event]] = {
    "hold": events.Hold,
    "resume": events.Resume,
    "step": events.Step,
}
MODEL_VERBS: dict[ModelVerb, Callable[[str, int | None], events.Event]] = {
    "load": lambda model, _: events.Load(model),
    "evict": events.Evict,
    "kill": events.KillNow,
    "pin": lambda model, _: events.Pin(model),
    "unpin": lambda model, _: events.Unpin(model),
}


class EngineControl:
    """Implements ``control.port.ControlPort``.

    Args:
        engine: The engine.
        url: Where the front door listens, once it does.
        reread: Reads the configuration again.
        resolve: The gate's table of names.
        exposed: Reachable from other machines without a key.
    """

    def __init__(
        self,
        engine: Engine,
        url: Callable[[], str],
        reread: Callable[[], Awaitable[Reply]],
        resolve: Callable[[str], str | None],
        *,
        exposed: bool,
    ) -> None:
        self._engine = engine
        self._url = url
        self._reread = reread
        self._resolve = resolve
        self._exposed = exposed
        engine.snapshot = self.snapshot

    @property
    def settings(self) -> Settings:
        """The resolved options."""
        return self._engine.settings

    def snapshot(self) -> Snapshot:
        """The picture as of now."""
        return picture(self._engine, self._url(), exposed=self._exposed)

    async def subscribe(self) -> AsyncIterator[None]:
        """At each change, at most ten times a second and at least once."""
        news = asyncio.Event()
        self._engine.listen(news)
        try:
            while True:
                yield None
                await news.wait()
                news.clear()
        finally:
            self._engine.unlisten(news)

    def events_since(self, seq: int) -> tuple[EventLine, ...]:
        """Journal lines newer than that."""
        return self._engine.journal.events(seq)

    def resolve(self, name: str) -> str | None:
        """The id that a name or an alias means."""
        return self._resolve(name)

    def spec(self, model_id: str) -> ModelSpec:
        """How a model is configured."""
        return self._engine.specs[model_id]

    def child_info(self, model_id: str) -> dict[str, Any] | None:
        """What the running child told of itself when it was ready."""
        m = self._engine.machine.world.models.get(model_id)
        child = self._engine.children.get(m.instance.id) if m is not None and m.instance is not None else None
        return child.meta if child is not None else None

    def model_verb(self, verb: ModelVerb, model_id: str, instance: int | None) -> Reply:
        """Carry out a verb on a model."""
        if verb == "load":
            self._engine.recheck_files(model_id)
        return _reply(self._engine.feed(MODEL_VERBS[verb](model_id, instance)))

    def queue_verb(self, verb: QueueVerb) -> Reply:
        """Hold, resume or step."""
        return _reply(self._engine.feed(QUEUE_VERBS[verb]()))

    def cancel(self, request_id: str) -> Reply:
        """End a request."""
        serial = int(request_id) if request_id.isascii() and request_id.isdigit() and len(request_id) < 19 else 0
        if serial not in self._engine.tickets:
            gone = f"no request {request_id[:40]!r}: it is over, or never was"
            return Reply(False, refusal=Refusal("not_found", gone))
        return _reply(self._engine.feed(events.Cancel(serial)))

    def log(self, model_id: str, after_seq: int) -> tuple[LogLine, ...]:
        """Lines of the model's last child."""
        return tuple(line for line in self._engine.supervisor.log(model_id) if line.seq > after_seq)

    def swaps(self) -> tuple[Swap, ...]:
        """The swaps still remembered."""
        return self._engine.journal.swaps().recent

    async def reload(self) -> Reply:
        """Read presets and folders again."""
        return await self._reread()

    def acknowledge_oom(self) -> Reply:
        """The out-of-memory line was seen."""
        oom = self._engine.oom
        changed, oom.acknowledged = oom.last is not None and not oom.acknowledged, True
        self._engine.changed()
        return Reply(True, changed)

    def metrics_text(self) -> bytes:
        """Counters in Prometheus' text format."""
        from llmtop.engine.metrics import exposition

        return exposition(self._engine)


def _reply(actions: Sequence[Action]) -> Reply:
    """The scheduler's answer to a verb."""
    for action in actions:
        if isinstance(action, Replied):
            return Reply(action.refusal is None, action.changed, action.refusal)
    return Reply(True)
