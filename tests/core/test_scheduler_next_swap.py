"""Who goes for the next swap, told before it happens: what the screen says while the queue is held."""

from __future__ import annotations

import random

import pytest

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler import queue, reasons
from llmtop.testing.scenes import Make, leave, new, of, up
from llmtop.testing.walk import new_world
from llmtop.testing.world import World


@pytest.fixture
def make() -> Make:
    return World


def told(w: World) -> str:
    return reasons.next_swap(w.machine.world, w.now).removesuffix(reasons.HELD)


def held(w: World) -> str:
    text = reasons.next_swap(w.machine.world, w.now)
    assert not text or text.endswith(reasons.HELD)
    return told(w)


def test_nothing_is_told_where_nobody_waits(make: Make) -> None:
    w = new(make)
    w.feed(ev.Hold())
    assert held(w) == ""


def test_a_free_slot_costs_nobody_anything(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    w.feed(ev.Hold())
    w.ask("B")
    assert held(w) == "B"


def test_the_idle_model_that_a_step_would_evict_is_named(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    up(w, "B")
    w.feed(ev.Hold())
    w.ask("C")
    assert held(w) == "C, evicts A"
    w.feed(ev.Step())
    assert [a.model for a in of(w, act.Stop)] == ["A"]
    assert told(w) == "C in ~1 s, after A" or told(w) == "C, after A"


def test_the_whole_set_is_named_where_bytes_are_short(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 40}, B={"declared": 40}, C={"declared": 20}, D={"declared": 90})
    for name in "ABC":
        up(w, name)
    w.feed(ev.Hold())
    w.ask("D")
    assert held(w) == "D, evicts A, B, C"


def test_a_busy_model_is_said_to_be_drained_and_an_idle_one_with_it_to_be_evicted(make: Make) -> None:
    w = new(make, cap=0, budget=100, A={"declared": 50}, B={"declared": 50}, C={"declared": 90})
    up(w, "A")
    up(w, "B")
    w.ask("B")
    w.feed(ev.Hold())
    w.ask("C")
    assert held(w) == "C, drains B first, evicts A"


def test_without_max_wait_nobody_is_drained(make: Make) -> None:
    w = new(make, max_wait=None)
    up(w, "A")
    w.ask("A")
    w.feed(ev.Hold())
    w.ask("B")
    assert held(w) == "B, takes A once idle"


def test_a_pin_is_never_a_victim_and_what_cannot_come_is_said_to_be_refused(make: Make) -> None:
    w = new(make, cap=2)
    up(w, "A")
    up(w, "B")
    w.feed(ev.Pin("A"))
    w.feed(ev.Hold())
    w.ask("C")
    assert held(w) == "C, evicts B"
    w.feed(ev.Pin("B"))
    assert held(w) == "C, refused: C cannot load: all 2 slots are taken by pinned A, B"


def test_a_model_in_its_grace_is_named_before_its_grace_is_over(make: Make) -> None:
    w = new(make)
    up(w, "A", load_s=40.0)
    w.feed(ev.Left(w.ask("A"), True))
    w.feed(ev.Hold())
    w.ask("B")
    assert held(w) == "B, evicts A"
    head = queue.find_head(w.machine.world)
    assert head is not None
    assert not reasons.price(w.machine.world, head, w.now).at_once


def test_what_leaves_already_is_waited_for_and_spares_the_others(make: Make) -> None:
    w = new(make, cap=2)
    one = up(w, "A")
    up(w, "B")
    w.feed(ev.Hold())
    w.feed(ev.Evict("A"))
    w.ask("C")
    assert held(w) == "C, after A"
    leave(w, one)
    assert held(w) == "C"


def test_a_drain_under_way_names_those_it_waits_for(make: Make) -> None:
    w = new(make, max_wait=0.0)
    up(w, "A")
    w.ask("A")
    w.ask("B")
    assert told(w) == "B, after A"


def lived_in(seed: int) -> World:
    """A world after some random life, its queue held, and every model asked for that has no child."""
    rng = random.Random(seed)
    w = new_world(rng, World)
    for _ in range(rng.randint(0, 30)):
        w.pass_time(rng.choice([0, 0.1, 1, 3, 20]))
        if rng.random() < 0.4:
            w.ask(rng.choice(list(w.facts)))
        elif moves := w.moves():
            w.feed(rng.choice(moves))
    w.feed(ev.Hold())
    names = list(w.facts)
    rng.shuffle(names)
    for name in names:
        if w.of(name) is None:
            w.ask(name)
    return w


def test_whoever_is_named_goes_at_the_step_in_worlds_of_all_kinds() -> None:
    seen = {"evicts": 0, "busy": 0, "refused": 0}
    for seed in range(1500):
        w = lived_in(seed)
        world = w.machine.world
        head = queue.find_head(world)
        if head is None:
            continue
        said = reasons.price(world, head, w.now)
        w.feed(ev.Step())
        gone = [a.model for a in of(w, act.Stop) if a.wanted_by == head.model]
        if said.refused:
            assert head.refused is not None
        else:
            assert sorted(gone) == (sorted(said.evicts) if said.at_once else [])
            assert {a.model for a in of(w, act.Drain)} <= {*said.busy, *said.evicts}
        for what in seen:
            seen[what] += bool(getattr(said, what))
    assert min(seen.values()) > 20, seen
