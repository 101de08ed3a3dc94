# ruff: noqa: T201  a table for a person
"""What the scheduler costs: events a second and time an event, with many models and 10,000 requests waiting.

Run it by hand: ``python tests/bench/scheduler.py``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from statistics import median

from llmtop.scheduler import events as ev
from llmtop.scheduler.machine import Machine

WAITING = 10_000
RUNS = 3
Step = tuple[ev.Event, float]


def residents(models: int) -> int:
    """How many children run: half of a few models, eight of many."""
    return min(8, models // 2)


def loaded(models: int) -> Machine:
    """Some of ``models`` resident, the others waited for by 10,000 requests, the head short of a slot."""
    m = Machine(ev.Limits(models_max=residents(models), max_wait_s=None, max_queue=0))
    for n in range(models):
        m.handle(ev.Configured(ev.Facts(f"m{n}", declared=1)), 0.0)
    for n in range(residents(models)):
        m.handle(ev.Arrived(-n - 1, f"m{n}"), 0.0)  # stays in flight: nobody is a victim
        m.handle(ev.Ready(n + 1), 1.0)
    m.handle(ev.Hold(), 2.0)  # quicker to build
    for r in range(WAITING):
        m.handle(ev.Arrived(r, f"m{residents(models) + r % (models - residents(models))}"), 2.0)
    m.handle(ev.Resume(), 2.0)
    assert len(m.world.waiting) == WAITING
    return m


def granted(models: int) -> Iterator[Step]:
    """Requests for a resident model come and go."""
    for n in range(4_000):
        request, at = 10**6 + n, 3.0 + n * 1e-3
        yield ev.Arrived(request, f"m{n % (residents(models))}"), at
        yield ev.Left(request, True), at


def queued(models: int) -> Iterator[Step]:
    """Requests join the queue and leave it."""
    for n in range(200):
        request, at = 10**6 + n, 3.0 + n * 1e-3
        yield ev.Arrived(request, f"m{models - 1}"), at
        yield ev.Left(request), at


def ticks(_: int) -> Iterator[Step]:
    """The clock asks for another look."""
    return ((ev.Tick(), 3.0 + n) for n in range(300))


def swaps(models: int) -> Iterator[Step]:
    """A resident is evicted, gone, and the next one in the queue loads and serves all its waiters."""
    for n in range(min(20, residents(models))):
        at = 3.0 + n
        yield ev.Left(-n - 1, True), at
        yield ev.Exited(n + 1), at
        yield ev.Settled(n + 1), at
        yield ev.Ready(residents(models) + n + 1), at


CASES: dict[str, Callable[[int], Iterator[Step]]] = {
    "granted at once, then over": granted,
    "queued, then gone": queued,
    "tick": ticks,
    "swap (4 events)": swaps,
}


def main() -> None:
    """Print the table; each figure is the median of three runs."""
    print(f"{'models':>6}  {'case':<28}{'µs/event':>10}{'events/s':>12}")
    for models in (10, 1_000):
        for name, case in CASES.items():
            times: list[float] = []
            for _ in range(RUNS):
                machine, steps = loaded(models), list(case(models))
                start = time.perf_counter()
                for event, now in steps:
                    machine.handle(event, now)
                times.append((time.perf_counter() - start) / len(steps))
            each = median(times)
            print(f"{models:>6}  {name:<28}{each * 1e6:>10.1f}{1 / each:>12,.0f}")


if __name__ == "__main__":
    main()
