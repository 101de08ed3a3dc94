"""The scheduler's rules 16 to 18 (sick children, the operator, reasons) by example."""

from __future__ import annotations

import pytest

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, cuts, grants, leave, lifts, new, of, refusals, spawns, stops, up
from llmtop.testing.world import World


@pytest.fixture
def make() -> Make:
    return World


# --- rule 16: sick children


def test_a_sick_child_gets_no_new_requests_and_two_seconds(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    busy = w.ask("A")
    w.feed(ev.Sick(one, Failure("oom", "Metal ran out")))
    late = w.ask("A")
    assert grants(w) == []
    w.pass_time(1.9)
    assert busy in w.flying()
    w.pass_time(0.2)
    assert w.fates[busy] == "over"
    assert w.processes[one].told == "sick"
    leave(w, one)
    w.feed(ev.Ready(2))
    assert grants(w) == [late]


def test_a_child_sick_before_its_first_good_answer_is_a_failed_load(make: Make) -> None:
    w = new(make)
    w.ask("A")
    w.feed(ev.Ready(1))
    w.feed(ev.Sick(1, Failure("oom", "x")))
    late = w.ask("A")
    assert refusals(w) == [(late, "insufficient_memory")]


@pytest.mark.parametrize(("apart_s", "fails"), [(500.0, True), (700.0, False)])
def test_sick_for_the_second_time_in_ten_minutes_is_a_failed_load(make: Make, apart_s: float, fails: bool) -> None:
    w = new(make)
    w.feed(ev.Sick(up(w, "A"), Failure("oom", "x")))
    leave(w, 1)
    two = up(w, "A")
    w.pass_time(apart_s)
    w.feed(ev.Sick(two, Failure("oom", "x")))
    w.ask("A")
    assert bool(refusals(w)) is fails


def test_a_sick_childs_drain_is_not_lifted(make: Make) -> None:
    w = new(make, max_wait=0.0)
    one = up(w, "A")
    w.ask("A")
    head = w.ask("B")
    w.feed(ev.Sick(one, Failure("oom", "x")))
    w.feed(ev.Left(head))
    assert lifts(w) == []


# --- rule 17: the operator


def test_evict_drains_and_then_stops(make: Make) -> None:
    w = new(make)
    up(w, "A")
    busy = w.ask("A")
    w.feed(ev.Evict("A"))
    assert stops(w) == []
    w.feed(ev.Left(busy, True))
    assert stops(w) == [("A", "operator")]


def test_evict_of_a_load_ends_it_and_tells_its_waiters(make: Make) -> None:
    w = new(make)
    request = w.ask("A")
    w.feed(ev.Evict("A"))
    assert stops(w) == [("A", "operator")]
    assert refusals(w) == [(request, "load_cancelled")]


def test_a_pinned_model_is_evicted_by_the_operator_and_stays_away(make: Make) -> None:
    w = new(make, A={"pinned": True})
    one = up(w, "A")
    w.feed(ev.Evict("A"))
    assert stops(w) == [("A", "operator")]
    leave(w, one)
    w.pass_time(1000)
    assert not w.processes


def test_force_kill_ends_requests_and_process_at_once(make: Make) -> None:
    w = new(make)
    up(w, "A")
    busy = w.ask("A")
    w.feed(ev.KillNow("A"))
    assert cuts(w) == [(busy, "upstream_error")]
    assert [a.instance for a in of(w, act.Kill)] == [1]


@pytest.mark.parametrize("verb", [ev.Evict, ev.KillNow])
def test_a_verb_for_an_instance_that_is_gone_is_a_conflict(make: Make, verb: type[ev.Evict] | type[ev.KillNow]) -> None:
    w = new(make)
    up(w, "A")
    w.feed(verb("A", 7))
    assert [a.refusal.type for a in of(w, act.Replied)] == ["conflict"]
    assert stops(w) == []


def test_a_queued_and_a_running_request_can_be_cancelled(make: Make) -> None:
    w = new(make)
    up(w, "A")
    busy, queued = w.ask("A"), w.ask("B")
    w.feed(ev.Cancel(queued))
    assert refusals(w) == [(queued, "request_cancelled")]
    w.feed(ev.Cancel(busy))
    assert cuts(w) == [(busy, "request_cancelled")]


def test_a_held_queue_claims_evicts_drains_and_unloads_nothing(make: Make) -> None:
    w = new(make, cap=2, max_wait=0.0, A={"idle_unload_s": 5.0})
    up(w, "A")
    w.feed(ev.Hold())
    w.ask("B")
    w.pass_time(100)
    assert [p.told + p.drain for p in w.processes.values()] == [""]
    request = w.ask("A")
    assert grants(w) == [request]
    w.feed(ev.Resume())
    assert spawns(w) == ["B"]


def test_the_operators_verbs_work_while_the_queue_is_held(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.feed(ev.Hold())
    w.feed(ev.Evict("A"))
    assert stops(w) == [("A", "operator")]


def test_a_step_is_one_claim_with_its_evictions(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Hold())
    w.ask("B")
    w.ask("C")
    w.feed(ev.Step())
    assert stops(w) == [("A", "cap")]
    leave(w, one)
    assert spawns(w) == ["B"]
    w.feed(ev.Ready(2))
    w.feed(ev.Left(w.flying()[0], True))
    w.pass_time(100)
    assert not w.processes[2].told


def test_a_step_ends_with_its_entry(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.feed(ev.Hold())
    first = w.ask("B")
    w.feed(ev.Step())
    w.feed(ev.Left(first))
    w.ask("C")
    w.pass_time(100)
    assert w.processes[1].drain == ""
    w.feed(ev.Resume())
    w.pass_time(14)
    assert w.processes[1].drain == ""


def test_a_step_drains_for_its_entry(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.feed(ev.Hold())
    w.ask("B")
    w.feed(ev.Step())
    w.pass_time(15.1)
    assert w.processes[1].drain == "max-wait"


def test_a_step_of_a_queue_that_is_not_held_is_a_conflict(make: Make) -> None:
    w = new(make)
    w.feed(ev.Step())
    assert [a.refusal.type for a in of(w, act.Replied)] == ["conflict"]


def test_verbs_are_idempotent(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    for verb in (ev.Pin("A"), ev.Unpin("A"), ev.Evict("A"), ev.Hold(), ev.Resume(), ev.Load("B")):
        w.feed(verb)
        first = of(w, act.Replied)[0].changed
        w.feed(verb)
        assert (first, of(w, act.Replied)[0].changed) == (True, False)


# --- rule 18: reasons; and the end


def test_every_decision_carries_its_reason(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 60}, B={"declared": 60}, C={"declared": 10})
    up(w, "A")
    w.ask("B")
    stop = of(w, act.Stop)[0]
    assert (stop.reason, stop.wanted_by) == ("bytes", "B")
    leave(w, 1)
    assert of(w, act.Spawn)[0].reason == "request"
    w.feed(ev.Load("C"))
    assert of(w, act.Spawn)[0].reason == "operator"


def test_a_closing_scheduler_tells_who_waits_and_takes_nobody(make: Make) -> None:
    w = new(make)
    up(w, "A")
    busy, queued = w.ask("A"), w.ask("B")
    w.feed(ev.Close())
    assert refusals(w) == [(queued, "shutting_down")]
    late = w.ask("A")
    assert refusals(w) == [(late, "shutting_down")]
    w.feed(ev.StopAll())
    assert cuts(w) == [(busy, "upstream_error")]
    assert stops(w) == [("A", "shutdown")]


def test_a_drain_timeout_ends_what_is_still_in_flight(make: Make) -> None:
    w = new(make)
    w.feed(ev.Limited(ev.Limits(models_max=1, max_wait_s=0.0, drain_timeout_s=4.0)))
    up(w, "A")
    busy = w.ask("A")
    w.ask("B")
    w.pass_time(3.9)
    assert busy in w.flying()
    w.pass_time(0.2)
    assert w.fates[busy] == "over"
    assert w.processes[1].told


def test_a_full_queue_refuses(make: Make) -> None:
    w = make(ev.Limits(models_max=1, max_queue=2))
    for name in "ABCDE":
        w.feed(ev.Configured(ev.Facts(name)))
    w.feed(ev.Hold())
    w.ask("A")
    w.ask("A")
    third = w.ask("A")
    assert refusals(w) == [(third, "queue_full")]
    for model in "BBCCDD":
        w.ask(model)
    ninth = w.ask("E")
    assert refusals(w) == [(ninth, "queue_full")]


def test_a_model_taken_out_of_the_configuration_drains_and_goes(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    busy = w.ask("A")
    w.feed(ev.Removed("A"))
    late = w.ask("A")
    assert refusals(w) == [(late, "model_not_found")]
    w.feed(ev.Left(busy, True))
    assert stops(w) == [("A", "removed")]
    leave(w, one)
    assert "A" not in w.machine.world.models


def test_autoload_off_refuses_what_is_not_loaded(make: Make) -> None:
    w = new(make)
    w.feed(ev.Limited(ev.Limits(models_max=1, autoload=False)))
    request = w.ask("A")
    assert refusals(w) == [(request, "model_not_loaded")]
    w.feed(ev.Arrived(2, "A", autoload=True))
    assert spawns(w) == ["A"]


def test_the_stop_that_ends_a_drain_for_the_head_says_max_wait(make: Make) -> None:
    w = new(make, max_wait=0.0)
    up(w, "A")
    busy = w.ask("A")
    w.ask("B")
    w.feed(ev.Left(busy, True))
    assert stops(w) == [("A", "max-wait")]


def test_a_step_is_not_good_for_a_second_claim_of_the_same_entry(make: Make) -> None:
    w = new(make)
    w.feed(ev.Hold())
    w.ask("A")
    w.feed(ev.Step())
    assert spawns(w) == ["A"]
    w.feed(ev.Exited(1, Failure("port", "in use")))
    w.feed(ev.Settled(1))
    assert spawns(w) == []
    w.feed(ev.Step())
    assert spawns(w) == ["A"]


def test_the_clock_stands_still_again_when_the_entry_of_a_step_is_gone(make: Make) -> None:
    w = new(make)
    up(w, "A")
    w.ask("A")
    w.feed(ev.Hold())
    first = w.ask("B")
    w.feed(ev.Step())
    w.feed(ev.Left(first))
    before = w.machine.world.active_s(w.now)
    w.pass_time(100)
    assert w.machine.world.active_s(w.now) == pytest.approx(before)
