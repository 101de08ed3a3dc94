"""The queue: who is head, when it claims, who goes for it. ``pump`` runs after every event that matters."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.errors import Refusal
from llmtop.scheduler import room
from llmtop.scheduler.actions import Drain, Dropped, Grant, Lift, Refuse, Spawn, Stop
from llmtop.scheduler.state import Child, Entry, Instance, Model, World
from llmtop.snapshot import Failure

PINNED_AGAIN_S = 60.0
"""A pinned model that was refused for now is tried again after this long [s]."""


def pump(w: World, now: float) -> None:
    """Do everything that can be done now: grant, refuse, claim, evict, drain."""
    while _step(w, now):
        pass
    _grant_waiters(w, now)  # a drain that was lifted in the last move
    w.set_clock(now)


def _step(w: World, now: float) -> bool:
    """One move; False when there is none left."""
    _grant_waiters(w, now)
    _end_permit(w, now)
    head = find_head(w)
    if head is None or (w.hold and w.permit is not head):
        lift(w)
        return False
    if w.drain_for is not None and w.drain_for is not head:
        lift(w)
    if head.head_active_s is None:
        head.head_active_s = w.active_s(now)
    m = w.models[head.model]
    want = room.need(w, m)
    refusal = refused(w, m, now) or room.impossible(w, m, want)
    if refusal is not None:
        refuse_entry(w, head, refusal)
        if head.operator == "pinned" and m.broken is None and refusal.type != "model_too_large":
            want_back(w, m, now + (refusal.retry_after_s or PINNED_AGAIN_S))
        return True
    if room.fits(w, want, list(w.instances.values())):
        _claim(w, head, m, want, now)
        return True
    if head.operator == "startup" and not head.waiters:
        text = f"{m.name} is left out at the start: no room beside the others"
        refuse_entry(w, head, Refusal("insufficient_memory", text))
        return True
    return _make_room(w, head, want, now)


def find_head(w: World) -> Entry | None:
    """The first entry that has not claimed and whose model has no instance left."""
    if w.closing:
        return None
    for entry in w.queue.values():
        if not entry.claimed and w.models[entry.model].instance is None:
            return entry
    return None


def _make_room(w: World, head: Entry, want: room.Need, now: float) -> bool:
    """Stop idle victims, or drain busy ones once the head has waited long enough. False: wait."""
    assert head.head_active_s is not None
    idle = room.idle_candidates(w, head.head_active_s, now)
    victims = room.choose(w, want, idle)
    if victims is not None:
        lift(w, but=victims)
        for victim in victims:
            _evict(w, victim, head, now)
        return bool(victims)
    if w.drain_for is head and _still_makes_room(w, want):
        return False
    busy = room.choose(w, want, [*idle, *room.busy_candidates(w, head.head_active_s, now)])
    lift(w)
    if busy:
        w.drain_for, w.drain_set = head, busy
        for victim in busy:
            if victim.up and not victim.drain:  # a load that nobody wants is given up with the set, not drained
                victim.drain, victim.drain_since = "head", now
                w.out.append(Drain(victim.id, victim.model, "max-wait", head.model))
    return False


def _still_makes_room(w: World, want: room.Need) -> bool:
    """The drained set, together with what is leaving, is still enough."""
    out = {i.id for i in w.drain_set}
    if not all(i.leaving or _goes(w, i) for i in w.drain_set):
        return False
    return room.fits(w, want, [i for i in room.staying(w) if i.id not in out])


def _goes(w: World, i: Instance) -> bool:
    """A member of a drained set that still is one: drained and not pinned, or a load that still nobody wants."""
    m = w.models[i.model]
    return not m.pinned_by and (bool(i.drain) if i.up else room.given_up(m, i))


def lift(w: World, but: Sequence[Instance] = ()) -> None:
    """End the drain that belongs to a head's need, ``but`` for those that go now. The operator's drain stays."""
    for i in w.drain_set:
        if i.drain == "head" and i not in but:
            i.drain = ""
            if i.up and i.id in w.instances:
                w.out.append(Lift(i.id, i.model))
    w.drain_for, w.drain_set = None, ()


def _evict(w: World, victim: Instance, head: Entry, now: float) -> None:
    """Stop a victim for the head."""
    m = w.models[victim.model]
    cap = w.limits.models_max
    reason = "cap" if cap > 0 and len(w.instances) >= cap else "bytes"
    if victim.state is Child.LOADING:
        m.unwanted = True
        reason = "unwanted"
    elif victim.drain == "head":
        reason = "max-wait"
    stop(w, victim, reason, now, wanted_by=head.model)


def stop(w: World, i: Instance, reason: str, now: float, *, wanted_by: str = "") -> None:
    """Ask a child to leave. From here on it takes nothing, and only its exit changes it."""
    loading = i.state is Child.LOADING
    i.state, i.stop_reason, i.stop_since, i.evicting_for = Child.STOPPING, reason, now, wanted_by
    w.out.append(Stop(i.id, i.model, reason, wanted_by, loading))


def _claim(w: World, entry: Entry, m: Model, want: room.Need, now: float) -> None:
    """Reserve slot and bytes and start the child, in one step."""
    reserved = room.left_for_one(w, w.instances.values()) if want.alone and w.room is not None else want.bytes
    w.serial += 1
    i = Instance(w.serial, m.name, reserved, now, alone=want.alone, last_used=now)
    w.instances[i.id] = i
    m.instance, m.reload_at = i, None
    w.reloads.discard(m.name)
    entry.claimed = i.id
    if w.permit is entry:
        w.permit = None
        w.set_clock(now)
    reason = "retry" if entry.retried else (entry.operator or "request")
    w.out.append(Spawn(i.id, m.name, reserved, reason, now - entry.since))


def _grant_waiters(w: World, now: float) -> None:
    """Grant everybody who waits for a model that takes requests."""
    if not w.queue:
        return
    for i in list(w.instances.values()):
        m = w.models[i.model]
        if m.entry is not None and i.admits:
            for request, since in m.entry.waiters.items():
                del w.waiting[request]
                i.asked_again |= since > i.ready_at  # it came while the child was drained
                grant(w, i, request, now)
            forget(w, m.entry)


def grant(w: World, i: Instance, request: int, now: float) -> None:
    """Send a request to its child: busy from this very step."""
    w.granted[request] = i.id
    i.in_flight.add(request)
    i.last_granted = i.last_used = now
    w.out.append(Grant(request, i.id, i.model))


def enqueue(w: World, m: Model, now: float) -> Entry:
    """The model's entry, made at the end of the queue if there is none."""
    if m.entry is None:
        m.entry = Entry(m.name, now)
        if m.instance is not None and m.instance.state is Child.LOADING:
            m.entry.claimed = m.instance.id
        w.queue[m.name] = m.entry
    return m.entry


def want_back(w: World, m: Model, at: float) -> None:
    """Load a pinned model again, from that time on, and not before its old process is gone."""
    if m.pinned_by and m.broken is None and not w.closing and not m.removed:
        m.reload_at = max(at, m.quarantined_until)
        w.reloads.add(m.name)


def unpinned(w: World, m: Model) -> None:
    """A pin is gone: what was to come back for it alone does not."""
    m.pinned_by, m.reload_at = "", None
    w.reloads.discard(m.name)
    if m.entry is not None and m.entry.operator == "pinned":
        m.entry.operator = ""
        if not m.entry.waiters:
            forget(w, m.entry)


def forget(w: World, entry: Entry) -> None:
    """Take an entry out of the queue."""
    w.queue.pop(entry.model, None)
    w.models[entry.model].entry = None
    if w.drain_for is entry:
        lift(w)


def refuse_entry(w: World, entry: Entry, refusal: Refusal) -> None:
    """Tell everybody who waits in an entry, and take it out."""
    entry.refused = refusal
    forget(w, entry)
    for request in entry.waiters:
        del w.waiting[request]
        w.out.append(Refuse(request, entry.model, refusal))
    if not entry.waiters:
        w.out.append(Dropped(entry.model, refusal))


def refused(w: World, m: Model, now: float) -> Refusal | None:
    """Why a model is not to be loaded now: broken files, quarantine, its own stuck process."""
    if m.broken is not None:
        return failure_refusal(m.name, m.broken)
    if now < m.quarantined_until and m.refusal is not None:
        left = m.quarantined_until - now
        return Refusal(m.refusal.type, m.refusal.message, retry_after_s=left, details=m.refusal.details)
    if m.instance is not None and m.instance.stuck:
        return Refusal("slot_stuck", f"the last process of {m.name} survived SIGKILL", retry_after_s=30)
    return None


def failure_refusal(model: str, failure: Failure) -> Refusal:
    """What a client is told of a failed load: class, exit code, last lines."""
    kind = "insufficient_memory" if failure.kind == "oom" else "load_failed"
    details = {
        "failure": failure.kind,
        "exit_code": failure.exit_code,
        "signal": failure.signal,
        "lines": list(failure.lines[-5:]),
    }
    text = f"{model} failed to load: {failure.message}"
    return Refusal(kind, f"{text}; {failure.hint}" if failure.hint else text, details=details)


def _end_permit(w: World, now: float) -> None:
    """A permit ends with its entry."""
    if w.permit is not None and (not w.hold or w.queue.get(w.permit.model) is not w.permit):
        w.permit = None
        w.set_clock(now)
