from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from llmtop.memory.sample import Label, Sample, measured, missing
from llmtop.memory.watch import MemoryWatch

pytestmark = pytest.mark.anyio


class Script:
    """A probe that counts its looks and can be made to hang, fail or see footprints."""

    name = "script"

    def __init__(self, *, min_interval_s: float = 0.0) -> None:
        self.min_interval_s = min_interval_s
        self.looks = 0
        self.at = 0.0
        self.held: dict[int, object] = {}
        self.hang: threading.Event | None = None
        self.error: Exception | None = None
        self.seen: list[Mapping[int, str]] = []
        self.label: Label = "WIRED"

    def sample(self, children: Mapping[int, str]) -> Sample:
        self.looks += 1
        self.seen.append(children)
        if self.hang is not None:
            self.hang.wait(20)
        if self.error is not None:
            raise self.error
        gap = missing("script", self.at, "not scripted")
        footprints = {pid: measured(self.held.get(pid), "script", self.at) for pid in children}
        wired = measured(100 + self.looks, "script", self.at)
        return Sample(self.at, gap, gap, gap, wired, gap, gap, gap, gap, gap, footprints=footprints, label=self.label)


@asynccontextmanager
async def running(watch: MemoryWatch) -> AsyncIterator[MemoryWatch]:
    watch.start()
    try:
        yield watch
    finally:
        await watch.stop()


async def test_sample_is_taken_now_and_kept() -> None:
    watch = MemoryWatch(Script())
    assert watch.latest is None
    assert watch.age_s is None
    sample = await watch.fresh()
    assert sample is not None
    assert sample is watch.latest
    assert [point.used for point in watch.history] == [101]


async def test_hanging_tool_never_blocks_and_its_answer_counts_when_it_comes() -> None:
    probe = Script()
    watch = MemoryWatch(probe, timeout_s=0.02)
    first = await watch.fresh()
    probe.hang = threading.Event()
    assert await watch.fresh() is None
    assert await watch.fresh() is None
    assert probe.looks == 2, "one look at a time"
    assert watch.latest is first
    probe.hang.set()
    arrived = asyncio.Event()
    watch.listeners.append(lambda _: arrived.set())
    await asyncio.wait_for(arrived.wait(), 5)
    assert watch.latest is not first
    probe.hang = None
    assert await watch.fresh() is not None


async def test_hanging_tool_shows_as_a_fault_and_grows_old() -> None:
    probe, now = Script(), [0.0]
    watch = MemoryWatch(probe, timeout_s=0.01, interval_s=0.001, clock=lambda: now[0])
    await watch.fresh()
    probe.hang = threading.Event()
    async with running(watch):
        await asyncio.wait_for(watch.fresh(), 5)
        await asyncio.sleep(0.05)
        now[0] = 12.0
        assert watch.fault == "no answer from script within 0.01 s"
        assert watch.age_s == 12.0
        probe.hang.set()


async def test_probe_that_raises_does_not_end_the_watch() -> None:
    probe = Script()
    watch = MemoryWatch(probe)
    probe.error = ZeroDivisionError("page size")
    assert await watch.fresh() is None
    assert watch.fault == "script: ZeroDivisionError: page size"
    probe.error = None
    assert await watch.fresh() is not None
    assert watch.fault == ""


async def test_two_who_ask_at_once_are_both_served() -> None:
    probe = Script()
    watch = MemoryWatch(probe)
    first, second = await asyncio.gather(watch.fresh(), watch.fresh())
    assert first is not None
    assert second is not None
    assert probe.looks <= 2


async def test_shortest_interval_is_kept() -> None:
    probe = Script(min_interval_s=0.05)
    watch = MemoryWatch(probe)
    loop = asyncio.get_running_loop()
    await watch.fresh()
    start = loop.time()
    await watch.fresh()
    assert loop.time() - start >= 0.045
    assert watch.poll_s == 0.1


async def test_footprints_have_a_running_peak_until_the_child_is_gone() -> None:
    probe = Script()
    watch = MemoryWatch(probe)
    watch.children[7] = "A"
    for size in (5, 9, 4, None):
        probe.held[7] = size
        await watch.fresh()
    assert (watch.footprint(7), watch.peak(7)) == (None, 9)
    assert [dict(point.models) for point in watch.history] == [{"A": 5}, {"A": 9}, {"A": 4}, {}]
    del watch.children[7]
    await watch.fresh()
    assert watch.peak(7) is None


async def test_children_are_handed_over_as_they_stood() -> None:
    probe = Script()
    watch = MemoryWatch(probe)
    watch.children[7] = "A"
    await watch.fresh()
    watch.children.clear()
    assert probe.seen[0] == {7: "A"}


async def test_it_samples_by_itself_and_tells_listeners() -> None:
    watch = MemoryWatch(Script(), interval_s=0.001)
    heard: list[Sample] = []
    three = asyncio.Event()

    def listen(sample: Sample) -> None:
        heard.append(sample)
        if len(heard) == 3:
            three.set()

    watch.listeners.append(listen)
    async with running(watch):
        await asyncio.wait_for(three.wait(), 5)
    assert [s.wired.bytes for s in heard[:3]] == [101, 102, 103]


async def test_odd_samples_for_ever_do_no_harm() -> None:
    probe = Script()
    watch = MemoryWatch(probe)
    watch.children[7] = "A"
    for odd in (float("nan"), float("inf"), -1, None, 2**70, 5) * 50:
        probe.held[7] = odd
        assert await watch.fresh() is not None
    assert watch.peak(7) == 5
    assert len(watch.history) == 300
