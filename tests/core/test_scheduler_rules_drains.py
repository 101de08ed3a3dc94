"""Rules 7 and 11 by example: whose drain it is, when its set is chosen anew, which load may be cancelled."""

from __future__ import annotations

import pytest

from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make, drains, leave, lifts, new, stops, up
from llmtop.testing.world import World


@pytest.fixture
def make() -> Make:
    return World


def test_a_drain_whose_set_no_longer_makes_room_is_chosen_anew(make: Make) -> None:
    w = new(make, cap=0, budget=100, max_wait=0.0, A={"declared": 40}, B={"declared": 40}, C={"declared": 50})
    up(w, "A")
    up(w, "B")
    w.ask("A")
    w.pass_time(1)
    w.ask("B")
    w.ask("C")
    assert [p.model for p in w.processes.values() if p.drain] == ["A"]
    w.feed(ev.Budget(60))
    assert [p.model for p in w.processes.values() if p.drain] == ["A", "B"]


def test_a_pin_on_a_draining_model_turns_the_drain_to_another(make: Make) -> None:
    w = new(make, cap=2, max_wait=0.0)
    up(w, "A")
    up(w, "B")
    w.ask("A")
    w.pass_time(1)
    w.ask("B")
    w.ask("C")
    assert drains(w) == [("A", "max-wait")]
    w.feed(ev.Pin("A"))
    assert lifts(w) == ["A"]
    assert drains(w) == [("B", "max-wait")]


def test_a_pinned_busy_model_is_not_drained(make: Make) -> None:
    w = new(make, cap=2, max_wait=0.0, A={"pinned": True})
    up(w, "A")
    up(w, "B")
    w.ask("A")
    w.pass_time(1)
    w.ask("B")
    w.ask("C")
    assert drains(w) == [("B", "max-wait")]


def test_a_load_the_operator_asks_for_while_nobody_waits_is_not_cancelled(make: Make) -> None:
    w = new(make)
    w.feed(ev.Left(w.ask("A")))
    w.feed(ev.Load("A"))
    w.ask("B")
    assert stops(w) == []


def test_a_pinned_model_in_quarantine_comes_back_when_that_is_over(make: Make) -> None:
    w = new(make, A={"pinned": True})
    w.ask("A")
    w.feed(ev.Exited(1, Failure("crash", "segfault")))
    w.feed(ev.Settled(1))
    assert w.of("A") is None
    w.pass_time(1.1)
    assert w.of("A") is not None


def test_an_operators_pin_goes_with_its_model(make: Make) -> None:
    w = new(make)
    one = up(w, "A")
    w.feed(ev.Pin("A"))
    w.feed(ev.Evict("A"))
    w.feed(ev.Removed("A"))
    w.feed(ev.Configured(ev.Facts("A")))
    leave(w, one)
    up(w, "A")
    w.ask("B")
    assert stops(w) == [("A", "cap")]
