"""The engine's face towards the front door."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from llmtop.engine.driver import Engine
from llmtop.engine.picture import STATES
from llmtop.engine.records import Ticket
from llmtop.frontdoor.gate import Upstream
from llmtop.scheduler.state import Child

AccessLog = Callable[[str, str, str, int, int, int, float], None]


class EngineGate:
    """Implements ``frontdoor.gate.Gate``.

    Args:
        engine: The engine.
        access: Gets a line for each answer: request, model, path, status, queue [ms], load [ms], total [ms].
    """

    def __init__(self, engine: Engine, access: AccessLog) -> None:
        self._engine = engine
        self._access = access
        self._control = Upstream("control")
        self._names: dict[str, str] = {}
        self._ids: tuple[str, ...] = ()
        self.renamed()

    def renamed(self) -> None:
        """The models or their aliases changed."""
        models = self._engine.configuration.catalog.models
        self._names = {alias: spec.id for spec in models.values() for alias in spec.aliases} | {i: i for i in models}
        self._ids = tuple(models)

    def connect_control(self, uds: str) -> None:
        """The control API listens there."""
        self._control = Upstream("control", host="", uds=uds)

    def resolve(self, name: str) -> str | None:
        """The id that a name or an alias means."""
        return self._names.get(name)

    def model_ids(self) -> tuple[str, ...]:
        """All ids."""
        return self._ids

    def admit(self, model: str, *, path: str, client: str, stream: bool, autoload: bool | None = None) -> Ticket:
        """Let a request in."""
        return self._engine.admit(model, path=path, client=client, stream=stream, autoload=autoload)

    def observe(self, model: str) -> Upstream | str:
        """The child while it can answer, else the state in a word."""
        m = self._engine.machine.world.models.get(model)
        i = m.instance if m is not None else None
        if i is None or i.state is Child.SETTLING:
            return "unloaded"
        child = self._engine.children.get(i.id)
        if not i.up or child is None or child.upstream is None:
            return STATES[i.state]
        if i.state is Child.SLEEPING:
            return msgspec.structs.replace(child.upstream, asleep=True)
        return child.upstream

    def busy(self, model: str) -> bool:
        """Its child has requests in flight."""
        m = self._engine.machine.world.models.get(model)
        return m is not None and m.instance is not None and bool(m.instance.in_flight)

    def control(self) -> Upstream:
        """The control API."""
        return self._control

    def finished(
        self,
        *,
        request: str,
        model: str,
        path: str,
        status: int,
        queue_ms: int,
        load_ms: int,
        total_ms: float,
        tokens: int = 0,
        relay_s: float = 0.0,
    ) -> None:
        """One line for the access log, and the counters."""
        self._engine.meters.answer(model, status, queue_ms, total_ms, tokens, relay_s)
        self._access(request, model, path, status, queue_ms, load_ms, total_ms)
