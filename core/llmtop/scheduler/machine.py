"""The scheduler: events in, actions out. No I/O, no clock, no lock; the time comes in with each event.

What it promises (``checks`` asserts it after every step of the tests, and watches it in service):

* never more instances than ``models_max``, never more reserved bytes than the budget, at the step of each claim;
* one process a model; no child is started before its slot and bytes are free of the one it replaces;
* every request ends exactly once: granted and then left or cut, or refused;
* the head of the queue never waits while a slot and its bytes are free;
* nobody waits for ever: the head gets its room within max-wait plus what its victims had been granted.
"""

from __future__ import annotations

from llmtop.errors import Refusal
from llmtop.scheduler import children, events, queue, requests, timers, verbs
from llmtop.scheduler.actions import Action, Drain, Replied
from llmtop.scheduler.state import Child, Model, World


class Machine:
    """One queue, one set of children. Not thread-safe and not re-entrant: one task owns it.

    Args:
        limits: The numbers that bound it; an event ``Limited`` changes them.
    """

    def __init__(self, limits: events.Limits) -> None:
        self.world = World(limits)

    @property
    def wake_at(self) -> float | None:
        """When to hand in a ``Tick`` [s, on the clock of the events]; None when only news can change anything."""
        return self.world.wake_at

    def handle(self, event: events.Event, now: float) -> list[Action]:
        """Take one event in and give what is to be done, in order.

        Args:
            event: What happened; stale and repeated news is ignored.
            now: Time of the event [s], never less than that of the one before.
        """
        w = self.world
        w.out = []
        if self._apply(event, now):
            timers.due(w, now)
            queue.pump(w, now)
            w.wake_at = timers.next_wake(w, now)
        return w.out

    def _apply(self, event: events.Event, now: float) -> bool:
        """Change the world by one event. True when queue and timers have to be looked at."""
        w = self.world
        match event:
            case events.Arrived():
                return requests.arrived(w, event, now)
            case events.Left():
                return requests.left(w, event, now)
            case events.Cancel():
                w.out.append(Replied(requests.cancel(w, event, now)))
            case events.Ready():
                children.ready(w, event, now)
            case events.Slept():
                children.slept(w, event)
            case events.Woke():
                children.woke(w, event)
            case events.LoadFailed():
                children.load_failed(w, event, now)
            case events.Sick():
                children.sick(w, event, now)
            case events.Stuck():
                children.stuck(w, event, now)
            case events.Exited():
                children.exited(w, event, now)
            case events.Settled():
                children.settled(w, event, now)
            case events.Tick():
                pass
            case events.Close():
                _close(w)
            case events.StopAll():
                _close(w)
                _stop_all(w, now)
            case _ if type(event) in verbs.TABLE:
                answer = verbs.TABLE[type(event)](w, event, now)
                w.out.append(answer)
            case _:
                _learn(w, event, now)
        return True


def _learn(w: World, event: events.Event, now: float) -> None:
    """Sizes, limits, models and files."""
    match event:
        case events.Budget(total, stranded):
            w.budget, w.stranded = total, stranded
        case events.Limited(limits):
            w.limits = limits
        case events.Measured(model, footprint):
            _measured(w, model, footprint)
        case events.Configured(facts):
            _configured(w, facts)
        case events.Removed(model):
            _removed(w, model, now)
        case events.Checked(model, failure):
            if (m := w.models.get(model)) is not None:
                m.broken = failure
                m.failure = failure or m.failure
                if failure is not None and m.entry is not None and not m.entry.claimed:
                    queue.refuse_entry(w, m.entry, queue.failure_refusal(model, failure))
        case _:
            raise TypeError(f"the scheduler does not know {type(event).__name__}")


def _measured(w: World, model: str, footprint: int) -> None:
    """A footprint replaces the estimate; a child that claimed all the room keeps what it really holds."""
    m = w.models.get(model)
    if m is None:
        return
    m.measured = footprint
    i = m.instance
    if i is not None and i.up:
        known = m.known_bytes or footprint
        i.reserved, i.alone = known, False


def _configured(w: World, facts: events.Facts) -> None:
    """A model is known, or known better. The operator's word on its pin holds until the preset says something new."""
    m = w.models.get(facts.name)
    if m is None:
        m = w.models[facts.name] = Model(facts)
        m.pinned_by = "preset" if facts.pinned else ""
    elif facts.pinned and (m.removed or not m.facts.pinned):
        m.pinned_by = "preset"
    elif m.pinned_by == "preset" and not facts.pinned:
        queue.unpinned(w, m)
    if m.broken is not None:
        m.broken, m.failures, m.quarantined_until, m.refusal = None, 0, 0.0, None
    m.facts, m.removed = facts, False
    m.measured = facts.measured if facts.measured is not None else m.measured
    m.load_s = m.load_s if facts.load_s is None else facts.load_s
    m.stop_s = m.stop_s if facts.stop_s is None else facts.stop_s


def _removed(w: World, model: str, now: float) -> None:
    """A model is gone from the configuration: its waiters are told, its child drains."""
    m = w.models.get(model)
    if m is None:
        return
    m.removed, m.pinned_by = True, ""
    w.reloads.discard(model)
    if m.entry is not None:
        queue.refuse_entry(w, m.entry, Refusal("model_not_found", f"{model} is no longer configured"))
    i = m.instance
    if i is None:
        del w.models[model]
    elif i.state is Child.LOADING:
        queue.stop(w, i, "removed", now)
    elif i.up and not i.sick:
        i.drain, i.drain_since = "removed", now
        w.out.append(Drain(i.id, i.model, "removed"))
        children.drained(w, i, now)


def _close(w: World) -> None:
    """No new requests; who waits is told."""
    w.closing = True
    w.reloads.clear()
    for entry in list(w.queue.values()):
        queue.refuse_entry(w, entry, Refusal("shutting_down", "llmtop is shutting down"))


def _stop_all(w: World, now: float) -> None:
    """Every child is asked to leave, side by side."""
    for i in w.instances.values():
        if i.up or i.state is Child.LOADING:
            for request in sorted(i.in_flight):
                requests.cut(w, i, request, Refusal("upstream_error", "llmtop is shutting down"))
            queue.stop(w, i, "shutdown", now)
