"""Why a request waits and what happens next, in one short sentence made from data. Reads the world, changes nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmtop.scheduler import queue, room
from llmtop.scheduler.room import gib
from llmtop.scheduler.state import Child, Entry, Instance, Model, World
from llmtop.snapshot import HELD as HELD

STOP_GUESS_S = 1.0
"""A stop that was never measured is taken to last this long [s]."""


@dataclass(slots=True, frozen=True)
class Price:
    """Who goes for the next swap.

    Args:
        after: Models that are on their way out already.
        evicts: Models that are stopped, idle as they are.
        busy: Models that go with them once their requests are over.
        refused: Why it would be refused instead; empty when it would not.
        at_once: They go at the step; else a grace or the head's clock has to run out first.
    """

    after: tuple[str, ...] = ()
    evicts: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    refused: str = ""
    at_once: bool = True


def plural(count: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def seconds(value: float) -> str:
    """A wait in whole seconds, at least one: ``3 s``."""
    return f"{max(1, round(value))} s"


def entry_reason(w: World, entry: Entry, progress: float | None, now: float) -> str:
    """What an entry waits for.

    Args:
        w: The world.
        entry: An entry of its queue.
        progress: Fraction of its load, if it loads and tells.
        now: Time [s].
    """
    m = w.models[entry.model]
    i = m.instance
    if i is not None:
        return _own_child(w, m, i, progress, now)
    head = queue.find_head(w)
    if w.hold and w.permit is not entry:
        return "the queue is held"
    if head is not entry:
        return f"behind {head.model}" if head is not None else "waiting for its turn"
    return _head_reason(w, entry, m, now)


def _own_child(w: World, m: Model, i: Instance, progress: float | None, now: float) -> str:
    """The model has a child already: it loads, or an old one is on its way out."""
    match i.state:
        case Child.LOADING:
            done = "" if progress is None else f" {progress:.0%}".replace("%", " %")
            return f"loading{done}, {seconds(now - i.spawned_at)}" + (f" of ~{seconds(m.load_s)}" if m.load_s else "")
        case Child.STOPPING:
            return f"its old child is stopping ({i.stop_reason})"
        case Child.SETTLING:
            return "the memory of its old child is not back yet"
        case _:
            busy = plural(len(i.in_flight), "request")
            if i.drain == "head" and w.drain_for is not None:
                return f"drains for {w.drain_for.model}, then loads again"
            return f"its child is {'sick' if i.sick else 'leaving'}, {busy} to end"


def _head_reason(w: World, entry: Entry, m: Model, now: float) -> str:
    """What the head waits for: bytes or a slot, and whom it takes them from."""
    want = room.need(w, m)
    leaving = [i for i in w.instances.values() if i.leaving]
    stay = room.staying(w)
    lack = _lack(w, want, m)
    if leaving and room.fits(w, want, stay):
        return f"{lack}waiting for {_leaving(leaving)}"
    if w.drain_for is entry:
        names = ", ".join(f"{i.model} ({plural(len(i.in_flight), 'request')})" for i in w.drain_set if i.in_flight)
        return f"{lack}draining {names}" if names else f"{lack}waiting for the drained"
    busy = _busy(w)
    text = _blockers(w, busy, stay)
    left = _drain_in(w, entry, busy, now)
    return f"{lack}waiting for {text}" + ("" if left is None else f", drains in {seconds(left)} at the latest")


def _busy(w: World) -> list[Instance]:
    """Who has requests in flight, and could be drained."""
    return [i for i in room.staying(w) if i.up and i.in_flight and not w.models[i.model].pinned_by]


def _blockers(w: World, busy: list[Instance], stay: list[Instance]) -> str:
    """Whom the head waits for."""
    if len(busy) == 1:
        return f"{busy[0].model} to finish {plural(len(busy[0].in_flight), 'request')}"
    if busy:
        names = ", ".join(f"{i.model} ({len(i.in_flight)})" for i in busy)
        return f"one of {names} to be idle" if w.room is None else f"{names} to be idle"
    loading = [i for i in stay if i.state is Child.LOADING]
    if loading:
        return f"{loading[0].model} to load and serve"
    quiet = [i for i in stay if i.up and not w.models[i.model].pinned_by]
    return f"{quiet[0].model} to stay idle for a moment" if quiet else "room"


def _lack(w: World, want: room.Need, m: Model) -> str:
    """The numbers, where bytes are what is missing."""
    if w.room is None or (want.alone and m.known_bytes is None and m.facts.estimated is None):
        return "size not known yet, loads alone: " if w.room is not None and want.alone else ""
    free = w.room - w.reserved()
    if want.alone or want.bytes > free:
        size = gib(want.bytes) if not want.alone else "all the room"
        return f"needs {size}, {max(0, free) / room.GIB:.1f} free: "
    return ""


def _leaving(leaving: list[Instance]) -> str:
    """Those on their way out, and how far they are."""
    words = {Child.STOPPING: "to stop", Child.SETTLING: "to give its memory back"}
    return ", ".join(f"{i.model} {words.get(i.state, 'to end')}" for i in leaving)


def _drain_in(w: World, entry: Entry, busy: list[Instance], now: float) -> float | None:
    """Seconds until the first of these may be drained for the head [s]."""
    if entry.head_active_s is None or (w.hold and w.permit is not entry):
        return None
    left = [room.clock_left(w, entry.head_active_s, i, now) for i in busy]
    known = [x for x in left if x is not None]
    return max(0.0, min(known)) if known else None


def eta_s(w: World, entry: Entry, progress: float | None, now: float) -> float | None:
    """When the entry's waiters can expect their grant [s], from learned times; None where none is learned."""
    m = w.models[entry.model]
    i = m.instance
    if m.load_s is None:
        return None
    if i is not None and i.state is Child.LOADING:
        done = now - i.spawned_at
        if progress:
            return max(0.0, done / progress - done)
        return max(0.0, m.load_s - done)
    if w.hold:
        return None
    head = queue.find_head(w)
    if head is not entry:
        return None
    leaving = [x for x in w.instances.values() if x.leaving]
    if leaving:
        rest = max(max(0.0, (w.models[x.model].stop_s or STOP_GUESS_S) - (now - x.stop_since)) for x in leaving)
        return rest + m.load_s
    return None


def price(w: World, head: Entry, now: float) -> Price:
    """Whom the head's swap takes, by the rules that ``queue.pump`` follows; while the queue is held, at a step.

    Args:
        w: The world.
        head: Its head.
        now: Time [s].
    """
    m = w.models[head.model]
    want = room.need(w, m)
    refusal = queue.refused(w, m, now) or room.impossible(w, m, want)
    if refusal is not None:
        return Price(refused=refusal.message)
    if room.fits(w, want, list(w.instances.values())):
        return Price()
    if head.operator == "startup" and not head.waiters:
        return Price(refused="no room beside the others")
    after = tuple(i.model for i in w.instances.values() if i.leaving)
    clock = head.head_active_s if head.head_active_s is not None else w.active_s(now)
    victims = room.choose(w, want, room.idle_candidates(w, clock, now))
    if victims is not None:
        return Price(after, tuple(i.model for i in victims))
    idle = room.idle_candidates(w, clock, math.inf)  # every grace is over one day
    busy: list[room.Candidate] = [((2, i.last_granted), i) for i in _busy(w)]
    victims = room.choose(w, want, idle) or room.choose(w, want, [*idle, *busy]) or ()
    evicts = tuple(i.model for i in victims if not i.in_flight)
    return Price(after, evicts, tuple(i.model for i in victims if i.in_flight), at_once=False)


def next_swap(w: World, now: float) -> str:
    """The next swap in words, with whom it takes; empty when none is due."""
    head = queue.find_head(w)
    if head is None:
        return ""
    eta = eta_s(w, head, None, now)
    when = "" if eta is None else f" in ~{seconds(eta)}"
    return f"{head.model}{when}{_takes(w, head, now)}" + (HELD if w.hold and w.permit is not head else "")


def _takes(w: World, head: Entry, now: float) -> str:
    """Whom it waits for, and who goes for it."""
    if w.drain_for is head:
        return f", after {', '.join(i.model for i in w.drain_set if i.id in w.instances)}"
    told = price(w, head, now)
    drains = ", drains {} first" if w.limits.max_wait_s is not None else ", takes {} once idle"
    parts = (
        (", refused: {}", (told.refused,) if told.refused else ()),
        (", after {}", told.after),
        (drains, told.busy),
        (", evicts {}", told.evicts),
    )
    return "".join(text.format(", ".join(names)) for text, names in parts if names)


def model_reason(w: World, m: Model, now: float) -> str:
    """The note of a model's row: what its child does and what ends that."""
    i = m.instance
    if i is None:
        return _absent(w, m, now)
    if i.stuck:
        return "survived SIGKILL, keeps its slot"
    match i.state:
        case Child.SETTLING:
            return "memory not back yet"
        case Child.STOPPING:
            return f"stopping ({i.stop_reason})" + (f" for {i.evicting_for}" if i.evicting_for else "")
        case Child.LOADING:
            waiters = len(m.entry.waiters) if m.entry is not None else 0
            return (
                f"{plural(waiters, 'request')} waiting"
                if waiters
                else ("asked for by hand" if m.entry is not None else "nobody waits")
            )
        case _:
            return _up(w, m, i)


def _up(w: World, m: Model, i: Instance) -> str:
    """The note of a child that answers."""
    if i.sick:
        return f"sick: {i.failure.message}" if i.failure is not None else "sick"
    if i.drain:
        whom = f" for {w.drain_for.model}" if i.drain == "head" and w.drain_for is not None else ""
        return f"draining{whom}: {plural(len(i.in_flight), 'request')}"
    if m.pinned_by:
        return "pinned" if m.pinned_by == "preset" else "pinned until restart"
    return ""


def _absent(w: World, m: Model, now: float) -> str:
    """The note of a model without a child."""
    if m.broken is not None:
        return m.broken.message
    if now < m.quarantined_until and m.failure is not None:
        return f"{m.failure.message}, retry in {seconds(m.quarantined_until - now)}"
    if m.entry is not None:
        return entry_reason(w, m.entry, None, now)
    return m.failure.message if m.failure is not None else ""
