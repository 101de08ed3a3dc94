"""Loads for the policy benchmark, each made from its own seed: the same on every machine and in every run."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from llmtop.simulate.world import Ask, Known

GIB = 2**30


@dataclass(frozen=True)
class Workload:
    """A load and the machine it falls on.

    Args:
        cap: ``models_max``; 0 where bytes decide.
        budget: Bytes for all models; None where the cap decides.
        starves: Rules without an end of patience let somebody wait as long as the load lasts.
    """

    name: str
    asks: tuple[Ask, ...]
    models: dict[str, Known]
    cap: int
    budget: int | None = None
    starves: bool = False

    @property
    def safe_cap(self) -> int:
        """The cap that a policy must be given that cannot count bytes: any so many models fit."""
        return self._count(largest_first=True) if self.budget is not None else self.cap

    @property
    def slots(self) -> int:
        """Most models that can be up at once by anybody's rules."""
        return self._count(largest_first=False) if self.budget is not None else self.cap

    def _count(self, *, largest_first: bool) -> int:
        room, count = self.budget or 0, 0
        for size in sorted((known.size or 0 for known in self.models.values()), reverse=largest_first):
            room -= size
            if room < 0:
                break
            count += 1
        return max(1, count)


def _poisson(rng: random.Random, rate: float, end: float) -> Iterator[float]:
    """Arrival times at ``rate`` [1/s] until ``end`` [s]."""
    t = rng.expovariate(rate)
    while t < end:
        yield t
        t += rng.expovariate(rate)


def _made(name: str, asks: list[Ask], models: dict[str, Known], cap: int, **more: object) -> Workload:
    start = min(ask.t for ask in asks)
    ordered = sorted((Ask(round(a.t - start, 3), a.model, round(a.duration, 3)) for a in asks), key=lambda a: a.t)
    return Workload(name, tuple(ordered), models, cap, **more)  # type: ignore[arg-type]


def _same(names: str, known: Known) -> dict[str, Known]:
    return dict.fromkeys(names, known)


def steady(end: float) -> Workload:
    """Three models, two slots, a request each eight seconds."""
    rng = random.Random(1)
    asks = [Ask(t, rng.choice("AABC"), rng.uniform(1, 8)) for t in _poisson(rng, 1 / 8, end)]
    return _made("steady", asks, _same("ABC", Known(load_s=6, stop_s=0.6, settle_s=0.4)), 2)


def agents(end: float) -> Workload:
    """Agents in bursts, A B A A C A B C…, one slot: the order in which eager routers thrash."""
    rng = random.Random(2)
    asks: list[Ask] = []
    t = 0.0
    while t < end:
        burst = t
        for model in rng.choice(["ABAACABC", "ABACAABC", "AABACBAC"]):
            asks.append(Ask(burst, model, rng.uniform(2, 6)))
            burst += rng.uniform(0.2, 3)
        t += rng.uniform(90, 150)
    return _made("agents ABAACABC", asks, _same("ABC", Known(load_s=8, stop_s=0.7, settle_s=0.5)), 1)


def hog(end: float) -> Workload:
    """A client that asks A every two seconds keeps it busy all the time; B is asked once in a while. One slot."""
    rng = random.Random(3)
    asks = [Ask(2 * n + rng.uniform(0, 0.5), "A", rng.uniform(5, 9)) for n in range(int(end / 2))]
    asks += [Ask(t, "B", rng.uniform(2, 5)) for t in _poisson(rng, 1 / 120, end)]
    return _made("one hog", asks, _same("AB", Known(load_s=8, stop_s=0.7, settle_s=0.5)), 1, starves=True)


def many_small(end: float) -> Workload:
    """Twelve small models, some popular, four slots."""
    rng = random.Random(4)
    names = "ABCDEFGHIJKL"
    weights = [1 / (rank + 1) for rank in range(len(names))]
    asks = [Ask(t, rng.choices(names, weights)[0], rng.uniform(0.3, 2)) for t in _poisson(rng, 1 / 2, end)]
    return _made("many small", asks, _same(names, Known(load_s=1.5, stop_s=0.3, settle_s=0.1)), 4)


def by_bytes(end: float) -> Workload:
    """A big model and four small ones in 48 GiB: a cap that is safe for the big one wastes the rest."""
    rng = random.Random(5)
    sizes = {"big": 40, "a": 10, "b": 8, "c": 6, "d": 5}
    models = {name: Known(gib * GIB, load_s=1 + gib / 3, stop_s=0.5, settle_s=gib / 40) for name, gib in sizes.items()}
    asks = [Ask(t, rng.choice("abcd"), rng.uniform(1, 6)) for t in _poisson(rng, 1 / 6, end)]
    asks += [Ask(t, "big", rng.uniform(10, 25)) for t in _poisson(rng, 1 / 240, end)]
    return _made("big and small", asks, models, 0, budget=48 * GIB)


def diurnal(end: float) -> Workload:
    """Five models whose popularity and rate go up and down; two slots."""
    rng = random.Random(6)
    asks: list[Ask] = []
    for t in _poisson(rng, 1 / 5, end):
        phase = 2 * math.pi * t / 3600
        if rng.random() < 0.55 + 0.45 * math.sin(phase):
            weights = [1.2 + math.sin(phase + 2 * math.pi * n / 5) for n in range(5)]
            asks.append(Ask(t, rng.choices("ABCDE", weights)[0], rng.uniform(1, 7)))
    return _made("diurnal", asks, _same("ABCDE", Known(load_s=5, stop_s=0.6, settle_s=0.4)), 2)


def long_answers(end: float) -> Workload:
    """Two models that think for minutes, one slot: max-wait drains them, and cannot hurry them."""
    rng = random.Random(7)
    asks = [Ask(t, rng.choice("AB"), rng.uniform(20, 120)) for t in _poisson(rng, 1 / 60, end)]
    return _made("long answers", asks, _same("AB", Known(load_s=10, stop_s=0.8, settle_s=0.6)), 1, starves=True)


def crowd(end: float) -> Workload:
    """Everybody at once, six models, two slots."""
    rng = random.Random(8)
    asks = [Ask(rng.uniform(0, 2), rng.choice("ABCDEF"), rng.uniform(1, 6)) for _ in range(max(20, int(end / 20)))]
    return _made("everybody at once", asks, _same("ABCDEF", Known(load_s=5, stop_s=0.6, settle_s=0.4)), 2)


ALL: tuple[Callable[[float], Workload], ...] = (
    steady,
    agents,
    hog,
    many_small,
    by_bytes,
    diurnal,
    long_answers,
    crowd,
)
"""Makers: seconds of load to workload."""
