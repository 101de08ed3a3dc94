"""What children do: get ready, sleep, fail, fall sick, leave. Late news of an old instance is ignored."""

from __future__ import annotations

from llmtop.errors import Refusal
from llmtop.scheduler import queue
from llmtop.scheduler.actions import Cut, Drain, Settle
from llmtop.scheduler.events import Exited, LoadFailed, Ready, Settled, Sick, Slept, Stuck, Woke
from llmtop.scheduler.state import Child, Instance, Model, World
from llmtop.snapshot import Failure

SICK_DRAIN_S = 2.0
"""A sick child's requests get that long to end [s]: it only fails them anyway."""
SICK_AGAIN_S = 600.0
"""Sick for the second time within this is a failed load [s]."""
YOUNG_S = 60.0
"""A crash that soon after ready counts as a failed load [s]."""
BACKOFF_MAX_S = 60.0
PORT_TRIES = 3
LASTING = ("bad_file", "bad_argument", "not_found")
"""Failures that stay until a file or the preset changes."""


def ready(w: World, event: Ready, now: float) -> None:
    """A load is over; those who wait for it are granted by the pump, in this very step."""
    i = w.instances.get(event.instance)
    if i is None or i.state is not Child.LOADING:
        return
    m = w.models[i.model]
    i.state, i.ready_at, i.last_used = Child.LOADED, now, now
    i.ready_active_s = w.active_s(now)
    m.load_s = i.load_s
    m.raised, m.alone, m.unwanted, m.failure = None, False, False, None
    if w.room is None:
        i.alone = False  # it had the machine to itself for its load
    m.loads += 1
    if m.entry is not None and not m.entry.waiters:
        queue.forget(w, m.entry)


def slept(w: World, event: Slept) -> None:
    """Asleep: slot and bytes stay; where the preset says otherwise the timers end it."""
    i = w.instances.get(event.instance)
    if i is None or i.state is not Child.LOADED:
        return
    i.state = Child.SLEEPING


def woke(w: World, event: Woke) -> None:
    """Awake again."""
    i = w.instances.get(event.instance)
    if i is not None and i.state is Child.SLEEPING:
        i.state = Child.LOADED


def load_failed(w: World, event: LoadFailed, now: float) -> None:
    """The load is lost though the process lives: stop it; its exit does the rest."""
    i = w.instances.get(event.instance)
    if i is not None and i.state is Child.LOADING:
        i.failure = event.failure
        queue.stop(w, i, "load-failed", now)


def stuck(w: World, event: Stuck, now: float) -> None:
    """It survived SIGKILL: slot and bytes stay counted."""
    i = w.instances.get(event.instance)
    if i is None or i.state is Child.SETTLING:
        return
    i.stuck = True
    m = w.models[i.model]
    if m.entry is not None:
        refusal = queue.refused(w, m, now)
        if m.entry.operator == "pinned":
            queue.want_back(w, m, now)
        queue.refuse_entry(w, m.entry, refusal or Refusal("slot_stuck", f"the process of {m.name} survived SIGKILL"))


def sick(w: World, event: Sick, now: float) -> None:
    """A loaded child will only fail from now on: no new grants, a short drain, then a fresh one."""
    i = w.instances.get(event.instance)
    if i is None or not i.up or i.sick:
        return
    m = w.models[i.model]
    again = m.sick_at is not None and now - m.sick_at <= SICK_AGAIN_S
    i.sick, i.failure, m.sick_at, m.failure = True, event.failure, now, event.failure
    leaving = i.drain in ("operator", "removed")
    i.drain, i.drain_since = "sick", now
    w.out.append(Drain(i.id, i.model, "sick"))
    if again or not i.good:
        count_failure(w, m, event.failure, now)
    if not leaving:
        queue.want_back(w, m, now)
    drained(w, i, now)


def drained(w: World, i: Instance, now: float) -> None:
    """Stop a child whose own drain is over; a drain for the head ends with its whole set, in the pump."""
    if i.up and not i.in_flight and i.drain in ("operator", "sick", "removed"):
        queue.stop(w, i, i.drain, now)


def exited(w: World, event: Exited, now: float) -> None:
    """The child was reaped: whoever it served is told, its load is judged, its memory is waited for."""
    i = w.instances.get(event.instance)
    if i is None or i.state is Child.SETTLING:
        return
    m = w.models[i.model]
    was, failure = i.state, i.failure or event.failure
    why = failure.message if failure else "it was stopped"
    for request in sorted(i.in_flight):
        del w.granted[request]
        w.out.append(Cut(request, i.model, Refusal("upstream_error", f"{i.model} ended: {why}")))
    i.in_flight.clear()
    i.state, i.stuck = Child.SETTLING, False
    w.out.append(Settle(i.id, i.model))
    if not i.ready_at and i.stop_reason != "unwanted":
        m.unwanted = False
    if was is Child.LOADING or i.stop_reason == "load-failed":
        _load_lost(w, m, i, failure or Failure("crash", "it exited before it was ready"), now)
    elif was in (Child.LOADED, Child.SLEEPING):
        m.failure = failure
        if failure is not None and now - i.ready_at < YOUNG_S and not i.sick:
            count_failure(w, m, failure, now)
        if i.drain not in ("operator", "removed"):
            queue.want_back(w, m, now)


def _load_lost(w: World, m: Model, i: Instance, failure: Failure, now: float) -> None:
    """A load failed: another port, another try with more room, or an error for everybody who waits."""
    entry = m.entry
    m.failure = failure
    if entry is not None:
        entry.claimed, entry.head_active_s = 0, None
        entry.ports += failure.kind == "port"
    if failure.kind == "port" and (entry is None or entry.ports <= PORT_TRIES):
        return
    if failure.kind == "oom" and _with_more_room(w, m, i):
        return
    count_failure(w, m, failure, now)
    queue.want_back(w, m, now)


def _with_more_room(w: World, m: Model, i: Instance) -> bool:
    """Out of memory beside others: ask for more than the room it had. False: tried before, or nobody else is there."""
    others = [o for o in w.instances.values() if o is not i]
    tried = m.entry.retried if m.entry is not None else (m.raised is not None or m.alone)
    if tried or all(o.stuck or w.is_pinned(o) for o in others):
        return False
    if m.entry is not None:
        m.entry.retried = True
    if w.room is None:
        m.alone = True
    else:
        m.raised = w.room - sum(o.reserved for o in others) + 1
    return True


def count_failure(w: World, m: Model, failure: Failure, now: float) -> None:
    """One more failure in a row: everybody who waits is told, and the next try waits 1, 2, 4 … 60 s."""
    m.failures += 1
    m.failure = failure
    m.refusal = queue.failure_refusal(m.name, failure)
    if failure.kind in LASTING:
        m.broken = failure
    m.quarantined_until = now + min(BACKOFF_MAX_S, 2.0 ** (m.failures - 1))
    if m.entry is not None:
        left = m.quarantined_until - now
        told = Refusal(m.refusal.type, m.refusal.message, None if m.broken else left, details=m.refusal.details)
        queue.refuse_entry(w, m.entry, told)


def settled(w: World, event: Settled, now: float) -> None:
    """Slot and bytes are free."""
    i = w.instances.get(event.instance)
    if i is None or i.state is not Child.SETTLING:
        return
    del w.instances[i.id]
    m = w.models[i.model]
    m.instance = None
    if m.entry is not None and m.entry.claimed == i.id:
        m.entry.claimed, m.entry.head_active_s = 0, None
    if i.stop_since:
        m.stop_s = now - i.stop_since
    if m.removed and m.entry is None:
        del w.models[m.name]
