"""A machine room on a virtual clock: children that take their time to load, to leave and to give memory back.

It carries out what a policy asks for and tells it what came of it, exactly as the engine does with real processes.
Everything is deterministic: the same requests, models and policy give the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler.machine import Machine

LOADING_STOP_S = 0.5
"""A child that is still loading is gone this soon at the latest [s]: SIGKILL follows SIGTERM that fast."""
STILL_MAX = 10_000
"""Wakes without any time passing, after which a policy is taken to spin [1]."""


class Ask(msgspec.Struct, frozen=True):
    """One request of a trace: it comes at ``t`` [s] and takes ``duration`` [s] once a child has it."""

    t: float
    model: str
    duration: float


class Known(msgspec.Struct, frozen=True):
    """A model of the simulation: its size [bytes] (None: not known), and how long it loads, stops and settles [s]."""

    size: int | None = None
    load_s: float = 10.0
    stop_s: float = 1.0
    settle_s: float = 0.0


class Policy(Protocol):
    """A scheduler, as the world knows it: ``llmtop.scheduler.machine.Machine`` or something to compare it with."""

    @property
    def wake_at(self) -> float | None:
        """When it wants a ``Tick`` [s]."""
        ...

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """Take one event in and give what is to be done."""
        ...


@dataclass(slots=True)
class Fate:
    """What became of a request. Times in seconds; None: it never came to that."""

    ask: Ask
    granted_at: float | None = None
    ended_at: float | None = None
    refused: str = ""
    """Error type, when it was refused or cut."""

    @property
    def over(self) -> bool:
        """It was answered or refused."""
        return self.ended_at is not None or bool(self.refused)


@dataclass(slots=True)
class Process:
    """A child: ``l`` loading, ``=`` idle, ``#`` busy, ``x`` leaving."""

    instance: int
    model: str
    mark: str = "l"
    in_flight: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class History:
    """What a run leaves behind.

    Args:
        fates: One for each request, in the order of the trace.
        marks: Model to its marks and when they began [s]; ``.`` is gone.
        loads: Spawns [1].
        evictions: Children stopped so that another model could come [1].
        peak_bytes: Most memory held at once, by the sizes of the models [bytes].
        peak_models: Most children at once [1].
        busy_s: Time with at least one request at work [s].
        end_s: When the last request was over [s].
    """

    fates: list[Fate]
    marks: dict[str, list[tuple[float, str]]]
    loads: int = 0
    evictions: int = 0
    peak_bytes: int = 0
    peak_models: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0


class World:
    """One run.

    Args:
        policy: Who decides.
        models: Every model that requests name.
        asks: The requests, in order of time.
    """

    def __init__(self, policy: Policy, models: Mapping[str, Known], asks: Sequence[Ask]) -> None:
        self._policy, self._models = policy, models
        self.history = History([Fate(ask) for ask in asks], {model: [(0.0, ".")] for model in models})
        self.processes: dict[int, Process] = {}
        self._heap: list[tuple[float, int, ev.Event]] = []
        self._order = 0
        self._open = len(asks)
        self._busy_since: float | None = None
        for number, ask in enumerate(asks):
            self._at(ask.t, ev.Arrived(number, ask.model))

    def run(self, now: float = 0.0) -> History:
        """Run until every request is over, or nothing can happen any more.

        Raises:
            RuntimeError: The policy asks to be woken again and again without time passing.
        """
        still = 0
        while self._open:
            wake_at = self._policy.wake_at
            due = self._heap[0][0] if self._heap else None
            if wake_at is not None and (due is None or wake_at < due):
                still = still + 1 if wake_at <= now else 0
                if still > STILL_MAX:
                    raise RuntimeError(f"the policy is woken for ever at {now:g} s")
                now = max(now, wake_at)
                self.feed(ev.Tick(), now)
            elif due is None:
                break
            else:
                still = still if due <= now else 0
                now, _, event = heapq.heappop(self._heap)
                if self._happens(event, now):
                    self.feed(event, now)
        self.history.end_s = now
        if self._busy_since is not None:
            self.history.busy_s += now - self._busy_since
        return self.history

    def feed(self, event: ev.Event, now: float) -> None:
        """Tell the policy something, and do what it asks for."""
        for action in self._policy.handle(event, now):
            self._do(action, now)

    def _at(self, time: float, event: ev.Event) -> None:
        heapq.heappush(self._heap, (time, self._order, event))
        self._order += 1

    def _happens(self, event: ev.Event, now: float) -> bool:
        """Make it so in the world. False when it cannot be any more: a load that was ended, a request that was cut."""
        match event:
            case ev.Ready(instance):
                process = self.processes.get(instance)
                if process is None or process.mark != "l":
                    return False
                self._mark(process, "=", now)
            case ev.Exited(instance):
                process = self.processes.get(instance)
                if process is None:
                    return False
                for request in process.in_flight:
                    self._over(request, now, refused="upstream_error")
                process.in_flight.clear()
            case ev.Settled(instance):
                process = self.processes.pop(instance, None)
                if process is None:
                    return False
                self._mark(process, ".", now)
            case ev.Left(request):
                fate = self.history.fates[request]
                if fate.over:
                    return False
                self._over(request, now)
                self._release(request, now)
            case _:
                pass
        return True

    def _do(self, action: act.Action, now: float) -> None:
        match action:
            case act.Spawn(instance, model):
                self._spawn(instance, model, now)
            case act.Stop(instance):
                self._stop(self.processes[instance], action, now)
            case act.Kill(instance):
                self._at(now, ev.Exited(instance))
            case act.Settle(instance, model):
                self._at(now + self._models[model].settle_s, ev.Settled(instance))
            case act.Grant(request, instance):
                process = self.processes[instance]
                process.in_flight.add(request)
                self._mark(process, "#", now)
                fate = self.history.fates[request]
                fate.granted_at = now
                self._at(now + fate.ask.duration, ev.Left(request, good=True))
            case act.Refuse(request, _, refusal) | act.Cut(request, _, refusal):
                self._over(request, now, refused=refusal.type)
                self._release(request, now)
            case _:
                pass

    def _spawn(self, instance: int, model: str, now: float) -> None:
        process = self.processes[instance] = Process(instance, model)
        self._mark(process, "l", now)
        history = self.history
        history.loads += 1
        history.peak_models = max(history.peak_models, len(self.processes))
        history.peak_bytes = max(
            history.peak_bytes, sum(self._models[p.model].size or 0 for p in self.processes.values())
        )
        self._at(now + self._models[model].load_s, ev.Ready(instance))

    def _stop(self, process: Process, action: act.Stop, now: float) -> None:
        stop_s = self._models[process.model].stop_s
        if process.mark == "l":
            stop_s = min(stop_s, LOADING_STOP_S)
        self.history.evictions += bool(action.wanted_by)
        self._mark(process, "x", now)
        self._at(now + stop_s, ev.Exited(process.instance))

    def _release(self, request: int, now: float) -> None:
        """Take a request from the child that had it."""
        for process in self.processes.values():
            if request in process.in_flight:
                process.in_flight.remove(request)
                if not process.in_flight and process.mark == "#":
                    self._mark(process, "=", now)

    def _over(self, request: int, now: float, refused: str = "") -> None:
        fate = self.history.fates[request]
        if fate.over:
            return
        self._open -= 1
        fate.refused = refused
        if not refused:
            fate.ended_at = now

    def _mark(self, process: Process, mark: str, now: float) -> None:
        if process.mark == mark and mark != "l":
            return
        process.mark = mark
        self.history.marks[process.model].append((now, mark))
        busy = any(p.mark == "#" for p in self.processes.values())
        if busy and self._busy_since is None:
            self._busy_since = now
        elif not busy and self._busy_since is not None:
            self.history.busy_s += now - self._busy_since
            self._busy_since = None


def llmtop(limits: ev.Limits, models: Mapping[str, Known], budget: int | None = None) -> Machine:
    """The real scheduler, told of these models.

    Args:
        limits: Cap, max-wait and the rest.
        models: Sizes are declared; what was learned of load and stop is told too.
        budget: Bytes that all models may take [bytes]; None = bytes do not count.
    """
    machine = Machine(limits)
    machine.handle(ev.Budget(budget), 0.0)
    for name, known in models.items():
        facts = ev.Facts(name, declared=known.size, load_s=known.load_s, stop_s=known.stop_s + known.settle_s)
        machine.handle(ev.Configured(facts), 0.0)
    return machine
