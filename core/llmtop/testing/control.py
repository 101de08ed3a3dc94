"""A core for the control API that is told what to say and remembers what it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.config.spec import ModelSpec, Settings
from llmtop.errors import Refusal
from llmtop.snapshot import EventLine, LogLine, Model, Snapshot, Swap


class FakeControl:
    """Fulfils ``control.port.ControlPort``.

    Args:
        models: The rows of its snapshot; specifications are made to match.
    """

    def __init__(self, *models: Model) -> None:
        self.settings = Settings(api_keys=("front-door-key",))
        self.state = Snapshot(version="0", pid=1, at=1000.0, url="http://127.0.0.1:8080", uptime_s=10.0, models=models)
        self.specs = {model.id: ModelSpec(id=model.id, aliases=model.aliases) for model in models}
        self.infos: dict[str, dict[str, Any]] = {}
        self.asked: list[tuple[Any, ...]] = []
        self.answer = Reply(True, True)
        self.journal: list[EventLine] = []
        self.lines: list[LogLine] = []
        self.done: tuple[Swap, ...] = ()
        self.subscribers = 0
        self._changed = asyncio.Event()
        self._over = False

    def say(self, **changes: Any) -> None:
        """Publish a snapshot with these fields changed."""
        self.state = msgspec.structs.replace(self.state, at=self.state.at + 1, **changes)
        self._wake()

    def row(self, model_id: str, **changes: Any) -> None:
        """Publish a snapshot with these fields of one model changed."""
        rows = (msgspec.structs.replace(m, **changes) if m.id == model_id else m for m in self.state.models)
        self.say(models=tuple(rows))

    def happen(self, seq: int, text: str = "something") -> None:
        """Add a journal line, and publish."""
        self.journal.append(EventLine(seq, self.state.at, "note", "", text))
        self.say()

    def end(self) -> None:
        """No more snapshots."""
        self._over = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def snapshot(self) -> Snapshot:
        """The picture as it was last published."""
        return self.state

    async def subscribe(self) -> AsyncIterator[None]:
        """Yield at each newer snapshot."""
        self.subscribers += 1
        seen = self.state
        try:
            while not self._over:
                if self.state is seen:
                    await self._changed.wait()
                    continue
                seen = self.state
                yield None
        finally:
            self.subscribers -= 1

    def events_since(self, seq: int) -> tuple[EventLine, ...]:
        """Journal lines newer than ``seq``."""
        return tuple(line for line in self.journal if line.seq > seq)

    def resolve(self, name: str) -> str | None:
        """By id, then by alias."""
        if name in self.specs:
            return name
        return next((spec.id for spec in self.specs.values() if name in spec.aliases), None)

    def spec(self, model_id: str) -> ModelSpec:
        """The specification, made or set."""
        return self.specs[model_id]

    def child_info(self, model_id: str) -> dict[str, Any] | None:
        """What was put into ``infos``."""
        return self.infos.get(model_id)

    def model_verb(self, verb: ModelVerb, model_id: str, instance: int | None) -> Reply:
        """``conflict`` for an instance that is not the model's, else ``answer``."""
        self.asked.append((verb, model_id, instance))
        running = next(model.instance for model in self.state.models if model.id == model_id)
        if instance is not None and instance != running:
            return Reply(
                False, refusal=Refusal("conflict", f"instance {running} of {model_id} runs now, not {instance}")
            )
        return self.answer

    def queue_verb(self, verb: QueueVerb) -> Reply:
        """``answer``."""
        self.asked.append((verb,))
        return self.answer

    def cancel(self, request_id: str) -> Reply:
        """``answer``."""
        self.asked.append(("cancel", request_id))
        return self.answer

    def log(self, model_id: str, after_seq: int) -> tuple[LogLine, ...]:
        """The lines of that model newer than ``after_seq``."""
        return tuple(line for line in self.lines if line.model == model_id and line.seq > after_seq)

    def swaps(self) -> tuple[Swap, ...]:
        """What was put into ``done``."""
        return self.done

    async def reload(self) -> Reply:
        """``answer``."""
        self.asked.append(("reload",))
        return self.answer

    def acknowledge_oom(self) -> Reply:
        """``answer``."""
        self.asked.append(("acknowledge",))
        return self.answer

    def metrics_text(self) -> bytes:
        """One counter."""
        return b"llmtop_requests_total 3\n"
