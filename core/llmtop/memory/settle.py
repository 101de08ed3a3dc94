"""When a child is gone, is its memory back? The gate between the exit of one model and the spawn of the next."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from llmtop.memory.books import Baseline
    from llmtop.memory.watch import MemoryWatch

MIB = 2**20
DONE_FRACTION = 0.90
"""Share of the expected drop that counts as all of it: polite stops of large models were seen to give back 95 %."""
SMALL_BYTES, SMALL_FRACTION = 512 * MIB, 0.02
"""A drop below 512 MiB or 2 % of the memory cannot be told from what the rest of the machine does."""
FLAT_BYTES, FLAT_FRACTION, FLAT_S = 256 * MIB, 0.02, 1.0
"""Two samples a second apart that differ by less than 256 MiB or 2 % of the footprint are a plateau."""
BLIND_S = 2.0
"""Without a reading this much time is given instead [s]."""
BASE_S, RATE, MOST_S = 5.0, 10e9, 30.0
"""The wait is bounded by 5 s and the footprint at 10 GB/s, 30 s in all: reports show seconds, or never."""

Outcome = Literal["wait", "done", "timeout"]


class Verdict(msgspec.Struct, frozen=True):
    """What the gate says to a sample.

    Args:
        outcome: ``wait`` for another sample; ``done`` and ``timeout`` are final.
        returned: What has come back so far [bytes].
        stranded: What of the expected drop has not [bytes]; to be taken off the budget once the outcome is final.
        reason: Why, in words.
    """

    outcome: Outcome
    returned: int = 0
    stranded: int = 0
    reason: str = ""


class Settled(msgspec.Struct, frozen=True):
    """How a wait ended.

    Args:
        seconds: How long it took [s].
        returned_bytes: What came back [bytes]; None when nothing could be read.
        stranded_bytes: What did not [bytes].
        reason: Why it ended, in words.
        timed_out: The bound was reached.
    """

    seconds: float
    returned_bytes: int | None
    stranded_bytes: int
    reason: str
    timed_out: bool = False


def smallest_drop(total: int | None) -> int:
    """The smallest drop that can be measured on a machine of this size [bytes]."""
    return max(SMALL_BYTES, int(SMALL_FRACTION * (total or 0)))


def longest_wait(footprint: int) -> float:
    """Bound of the wait for this much memory [s]."""
    return min(MOST_S, BASE_S + max(0, footprint) / RATE)


class Settle:
    """The rule itself, fed with readings; it reads no clock and no memory.

    Args:
        started: When the child was reaped [s, monotonic].
        before: The count just before the stop [bytes]; None when it is not known.
        drop: By how much it should fall [bytes].
        footprint: What the child held [bytes]: bounds the wait and scales the plateau.
        fits: Says whether the next model fits with that many stranded bytes off the budget.
        total: Memory of the machine [bytes].
    """

    def __init__(
        self,
        *,
        started: float,
        before: int | None,
        drop: int,
        footprint: int,
        fits: Callable[[int], bool],
        total: int | None = None,
    ) -> None:
        self._started, self._before, self._fits = started, before, fits
        self._drop = max(0, min(drop, footprint))
        self._flat = max(FLAT_BYTES, int(FLAT_FRACTION * footprint))
        self._bound = longest_wait(footprint)
        self._small = smallest_drop(total)
        self._readings: list[tuple[float, float]] = []
        self.remaining = self._drop
        """What of the expected drop is still out by the newest reading [bytes]."""

    def feed(self, at: float, level: float | None, gpu_returned: int | None = None) -> Verdict:
        """Take the count as of now, corrected for what other children gave or took since the stop.

        Args:
            at: Now [s, monotonic].
            level: The count [bytes]; None, NaN and negative numbers are no reading.
            gpu_returned: By how much the GPU's own count fell since the stop [bytes], where there is one. It decides
                only while the count stands higher than before the stop: another process is taking memory then.
        """
        waited = at - self._started
        if self._before is None:
            return Verdict(
                "done" if waited >= BLIND_S else "wait", reason="no reading before the stop: waited 2 s instead"
            )
        if self._drop < self._small:
            self.remaining = 0
            return Verdict("done", reason="too little to measure")
        if level is None or not math.isfinite(level) or level < 0:
            return self._blind(at, waited)
        self._readings.append((at, level))
        returned = max(0, int(self._before - level))
        self.remaining = min(self._drop, max(0, int(level) - (self._before - self._drop)))
        if self._before - level >= DONE_FRACTION * self._drop:
            self.remaining = 0
            return Verdict("done", returned, 0, "the memory is back")
        if level > self._before and gpu_returned is not None and gpu_returned >= DONE_FRACTION * self._drop:
            self.remaining = 0
            return Verdict("done", gpu_returned, 0, "the GPU has it back, and another process took memory meanwhile")
        if self._plateau(at, level) and self._fits(self.remaining):
            return Verdict(
                "done",
                returned,
                self.remaining,
                "it falls no further, and the next model fits beside what is still out",
            )
        if waited >= self._bound:
            return Verdict("timeout", returned, self.remaining, f"not all of it came back within {self._bound:.0f} s")
        return Verdict("wait", returned, self.remaining)

    def _blind(self, at: float, waited: float) -> Verdict:
        """No number this time: go on without one when there has been none for two seconds."""
        last = self._readings[-1][0] if self._readings else self._started
        if at - last < BLIND_S and waited < self._bound:
            return Verdict("wait")
        returned = max(0, self._drop - self.remaining) if self._readings else 0
        stranded = self.remaining if self._readings else 0
        return Verdict("done", returned, stranded, "no reading for 2 s")

    def _plateau(self, at: float, level: float) -> bool:
        """The newest reading that is at least a second older differs by next to nothing, and so do all since."""
        older = [reading for reading in self._readings if reading[0] <= at - FLAT_S]
        if not older:
            return False
        since = [reading[1] for reading in self._readings if reading[0] >= older[-1][0]]
        return max(since) - min(since) < self._flat


async def settle(watch: MemoryWatch, baseline: Baseline, footprint: int, fits: Callable[[int], bool]) -> Settled:
    """Wait until the memory of a reaped child is back, or until it makes no sense to wait.

    Args:
        watch: Where readings come from.
        baseline: The child's page in the books; it is closed, and keeps what is stranded.
        footprint: What the child held, as best known [bytes].
        fits: Says whether the next model fits with that many more bytes off the budget (what was stranded before is not
            in the number). Called on the loop; with nothing to load, always true.
    """
    started = watch.clock()
    rule = baseline.exited(footprint, fits, started)
    if rule is None:
        baseline.close(0)
        return Settled(0.0, None, 0, "memory of the machine itself is back with the exit")
    try:
        while True:
            sample = await watch.fresh()
            now = watch.clock()
            verdict = rule.feed(now, baseline.corrected(sample), baseline.gpu_returned(sample))
            if verdict.outcome != "wait":
                break
            await watch.pause()
    except BaseException:
        baseline.close(0)
        raise
    known = baseline.before is not None
    stranded = baseline.close(verdict.stranded)
    return Settled(
        now - started, verdict.returned if known else None, stranded, verdict.reason, verdict.outcome == "timeout"
    )
