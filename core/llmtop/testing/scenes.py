"""Short words for scenes in the simulated world: models brought up, children gone, what the last step asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.testing.world import World

Make = Callable[[ev.Limits], World]


def new(make: Make, cap: int = 1, budget: int | None = None, max_wait: float | None = 15.0, **facts: Any) -> World:
    """A world with the models A to D.

    Args:
        make: Builds it from its limits.
        cap: ``models_max`` [1].
        budget: Byte budget [bytes]; None = bytes do not count.
        max_wait: How long the head waits for busy models [s].
        facts: More of some models: ``A={"declared": 60}``.
    """
    w = make(ev.Limits(models_max=cap, max_wait_s=max_wait))
    w.feed(ev.Budget(budget))
    for name in "ABCD":
        w.feed(ev.Configured(ev.Facts(name, **facts.get(name, {}))))
    return w


def up(w: World, model: str, load_s: float = 1.0) -> int:
    """Have a model loaded by a request that is answered; the number of its instance."""
    request = w.ask(model)
    p = w.of(model)
    assert p is not None
    w.pass_time(load_s)
    w.feed(ev.Ready(p.id))
    w.feed(ev.Left(request, True))
    return p.id


def leave(w: World, instance: int) -> None:
    """A child exits, and its memory comes back."""
    w.feed(ev.Exited(instance))
    w.feed(ev.Settled(instance))


def of(w: World, kind: type[act.Action]) -> list[Any]:
    """The actions of one kind in the last step."""
    return [a for a in w.answers if isinstance(a, kind)]


def stops(w: World) -> list[tuple[str, str]]:
    """Models told to leave in the last step, with the reason."""
    return [(a.model, a.reason) for a in of(w, act.Stop)]


def spawns(w: World) -> list[str]:
    """Models started in the last step."""
    return [a.model for a in of(w, act.Spawn)]


def drains(w: World) -> list[tuple[str, str]]:
    """Models that drain since the last step, with the reason."""
    return [(a.model, a.reason) for a in of(w, act.Drain)]


def lifts(w: World) -> list[str]:
    """Models whose drain ended in the last step."""
    return [a.model for a in of(w, act.Lift)]


def refusals(w: World) -> list[tuple[int, str]]:
    """Requests refused in the last step, with the type of the error."""
    return [(a.request, a.refusal.type) for a in of(w, act.Refuse)]


def cuts(w: World) -> list[tuple[int, str]]:
    """Requests cut in the last step, with the type of the error."""
    return [(a.request, a.refusal.type) for a in of(w, act.Cut)]


def grants(w: World) -> list[int]:
    """Requests granted in the last step."""
    return [a.request for a in of(w, act.Grant)]
