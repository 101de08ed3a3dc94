"""Is there room for a model, and who would have to go for it? Pure questions: nothing here changes anything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from llmtop.errors import Refusal
from llmtop.scheduler.state import Child, Instance, Model, World

GIB = 2**30
ROUNDING_S = 1e-6
"""Sums of times are not exact: a clock that is out but for this is out."""
EXACT_SETS = 300
"""Sets looked at one by one for the one with the fewest bytes; beyond that a greedy choice stands in."""


def gib(size: int) -> str:
    """A size as the screen writes it."""
    return f"{size / GIB:.1f} GiB"


@dataclass(slots=True, frozen=True)
class Need:
    """What a model asks for.

    Args:
        bytes: Its reservation [bytes]; 0 when bytes do not count. Of one that loads alone, the least it must get.
        alone: It can only load with nothing but pinned (and stuck) models beside it, and takes all that they leave.
    """

    bytes: int
    alone: bool = False


def need(w: World, m: Model) -> Need:
    """What the model has to reserve: declared or measured, else estimated, else all that pins leave."""
    known = m.known_bytes
    size = known if known is not None else m.facts.estimated
    if w.budget is None:
        return Need(size or 0, alone=m.alone)
    if size is None:
        return Need(0, alone=True)
    if m.raised is not None and m.raised > size:
        size = m.raised
        if size > w.budget - pinned_bytes(w):
            return Need(known or 0, alone=True)
    if known is None and size > w.budget:
        return Need(0, alone=True)
    return Need(size)


def pinned_bytes(w: World) -> int:
    """Bytes that pins (and stuck children) keep [bytes]."""
    return sum(i.reserved for i in w.instances.values() if i.stuck or w.is_pinned(i))


def left_for_one(w: World, stay: Iterable[Instance]) -> int:
    """What a model that loads alone reserves: the budget less everything that stays [bytes]."""
    return 0 if w.room is None else max(0, w.room - sum(i.reserved for i in stay))


def fits(w: World, want: Need, stay: Sequence[Instance]) -> bool:
    """There is a slot and there are the bytes, if exactly ``stay`` holds slots."""
    cap = w.limits.models_max
    if cap > 0 and len(stay) >= cap:
        return False
    if want.alone:
        return all(i.stuck or w.is_pinned(i) for i in stay) and (
            w.room is None or left_for_one(w, stay) >= max(want.bytes, 1)
        )
    if w.room is None:
        return not any(i.alone for i in stay)
    return want.bytes + sum(i.reserved for i in stay) <= w.room


def staying(w: World) -> list[Instance]:
    """Everything that is not on its way out by itself."""
    return [i for i in w.instances.values() if not i.leaving]


Candidate = tuple[tuple[int, float], Instance]
"""A possible victim with its rank: lower goes first."""


def choose(w: World, want: Need, candidates: Sequence[Candidate]) -> tuple[Instance, ...] | None:
    """The smallest set of candidates that makes room in slots and bytes together.

    What is leaving counts as gone. Of equal sets the one whose latest use is oldest wins, then the one with
    fewest bytes.

    Returns:
        The victims; empty when what is leaving is enough; None when no set is.
    """
    stay = staying(w)
    if fits(w, want, stay):
        return ()
    if want.alone:
        forced = [i for i in stay if not i.stuck and not w.is_pinned(i)]
        able = {i.id for _, i in candidates}
        rest = [i for i in stay if i.stuck or w.is_pinned(i)]
        return tuple(forced) if fits(w, want, rest) and all(i.id in able for i in forced) else None
    cap = w.limits.models_max
    slots = max(0, len(stay) + 1 - cap) if cap > 0 else 0
    short = 0 if w.room is None else max(0, want.bytes + sum(i.reserved for i in stay) - w.room)
    ranked = sorted(candidates, key=lambda c: (c[0], c[1].id))
    size = _smallest(ranked, slots, short)
    if size is None:
        return None
    victims = _oldest(ranked, size, short)
    return victims if fits(w, want, [i for i in stay if i not in victims]) else None


def _smallest(ranked: Sequence[Candidate], slots: int, short: int) -> int | None:
    """How many victims it takes at least: the largest first."""
    total = 0
    for count, size in enumerate(sorted((i.reserved for _, i in ranked), reverse=True), start=1):
        total += size
        if count >= slots and total >= short:
            return count
    return None


def _oldest(ranked: Sequence[Candidate], size: int, short: int) -> tuple[Instance, ...]:
    """The set of that size whose latest use is oldest, then the one with the fewest bytes."""
    end = size
    while sum(sorted((i.reserved for _, i in ranked[:end]), reverse=True)[:size]) < short:
        end += 1
    pool = [i for rank, i in ranked if rank <= ranked[end - 1][0]]  # equal uses count as one
    pool.sort(key=lambda i: (i.reserved, i.id))
    best, fewest = pool[-size:], sum(i.reserved for i in pool[-size:]) + 1
    for victims in islice(combinations(pool, size), EXACT_SETS):
        total = sum(i.reserved for i in victims)
        if short <= total < fewest:
            best, fewest = list(victims), total
    return tuple(sorted(best, key=lambda i: i.id))


def impossible(w: World, m: Model, want: Need) -> Refusal | None:
    """Why this model cannot come even in the best case: every instance gone that is neither pinned nor stuck."""
    if (large := too_large(w, m)) is not None:
        return large
    pinned = [i for i in w.instances.values() if w.is_pinned(i) and not i.stuck]
    stuck = [i for i in w.instances.values() if i.stuck]
    if fits(w, want, [*pinned, *stuck]):
        return None
    if stuck and fits(w, want, pinned):
        text = f"{m.name} cannot load: {', '.join(sorted(i.model for i in stuck))} survived SIGKILL and keeps its slot"
        return Refusal("slot_stuck", text, retry_after_s=30)
    if pinned and fits(w, want, []):
        names = ", ".join(sorted(i.model for i in pinned))
        return Refusal("all_slots_pinned", f"{m.name} cannot load: {_lacking(w, want, pinned)} taken by pinned {names}")
    room = w.room or 0
    text = f"{m.name} needs {gib(want.bytes)}" if want.bytes else f"{m.name} needs memory"
    return Refusal(
        "insufficient_memory",
        f"{text}, {gib(room - pinned_bytes(w))} could be freed: {gib(w.stranded)} of stopped models never came back",
        retry_after_s=60,
    )


def too_large(w: World, m: Model) -> Refusal | None:
    """A model declared or measured larger than the whole budget."""
    known = m.known_bytes
    if w.budget is None or known is None or known <= w.budget:
        return None
    how = "measured" if known == m.measured and known != m.facts.declared else "declared"
    return Refusal("model_too_large", f"{m.name} needs {gib(known)} ({how}), the budget is {gib(w.budget)}")


def _lacking(w: World, want: Need, pinned: Sequence[Instance]) -> str:
    """What pins take: all slots, or the bytes."""
    cap = w.limits.models_max
    if cap > 0 and len(pinned) >= cap:
        return f"all {cap} slots are" if cap > 1 else "the only slot is"
    return f"{gib(want.bytes)} are needed, the room is"


def grace_s(i: Instance) -> float:
    """How long a model that was asked again must be quiet to count as idle [s]: a tenth of its load, 5 s at most."""
    return min(i.load_s / 10, 5.0) if i.asked_again else 0.0


def clock_left(w: World, head_active_s: float, i: Instance, now: float) -> float | None:
    """Seconds until the head may have this model drained [s]; None = never, 0 or less = now."""
    if w.limits.max_wait_s is None:
        return None
    left = w.limits.max_wait_s - (w.active_s(now) - max(head_active_s, i.ready_active_s))
    return left if left > ROUNDING_S else 0.0


def idle_candidates(w: World, head_active_s: float, now: float) -> list[Candidate]:
    """Who can go now: loads that nobody wants, and idle, unpinned children that are not in their grace."""
    found: list[Candidate] = []
    for i in w.instances.values():
        m = w.models[i.model]
        if i.state is Child.LOADING:
            if given_up(m, i):
                found.append(((0, i.spawned_at), i))
        elif i.up and not i.in_flight and not m.pinned_by and i.drain in ("", "head") and not i.stuck:
            left = clock_left(w, head_active_s, i, now)
            if now >= i.last_used + grace_s(i) or (left is not None and left <= 0):
                found.append(((1, i.last_used), i))
    return found


def busy_candidates(w: World, head_active_s: float, now: float) -> list[Candidate]:
    """Who may be drained: busy, unpinned children for which the head's clock has run out."""
    found: list[Candidate] = []
    for i in w.instances.values():
        if i.up and i.in_flight and not w.models[i.model].pinned_by and not i.sick and not i.stuck:
            left = clock_left(w, head_active_s, i, now)
            if left is not None and left <= 0:
                found.append(((2, i.last_granted), i))
    return found


def given_up(m: Model, i: Instance) -> bool:
    """A load that the head may end: nobody waits for it, asked for it or pinned it, and the last did not end so."""
    wanted = m.entry is not None or m.pinned_by
    return i.state is Child.LOADING and not wanted and not m.unwanted
