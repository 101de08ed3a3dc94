"""Requests come and go. The common case, a loaded model with an empty queue, touches nothing but two sets."""

from __future__ import annotations

from llmtop.errors import Refusal
from llmtop.scheduler import queue, room
from llmtop.scheduler.actions import Cut, Refuse
from llmtop.scheduler.children import drained
from llmtop.scheduler.events import Arrived, Cancel, Left
from llmtop.scheduler.state import LEAVING, Child, Instance, Model, World

MANY = 4
"""``max_queue`` is for one model; all together may have this many times as much."""


def arrived(w: World, event: Arrived, now: float) -> bool:
    """Grant, queue or refuse a request. True when the queue has to be looked at."""
    m = w.models.get(event.model)
    if event.request in w.waiting or event.request in w.granted:
        return False
    if m is not None and m.instance is not None and m.instance.admits and not w.closing:
        m.instance.asked_again = True
        queue.grant(w, m.instance, event.request, now)
        return False
    refusal = _refused(w, m, event, now)
    if refusal is not None:
        w.out.append(Refuse(event.request, event.model, refusal))
        return False
    assert m is not None
    entry = queue.enqueue(w, m, now)
    joins = bool(entry.waiters)  # one more in an entry changes nobody's turn
    entry.waiters[event.request] = now
    w.waiting[event.request] = m.name
    return not joins


def _refused(w: World, m: Model | None, event: Arrived, now: float) -> Refusal | None:
    """Why this request cannot even wait."""
    if w.closing:
        return Refusal("shutting_down", "llmtop is shutting down")
    if m is None or m.removed:
        return Refusal("model_not_found", f"no model {event.model}")
    if m.entry is None and (refusal := queue.refused(w, m, now)) is not None:
        return refusal
    if (large := room.too_large(w, m)) is not None:
        return large
    autoload = w.limits.autoload if event.autoload is None else event.autoload
    if not autoload and m.entry is None and (m.instance is None or m.instance.state in LEAVING):
        return Refusal("model_not_loaded", f"{m.name} is not loaded, and loading on request is off")
    most = w.limits.max_queue
    if most and m.entry is not None and len(m.entry.waiters) >= most:
        return Refusal("queue_full", f"{most} requests wait for {m.name} already", retry_after_s=m.load_s or 5.0)
    if most and len(w.waiting) >= most * MANY:
        return Refusal("queue_full", f"{len(w.waiting)} requests wait already", retry_after_s=m.load_s or 5.0)
    return None


def left(w: World, event: Left, now: float) -> bool:
    """A request is over. True when the queue has to be looked at."""
    if event.request in w.waiting:
        return _leave_queue(w, event.request)
    instance = w.granted.pop(event.request, None)
    if instance is None:
        return False
    i = w.instances[instance]
    i.in_flight.discard(event.request)
    i.last_used = now
    m = w.models[i.model]
    m.last_used = now
    if event.good:
        i.good = True
        if m.failures:
            m.failures, m.failure, m.refusal = 0, None, None
    if i.in_flight:
        return False
    if i.drain:
        drained(w, i, now)
        return True
    _ask_to_be_woken(w, m, now)
    # One that fell asleep before the request's end was told may have to go now.
    return bool(w.queue) or i.state is Child.SLEEPING


def _ask_to_be_woken(w: World, m: Model, now: float) -> None:
    """Idle-unload counts from here; a timer that fires too early only looks again."""
    if m.facts.idle_unload_s is not None:
        due = now + m.facts.idle_unload_s
        w.wake_at = due if w.wake_at is None else min(w.wake_at, due)


def _leave_queue(w: World, request: int) -> bool:
    """A waiter goes away; an entry that nobody waits for goes with the last of them. True when it was the last."""
    m = w.models[w.waiting.pop(request)]
    assert m.entry is not None
    del m.entry.waiters[request]
    if m.entry.waiters:
        return False
    if not m.entry.operator:
        queue.forget(w, m.entry)
    return True


def cancel(w: World, event: Cancel, now: float) -> bool:
    """The operator ends a request. True when there was one."""
    refusal = Refusal("request_cancelled", "cancelled by the operator")
    if event.request in w.waiting:
        model = w.waiting[event.request]
        _leave_queue(w, event.request)
        w.out.append(Refuse(event.request, model, refusal))
        return True
    if event.request in w.granted:
        i = w.instances[w.granted[event.request]]
        cut(w, i, event.request, refusal)
        i.last_used = now
        if not i.in_flight and i.drain:
            drained(w, i, now)
        return True
    return False


def cut(w: World, i: Instance, request: int, refusal: Refusal) -> None:
    """End a granted request."""
    del w.granted[request]
    i.in_flight.discard(request)
    w.out.append(Cut(request, i.model, refusal))
