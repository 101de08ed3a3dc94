"""A run in numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from llmtop.simulate.world import History


class Outcome(msgspec.Struct, frozen=True):
    """What a run came to.

    Args:
        requests: All of the trace [1].
        answered: Those that were answered whole [1].
        refused: Error type to how many were refused or cut with it [1].
        unanswered: Those that were still waiting when nothing could happen any more [1].
        swaps: Loads [1].
        evictions: Models stopped for another one [1].
        wait_mean_s: Arrival to grant, load included, over the answered ones [s].
        wait_p95_s: The same, 95th percentile by nearest rank [s].
        wait_max_s: The longest [s].
        busy_s: Time with at least one request at work [s].
        makespan_s: From the first arrival to the end of the last request [s].
        peak_bytes: Most memory held at once [bytes].
        peak_models: Most children at once [1].
    """

    requests: int
    answered: int
    refused: dict[str, int]
    unanswered: int
    swaps: int
    evictions: int
    wait_mean_s: float
    wait_p95_s: float
    wait_max_s: float
    busy_s: float
    makespan_s: float
    peak_bytes: int
    peak_models: int

    @property
    def complete(self) -> bool:
        """Everybody was answered."""
        return self.answered == self.requests


def measure(history: History) -> Outcome:
    """Count a run."""
    fates = history.fates
    waits = sorted(f.granted_at - f.ask.t for f in fates if f.granted_at is not None and f.ended_at is not None)
    refused: dict[str, int] = {}
    for fate in fates:
        if fate.refused:
            refused[fate.refused] = refused.get(fate.refused, 0) + 1
    start = min((fate.ask.t for fate in fates), default=0.0)
    return Outcome(
        requests=len(fates),
        answered=len(waits),
        refused=refused,
        unanswered=sum(not fate.over for fate in fates),
        swaps=history.loads,
        evictions=history.evictions,
        wait_mean_s=math.fsum(waits) / len(waits) if waits else 0.0,
        wait_p95_s=nearest_rank(waits, 0.95),
        wait_max_s=waits[-1] if waits else 0.0,
        busy_s=history.busy_s,
        makespan_s=max(0.0, history.end_s - start),
        peak_bytes=history.peak_bytes,
        peak_models=history.peak_models,
    )


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The value below or at which ``share`` of them lie; 0 where there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0
