"""The scheduler's rules 7 to 12 (who goes away, who sleeps, how long anybody waits) by example."""

from __future__ import annotations

import pytest

from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, drains, grants, leave, lifts, new, spawns, stops, up
from llmtop.testing.world import Pace, World


@pytest.fixture
def make() -> Make:
    return World


def draining(w: World) -> list[str]:
    """Why children drain now."""
    return [p.drain for p in w.processes.values() if p.drain]


# --- rule 7: who goes away


def test_a_waiter_that_leaves_gives_its_turn_to_the_next(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    busy = w.ask("A")
    gone, _ = w.ask("B"), w.ask("C")
    w.feed(ev.Left(gone))
    w.feed(ev.Left(busy))
    w.pass_time(6)
    leave(w, one)
    assert spawns(w) == ["C"]


def test_a_load_nobody_wants_is_cancelled_when_the_head_needs_its_room(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    assert stops(w) == []
    w.ask("B")
    assert stops(w) == [("A", "unwanted")]


def test_a_load_is_not_cancelled_twice_in_a_row(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    b = w.ask("B")
    w.feed(ev.Left(b))
    leave(w, 1)
    w.feed(ev.Left(w.ask("A")))
    w.ask("B")
    assert stops(w) == []
    w.feed(ev.Ready(2))
    assert stops(w) == [("A", "cap")]


def test_after_a_load_that_succeeded_the_next_may_be_cancelled_again(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    w.feed(ev.Left(w.ask("B")))
    leave(w, 1)
    two = up(w, "A")
    w.feed(ev.Evict("A"))
    leave(w, two)
    w.feed(ev.Left(w.ask("A")))
    w.ask("B")
    assert stops(w) == [("A", "unwanted")]


def test_a_load_that_somebody_came_back_for_is_not_cancelled(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    w.ask("A")
    w.ask("B")
    assert stops(w) == []


@pytest.mark.parametrize("startup", [False, True])
def test_a_load_asked_for_by_hand_is_wanted_until_it_is_ready(make: Make, startup: bool) -> None:
    w = new(make)
    w.feed(ev.Load("A", startup))
    w.ask("B")
    assert stops(w) == []
    w.feed(ev.Ready(1))
    assert stops(w) == [("A", "cap")]


# --- rule 8: sleep, idle-unload, pins


def test_a_sleeping_child_keeps_slot_and_bytes(make: Make) -> None:
    w = new(make, cap=2, A={"pinned": True})
    w.feed(ev.Slept(up(w, "A")))
    assert stops(w) == []
    up(w, "B")
    w.ask("C")
    assert stops(w) == [("B", "cap")]


def test_evict_on_sleep_frees_an_unpinned_child(make: Make) -> None:
    w = new(make, cap=2, A={"evict_on_sleep": True}, B={"evict_on_sleep": True, "pinned": True})
    w.feed(ev.Slept(up(w, "A")))
    assert stops(w) == [("A", "sleep")]
    w.feed(ev.Slept(up(w, "B")))
    assert stops(w) == []


def test_evict_on_sleep_takes_one_that_slept_before_its_requests_end_was_told(make: Make) -> None:
    w = new(make, cap=2, A={"evict_on_sleep": True})
    one = up(w, "A")
    request = w.ask("A")
    w.feed(ev.Slept(one))
    assert stops(w) == []
    w.feed(ev.Left(request, True))
    assert stops(w) == [("A", "sleep")]


@pytest.mark.parametrize("asleep", [False, True])
def test_idle_unload_stops_a_child_idle_that_long(make: Make, asleep: bool) -> None:
    w = new(make, A={"idle_unload_s": 30.0})
    one = up(w, "A")
    if asleep:
        w.feed(ev.Slept(one))
    w.pass_time(29.9)
    assert not w.processes[one].told
    w.pass_time(0.2)
    assert w.processes[one].told == "idle"


def test_idle_unload_counts_from_the_last_request_and_spares_the_pinned(make: Make) -> None:
    w = new(make, cap=2, A={"idle_unload_s": 30.0}, B={"idle_unload_s": 30.0, "pinned": True})
    one, two = up(w, "A"), up(w, "B")
    w.pass_time(20)
    request = w.ask("A")
    w.pass_time(60)
    w.feed(ev.Left(request))
    w.pass_time(29)
    assert not w.processes[one].told
    w.pass_time(2)
    assert w.processes[one].told == "idle"
    assert not w.processes[two].told


def test_a_pinned_model_that_crashed_is_loaded_again(make: Make) -> None:
    w = new(make, A={"pinned": True})
    one = up(w, "A")
    w.pass_time(100)
    w.feed(ev.Exited(one, Failure("crash", "segfault")))
    w.feed(ev.Settled(one))
    assert spawns(w) == ["A"]


# --- rules 9 and 10: loads at the start, one queue for all


def test_a_startup_load_evicts_nobody(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 60}, C={"declared": 40})
    for model in "ABC":
        w.feed(ev.Load(model, startup=True))
    assert [p.model for p in w.processes.values()] == ["A", "C"]
    assert "B" not in w.line


def test_a_load_by_hand_waits_its_turn_and_evicts(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    busy = w.ask("A")
    w.ask("B")
    w.feed(ev.Load("C"))
    w.feed(ev.Left(busy))
    w.pass_time(6)
    leave(w, one)
    assert spawns(w) == ["B"]
    request = w.waiting("B")[0]
    w.feed(ev.Ready(2))
    w.feed(ev.Left(request, True))
    assert stops(w) == [("B", "cap")]


# --- rule 11: no starvation


def test_a_loaded_model_takes_new_requests_at_once_while_others_queue(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    third = w.ask("A")
    assert grants(w) == [third]


def test_a_busy_model_drains_once_the_head_has_waited_max_wait(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    busy = w.ask("A")
    w.ask("B")
    w.pass_time(14.9)
    assert draining(w) == []
    w.pass_time(0.2)
    assert draining(w) == ["max-wait"]
    late = w.ask("A")
    assert grants(w) == []
    w.feed(ev.Left(busy, True))
    leave(w, one)
    assert spawns(w) == ["B"]
    assert late in w.waiting()


def test_the_clock_counts_from_ready_of_a_victim_that_came_later(make: Make) -> None:
    w = new(make)
    w.ask("A")
    w.ask("B")
    w.pass_time(20)
    w.feed(ev.Ready(1))
    w.pass_time(14.9)
    assert draining(w) == []
    w.pass_time(0.2)
    assert draining(w) == ["max-wait"]


def test_the_clock_counts_from_becoming_head(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.ask("A")
    head = w.ask("B")
    w.ask("C")
    w.pass_time(14)
    w.feed(ev.Left(head))
    w.pass_time(14)
    assert draining(w) == []
    w.pass_time(1.1)
    assert w.processes[one].wanted_by == "C"


def test_the_clock_stands_still_while_the_queue_is_held(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    w.pass_time(10)
    w.feed(ev.Hold())
    w.pass_time(100)
    w.feed(ev.Resume())
    w.pass_time(4.9)
    assert draining(w) == []
    w.pass_time(0.2)
    assert draining(w) == ["max-wait"]


def test_without_max_wait_busy_models_are_never_drained(make: Make) -> None:
    w = new(make, max_wait=None)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    w.pass_time(10_000)
    assert draining(w) == []


def test_max_wait_zero_drains_at_once(make: Make) -> None:
    w = new(make, max_wait=0.0)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    assert drains(w) == [("A", "max-wait")]


def test_of_busy_models_the_one_granted_longest_ago_drains(make: Make) -> None:
    w = new(make, cap=2, max_wait=5.0)
    up(w, "A")
    up(w, "B")
    w.ask("B")
    w.pass_time(1)
    w.ask("A")
    w.ask("C")
    w.pass_time(5.1)
    assert [p.model for p in w.processes.values() if p.drain] == ["B"]


@pytest.mark.parametrize("how", ["left", "cancelled", "room", "held", "pinned", "large"])
def test_a_drain_is_lifted_in_the_step_that_ends_the_need(make: Make, how: str) -> None:
    w = new(make, max_wait=0.0, budget=100, A={"declared": 10}, B={"declared": 10})
    up(w, "A")
    w.ask("A")
    head = w.ask("B")
    late = w.ask("A")
    ends: dict[str, ev.Event] = {
        "left": ev.Left(head),
        "cancelled": ev.Cancel(head),
        "room": ev.Limited(ev.Limits(models_max=2, max_wait_s=0.0)),
        "held": ev.Hold(),
        "pinned": ev.Pin("A"),
        "large": ev.Configured(ev.Facts("B", declared=200)),
    }
    w.feed(ends[how])
    assert lifts(w) == ["A"]
    assert grants(w) == [late]


@pytest.mark.parametrize("how", ["left", "held"])
def test_an_operators_drain_is_never_lifted(make: Make, how: str) -> None:
    w = new(make, max_wait=0.0)
    up(w, "A")
    w.ask("A")
    head = w.ask("B")
    w.feed(ev.Evict("A"))
    w.feed(ev.Left(head) if how == "left" else ev.Hold())
    assert lifts(w) == []
    assert w.processes[1].drain == "operator"


def test_a_drain_waits_for_its_whole_set(make: Make) -> None:
    w = new(make, cap=0, budget=100, max_wait=0.0, A={"declared": 50}, B={"declared": 50}, C={"declared": 90})
    up(w, "A")
    up(w, "B")
    a, b = w.ask("A"), w.ask("B")
    w.ask("C")
    assert {p.drain for p in w.processes.values()} == {"max-wait"}
    w.feed(ev.Left(a, True))
    assert stops(w) == []
    w.feed(ev.Left(b, True))
    assert {model for model, _ in stops(w)} == {"A", "B"}


def test_a_resident_that_is_asked_all_the_time_does_not_starve_the_queue(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    w.ask("C")
    w.behave(Pace(), stream="A")


def test_an_idle_set_that_makes_room_meanwhile_ends_the_drain(make: Make) -> None:
    w = new(make, cap=2, max_wait=5.0)
    up(w, "A")
    up(w, "B")
    w.ask("A")
    b = w.ask("B")
    w.ask("C")
    w.pass_time(5.1)
    assert draining(w) == ["max-wait"]
    w.feed(ev.Left(b, True))
    assert lifts(w) == ["A"]
    assert [model for model, _ in stops(w)] == ["B"]


# --- rule 12: no thrash


def test_a_load_serves_those_who_waited_before_it_may_go(make: Make) -> None:
    w = new(make, max_wait=0.0)
    first = w.ask("A")
    w.ask("B")
    assert stops(w) == []
    w.feed(ev.Ready(1))
    assert grants(w) == [first]
    assert stops(w) == []


@pytest.mark.parametrize(("load_s", "grace_s"), [(20.0, 2.0), (300.0, 5.0)])
def test_a_model_asked_again_is_idle_after_a_tenth_of_its_load(make: Make, load_s: float, grace_s: float) -> None:
    w = new(make)
    one = up(w, "A", load_s)
    w.feed(ev.Left(w.ask("A"), True))
    w.ask("B")
    w.pass_time(grace_s - 0.1)
    assert not w.processes[one].told
    w.pass_time(0.2)
    assert w.processes[one].told == "cap"


def test_a_model_not_asked_again_has_no_grace(make: Make) -> None:
    w = new(make)
    up(w, "A", 300.0)
    w.ask("B")
    assert stops(w) == [("A", "cap")]


def test_the_grace_ends_when_the_heads_clock_is_out(make: Make) -> None:
    w = new(make, max_wait=3.0)
    one = up(w, "A", 300.0)
    busy = w.ask("A")
    w.ask("B")
    w.pass_time(2.5)
    w.feed(ev.Left(busy, True))
    assert not w.processes[one].told
    w.pass_time(0.6)
    assert w.processes[one].told
