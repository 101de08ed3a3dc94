"""Who holds how much of the counted memory: what each child's stop should give back, corrected for all the others."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from llmtop.memory.sample import Sample
from llmtop.memory.settle import Settle
from llmtop.memory.stranded import Stranded
from llmtop.memory.watch import MemoryWatch

MEDIAN_OF = 3
"""Readings that a level before a spawn is made of."""


class Books:
    """One page for each child from before its spawn until its memory has settled.

    Args:
        watch: Where readings come from; the books read along.

    Attributes:
        stranded: What dead children left behind.
    """

    def __init__(self, watch: MemoryWatch) -> None:
        self.watch = watch
        self.stranded = Stranded()
        self._pages: dict[int, Baseline] = {}
        self._alone: int | None = None
        watch.listeners.append(self._observe)

    def open(self, instance: int, expected: int | None) -> Baseline:
        """Note the level before a spawn; to be called right before it.

        Args:
            instance: The child's start number.
            expected: What it will hold, as declared, measured before or estimated [bytes]; None when nothing is known.
        """
        page = Baseline(self, instance, expected)
        self._pages[instance] = page
        return page

    def held(self, without: int) -> int:
        """What all children but one, the settling ones included, and the stranded rest hold by the books [bytes]."""
        return sum(page.held for n, page in self._pages.items() if n != without) + self.stranded.bytes

    def unsure(self, without: int) -> int | None:
        """How much more than the books say loading children may hold [bytes]; None when that has no bound."""
        gaps = [page.unsure for n, page in self._pages.items() if n != without]
        return None if None in gaps else sum(gap or 0 for gap in gaps)

    def forget(self, instance: int, stranded: int) -> None:
        """Close a page, and keep what did not come back [bytes]."""
        if self._pages.pop(instance, None) is not None:
            self.stranded.add(stranded)

    def _observe(self, sample: Sample) -> None:
        level = sample.level.bytes
        if not self._pages and not self.stranded.bytes and level is not None:
            self._alone = level
        quiet = all(page.before is None and page.rule is None for page in self._pages.values())
        self.stranded.observe(level, frozenset(self._pages), quiet=quiet, floor=self._alone)


class Baseline:
    """One child's page.

    Attributes:
        pid: Set by the engine once the process exists; its measured footprint goes by it.
        ready: Set by the engine once it is loaded: from then on it holds all that is expected.
        level: The count before the spawn [bytes]; None when it was not known.
        before: The count just before the stop [bytes]; None until then.
        rule: The settle rule, from the exit on.
    """

    def __init__(self, books: Books, instance: int, expected: int | None) -> None:
        self._books, self._instance, self.expected = books, instance, expected
        self.pid: int | None = None
        self.ready = False
        self.level = self._running_level()
        self._held_then = books.held(instance)
        self.before: int | None = None
        self._held_before = 0
        self._gpu_before: int | None = None
        self.rule: Settle | None = None

    @property
    def held(self) -> int:
        """What it holds by the books [bytes]: what is still out once it is gone, else what was measured or is expected.

        On macOS a process's footprint leaves mapped weights out, so the larger of the two counts there.
        """
        if self.rule is not None:
            return self.rule.remaining
        watch = self._books.watch
        seen = watch.footprint(self.pid) if self.pid is not None else None
        full = (self.expected or 0) if self.ready else 0
        wired = watch.latest is not None and watch.latest.label == "WIRED"
        return max(seen or 0, full) if wired or seen is None else seen

    @property
    def unsure(self) -> int | None:
        """How much more it may hold while it loads [bytes]; None when nothing bounds it."""
        if self.ready or self.rule is not None:
            return 0
        return None if self.expected is None else max(0, self.expected - self.held)

    async def before_stop(self) -> None:
        """Read the count just before the stop: to be awaited before the exit is asked for, 2.5 s at most."""
        sample = await self._books.watch.fresh()
        self._take_before(sample or self._books.watch.latest)

    def exited(self, footprint: int, fits: Callable[[int], bool], now: float) -> Settle | None:
        """The process was reaped: the rule to wait by, None where its memory is back with the exit (plain RAM).

        A child that died unasked has no reading just before its end; the newest periodic one stands in.
        """
        latest = self._books.watch.latest
        if latest is not None and latest.label == "MEM":
            return None
        if self.before is None:
            self._take_before(latest)
        self.rule = Settle(
            started=now,
            before=self.before,
            drop=self.expected_drop(footprint),
            footprint=footprint,
            fits=fits,
            total=latest.total.bytes if latest else None,
        )
        return self.rule

    def expected_drop(self, footprint: int) -> int:
        """The smaller of the footprint and the rise since before the spawn, corrected for other children [bytes]."""
        if self.before is None or self.level is None:
            return max(0, footprint)
        floor = self.level + self._held_before - self._held_then
        return max(0, min(footprint, self.before - floor))

    def corrected(self, sample: Sample | None) -> int | None:
        """The count without what other children took or gave since the reading before the stop [bytes]."""
        level = sample.level.bytes if sample else None
        return None if level is None else max(0, level - (self._books.held(self._instance) - self._held_before))

    def gpu_returned(self, sample: Sample | None) -> int | None:
        """By how much the GPU's own count fell since the reading before the stop [bytes]; None where there is none."""
        now = sample.gpu_in_use.bytes if sample else None
        return None if now is None or self._gpu_before is None else self._gpu_before - now

    def close(self, stranded: int) -> int:
        """The wait is over. What other children may have taken meanwhile is not called stranded.

        Returns:
            What is kept as stranded [bytes].
        """
        unsure = self._books.unsure(self._instance)
        kept = 0 if unsure is None else max(0, stranded - unsure)
        self._books.forget(self._instance, kept)
        return kept

    def _take_before(self, sample: Sample | None) -> None:
        self.before = sample.level.bytes if sample else None
        self._gpu_before = sample.gpu_in_use.bytes if sample else None
        self._held_before = self._books.held(self._instance)

    def _running_level(self) -> int | None:
        """Median of the last readings, or the newest if lower: memory of the child before may still be on its way."""
        points = [point.used for point in list(self._books.watch.history)[-MEDIAN_OF:] if point.used is not None]
        return min(int(statistics.median(points)), points[-1]) if points else None
