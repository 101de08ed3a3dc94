"""Corners of the scheduler's rules that are easily missed."""

from __future__ import annotations

import pytest

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, grants, leave, new, of, refusals, spawns, stops, up
from llmtop.testing.world import Pace, World


@pytest.fixture
def make() -> Make:
    return World


CRASH = Failure("crash", "segfault")


def test_who_comes_back_for_a_load_about_to_be_given_up_is_answered(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40}, B={"declared": 40}, C={"declared": 70})
    up(w, "A")
    w.ask("A")
    w.feed(ev.Left(w.ask("B")))  # B loads for nobody
    w.ask("C")  # needs the room of both
    w.pass_time(20)
    w.ask("B")
    w.behave(Pace(load=1.0, work=5.0))


def test_a_pinned_model_whose_process_is_stuck_still_refuses_its_requests(make: Make) -> None:
    w = new(make, A={"pinned": True})
    w.feed(ev.Load("A"))
    for n in range(1, 7):  # 1, 2, 4 … 32 s of quarantine
        w.feed(ev.Exited(n, CRASH))
        w.feed(ev.Settled(n))
        w.pass_time(33.0)
    w.feed(ev.Ready(7))
    w.feed(ev.Sick(7, Failure("sick", "three 500s")))  # before its first good answer: 60 s
    w.pass_time(20)
    w.feed(ev.Stuck(7))
    w.pass_time(100)
    w.feed(ev.Tick())
    request = w.ask("A")
    assert refusals(w) == [(request, "slot_stuck")]


def test_a_pinned_model_comes_back_once_stranded_memory_has(make: Make) -> None:
    w = new(make, budget=100, A={"declared": 80, "pinned": True})
    one = up(w, "A")
    w.pass_time(100)
    w.feed(ev.Exited(one, CRASH))
    w.feed(ev.Budget(100, 50))
    w.feed(ev.Settled(one))
    w.feed(ev.Budget(100, 0))
    w.pass_time(100)
    assert w.of("A") is not None


def test_a_pinned_model_comes_back_once_its_stuck_process_is_gone(make: Make) -> None:
    w = new(make, A={"pinned": True})
    one = up(w, "A")
    w.feed(ev.Sick(one, Failure("sick", "three 500s")))
    w.feed(ev.Stuck(one))
    leave(w, one)
    w.pass_time(100)
    assert w.of("A") is not None


def test_a_second_try_without_a_budget_loads_alone(make: Make) -> None:
    w = new(make, cap=2)
    one = up(w, "A")
    w.ask("B")
    w.feed(ev.Exited(2, Failure("oom", "out of memory")))
    w.feed(ev.Settled(2))
    leave(w, one)
    assert spawns(w) == ["B"]
    w.ask("C")
    assert spawns(w) == []


def test_a_measurement_after_the_second_try_ends_the_raised_reservation(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60, "pinned": False}, B={"declared": 30})
    one = up(w, "A")
    w.ask("B")
    w.feed(ev.Exited(2, Failure("oom", "out of memory")))
    w.feed(ev.Settled(2))
    leave(w, one)
    w.feed(ev.Ready(3))
    w.feed(ev.Measured("B", 35))
    w.ask("A")
    assert spawns(w) == ["A"]


def test_a_request_granted_after_a_drain_counts_as_asked_again(make: Make) -> None:
    w = new(make)
    busy = w.ask("A")
    w.pass_time(20)
    w.feed(ev.Ready(1))
    head = w.ask("B")
    w.pass_time(15.1)
    late = w.ask("A")
    w.feed(ev.Left(head))
    assert grants(w) == [late]
    w.feed(ev.Left(busy, True))
    w.feed(ev.Left(late, True))
    w.ask("B")
    assert stops(w) == []


def test_of_two_models_used_at_the_same_moment_the_smaller_goes(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 40}, C={"declared": 30})
    w.feed(ev.Load("A"))
    w.feed(ev.Load("B"))
    w.feed(ev.Ready(1))
    w.feed(ev.Ready(2))
    w.ask("C")
    assert stops(w) == [("B", "bytes")]


def test_autoload_off_refuses_a_model_that_is_on_its_way_out(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    w.feed(ev.Limited(ev.Limits(models_max=1, autoload=False)))
    request = w.ask("A")
    assert refusals(w) == [(request, "model_not_loaded")]
    leave(w, one)


def test_evict_on_sleep_is_made_up_for_after_a_hold(make: Make) -> None:
    w = new(make, A={"evict_on_sleep": True})
    one = up(w, "A")
    w.feed(ev.Hold())
    w.feed(ev.Slept(one))
    w.feed(ev.Resume())
    assert stops(w) == [("A", "sleep")]


def test_a_budget_that_is_switched_on_counts_who_runs_already(make: Make) -> None:
    w = new(make, cap=0, A={"declared": 80}, B={"declared": 80})
    up(w, "A")
    w.feed(ev.Budget(100))
    w.ask("B")
    assert spawns(w) == []


def test_an_operators_unpin_outlives_a_reload(make: Make) -> None:
    w = new(make, A={"pinned": True})
    w.feed(ev.Unpin("A"))
    w.feed(ev.Configured(ev.Facts("A", pinned=True)))
    assert not w.machine.world.models["A"].pinned_by


def test_a_changed_preset_ends_a_bad_argument_at_once(make: Make) -> None:
    w = new(make)
    w.ask("A")
    w.feed(ev.Exited(1, Failure("bad_argument", "unknown flag")))
    w.feed(ev.Settled(1))
    w.feed(ev.Configured(ev.Facts("A")))
    w.ask("A")
    assert spawns(w) == ["A"]


def test_an_evicted_model_that_falls_sick_while_it_drains_stays_away(make: Make) -> None:
    w = new(make, A={"pinned": True})
    one = up(w, "A")
    busy = w.ask("A")
    w.feed(ev.Evict("A"))
    w.feed(ev.Sick(one, Failure("sick", "three 500s")))
    w.feed(ev.Left(busy))
    leave(w, one)
    w.pass_time(100)
    assert w.of("A") is None


def test_a_pin_taken_out_of_the_preset_takes_its_reload_along(make: Make) -> None:
    w = new(make, A={"pinned": True})
    one = up(w, "A")
    w.pass_time(100)
    w.feed(ev.Exited(one, CRASH))
    w.feed(ev.Configured(ev.Facts("A")))
    w.feed(ev.Settled(one))
    assert of(w, act.Spawn) == []


def test_a_taken_port_never_counts_as_a_failure(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    w.feed(ev.Exited(1, Failure("port", "in use")))
    request = w.ask("A")
    assert refusals(w) == []
    assert request in w.waiting()


def test_after_a_failed_load_an_unwanted_one_may_be_cancelled_again(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    w.feed(ev.Left(w.ask("B")))  # cancels A
    leave(w, 1)
    w.ask("A")
    w.feed(ev.Exited(2, CRASH))
    w.feed(ev.Settled(2))
    w.pass_time(2)
    w.feed(ev.Left(w.ask("A")))
    w.ask("B")
    assert stops(w) == [("A", "unwanted")]


def test_a_load_asked_for_by_hand_goes_on_when_who_waited_leaves_even_on_another_port(make: Make) -> None:
    w = new(make, B={"declared": 40})
    request = w.ask("A")
    w.feed(ev.Load("A"))
    w.feed(ev.Exited(1, Failure("port", "in use")))
    w.feed(ev.Settled(1))
    w.feed(ev.Left(request))
    w.ask("B")
    assert stops(w) == []
    w.feed(ev.Ready(2))
    assert w.of("A") is not None


def test_a_model_that_was_gone_comes_back_without_the_pin_said_of_its_name_meanwhile(make: Make) -> None:
    w = new(make, A={"declared": 40})
    w.feed(ev.Removed("A"))
    w.feed(ev.Pin("A"))
    w.feed(ev.Configured(ev.Facts("A", declared=40)))
    up(w, "A")
    w.ask("B")
    assert stops(w) == [("A", "cap")]
