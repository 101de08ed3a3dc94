"""The operator's verbs. Each says whether it changed anything; all are idempotent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtop.errors import Refusal
from llmtop.scheduler import queue, room
from llmtop.scheduler.actions import Drain, Kill, Replied
from llmtop.scheduler.children import drained
from llmtop.scheduler.events import Evict, Hold, KillNow, Load, Pin, Resume, Step, Unpin
from llmtop.scheduler.requests import cut
from llmtop.scheduler.state import LEAVING, Child, Instance, Model, World

Answer = Replied | None


def _unknown(model: str) -> Replied:
    return Replied(False, Refusal("model_not_found", f"no model {model}"))


def _conflict(m: Model, instance: int | None) -> Replied | None:
    """Another child of that name runs by now."""
    if instance is None or (m.instance is not None and m.instance.id == instance):
        return None
    return Replied(False, Refusal("conflict", f"instance {instance} of {m.name} is gone, another one may run"))


def load(w: World, event: Load, now: float) -> Replied:
    """Load a model through the queue, like any request; an operator's load clears a quarantine."""
    m = w.models.get(event.model)
    if m is None or m.removed:
        return _unknown(event.model)
    if w.closing:
        return Replied(False, Refusal("shutting_down", "llmtop is shutting down"))
    i = m.instance
    if i is not None and i.admits:
        return Replied(False)
    if m.broken is None:
        m.failures, m.quarantined_until, m.refusal = 0, 0.0, None
    refusal = queue.refused(w, m, now) or room.too_large(w, m)
    if refusal is not None:
        return Replied(False, refusal)
    changed = m.entry is None or not m.entry.operator
    entry = queue.enqueue(w, m, now)
    entry.operator = (entry.operator or "startup") if event.startup else "operator"
    queue.pump(w, now)
    return Replied(changed and entry.refused is None, entry.refused)


def evict(w: World, event: Evict, now: float) -> Replied:
    """Drain, then stop; end a load. What only waits in the queue is left alone."""
    m = w.models.get(event.model)
    if m is None:
        return _unknown(event.model)
    if (conflict := _conflict(m, event.instance)) is not None:
        return conflict
    i = m.instance
    if i is None or i.state in LEAVING or i.drain in ("operator", "sick", "removed"):
        return Replied(False)
    if i.state is Child.LOADING:
        _end_load(w, m, i, now)
        return Replied(True)
    i.drain, i.drain_since = "operator", now
    w.out.append(Drain(i.id, i.model, "operator"))
    drained(w, i, now)
    return Replied(True)


def _end_load(w: World, m: Model, i: Instance, now: float) -> None:
    """A load is ended by hand: its waiters are told."""
    queue.stop(w, i, "operator", now)
    if m.entry is not None:
        queue.refuse_entry(w, m.entry, Refusal("load_cancelled", f"the load of {m.name} was ended by the operator"))


def kill(w: World, event: KillNow, now: float) -> Replied:
    """End the process at once, whatever it does."""
    m = w.models.get(event.model)
    if m is None:
        return _unknown(event.model)
    if (conflict := _conflict(m, event.instance)) is not None:
        return conflict
    i = m.instance
    if i is None or i.state is Child.SETTLING:
        return Replied(False)
    if i.state is Child.LOADING:
        _end_load(w, m, i, now)
    elif i.state is not Child.STOPPING:
        queue.stop(w, i, "operator", now)
    for request in sorted(i.in_flight):
        cut(w, i, request, Refusal("upstream_error", f"{m.name} was killed by the operator"))
    w.out.append(Kill(i.id, i.model))
    return Replied(True)


def pin(w: World, event: Pin) -> Replied:
    """Keep a model: never a victim, never idle-unloaded."""
    m = w.models.get(event.model)
    if m is None:
        return _unknown(event.model)
    changed = not m.pinned_by
    m.pinned_by = m.pinned_by or "operator"
    return Replied(changed)


def unpin(w: World, event: Unpin) -> Replied:
    """Let it go again, until restart where the preset pins it."""
    m = w.models.get(event.model)
    if m is None:
        return _unknown(event.model)
    changed = bool(m.pinned_by)
    queue.unpinned(w, m)
    return Replied(changed)


def hold(w: World, now: float) -> Replied:
    """Stop claiming, evicting, draining and idle-unloading; residents go on."""
    changed, w.hold = not w.hold, True
    w.set_clock(now)
    return Replied(changed)


def resume(w: World, now: float) -> Replied:
    """Go on."""
    changed, w.hold, w.permit = w.hold, False, None
    w.set_clock(now)
    return Replied(changed)


def step(w: World, now: float) -> Replied:
    """Let the entry that is head now make one claim."""
    if not w.hold:
        return Replied(False, Refusal("conflict", "the queue is not held: hold it first"))
    head = queue.find_head(w)
    changed = head is not None and w.permit is not head
    w.permit = head or w.permit
    w.set_clock(now)
    return Replied(changed)


TABLE: dict[type, Callable[[World, Any, float], Replied]] = {
    Load: load,
    Evict: evict,
    KillNow: kill,
    Pin: lambda w, event, _: pin(w, event),
    Unpin: lambda w, event, _: unpin(w, event),
    Hold: lambda w, _, now: hold(w, now),
    Resume: lambda w, _, now: resume(w, now),
    Step: lambda w, _, now: step(w, now),
}
