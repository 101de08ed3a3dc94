"""What happens by the clock alone, and when to look again."""

from __future__ import annotations

from collections.abc import Iterator

from llmtop.errors import Refusal
from llmtop.scheduler import queue, room
from llmtop.scheduler.children import SICK_DRAIN_S, drained
from llmtop.scheduler.requests import cut
from llmtop.scheduler.state import Child, Instance, World


def due(w: World, now: float) -> None:
    """Do what has become due: end drains that took too long, unload the idle, bring pinned models back."""
    for i in list(w.instances.values()):
        if not i.up:
            continue
        limit = _drain_limit(w, i)
        if limit is not None and i.in_flight and now >= i.drain_since + limit:
            why = "it is sick" if i.sick else f"it had to leave within {limit:g} s"
            for request in sorted(i.in_flight):
                cut(w, i, request, Refusal("upstream_error", f"{i.model} was stopped: {why}"))
            drained(w, i, now)
        elif (at := _idle_end(w, i)) is not None and now >= at:
            queue.stop(w, i, "idle", now)
        elif _sleeps_away(w, i):
            queue.stop(w, i, "sleep", now)
    for name in sorted(w.reloads):
        m = w.models[name]
        if m.reload_at is not None and now >= m.reload_at and m.instance is None:
            m.reload_at = None
            w.reloads.discard(name)
            if m.pinned_by:
                entry = queue.enqueue(w, m, now)
                entry.operator = entry.operator or "pinned"


def next_wake(w: World, now: float) -> float | None:
    """When to look again [s]; None when only an event can change anything."""
    times = [at for i in w.instances.values() for at in _instance_times(w, i)]
    coming = (w.models[name] for name in w.reloads)
    times += [m.reload_at for m in coming if m.reload_at is not None and m.instance is None]
    head = queue.find_head(w)
    if head is not None and head.head_active_s is not None and (not w.hold or w.permit is head):
        times += _head_times(w, head.head_active_s, now)
    return min(times, default=None)


def _instance_times(w: World, i: Instance) -> Iterator[float]:
    """When this child's own limits end."""
    limit = _drain_limit(w, i)
    if limit is not None and i.in_flight:
        yield i.drain_since + limit
    if (at := _idle_end(w, i)) is not None:
        yield at


def _drain_limit(w: World, i: Instance) -> float | None:
    """How long what is in flight on a draining child may take [s]."""
    if not i.drain or not i.up:
        return None
    return SICK_DRAIN_S if i.sick else w.limits.drain_timeout_s


def _idle_end(w: World, i: Instance) -> float | None:
    """When this child has been idle too long [s]; None when that does not apply."""
    m = w.models[i.model]
    if m.facts.idle_unload_s is None or not _may_go(w, i):
        return None
    return i.last_used + m.facts.idle_unload_s


def _sleeps_away(w: World, i: Instance) -> bool:
    """It sleeps, and the preset frees the slot of one that does."""
    return i.state is Child.SLEEPING and w.models[i.model].facts.evict_on_sleep and _may_go(w, i)


def _may_go(w: World, i: Instance) -> bool:
    """Idle, unpinned, waited for by nobody, and the queue is not held."""
    m = w.models[i.model]
    waited_for = m.entry is not None and bool(m.entry.waiters)
    return i.up and not (m.pinned_by or w.hold or i.in_flight or i.drain or waited_for)


def _head_times(w: World, head_active_s: float, now: float) -> Iterator[float]:
    """When a child becomes idle, or may be drained, for the head."""
    for i in w.instances.values():
        if not i.up or w.models[i.model].pinned_by or i.stuck:
            continue
        left = room.clock_left(w, head_active_s, i, now)
        if left is not None and left > 0:
            yield now + left
        if not i.in_flight and (at := i.last_used + room.grace_s(i)) > now:
            yield at
