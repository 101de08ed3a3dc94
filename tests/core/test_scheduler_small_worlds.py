"""Every small world: three models, a cap of one or two, all orders of events, as deep as the time allows."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest

from llmtop.scheduler import events as ev
from llmtop.testing.world import Pace, World

MODELS = "ABC"
MAX_WAIT_S = 10.0
STATES = 700
"""New states per world; each is reached by the shortest way there is."""
SAMPLE = 8
"""Liveness is asked of every so-manieth state."""


def small_world(cap: int, budget: int | None) -> World:
    w = World(ev.Limits(models_max=cap, max_wait_s=MAX_WAIT_S))
    w.feed(ev.Budget(budget))
    for name, size in zip(MODELS, (40, 40, 70), strict=True):
        w.feed(ev.Configured(ev.Facts(name, declared=size)))
    return w


def choices(w: World) -> Iterator[ev.Event | float]:
    """All that may happen next; a number lets that much time pass."""
    for model in MODELS:
        if sum(m == model for m in w.queued.values()) < 1 and len(w.flying()) < 3:
            yield ev.Arrived(len(w.fates) + 1, model)
        p = w.of(model)
        if p is not None and not p.told and p.state != "settling":
            yield ev.Evict(model)
    yield ev.Unpin("A") if w.pins.get("A") else ev.Pin("A")
    yield from w.moves()
    yield from (ev.Left(waiting[0]) for m in MODELS if (waiting := w.waiting(m)))
    if w.machine.wake_at is not None:
        yield MAX_WAIT_S


def take(w: World, choice: ev.Event | float) -> World:
    """The world after a choice; the one before is left as it was."""
    after = copy.deepcopy(w)
    if isinstance(choice, float):
        after.pass_time(choice)
    else:
        after.feed(choice)
    return after


def state_of(w: World) -> tuple[Any, ...]:
    """What tells one world from another: ranks instead of times, models instead of numbers."""
    seen = w.machine.world
    uses = sorted({i.last_used for i in seen.instances.values()})
    grants = sorted({i.last_granted for i in seen.instances.values()})
    out: list[Any] = []
    for model in MODELS:
        m = seen.models[model]
        i = m.instance
        entry = m.entry
        waited = None
        if entry is not None and not entry.claimed and entry.head_active_s is not None:
            waited = min(MAX_WAIT_S, seen.active_s(w.now) - entry.head_active_s)
        out.append(
            (m.pinned_by, m.unwanted, entry and (len(entry.waiters), bool(entry.claimed), entry.operator), waited)
        )
        if i is not None:
            ready = min(MAX_WAIT_S, seen.active_s(w.now) - i.ready_active_s) if i.up else 0.0
            use, grant = uses.index(i.last_used), grants.index(i.last_granted)
            out.append((i.state.value, len(i.in_flight), i.drain, use, grant, ready, i.asked_again, i.stop_reason))
    return (*out, tuple(seen.queue))


def explore(w: World) -> tuple[int, int, int]:
    """Breadth first; the world judges every step. Gives states, steps and depth."""
    seen = {state_of(w)}
    todo = deque([(w, 0)])
    steps = deepest = 0
    while todo and len(seen) < STATES:
        here, depth = todo.popleft()
        deepest = max(deepest, depth)
        for choice in choices(here):
            after = take(here, choice)
            steps += 1
            after.probe()
            if (state := state_of(after)) not in seen:
                seen.add(state)
                todo.append((after, depth + 1))
                if len(seen) % SAMPLE == 0:
                    copy.deepcopy(after).behave(Pace(), stream=MODELS[len(seen) % 3])
    return len(seen), steps, deepest


@pytest.mark.parametrize(("cap", "budget"), [(1, None), (2, None), (2, 100), (0, 100)])
def test_nothing_is_broken_in_any_small_world_and_everybody_is_answered(cap: int, budget: int | None) -> None:
    states, steps, depth = explore(small_world(cap, budget))
    assert states >= STATES
    assert steps > states
    assert depth >= 3


def test_two_orders_of_the_same_events_are_two_worlds_only_where_order_matters() -> None:
    """The count would mean nothing if states were told apart by what does not matter, or not by what does."""
    one, two, other = (small_world(1, None) for _ in range(3))
    one.ask("A")
    two.pass_time(7)
    two.feed(ev.Hold())
    two.feed(ev.Resume())
    two.ask("A")
    other.ask("B")
    assert state_of(one) == state_of(two)
    assert state_of(one) != state_of(other)
