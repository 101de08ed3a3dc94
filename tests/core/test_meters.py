"""What ``/metrics`` counts: each thing once, by words that no client chooses, and cheaply."""

from __future__ import annotations

import timeit
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmtop.engine.meters import WAIT_S, Histogram, Meters
from llmtop.engine.metrics import exposition
from llmtop.engine.records import ChildRecord
from llmtop.errors import Refusal
from llmtop.scheduler import actions as act
from llmtop.scheduler import events
from llmtop.scheduler.machine import Machine
from llmtop.snapshot import Failure, Swaps

ANSWER_US_MAX = 3.0
"""What counting may cost a request [us]; measured 0.6 on an idle machine."""


class Stage:
    """A scheduler whose steps are counted as the engine counts them."""

    def __init__(self) -> None:
        self.machine = Machine(events.Limits(models_max=1))
        self.meters = Meters()
        self.children: dict[int, Any] = {}
        self.now = 0.0
        for name in ("A", "B"):
            self.feed(events.Configured(events.Facts(name)))

    def feed(self, event: events.Event) -> list[act.Action]:
        self.now += 1.0
        actions = self.machine.handle(event, self.now)
        children = cast("dict[int, ChildRecord]", self.children)
        self.meters.step(event, actions, self.machine.world, children, self.now)
        return list(actions)

    def load(self, model: str, request: int) -> int:
        """Ask for a model until its child is spawned; gives the instance."""
        spawned = [a for a in self.feed(events.Arrived(request, model)) if isinstance(a, act.Spawn)]
        self.children[spawned[0].instance] = SimpleNamespace(signal="")
        return spawned[0].instance

    def samples(self) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
        """All samples of the exposition, by name and labels."""
        engine = SimpleNamespace(
            machine=self.machine,
            meters=self.meters,
            requests_total=3,
            errors_total=1,
            journal=SimpleNamespace(swaps=lambda: Swaps(count=1)),
            oom=SimpleNamespace(count=0),
            desk=SimpleNamespace(watch=SimpleNamespace(latest=None)),
        )
        text = exposition(cast("Any", engine)).decode()
        return {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


def test_a_load_is_timed_once_and_counted_by_its_reason() -> None:
    stage = Stage()
    i = stage.load("A", 1)
    stage.feed(events.Ready(i))
    stage.feed(events.Ready(i))
    assert dict(stage.meters.loads) == {"request": 1}
    loads = stage.meters.model("A").loads
    assert (sum(loads.counts), loads.total) == (1, 1.0)


def test_a_child_that_goes_is_counted_by_the_last_word_it_got() -> None:
    stage = Stage()
    i = stage.load("A", 1)
    stage.feed(events.Ready(i))
    stage.feed(events.Left(1, True))
    stage.children[i].signal = "SIGKILL"
    stops = [a for a in stage.feed(events.Evict("A")) if isinstance(a, act.Stop)]
    assert len(stops) == 1
    stage.feed(events.Exited(i))
    stage.feed(events.Exited(i))
    assert dict(stage.meters.evictions) == {"operator": 1}
    assert dict(stage.meters.stops) == {"SIGKILL": 1}
    assert not stage.meters.failures


@pytest.mark.parametrize(("kind", "label"), [("oom", "oom"), ("crash", "crash"), ("a word from a child", "other")])
def test_a_failure_is_counted_once_by_its_class(kind: str, label: str) -> None:
    stage = Stage()
    i = stage.load("A", 1)
    failure = Failure(kind, "it broke")
    stage.feed(events.LoadFailed(i, failure))
    stage.feed(events.Exited(i, failure))
    assert dict(stage.meters.failures) == {label: 1}
    assert sum(stage.meters.refusals.values()) == 1, "its waiter was told"


def test_a_crash_in_service_is_counted_with_the_requests_it_cut() -> None:
    stage = Stage()
    i = stage.load("A", 1)
    stage.feed(events.Ready(i))
    stage.feed(events.Exited(i, Failure("crash", "SIGSEGV")))
    assert dict(stage.meters.failures) == {"crash": 1}
    assert dict(stage.meters.refusals) == {"upstream_error": 1}
    assert dict(stage.meters.stops) == {"exit": 1}


def test_a_cancelled_request_is_counted_by_its_type() -> None:
    stage = Stage()
    stage.feed(events.Ready(stage.load("A", 1)))
    (cut,) = (a for a in stage.feed(events.Cancel(1)) if isinstance(a, act.Cut))
    assert cut.refusal == Refusal("request_cancelled", cut.refusal.message)
    assert dict(stage.meters.refusals) == {"request_cancelled": 1}


def test_a_duration_counts_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram(WAIT_S)
    for seconds in (0.0, 0.005, 0.006, 600.0, 601.0):
        histogram.see(seconds)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-2], histogram.counts[-1]) == (2, 1, 1, 1)


def test_the_exposition_is_what_prometheus_reads() -> None:
    stage = Stage()
    stage.feed(events.Ready(stage.load("A", 1)))
    stage.meters.answer("A", 200, 1500, 2000.0, 17)
    stage.meters.answer("A", 499, 0, 10.0, 0)
    stage.meters.answer("A", 999, 0, 10.0, 0)
    stage.meters.answer("gone", 200, 0, 1.0, 0)
    found = stage.samples()
    model = ("model", "A")
    assert found["llmtop_answers_total", (("code", "2xx"), model)] == 1
    assert found["llmtop_answers_total", (("code", "left"), model)] == 1
    assert found["llmtop_tokens_generated_total", (model,)] == 17
    assert found["llmtop_queue_wait_seconds_count", (model,)] == 3
    assert found["llmtop_queue_wait_seconds_sum", (model,)] == 1.5
    assert found["llmtop_queue_wait_seconds_bucket", (("le", "1.0"), model)] == 2
    assert found["llmtop_queue_wait_seconds_bucket", (("le", "2.5"), model)] == 3
    assert found["llmtop_request_seconds_bucket", (("le", "+Inf"), model)] == 3
    assert found["llmtop_load_seconds_count", (model,)] == 1
    assert found["llmtop_loads_total", (("reason", "request"),)] == 1
    assert found["llmtop_model_state", (model, ("state", "loaded"))] == 1
    assert not [key for key in found if ("model", "gone") in key[1]], "a model that left the configuration has no label"
    assert ("llmtop_budget_bytes", ()) not in found, "what is not known is missing, not 0"


def test_the_relays_own_part_is_counted_for_what_a_child_was_asked() -> None:
    stage = Stage()
    for relay_s in (15e-6, 60e-6, 60e-6, 2.0, 0.0):
        stage.meters.answer("A", 200, 0, 10.0, 0, relay_s)
    found = stage.samples()
    at_most = {
        float(dict(labels)["le"]): int(value)
        for (name, labels), value in found.items()
        if name == "llmtop_relay_overhead_seconds_bucket"
    }
    assert list(at_most)[-1] == float("inf")
    assert (at_most[20e-6], at_most[50e-6], at_most[100e-6], at_most[50e-3], at_most[float("inf")]) == (1, 1, 3, 3, 4)
    assert found["llmtop_relay_overhead_seconds_count", ()] == 4
    assert found["llmtop_relay_overhead_seconds_sum", ()] == pytest.approx(2.000135)


def test_counting_costs_a_request_next_to_nothing() -> None:
    meters = Meters()
    runs = timeit.repeat(lambda: meters.answer("A", 200, 12, 34.5, 20, 5e-5), number=2000, repeat=20)
    assert min(runs) / 2000 * 1e6 < ANSWER_US_MAX
