"""What the control API asks of the core, on the core's loop. All but ``subscribe`` and ``reload`` return at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.config.spec import ModelSpec, Settings
from llmtop.snapshot import EventLine, LogLine, Snapshot, Swap


class ControlPort(Protocol):
    """The core, as the control API knows it."""

    @property
    def settings(self) -> Settings:
        """The resolved options. Their secrets are never sent."""
        ...

    def snapshot(self) -> Snapshot:
        """The picture as of now."""
        ...

    def subscribe(self) -> AsyncIterator[None]:
        """Yield at each change, so that a reader takes its own snapshot. A slow reader skips, and holds nobody up."""
        ...

    def events_since(self, seq: int) -> tuple[EventLine, ...]:
        """The journal lines still kept whose number is greater than ``seq``, oldest first."""
        ...

    def resolve(self, name: str) -> str | None:
        """The id of the model that this name or alias means; None when there is none."""
        ...

    def spec(self, model_id: str) -> ModelSpec:
        """How this model is configured; ``model_id`` comes from ``resolve`` or from a snapshot just taken."""
        ...

    def child_info(self, model_id: str) -> dict[str, Any] | None:
        """The ``meta`` of the child's own ``/v1/models`` entry while it runs; None where it is not known."""
        ...

    def model_verb(self, verb: ModelVerb, model_id: str, instance: int | None) -> Reply:
        """Carry out a verb on a model; with ``instance``, refuse it (``conflict``) when another child runs by now."""
        ...

    def queue_verb(self, verb: QueueVerb) -> Reply:
        """Hold, resume or step the queue."""
        ...

    def cancel(self, request_id: str) -> Reply:
        """Cancel a queued or running request; refuse (``not_found``) one that is over or never was."""
        ...

    def log(self, model_id: str, after_seq: int) -> tuple[LogLine, ...]:
        """Lines of the model's last child that are still kept and newer than ``after_seq``, oldest first."""
        ...

    def swaps(self) -> tuple[Swap, ...]:
        """The swaps still remembered, newest last."""
        ...

    async def reload(self) -> Reply:
        """Read presets and folders again."""
        ...

    def acknowledge_oom(self) -> Reply:
        """Take the sticky out-of-memory line off every screen."""
        ...

    def metrics_text(self) -> bytes:
        """All counters in Prometheus' text format."""
        ...
