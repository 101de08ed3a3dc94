"""The scheduler's rules 1 to 6 (who queues, who claims, who goes) by example; the world judges every step besides."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler import room
from llmtop.scheduler.state import Child, Instance, Model
from llmtop.scheduler.state import World as Memory
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, grants, leave, new, of, refusals, spawns, stops, up
from llmtop.testing.world import World


@pytest.fixture
def make() -> Make:
    return World


# --- rule 1: one queue, first in first out


def test_requests_for_one_model_share_one_entry(make: Make) -> None:
    w = new(make)
    first = w.ask("A")
    second = w.ask("A")
    assert spawns(w) == []
    w.feed(ev.Ready(1))
    assert grants(w) == [first, second]


def test_models_load_in_the_order_in_which_they_were_asked_for(make: Make) -> None:
    w = new(make)
    for model in "ABC":
        w.ask(model)
    w.ask("B")
    order = []
    for _ in range(3):
        w.feed(w.moves()[0])  # ready
        for request in w.flying():
            w.feed(ev.Left(request, True))
        order.append(next(p.model for p in w.processes.values()))
        if w.waiting():
            leave(w, next(iter(w.processes)))
    assert order == ["A", "B", "C"]


def test_a_request_number_that_still_waits_is_not_taken_twice(make: Make) -> None:
    w = new(make)
    w.ask("A")
    w.stale(ev.Arrived(1, "A"))


# --- rule 2: only the head claims, in the step that checks


def test_a_burst_does_not_go_beyond_the_cap(make: Make) -> None:
    w = new(make, cap=2)
    for model in "ABCD":
        w.ask(model)
    assert [p.model for p in w.processes.values()] == ["A", "B"]


def test_loads_run_side_by_side_without_a_cap(make: Make) -> None:
    w = new(make, cap=0)
    for model in "ABCD":
        w.ask(model)
    assert len(w.processes) == 4


def test_a_small_model_does_not_overtake_the_head(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 60}, C={"declared": 10})
    w.ask("A")
    w.ask("B")
    w.ask("C")
    assert [p.model for p in w.processes.values()] == ["A"]


def test_an_entry_whose_own_process_is_still_there_lets_the_next_one_be_head(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    w.feed(ev.Evict("A"))
    w.ask("A")
    w.ask("B")
    assert spawns(w) == ["B"]


def test_a_raised_cap_is_used_in_the_same_step(make: Make) -> None:
    w = new(make, cap=1)
    w.ask("A")
    w.ask("B")
    w.feed(ev.Limited(ev.Limits(models_max=2)))
    assert spawns(w) == ["B"]


def test_a_budget_that_grows_lets_the_head_claim(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 60})
    w.ask("A")
    w.ask("B")
    w.feed(ev.Budget(120))
    assert spawns(w) == ["B"]


def test_a_smaller_cap_kills_nothing_and_nothing_is_claimed(make: Make) -> None:
    w = new(make, cap=2, A={"pinned": True}, B={"pinned": True})
    up(w, "A")
    up(w, "B")
    w.feed(ev.Limited(ev.Limits(models_max=1)))
    assert not w.answers
    w.ask("C")
    assert refusals(w) == [(3, "all_slots_pinned")]


# --- rule 3: victims


def test_the_longest_idle_model_goes(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    up(w, "B")
    w.pass_time(10)
    w.feed(ev.Left(w.ask("A"), True))
    w.pass_time(10)
    w.ask("C")
    assert stops(w) == [("B", "cap")]


def test_a_busy_or_pinned_model_is_no_victim(make: Make) -> None:
    w = new(make, cap=3)
    for model in "ABC":
        up(w, model)
    w.ask("A")
    w.feed(ev.Pin("B"))
    w.pass_time(6)
    w.ask("D")
    assert stops(w) == [("C", "cap")]


def test_a_sleeping_model_may_go(make: Make) -> None:
    w = new(make)
    w.feed(ev.Slept(up(w, "A")))
    w.ask("B")
    assert stops(w) == [("A", "cap")]


def test_one_large_victim_is_taken_rather_than_two_small_ones(make: Make) -> None:
    sizes: dict[str, Any] = {"A": {"declared": 30}, "B": {"declared": 30}, "C": {"declared": 40}, "D": {"declared": 40}}
    w = new(make, cap=0, budget=100, **sizes)
    for model in "ABC":
        up(w, model)
    w.ask("D")
    assert stops(w) == [("C", "bytes")]


def test_nothing_is_stopped_before_the_whole_set_can_go(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 50}, B={"declared": 50}, C={"declared": 90})
    up(w, "A")
    up(w, "B")
    request = w.ask("A")
    w.pass_time(6)
    w.ask("C")
    assert stops(w) == []
    w.feed(ev.Left(request))
    w.pass_time(6)
    assert {p.told for p in w.processes.values()} == {"bytes"}


def test_what_is_leaving_counts_as_gone(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    up(w, "B")
    w.feed(ev.Evict("A"))
    w.ask("C")
    assert stops(w) == []


def test_waiters_behind_the_head_protect_nobody(make: Make) -> None:
    w = new(make, cap=2, max_wait=0.0)
    up(w, "A")
    up(w, "B")
    mine, other = w.ask("A"), w.ask("B")
    w.ask("C")  # A drains
    w.ask("A")
    w.feed(ev.Left(mine, True))
    assert [model for model, _ in stops(w)] == ["A"]
    assert other in w.flying()


def memory_of(rng: random.Random) -> tuple[Memory, list[room.Candidate], room.Need]:
    """Instances of random sizes, some of them candidates."""
    w = Memory(ev.Limits(models_max=rng.choice([0, 2, 3, 5])), budget=rng.choice([None, 100]))
    found: list[room.Candidate] = []
    for number in range(1, rng.randint(2, 8)):
        state = rng.choice([Child.LOADED, Child.LOADED, Child.STOPPING])
        i = Instance(number, f"m{number}", rng.choice([5, 10, 20, 30, 45]), 0.0, state)
        w.instances[number], w.models[i.model] = i, Model(ev.Facts(i.model))
        if state is Child.LOADED and rng.random() < 0.8:
            found.append(((rng.choice([1, 1, 2]), rng.random()), i))
    return w, found, room.Need(rng.choice([0, 10, 30, 60, 100]))


def test_the_chosen_set_is_the_best_of_all_sets() -> None:
    rng = random.Random(7)
    for _ in range(500):
        w, candidates, want = memory_of(rng)
        stay = room.staying(w)
        rank = {i.id: r for r, i in candidates}
        sets = [s for n in range(len(candidates) + 1) for s in combinations([i for _, i in candidates], n)]
        able = [s for s in sets if room.fits(w, want, [i for i in stay if i not in s])]
        keys = [(len(s), max((rank[i.id] for i in s), default=(0, 0.0)), sum(i.reserved for i in s)) for s in able]
        chosen = room.choose(w, want, candidates)
        if chosen is None:
            assert not able
        else:
            assert (
                len(chosen),
                max((rank[i.id] for i in chosen), default=(0, 0.0)),
                sum(i.reserved for i in chosen),
            ) == min(keys)


# --- rule 4: spawn only after exit and settling


def test_nothing_is_spawned_before_the_memory_of_the_victim_is_back(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.ask("B")
    assert stops(w) == [("A", "cap")]
    w.feed(ev.Exited(one))
    assert spawns(w) == []
    assert [a.instance for a in of(w, act.Settle)] == [one]
    w.feed(ev.Settled(one))
    assert spawns(w) == ["B"]


def test_bytes_of_a_settling_child_stay_counted(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 60})
    one = up(w, "A")
    w.ask("B")
    w.feed(ev.Exited(one))
    w.pass_time(100)
    assert len(w.processes) == 1


# --- rule 5: asked once, by instance


def test_a_child_is_asked_to_leave_once(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("B")
    for event in (ev.Evict("A"), ev.Evict("A"), ev.Tick(), ev.Slept(1)):
        w.feed(event)
        assert stops(w) == []


def test_a_loading_child_is_asked_by_signals(make: Make) -> None:
    w = new(make)
    w.ask("A")
    w.feed(ev.Evict("A"))
    assert [a.loading for a in of(w, act.Stop)] == [True]


def test_late_news_of_an_instance_long_gone_does_not_touch_the_next_one(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    leave(w, one)
    w.ask("A")
    fault = Failure("oom", "late")
    for event in (ev.Ready(one), ev.Exited(one, fault), ev.Settled(one), ev.Stuck(one), ev.LoadFailed(one, fault)):
        w.stale(event)
    w.feed(ev.Ready(2))
    later: list[ev.Event] = [ev.Exited(one, fault), ev.Sick(one, fault), ev.Slept(one), ev.Settled(2), ev.Ready(2)]
    for late in later:
        w.stale(late)


# --- rule 6: stuck


def test_a_stuck_child_keeps_its_slot_and_its_bytes(make: Make) -> None:
    w = new(make, cap=2, budget=100, A={"declared": 60}, B={"declared": 30}, C={"declared": 60})
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    w.feed(ev.Stuck(one))
    w.ask("B")
    assert spawns(w) == ["B"]
    w.ask("C")
    assert refusals(w) == [(3, "slot_stuck")]


def test_a_stuck_child_that_dies_after_all_frees_its_slot(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    w.feed(ev.Stuck(one))
    leave(w, one)
    w.ask("B")
    assert spawns(w) == ["B"]


def test_an_exit_heard_again_while_the_memory_comes_back_changes_nothing(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    w.feed(ev.Exited(one))
    w.stale(ev.Exited(one, Failure("crash", "again")))


def test_of_sets_of_one_size_and_age_the_one_with_fewest_bytes_goes(make: Make) -> None:
    sizes: dict[str, Any] = {"A": {"declared": 10}, "B": {"declared": 20}, "C": {"declared": 30}, "D": {"declared": 80}}
    w = new(make, cap=0, budget=100, **sizes)
    for model in "ABC":
        up(w, model)
    w.ask("D")
    assert [model for model, _ in stops(w)] == ["A", "C"]
