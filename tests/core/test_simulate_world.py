from __future__ import annotations

import random

import pytest

from llmtop.errors import Refusal
from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler.events import Limits
from llmtop.simulate.baselines import InOrder, RouterRules
from llmtop.simulate.bound import lower_bound
from llmtop.simulate.outcome import measure, nearest_rank
from llmtop.simulate.timeline import timeline
from llmtop.simulate.world import Ask, History, Known, Policy, World, llmtop

GIB = 2**30
KNOWN = Known(size=10 * GIB, load_s=10, stop_s=2, settle_s=1)
MODELS = dict.fromkeys("ABC", KNOWN)


def run(policy: Policy, *asks: tuple[float, str, float]) -> History:
    return World(policy, MODELS, [Ask(*ask) for ask in asks]).run()


def granted(history: History) -> list[float | None]:
    return [fate.granted_at for fate in history.fates]


def random_asks(seed: int, count: int = 150) -> list[tuple[float, str, float]]:
    rng = random.Random(seed)
    t = 0.0
    asks: list[tuple[float, str, float]] = []
    for _ in range(count):
        t += rng.expovariate(1 / 4)
        asks.append((t, rng.choice("AABC"), rng.uniform(0.1, 20)))
    return asks


def test_request_waits_for_drain_stop_settle_and_load() -> None:
    history = run(llmtop(Limits(1), MODELS), (0, "A", 5), (1, "B", 5))
    assert granted(history) == [10, 10 + 5 + 2 + 1 + 10]
    outcome = measure(history)
    assert (outcome.swaps, outcome.evictions, outcome.makespan_s, outcome.busy_s) == (2, 1, 33, 10)
    assert (outcome.wait_mean_s, outcome.wait_max_s) == (18.5, 27)
    assert (outcome.peak_models, outcome.peak_bytes) == (1, 10 * GIB)


def test_budget_keeps_models_apart_that_the_cap_would_allow() -> None:
    asks = [(0.0, "A", 5.0), (0.0, "B", 5.0), (0.0, "C", 5.0)]
    assert measure(run(llmtop(Limits(4), MODELS), *asks)).peak_bytes == 30 * GIB
    outcome = measure(run(llmtop(Limits(4), MODELS, budget=20 * GIB), *asks))
    assert (outcome.peak_bytes, outcome.peak_models, outcome.complete) == (20 * GIB, 2, True)


def test_model_that_never_fits_is_refused_and_counted() -> None:
    outcome = measure(run(llmtop(Limits(4), MODELS, budget=5 * GIB), (0, "A", 5)))
    assert (outcome.answered, outcome.refused, outcome.complete) == (0, {"model_too_large": 1}, False)


def test_busy_model_is_drained_after_max_wait() -> None:
    asks = [(float(t), "A", 4.0) for t in range(0, 200, 2)]
    history = run(llmtop(Limits(1, max_wait_s=15), MODELS), *asks, (20, "B", 1))
    assert history.fates[-1].granted_at == pytest.approx(20 + 15 + 3 + 2 + 1 + 10)
    starved = run(RouterRules(1), *asks, (20, "B", 1))
    assert (starved.fates[-1].granted_at or 0) > 200


def test_drain_timeout_cuts_what_takes_too_long() -> None:
    policy = llmtop(Limits(1, max_wait_s=5, drain_timeout_s=3), MODELS)
    history = run(policy, (0, "A", 1000), (11, "B", 1))
    assert history.fates[0].refused == "upstream_error"
    assert history.fates[1].granted_at == 11 + 5 + 3 + 2 + 1 + 10


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_no_policy_breaks_the_world(seed: int, cap: int) -> None:
    asks = random_asks(seed)
    for policy in (llmtop(Limits(cap), MODELS), RouterRules(cap), InOrder(cap)):
        world = World(policy, MODELS, [Ask(*ask) for ask in asks])
        history = world.run()
        outcome = measure(history)
        assert outcome.complete, policy
        if not isinstance(policy, RouterRules | InOrder):
            assert outcome.peak_models <= cap
        bound = lower_bound([fate.ask for fate in history.fates], MODELS, cap, outcome.wait_max_s)
        assert outcome.swaps >= bound.swaps
        assert outcome.makespan_s >= bound.makespan_s - 1e-9


def test_router_rules_evict_no_more_than_the_waiting_need() -> None:
    history = run(RouterRules(2), (0, "A", 1), (0, "B", 2), (20, "C", 1))
    assert (history.loads, history.evictions) == (3, 1)
    assert [mark for _, mark in history.marks["B"]][-1] == "="


class Scripted:
    """Starts a child, ends its load at once, and refuses who waits when it is gone."""

    wake_at = None

    def __init__(self) -> None:
        self.heard: list[tuple[float, ev.Event]] = []

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        self.heard.append((now, event))
        match event:
            case ev.Arrived():
                return [act.Spawn(1, "A", 0, "request", 0.0), act.Stop(1, "A", "operator", loading=True)]
            case ev.Exited():
                return [act.Settle(1, "A")]
            case _:
                return [act.Refuse(0, "A", Refusal("load_cancelled", "ended"))]


def test_load_that_is_ended_never_gets_ready_and_is_gone_soon() -> None:
    policy = Scripted()
    history = World(policy, MODELS, [Ask(0.0, "A", 1.0)]).run()
    assert policy.heard == [(0.0, ev.Arrived(0, "A")), (0.5, ev.Exited(1)), (1.5, ev.Settled(1))]
    assert history.marks["A"] == [(0.0, "."), (0.0, "l"), (0.0, "x"), (1.5, ".")]
    assert (history.evictions, history.fates[0].refused) == (0, "load_cancelled")


def test_news_of_a_child_that_is_stopping_is_not_made_up() -> None:
    policy = Scripted()
    slow = dict.fromkeys("A", Known(load_s=0.2, stop_s=0.4))
    World(policy, slow, [Ask(0.0, "A", 1.0)]).run()
    assert ev.Ready(1) not in [event for _, event in policy.heard]


def test_same_trace_gives_the_same_run() -> None:
    one, two = (run(llmtop(Limits(2), MODELS), *random_asks(3)) for _ in range(2))
    assert one.marks == two.marks
    assert granted(one) == granted(two)


def test_router_rules_share_an_entry_and_evict_once_for_it() -> None:
    history = run(RouterRules(1), (0, "A", 1), (12, "B", 1), (12, "B", 1), (12.5, "B", 1))
    assert (history.loads, history.evictions) == (2, 1)
    assert granted(history)[1:] == [24, 24, 24]


def test_router_rules_do_not_wait_for_memory() -> None:
    assert run(RouterRules(1), (0, "A", 1), (12, "B", 1)).peak_models == 2


def test_plain_queue_lets_nobody_overtake() -> None:
    history = run(InOrder(1), (0, "A", 1), (10, "B", 1), (10.5, "A", 1))
    assert [at for at in granted(history) if at is not None] == sorted(at for at in granted(history) if at is not None)
    assert history.loads == 3


def test_bound_on_swaps_counts_spans_that_need_one() -> None:
    asks = [Ask(t, model, 1.0) for t, model in ((0, "A"), (100, "B"), (200, "A"), (300, "B"))]
    assert lower_bound(asks, MODELS, 1, patience_s=10).swaps == 3
    assert lower_bound(asks, MODELS, 1, patience_s=1000).swaps == 2
    assert lower_bound(asks, MODELS, 2, patience_s=10).swaps == 2


def test_policy_that_spins_is_told_from_one_that_waits() -> None:
    class Spinning:
        wake_at = 0.0

        def handle(self, event: object, now: float) -> list[object]:
            return []

    with pytest.raises(RuntimeError, match="woken for ever"):
        World(Spinning(), MODELS, [Ask(5.0, "A", 1.0)]).run()  # type: ignore[arg-type]


def test_timeline_shows_loading_work_idleness_and_leaving() -> None:
    history = run(llmtop(Limits(1), MODELS), (0, "A", 5), (1, "B", 5))
    assert timeline(history, 33) == [
        ("A", "l" * 10 + "#" * 5 + "x" * 3 + "." * 15),
        ("B", "." * 18 + "l" * 10 + "#" * 5),
        ("C", "." * 33),
    ]


def test_short_work_is_not_hidden_in_a_narrow_timeline() -> None:
    history = run(llmtop(Limits(1), MODELS), (0, "A", 5), (1000, "B", 1))
    rows = dict(timeline(history, 10))
    assert rows["B"].endswith("l")
    assert rows["A"][0] in "l#="


@pytest.mark.parametrize(("values", "expected"), [([], 0.0), ([1.0], 1.0), ([float(n) for n in range(1, 101)], 95.0)])
def test_percentile_is_a_value_that_occurred(values: list[float], expected: float) -> None:
    assert nearest_rank(values, 0.95) == expected
