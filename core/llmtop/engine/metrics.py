"""``GET /metrics``: everything that is counted, in Prometheus' text format.

Labels carry the ids of configured models and words of llmtop's own, so that no client can make them grow.

| family | type | labels | what |
| --- | --- | --- | --- |
| `llmtop_requests_total` | counter | | requests admitted |
| `llmtop_errors_total` | counter | | requests that ended with a server error or a refusal |
| `llmtop_answers_total` | counter | model, code | requests that are over: `2xx` … `5xx`, `left` |
| `llmtop_refusals_total` | counter | type | requests refused by the queue, or cut, by error type |
| `llmtop_queue_wait_seconds` | histogram | model | from arrival to grant (load included), refusal or leaving |
| `llmtop_request_seconds` | histogram | model | from arrival to the end of the answer: what a client waits |
| `llmtop_relay_overhead_seconds` | histogram | | what llmtop itself takes of a request, its waits left out |
| `llmtop_load_seconds` | histogram | model | from spawn to ready |
| `llmtop_tokens_generated_total` | counter | model | as answers tell (`timings`, `usage`) |
| `llmtop_swaps_total` | counter | | loads begun |
| `llmtop_loads_total` | counter | reason | the same, by what they were begun for |
| `llmtop_stops_total` | counter | reason | stops asked for, by reason |
| `llmtop_exits_total` | counter | signal | children that are gone, by the last word they got; `exit`: by themselves |
| `llmtop_failures_total` | counter | class | failed loads, crashes and sick children |
| `llmtop_oom_lines_total` | counter | | out-of-memory lines of children |
| `llmtop_queue_waiters` | gauge | | requests that wait |
| `llmtop_queue_held` | gauge | | 1 while the queue is held |
| `llmtop_models_max` | gauge | | most children at once, 0 for no cap |
| `llmtop_reserved_bytes` | gauge | | reserved by children, stopping and settling ones included |
| `llmtop_budget_bytes` | gauge | | the byte budget; missing where bytes do not count |
| `llmtop_stranded_bytes` | gauge | | of stopped children, not returned yet |
| `llmtop_memory_used_bytes` | gauge | | what the screen's gauge shows as used |
| `llmtop_memory_wired_bytes` | gauge | | wired (macOS), missing where it cannot be read |
| `llmtop_memory_available_bytes` | gauge | | available, likewise |
| `llmtop_model_state` | gauge | model, state | 1 for the state a model is in |
| `llmtop_model_in_flight` | gauge | model | requests in flight |
| `llmtop_model_waiting` | gauge | model | requests that wait for it |
| `llmtop_model_reserved_bytes` | gauge | model | reserved by its child, 0 without one |
| `llmtop_model_loads_total` | counter | model | loads that got ready |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from llmtop.engine.meters import Histogram

if TYPE_CHECKING:
    from llmtop.engine.driver import Engine

CODES = ("left", "1xx", "2xx", "3xx", "4xx", "5xx", "6xx", "7xx", "8xx", "9xx")


class _Engine(Collector):
    """Reads the engine at each scrape; nothing is counted twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._counters()
        yield from self._gauges()
        yield from self._models()
        yield from self._traffic()

    def _counters(self) -> Iterator[Metric]:
        e = self._engine
        plain = (
            ("llmtop_requests", "Requests admitted.", e.requests_total),
            ("llmtop_errors", "Requests that ended with a server error or a refusal.", e.errors_total),
            ("llmtop_swaps", "Loads begun.", e.journal.swaps().count),
            ("llmtop_oom_lines", "Out-of-memory lines of children.", e.oom.count),
        )
        for name, text, value in plain:
            yield CounterMetricFamily(name, text, value=value)
        yield _labelled("llmtop_loads", "Loads begun, by what they were begun for.", "reason", e.meters.loads)
        yield _labelled("llmtop_stops", "Stops asked for, by reason.", "reason", e.meters.evictions)
        yield _labelled("llmtop_exits", "Children gone, by the last word they got.", "signal", e.meters.stops)
        yield _labelled("llmtop_failures", "Failed loads, crashes and sick children.", "class", e.meters.failures)
        yield _labelled("llmtop_refusals", "Requests refused or cut, by error type.", "type", e.meters.refusals)

    def _gauges(self) -> Iterator[Metric]:
        e, w = self._engine, self._engine.machine.world
        sample = e.desk.watch.latest
        used, wired, available = (
            (sample.level.bytes, sample.wired.bytes, sample.available.bytes) if sample else (None, None, None)
        )
        plain = (
            ("llmtop_queue_waiters", "Requests that wait.", len(w.waiting)),
            ("llmtop_queue_held", "1 while the queue is held.", int(w.hold)),
            ("llmtop_models_max", "Most children at once, 0 for no cap.", w.limits.models_max),
            ("llmtop_reserved_bytes", "Bytes reserved by children.", w.reserved()),
            ("llmtop_budget_bytes", "The byte budget.", w.budget),
            ("llmtop_stranded_bytes", "Bytes of stopped children that have not returned.", w.stranded),
            ("llmtop_memory_used_bytes", "What the gauge shows as used.", used),
            ("llmtop_memory_wired_bytes", "Wired memory.", wired),
            ("llmtop_memory_available_bytes", "Available memory.", available),
        )
        for name, text, value in plain:
            if value is not None:
                yield GaugeMetricFamily(name, text, value=value)

    def _models(self) -> Iterator[Metric]:
        state = GaugeMetricFamily("llmtop_model_state", "1 for the state a model is in.", labels=["model", "state"])
        flying = GaugeMetricFamily("llmtop_model_in_flight", "Requests in flight.", labels=["model"])
        waiting = GaugeMetricFamily("llmtop_model_waiting", "Requests that wait for this model.", labels=["model"])
        reserved = GaugeMetricFamily("llmtop_model_reserved_bytes", "Bytes reserved by its child.", labels=["model"])
        loads = CounterMetricFamily("llmtop_model_loads", "Loads that got ready.", labels=["model"])
        for m in self._engine.machine.world.models.values():
            i = m.instance
            state.add_metric([m.name, i.state.value if i is not None else "unloaded"], 1)
            flying.add_metric([m.name], len(i.in_flight) if i is not None else 0)
            waiting.add_metric([m.name], len(m.entry.waiters) if m.entry is not None else 0)
            reserved.add_metric([m.name], i.reserved if i is not None else 0)
            loads.add_metric([m.name], m.loads)
        yield from (state, flying, waiting, reserved, loads)

    def _traffic(self) -> Iterator[Metric]:
        answers = CounterMetricFamily("llmtop_answers", "Requests that are over.", labels=["model", "code"])
        tokens = CounterMetricFamily("llmtop_tokens_generated", "As answers tell.", labels=["model"])
        waits = HistogramMetricFamily("llmtop_queue_wait_seconds", "From arrival to grant.", labels=["model"])
        total = HistogramMetricFamily("llmtop_request_seconds", "From arrival to the answer's end.", labels=["model"])
        loads = HistogramMetricFamily("llmtop_load_seconds", "From spawn to ready.", labels=["model"])
        for name, meters in self._engine.meters.models.items():
            if name not in self._engine.machine.world.models:
                continue
            for code, count in zip(CODES, meters.answers, strict=True):
                if count:
                    answers.add_metric([name, code], count)
            tokens.add_metric([name], meters.tokens)
            for family, histogram in ((waits, meters.waits), (total, meters.requests), (loads, meters.loads)):
                family.add_metric([name], _buckets(histogram), histogram.total)
        own = HistogramMetricFamily(
            "llmtop_relay_overhead_seconds",
            "From grant to the child, and from its first bytes to the client.",
            buckets=_buckets(self._engine.meters.relay),
            sum_value=self._engine.meters.relay.total,
        )
        yield from (answers, tokens, waits, total, own, loads)


def _labelled(name: str, text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for value, count in sorted(counts.items()):
        family.add_metric([value], count)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Cumulative counts with their upper bounds, as the format wants them."""
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def exposition(engine: Engine) -> bytes:
    """Everything, as ``GET /metrics`` sends it."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Engine(engine))
    return bytes(generate_latest(registry))
