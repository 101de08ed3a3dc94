"""Keeps looking at the memory without ever making anybody wait for a tool that hangs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec

from llmtop.memory.probe import Probe
from llmtop.memory.sample import Sample

TIMEOUT_S = 2.0
"""A look that takes longer is given up on for now; its answer counts when it comes [s]."""
HISTORY = 600
"""Points kept for the panel [1]: ten minutes at one a second."""


class Point(msgspec.Struct, frozen=True):
    """One point of the panel's history; None where there was no reading.

    Args:
        at: When [s, monotonic].
        used: What the gauge counts (wired, VRAM, memory in use) [bytes].
        models: Footprint by model id [bytes].
    """

    at: float
    used: int | None
    models: Mapping[str, int]


class MemoryWatch:
    """Samples on a thread of its own, one look at a time; the loop only ever reads what is there.

    Args:
        probe: How to look.
        interval_s: Seconds between looks [s].
        clock: Monotonic time [s].

    Attributes:
        clock: Monotonic time [s].
        children: Pid of each running child with its model's id; the engine keeps it up to date.
        latest: Newest sample, None before the first.
        listeners: Called on the loop with each new sample.
        history: Points of the last ten minutes, oldest first.
    """

    def __init__(
        self,
        probe: Probe,
        *,
        interval_s: float = 1.0,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.probe = probe
        self.children: dict[int, str] = {}
        self.latest: Sample | None = None
        self.history: deque[Point] = deque(maxlen=HISTORY)
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self.clock = clock
        self.listeners: list[Callable[[Sample], None]] = []
        self._looking: asyncio.Future[Sample | None] | None = None
        self._looked_at = float("-inf")
        self._peaks: dict[int, int] = {}
        self._task: asyncio.Task[None] | None = None
        self.fault = ""
        """Why the newest look gave nothing; empty when it did."""

    @property
    def age_s(self) -> float | None:
        """Age of the newest sample [s]; None without one."""
        return None if self.latest is None else self.clock() - self.latest.at

    @property
    def poll_s(self) -> float:
        """How often it is worth looking while waiting for a change [s]."""
        return max(0.1, self.probe.min_interval_s)

    async def pause(self) -> None:
        """Let that time pass."""
        await asyncio.sleep(self.poll_s)

    def footprint(self, pid: int) -> int | None:
        """What a child holds by the newest sample [bytes]; None when that is not known."""
        value = self.latest.footprints.get(pid) if self.latest else None
        return value.bytes if value else None

    def peak(self, pid: int) -> int | None:
        """The most that a running child was seen to hold [bytes]."""
        return self._peaks.get(pid)

    def start(self) -> None:
        """Begin to sample. Needs a running loop."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name="memory watch")

    async def stop(self) -> None:
        """Stop sampling. A look that hangs is left behind; its thread never keeps the process alive."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def fresh(self) -> Sample | None:
        """A sample whose look began after this call, or for a probe with a shortest interval the next that it allows.

        Returns:
            None when the probe does not answer within the time-out.
        """
        deadline = self.clock() + self._timeout_s + self.probe.min_interval_s
        if self._looking is not None and not await self._wait(self._looking, deadline):
            return None
        if self._looking is None:
            pause = self._looked_at + self.probe.min_interval_s - self.clock()
            if pause > 0:
                await asyncio.sleep(pause)
        looking = self._looking or self._look()
        return looking.result() if await self._wait(looking, deadline) else None

    async def _run(self) -> None:
        while True:
            due = self.clock() + self._interval_s
            looking = self._looking or self._look()
            if not await self._wait(looking, self.clock() + self._timeout_s):
                self.fault = f"no answer from {self.probe.name} within {self._timeout_s:g} s"
            await asyncio.sleep(max(0.0, due - self.clock()))

    async def _wait(self, looking: asyncio.Future[Sample | None], deadline: float) -> bool:
        """Wait for a look without owning it: whoever gives up leaves it running."""
        done, _ = await asyncio.wait([looking], timeout=max(0.0, deadline - self.clock()))
        return bool(done)

    def _look(self) -> asyncio.Future[Sample | None]:
        """Start a look in a thread. A daemon, for the pool's threads would be waited for at the end."""
        loop = asyncio.get_running_loop()
        looking: asyncio.Future[Sample | None] = loop.create_future()
        children = dict(self.children)
        self._looking, self._looked_at = looking, self.clock()

        def look() -> None:
            sample, fault = None, ""
            try:
                sample = self.probe.sample(children)
            except Exception as error:  # a probe promises not to raise; one that does must not end the watch
                fault = f"{self.probe.name}: {type(error).__name__}: {error}"
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(self._take, looking, sample, fault)

        threading.Thread(target=look, name="llmtop memory", daemon=True).start()
        return looking

    def _take(self, looking: asyncio.Future[Sample | None], sample: Sample | None, fault: str) -> None:
        self._looking, self.fault = None, fault
        if sample is not None:
            self.latest = sample
            self._note(sample)
        looking.set_result(sample)
        if sample is not None:
            for listener in self.listeners:
                listener(sample)

    def _note(self, sample: Sample) -> None:
        models: dict[str, int] = {}
        self._peaks = {pid: peak for pid, peak in self._peaks.items() if pid in self.children}
        for pid, model in self.children.items():
            value = sample.footprints.get(pid)
            if value is not None and value.bytes is not None:
                self._peaks[pid] = max(value.bytes, self._peaks.get(pid, 0))
                models[model] = models.get(model, 0) + value.bytes
        self.history.append(Point(sample.at, sample.level.bytes, models))
