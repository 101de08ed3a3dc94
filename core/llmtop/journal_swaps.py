"""Swaps put together from what the scheduler did: one for each spawn, with what went for it and where the time went."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from llmtop.scheduler.actions import Drain, Spawn, Stop
from llmtop.snapshot import Phases, Swap, Swaps
from llmtop.snapshot import Stop as StopRecord

LEARN_FROM = 5
"""Loads and stops whose median is what is expected of the next [1]."""
GONE_KEPT = 64
"""Children whose memory has settled and about which something may still be told [1]."""
ROUNDING_S = 1e-6
"""Sums of times are not exact."""


class Seconds(msgspec.Struct, frozen=True):
    """How long a model takes [s]; None where it was never seen."""

    load_s: float | None = None
    stop_s: float | None = None


@dataclass(slots=True)
class Leave:
    """How a child left. Times are monotonic [s]."""

    model: str
    drain_at: float | None = None
    stop_at: float | None = None
    exited_at: float | None = None
    settled_at: float | None = None
    reason: str = ""
    signal: str = ""
    footprint_bytes: int | None = None
    returned_bytes: int | None = None
    settle_s: float | None = None

    def record(self) -> StopRecord:
        """What the swap that it left for says of it."""
        settle_s = self.settle_s
        if settle_s is None and self.settled_at is not None and self.exited_at is not None:
            settle_s = self.settled_at - self.exited_at
        return StopRecord(self.model, self.signal, self.footprint_bytes, self.returned_bytes, settle_s)


@dataclass(slots=True)
class Load:
    """One swap while it can still change."""

    id: int
    model: str
    at: float
    reason: str
    waited_s: float
    leaves: Sequence[Leave]
    result: str = ""
    spawn_s: float | None = None
    load_s: float | None = None

    def swap(self) -> Swap:
        """The swap as the views see it."""
        drain_s, stop_s, settle_s = _phases(self.leaves)
        queued_s = self.waited_s - sum(s for s in (drain_s, stop_s, settle_s) if s is not None)
        phases = Phases(
            queued_s=max(0.0, queued_s) if self.waited_s > 0 else None,
            drain_s=drain_s,
            stop_s=stop_s,
            settle_s=settle_s,
            spawn_s=self.spawn_s,
            load_s=self.load_s,
        )
        evicted = tuple(leave.model for leave in self.leaves if leave.model != self.model)
        why = ", ".join(dict.fromkeys([self.reason, *(leave.reason for leave in self.leaves)]))
        return Swap(
            self.id,
            self.model,
            why,
            self.at,
            evicted,
            self.result,
            phases,
            tuple(leave.record() for leave in self.leaves),
        )


def _phases(leaves: Sequence[Leave]) -> tuple[float | None, float | None, float | None]:
    """Seconds of draining, stopping and settling of a set that goes together [s].

    The set drains until its first stop, stops until its last exit, and settles until the last memory is back.
    """
    stops = [leave.stop_at for leave in leaves if leave.stop_at is not None]
    if not stops:
        return None, None, None
    drains = [leave.drain_at for leave in leaves if leave.drain_at is not None]
    exits = [leave.exited_at for leave in leaves if leave.exited_at is not None]
    settled = [leave.settled_at for leave in leaves if leave.settled_at is not None]
    drain_s = max(0.0, min(stops) - min(drains)) if drains else None
    stop_s = max(0.0, max(exits) - min(stops)) if exits else None
    settle_s = max(0.0, max(settled) - max(exits)) if settled and exits else None
    return drain_s, stop_s, settle_s


@dataclass(slots=True)
class Run:
    """One child, from its spawn until its memory is back. ``state`` is ``loading``, ``up`` or ``leaving``."""

    model: str
    spawned_at: float
    load: Load
    leave: Leave
    state: str = "loading"
    started_at: float | None = None
    wanted_by: str = ""


@dataclass(slots=True)
class SwapBook:
    """All children that run, and the last swaps.

    Args:
        max_swaps: Swaps remembered [1].
    """

    max_swaps: int
    runs: dict[int, Run] = field(default_factory=dict[int, Run])
    count: int = 0
    _gone: dict[int, Run] = field(default_factory=dict[int, Run])
    _leaves: dict[str, list[Leave]] = field(default_factory=dict[str, list[Leave]])
    """Model to those that were stopped for it, until it is spawned."""
    _open: dict[int, Load] = field(default_factory=dict[int, Load])
    """Instance to its swap while that is under way."""
    _closed: deque[Swap] = field(default_factory=deque[Swap])
    _finished: list[Swap] = field(default_factory=list[Swap])
    _next_id: int = 1
    _load_s: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])
    _stop_s: dict[str, deque[float]] = field(default_factory=dict[str, deque[float]])

    def spawn(self, action: Spawn, now: float, wall: float) -> None:
        """A child is started: a swap begins."""
        since = now - action.waited_s - ROUNDING_S
        wanted = self._leaves.pop(action.model, [])
        leaves = [leave for leave in wanted if leave.stop_at is not None and leave.stop_at >= since]
        load = Load(self._next_id, action.model, wall, action.reason, action.waited_s, leaves)
        self._next_id += 1
        self.count += 1
        self._open[action.instance] = load
        self.runs[action.instance] = Run(action.model, now, load, Leave(action.model))

    def started(self, instance: int, now: float) -> None:
        """The process exists: from here on it loads."""
        run = self.runs.get(instance)
        if run is not None and run.started_at is None and run.state == "loading":
            run.started_at = now
            run.load.spawn_s = max(0.0, now - run.spawned_at)

    def ready(self, instance: int, now: float) -> float | None:
        """The load is over. Gives how long it took since the spawn [s]; None for stale news."""
        run = self.runs.get(instance)
        if run is None or run.state != "loading":
            return None
        run.state = "up"
        run.load.load_s = now - (run.spawned_at if run.started_at is None else run.started_at)
        took = now - run.spawned_at
        self._load_s.setdefault(run.model, deque(maxlen=LEARN_FROM)).append(took)
        self._close(instance, "ok")
        return took

    def drain(self, action: Drain, now: float) -> None:
        """A child takes no more requests."""
        if (run := self.runs.get(action.instance)) is not None:
            run.leave.drain_at, run.wanted_by = now, action.wanted_by

    def lift(self, instance: int) -> None:
        """A drain is over without a stop."""
        if (run := self.runs.get(instance)) is not None:
            run.leave.drain_at, run.wanted_by = None, ""

    def stop(self, action: Stop, now: float) -> None:
        """A child is asked to leave, for another model's sake or not."""
        run = self.runs.get(action.instance)
        if run is None:
            return
        leave = run.leave
        if run.state == "loading":
            self._close(action.instance, "failed" if action.reason == "load-failed" else "cancelled")
        if action.wanted_by and run.wanted_by not in ("", action.wanted_by):
            leave.drain_at = None  # it drained for somebody else
        run.state, leave.stop_at, leave.reason = "leaving", now, action.reason
        wanted_by = action.wanted_by or (run.model if action.reason == "sick" else "")
        if wanted_by:
            wanted = self._leaves.setdefault(wanted_by, [])
            wanted.append(leave)
            del wanted[:-GONE_KEPT]  # those of a need that went away are left behind

    def exited(self, instance: int, now: float) -> Run | None:
        """A child was reaped. Gives its page; None for stale news."""
        run = self.runs.get(instance)
        if run is None or run.leave.exited_at is not None:
            return None
        run.leave.exited_at = now
        if run.state == "loading":
            self._close(instance, "failed")
        run.state = "leaving"
        return run

    def settled(self, instance: int, now: float) -> Run | None:
        """A child's memory is back. Gives its page; None for stale news."""
        run = self.runs.pop(instance, None)
        if run is None:
            return None
        run.leave.settled_at = now
        if run.leave.stop_at is not None:
            self._stop_s.setdefault(run.model, deque(maxlen=LEARN_FROM)).append(now - run.leave.stop_at)
        self._gone[instance] = run
        if len(self._gone) > GONE_KEPT:
            del self._gone[next(iter(self._gone))]
        return run

    def leave_of(self, instance: int) -> Leave | None:
        """How that child leaves or left; None when it is not remembered."""
        run = self.runs.get(instance) or self._gone.get(instance)
        return None if run is None else run.leave

    def swaps(self, recent: int) -> Swaps:
        """The last swaps, those under way included, newest last."""
        rows = sorted([*self._closed, *(load.swap() for load in self._open.values())], key=lambda swap: swap.id)
        rows = rows[-recent:] if recent else []
        return Swaps(self.count, rows[-1] if rows else None, tuple(rows))

    def take_finished(self) -> tuple[Swap, ...]:
        """Swaps that ended since the last call."""
        taken, self._finished = tuple(self._finished), []
        return taken

    def seconds(self, model: str) -> Seconds:
        """What to expect of a model: the median of its last loads and stops."""
        loads, stops = self._load_s.get(model), self._stop_s.get(model)
        return Seconds(median(loads) if loads else None, median(stops) if stops else None)

    def restore(self, swaps: Sequence[Swap], seconds: Mapping[str, Seconds]) -> None:
        """Go on where the last run ended: its swaps come before this one's, and do not count."""
        self._closed.extend(sorted(swaps, key=lambda swap: swap.id)[-self.max_swaps :])
        self._next_id = max((swap.id for swap in swaps), default=0) + 1
        for model, known in seconds.items():
            if known.load_s is not None:
                self._load_s[model] = deque([known.load_s], maxlen=LEARN_FROM)
            if known.stop_s is not None:
                self._stop_s[model] = deque([known.stop_s], maxlen=LEARN_FROM)

    def _close(self, instance: int, result: str) -> None:
        load = self._open.pop(instance, None)
        if load is None:
            return
        load.result = result
        swap = load.swap()
        self._finished.append(swap)
        del self._finished[: -self.max_swaps]
        self._closed.append(swap)
        while len(self._closed) > self.max_swaps:
            self._closed.popleft()
