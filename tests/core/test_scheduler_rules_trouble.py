"""The scheduler's rules 13 to 15 (bytes, what cannot come, failed loads) by example."""

from __future__ import annotations

import pytest

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, cuts, leave, new, of, refusals, spawns, stops, up
from llmtop.testing.world import World


@pytest.fixture
def make() -> Make:
    return World


# --- rule 13: bytes


def test_the_larger_of_declared_and_measured_is_reserved(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 30, "measured": 40}, B={"declared": 50, "measured": 20})
    w.ask("A")
    w.ask("B")
    assert [p.reserved for p in w.processes.values()] == [40, 50]


def test_an_estimate_counts_until_something_is_measured(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"estimated": 70}, B={"declared": 50})
    up(w, "A")
    w.feed(ev.Measured("A", 40))
    w.feed(ev.Evict("A"))
    leave(w, 1)
    w.ask("A")
    w.ask("B")
    assert [p.reserved for p in w.processes.values()] == [40, 50]


def test_a_model_of_unknown_size_loads_alone_until_measured(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 10}, C={"declared": 10, "pinned": True}, D={"declared": 60})
    one = up(w, "A")
    up(w, "C")
    w.ask("B")
    assert stops(w) == [("A", "bytes")]
    leave(w, one)
    assert w.processes[3].reserved == 90
    w.ask("D")
    w.feed(ev.Ready(3))
    assert spawns(w) == []
    w.feed(ev.Measured("B", 30))
    assert spawns(w) == ["D"]


@pytest.mark.parametrize("how", ["declared", "measured"])
def test_a_model_known_too_large_is_refused_at_once_with_both_numbers(make: Make, how: str) -> None:
    w = new(make, budget=2 * 2**30, A={how: 3 * 2**30})
    request = w.ask("A")
    assert refusals(w) == [(request, "model_too_large")]
    text = of(w, act.Refuse)[0].refusal.message
    assert "3.0 GiB" in text
    assert "2.0 GiB" in text


def test_a_model_only_estimated_too_large_is_tried_beside_pinned_ones_only(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 10}, B={"estimated": 130}, C={"declared": 10, "pinned": True})
    one = up(w, "A")
    up(w, "C")
    w.ask("B")
    assert stops(w) == [("A", "bytes")]
    leave(w, one)
    assert spawns(w) == ["B"]


def test_a_measurement_larger_than_the_reservation_counts_from_then_on(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 30, "pinned": True}, B={"declared": 60})
    up(w, "A")
    w.feed(ev.Measured("A", 50))
    request = w.ask("B")
    assert refusals(w) == [(request, "all_slots_pinned")]


# --- rule 14: never wait for what cannot come


def test_all_slots_pinned_is_said_at_once(make: Make) -> None:
    w = new(make, A={"pinned": True})
    up(w, "A")
    assert refusals(w) == []
    request = w.ask("B")
    assert refusals(w) == [(request, "all_slots_pinned")]


def test_a_pin_takes_a_slot_only_while_its_model_runs(make: Make) -> None:
    w = new(make, A={"pinned": True})
    w.ask("B")
    assert spawns(w) == ["B"]


def test_a_pin_refuses_the_head_that_waits(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    request = w.ask("B")
    w.feed(ev.Pin("A"))
    assert refusals(w) == [(request, "all_slots_pinned")]


def test_stranded_bytes_stay_out(make: Make) -> None:
    w = new(make, budget=100, A={"declared": 80})
    w.feed(ev.Budget(100, 30))
    request = w.ask("A")
    assert refusals(w) == [(request, "insufficient_memory")]


def test_nobody_is_refused_while_the_queue_is_held(make: Make) -> None:
    w = new(make, A={"pinned": True})
    up(w, "A")
    w.feed(ev.Hold())
    request = w.ask("B")
    assert refusals(w) == []
    w.feed(ev.Resume())
    assert refusals(w) == [(request, "all_slots_pinned")]


def test_a_request_for_a_model_whose_own_process_is_stuck_is_refused(make: Make) -> None:
    w = new(make, cap=2)
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    early = w.ask("A")
    w.feed(ev.Stuck(one))
    assert refusals(w) == [(early, "slot_stuck")]
    late = w.ask("A")
    assert refusals(w) == [(late, "slot_stuck")]


# --- rule 15: failed loads


def fail(w: World, model: str, kind: str) -> None:
    """The load of a model fails."""
    p = w.of(model)
    assert p is not None
    w.feed(ev.Exited(p.id, Failure(kind, "it broke", exit_code=1, lines=("last words",))))


@pytest.mark.parametrize(("kind", "told"), [("crash", "load_failed"), ("oom", "insufficient_memory")])
def test_a_failed_load_is_told_to_every_waiter(make: Make, kind: str, told: str) -> None:
    w = new(make)
    first, second = w.ask("A"), w.ask("A")
    fail(w, "A", kind)
    assert refusals(w) == [(first, told), (second, told)]
    details = of(w, act.Refuse)[0].refusal.details
    assert details["exit_code"] == 1
    assert details["lines"] == ["last words"]


def test_a_load_that_fails_while_its_process_lives_is_stopped_and_told(make: Make) -> None:
    w = new(make)
    request = w.ask("A")
    w.feed(ev.LoadFailed(1, Failure("timeout", "no progress")))
    assert stops(w) == [("A", "load-failed")]
    w.feed(ev.Exited(1))
    assert refusals(w) == [(request, "load_failed")]


def test_a_port_that_is_taken_is_replaced_silently_three_times(make: Make) -> None:
    w = new(make)
    w.ask("A")
    for _ in range(3):
        fail(w, "A", "port")
        assert refusals(w) == []
        w.feed(w.moves()[0])
        assert spawns(w) == ["A"]
    fail(w, "A", "port")
    assert refusals(w) == [(1, "load_failed")]


def test_each_failure_in_a_row_doubles_the_quarantine_up_to_a_minute(make: Make) -> None:
    w = new(make)
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        w.ask("A")
        fail(w, "A", "crash")
        w.feed(w.moves()[0])
        w.pass_time(seconds - 0.1)
        w.ask("A")
        assert [a.refusal.retry_after_s for a in of(w, act.Refuse)] == [pytest.approx(0.1)]
        w.pass_time(0.2)


def test_out_of_memory_beside_others_is_tried_once_more_with_more_room(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40}, B={"declared": 30})
    one = up(w, "A")
    request = w.ask("B")
    fail(w, "B", "oom")
    assert refusals(w) == []
    w.feed(ev.Settled(2))
    assert stops(w) == [("A", "bytes")]
    leave(w, one)
    assert [(a.model, a.reserved, a.reason) for a in of(w, act.Spawn)] == [("B", 61, "retry")]
    fail(w, "B", "oom")
    assert refusals(w) == [(request, "insufficient_memory")]


@pytest.mark.parametrize("stranded", [0, 30])
def test_a_raised_reservation_beyond_the_budget_takes_all_but_never_less_than_is_known(
    make: Make, stranded: int
) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40}, B={"declared": 60})
    one = up(w, "A")
    request = w.ask("B")
    fail(w, "B", "oom")
    w.feed(ev.Settled(2))
    w.feed(ev.Exited(one))
    w.feed(ev.Budget(60, stranded))
    if stranded:
        assert refusals(w) == [(request, "insufficient_memory")]
    w.feed(ev.Settled(one))
    assert [(a.model, a.reserved) for a in of(w, act.Spawn)] == ([] if stranded else [("B", 60)])


def test_out_of_memory_alone_is_told_at_once(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40})
    request = w.ask("A")
    fail(w, "A", "oom")
    assert refusals(w) == [(request, "insufficient_memory")]


def test_out_of_memory_without_a_budget_is_tried_again_alone(make: Make) -> None:
    w = new(make, cap=0)
    one = up(w, "A")
    w.ask("B")
    fail(w, "B", "oom")
    w.feed(ev.Settled(2))
    assert stops(w) == [("A", "bytes")]
    leave(w, one)
    assert spawns(w) == ["B"]


def test_a_load_that_succeeds_ends_the_raised_reservation(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40}, B={"declared": 30})
    one = up(w, "A")
    request = w.ask("B")
    fail(w, "B", "oom")
    w.feed(ev.Settled(2))
    leave(w, one)
    w.feed(ev.Ready(3))
    w.feed(ev.Left(request, True))
    w.feed(ev.Evict("B"))
    leave(w, 3)
    w.ask("B")
    assert w.processes[4].reserved == 30


def test_a_crash_within_a_minute_of_ready_counts_as_a_failed_load(make: Make) -> None:
    w = new(make, cap=2)
    one = up(w, "A")
    w.pass_time(59)
    w.feed(ev.Exited(one, Failure("crash", "segfault")))
    request = w.ask("A")
    assert refusals(w) == [(request, "load_failed")]


def test_a_crash_after_a_minute_is_no_failed_load(make: Make) -> None:
    w = new(make, cap=2)
    one = up(w, "A")
    busy = w.ask("A")
    w.pass_time(61)
    w.feed(ev.Exited(one, Failure("crash", "segfault")))
    assert cuts(w) == [(busy, "upstream_error")]
    w.ask("A")
    assert refusals(w) == []


@pytest.mark.parametrize("kind", ["bad_file", "bad_argument"])
def test_a_bad_file_stays_bad_until_the_preset_changes(make: Make, kind: str) -> None:
    w = new(make)
    w.ask("A")
    fail(w, "A", kind)
    w.feed(ev.Settled(1))
    w.pass_time(1000)
    request = w.ask("A")
    assert refusals(w) == [(request, "load_failed")]
    w.feed(ev.Load("A"))
    assert spawns(w) == []
    w.feed(ev.Configured(ev.Facts("A")))
    w.ask("A")
    assert spawns(w) == ["A"]


def test_a_bad_file_is_found_before_anything_is_evicted_for_it(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.feed(ev.Checked("B", Failure("bad_file", "not a GGUF file")))
    request = w.ask("B")
    assert refusals(w) == [(request, "load_failed")]
    assert stops(w) == []


def test_an_operators_load_clears_a_quarantine(make: Make) -> None:
    w = new(make)
    w.ask("A")
    fail(w, "A", "crash")
    w.feed(ev.Settled(1))
    w.feed(ev.Load("A"))
    assert spawns(w) == ["A"]


def test_a_good_answer_ends_the_row_of_failures(make: Make) -> None:
    w = new(make)
    w.ask("A")
    fail(w, "A", "crash")
    w.feed(ev.Settled(1))
    w.pass_time(1)
    up(w, "A")
    w.feed(ev.Evict("A"))
    leave(w, 2)
    w.ask("A")
    fail(w, "A", "crash")
    assert [a.refusal.retry_after_s for a in of(w, act.Refuse)] == [1.0]


def test_a_model_too_large_is_refused_at_once_though_the_queue_is_held(make: Make) -> None:
    w = new(make, budget=100, A={"declared": 120})
    w.feed(ev.Hold())
    request = w.ask("A")
    assert refusals(w) == [(request, "model_too_large")]
