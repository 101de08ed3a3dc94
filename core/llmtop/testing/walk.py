"""A random walk through the simulated world: everything that can happen to a scheduler, then good behaviour."""

from __future__ import annotations

import random
from collections.abc import Callable

from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.scenes import Make
from llmtop.testing.world import Pace, World

KINDS = ("oom", "crash", "bad_file", "port", "timeout")


def new_world(rng: random.Random, make: Make) -> World:
    """Two to four models of all kinds, a cap, a budget."""
    limits = ev.Limits(
        models_max=rng.choice([0, 1, 1, 2, 2, 3]),
        max_wait_s=rng.choice([0.0, 2.0, 15.0, 15.0, None]),
        max_queue=rng.choice([2, 8, 0]),
        drain_timeout_s=rng.choice([None, None, 4.0]),
    )
    w = make(limits)
    w.feed(ev.Budget(rng.choice([None, 100, 100])))
    for name in "ABCD"[: rng.randint(2, 4)]:
        w.feed(ev.Configured(some_facts(rng, name)))
    return w


def some_facts(rng: random.Random, name: str) -> ev.Facts:
    """A model whose size is declared, estimated or not known."""
    kind = rng.random()
    return ev.Facts(
        name,
        declared=rng.choice([20, 40, 60, 120]) if kind < 0.5 else None,
        estimated=rng.choice([30, 50, 130]) if 0.4 < kind < 0.85 else None,
        pinned=rng.random() < 0.15,
        idle_unload_s=rng.choice([None, None, 5.0]),
        evict_on_sleep=rng.random() < 0.3,
    )


def news(rng: random.Random, w: World) -> ev.Event | None:
    """Something that a child may do out of turn."""
    ids = [p.id for p in w.processes.values() if p.state != "settling"]
    up = [p.id for p in w.processes.values() if p.up and not p.told]
    told = [p.id for p in w.processes.values() if p.told and p.state != "settling"]
    failure = Failure(rng.choice(KINDS), "it broke")
    pick: list[ev.Event] = []
    if ids:
        pick += [ev.Exited(rng.choice(ids), failure), ev.LoadFailed(rng.choice(ids), failure)]
    if up:
        pick += [ev.Sick(rng.choice(up), failure), ev.Slept(rng.choice(up)), ev.Woke(rng.choice(up))]
    if told:
        pick.append(ev.Stuck(rng.choice(told)))
    return rng.choice(pick) if pick else None


def verb(rng: random.Random, w: World) -> ev.Event:
    """Something that the operator or the configuration does."""
    name = rng.choice(list(w.facts))
    makers: list[Callable[[], ev.Event]] = [
        lambda: ev.Load(name),
        lambda: ev.Load(name, startup=True),
        lambda: ev.Evict(name),
        lambda: ev.Pin(name),
        lambda: ev.Unpin(name),
        lambda: ev.Unpin(name),
        lambda: ev.KillNow(name),
        ev.Hold,
        ev.Step,
        ev.Step,
        ev.Resume,
        ev.Resume,
        lambda: ev.Cancel(rng.randint(1, max(1, len(w.fates)))),
        lambda: ev.Measured(name, rng.choice([10, 50, 90])),
        lambda: ev.Budget(w.budget if w.budget is None else rng.choice([100, 60]), rng.choice([0, 0, 30])),
        lambda: ev.Configured(some_facts(rng, name)),
        lambda: ev.Removed(name),
        lambda: ev.Checked(name, rng.choice([None, Failure("bad_file", "not a GGUF file")])),
        lambda: ev.Limited(ev.Limits(rng.choice([1, 2, 3]), w.limits.max_wait_s, 8, w.limits.drain_timeout_s)),
    ]
    return rng.choice(makers)()


def stale(rng: random.Random, w: World) -> None:
    """News of an instance or a request that is over."""
    if w.gone:
        old = rng.choice(w.gone)
        fault = Failure("oom", "late")
        w.stale(rng.choice([ev.Ready(old), ev.Exited(old, fault), ev.Sick(old, fault), ev.Settled(old), ev.Stuck(old)]))
    if over := [r for r, fate in w.fates.items() if fate == "over"]:
        w.stale(ev.Left(rng.choice(over)))


def walk(seed: int, make: Make = World) -> None:
    """One random life of a scheduler, then a world that behaves.

    Args:
        seed: The same seed is the same walk.
        make: Builds the world; one around a faulty scheduler in tests of the tests.

    Raises:
        Broken: A rule does not hold.
    """
    rng = random.Random(seed)
    w = new_world(rng, make)
    w.stuck_stay = rng.random() < 0.5
    wild = rng.choice([0.02, 0.15, 0.3])
    for _ in range(rng.randint(5, 80)):
        w.pass_time(rng.choice([0, 0, 0.1, 0.4, 1, 3, 20]))
        dice = rng.random()
        if dice < wild:
            event = news(rng, w) if rng.random() < 0.4 else verb(rng, w)
            if event is not None:
                w.feed(event)
        elif dice < 0.5:
            w.ask(rng.choice(list(w.facts)))
        elif dice < 0.9:
            if moves := w.moves():
                w.feed(rng.choice(moves))
        elif dice < 0.94:
            if waiting := w.waiting():
                w.feed(ev.Left(rng.choice(waiting)))
        elif dice < 0.97:
            w.probe()
        else:
            stale(rng, w)
    w.feed(ev.Resume())
    w.feed(ev.Budget(w.budget, 0))
    stream = rng.choice([None, *w.facts]) if w.limits.max_wait_s is not None else None
    w.behave(Pace(load=rng.choice([0.5, 3.0, 60.0])), stream=stream)
    if rng.random() < 0.1:
        w.feed(ev.StopAll())
        w.behave(Pace())
        w.stuck_stay = False
        for move in iter(lambda: next(iter(w.moves()), None), None):
            w.feed(move)
        assert not w.processes
