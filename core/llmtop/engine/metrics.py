"""Counters in Prometheus' text format. Labels carry known models only, so no client can make them grow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from llmtop.engine.driver import Engine


class _Engine(Collector):
    """Reads the engine at each scrape; nothing is counted twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All families."""
        e, w = self._engine, self._engine.machine.world
        plain: list[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, float | None]] = [
            (CounterMetricFamily, "llmtop_requests", "Requests admitted.", e.requests_total),
            (
                CounterMetricFamily,
                "llmtop_errors",
                "Requests that ended with a server error or a refusal.",
                e.errors_total,
            ),
            (CounterMetricFamily, "llmtop_swaps", "Loads begun.", e.journal.swaps().count),
            (CounterMetricFamily, "llmtop_oom_lines", "Out-of-memory lines of children.", e.oom.count),
            (GaugeMetricFamily, "llmtop_queue_waiters", "Requests that wait.", len(w.waiting)),
            (GaugeMetricFamily, "llmtop_queue_held", "1 while the queue is held.", float(w.hold)),
            (GaugeMetricFamily, "llmtop_models_max", "Most children at once, 0 for no cap.", w.limits.models_max),
            (GaugeMetricFamily, "llmtop_reserved_bytes", "Bytes reserved by children.", w.reserved()),
            (GaugeMetricFamily, "llmtop_budget_bytes", "The byte budget.", w.budget),
            (
                GaugeMetricFamily,
                "llmtop_stranded_bytes",
                "Bytes of stopped children that have not returned.",
                w.stranded,
            ),
            (GaugeMetricFamily, "llmtop_memory_used_bytes", "What the gauge shows as used.", self._used()),
        ]
        for family, name, text, value in plain:
            if value is not None:
                yield family(name, text, value=value)
        yield from self._by_model()

    def _used(self) -> int | None:
        sample = self._engine.desk.watch.latest
        return sample.level.bytes if sample is not None else None

    def _by_model(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("llmtop_model_state", "1 for the state a model is in.", labels=["model", "state"])
        flying = GaugeMetricFamily("llmtop_model_in_flight", "Requests in flight.", labels=["model"])
        waiting = GaugeMetricFamily("llmtop_model_waiting", "Requests that wait for this model.", labels=["model"])
        loads = CounterMetricFamily("llmtop_model_loads", "Loads that got ready.", labels=["model"])
        for m in self._engine.machine.world.models.values():
            i = m.instance
            state.add_metric([m.name, i.state.value if i is not None else "unloaded"], 1)
            flying.add_metric([m.name], len(i.in_flight) if i is not None else 0)
            waiting.add_metric([m.name], len(m.entry.waiters) if m.entry is not None else 0)
            loads.add_metric([m.name], m.loads)
        yield from (state, flying, waiting, loads)


def exposition(engine: Engine) -> bytes:
    """Everything, as ``GET /metrics`` sends it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Engine(engine))
    return bytes(generate_latest(registry))
