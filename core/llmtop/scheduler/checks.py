"""What must hold after every step. Asserted in tests, logged and shown in service, never fatal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmtop.scheduler import queue, room
from llmtop.scheduler.actions import Action, Spawn
from llmtop.scheduler.state import Child, World


def broken(w: World, actions: Sequence[Action]) -> Iterator[str]:
    """Each rule that does not hold, in words.

    Args:
        w: The world after a step.
        actions: What that step asked for.
    """
    yield from _claims(w, actions)
    yield from _counts(w)
    yield from _queue(w)
    yield from _drains(w)


def _claims(w: World, actions: Sequence[Action]) -> Iterator[str]:
    """A step that claimed stays within the cap and the budget."""
    if not any(isinstance(a, Spawn) for a in actions):
        return
    cap = w.limits.models_max
    if cap > 0 and len(w.instances) > cap:
        yield f"{len(w.instances)} instances hold slots, the cap is {cap}"
    if w.room is not None and w.reserved() > w.room:
        yield f"{w.reserved()} bytes are reserved, the budget leaves {w.room}"


def _counts(w: World) -> Iterator[str]:
    """Requests and instances are counted once, and where they belong."""
    waiters = {r: e.model for e in w.queue.values() for r in e.waiters}
    if waiters != w.waiting:
        yield "the waiters of the entries are not the waiting requests"
    flying = {r: i.id for i in w.instances.values() for r in i.in_flight}
    if flying != w.granted:
        yield "requests in flight are not the granted ones"
    if waiters.keys() & flying.keys():
        yield "a request waits and is in flight"
    for m in w.models.values():
        if m.instance is not None and w.instances.get(m.instance.id) is not m.instance:
            yield f"{m.name} has an instance that holds no slot"
        if m.entry is not None and w.queue.get(m.name) is not m.entry:
            yield f"{m.name} has an entry that is not in the queue"
    for i in w.instances.values():
        if w.models[i.model].instance is not i:
            yield f"instance {i.id} is not the one of {i.model}"
        if i.in_flight and i.state in (Child.LOADING, Child.SETTLING):
            yield f"{i.model} has requests in flight while {i.state.value}"


def _queue(w: World) -> Iterator[str]:
    """Nobody waits for what is there."""
    for e in w.queue.values():
        i = w.models[e.model].instance
        if i is not None and i.admits:
            yield f"{e.model} takes requests and has an entry in the queue"
        if not e.waiters and not e.operator:
            yield f"the entry of {e.model} waits for nobody"
        if e.claimed and (i is None or i.id != e.claimed):
            yield f"the entry of {e.model} claimed an instance that is gone"
    head = queue.find_head(w)
    if head is None or w.hold:
        return
    m = w.models[head.model]
    if room.fits(w, room.need(w, m), list(w.instances.values())):
        yield f"{head.model} waits at the head while there is room"


def _drains(w: World) -> Iterator[str]:
    """A drain for the head lives only as long as the head needs it."""
    head = queue.find_head(w)
    for i in w.instances.values():
        if i.drain == "head" and i.up and (i not in w.drain_set or w.drain_for is not head or head is None):
            yield f"{i.model} is drained for a head that is gone"
    if w.drain_for is not None and w.hold and w.permit is None:
        yield "a drain goes on while the queue is held"
