"""A world for the scheduler to live in: it owns what is real, feeds events, and judges every action by the rules.

``World.feed`` first makes an event true here, then hands it in, then checks each action and what stands afterwards.
What the scheduler remembers is compared with what is real, never taken from it. ``World.behave`` lets things take
their course and asks that everybody is answered in time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler.checks import broken
from llmtop.scheduler.machine import Machine
from llmtop.snapshot import Failure
from llmtop.testing import judge
from llmtop.testing.judge import EPS_S, OVER, WAITING, Broken, Process


class Scheduler(Protocol):
    """What the world drives: the real machine, or a copy of it with a fault."""

    world: Any

    @property
    def wake_at(self) -> float | None:
        """When it asks for a tick [s]."""
        ...

    def handle(self, event: ev.Event, now: float, /) -> list[act.Action]:
        """One event in, actions out."""
        ...


Check = Callable[[Any, Sequence[act.Action]], Iterable[str]]


@dataclass(slots=True, frozen=True)
class Pace:
    """How long things take in a world that behaves [s]."""

    load: float = 3.0
    stop: float = 1.0
    settle: float = 0.5
    work: float = 2.0


class World:
    """Reality around one scheduler.

    Args:
        limits: Cap, max-wait and the like.
        machine: Builds the scheduler; the real one unless a test wants a faulty copy.
        check: The scheduler's own invariants.
    """

    def __init__(
        self, limits: ev.Limits, machine: Callable[[ev.Limits], Scheduler] = Machine, check: Check = broken
    ) -> None:
        self.machine = machine(limits)
        self.limits = limits
        self.check = check
        self.now = 0.0
        self.processes: dict[int, Process] = {}
        self.gone: list[int] = []
        self.fates: dict[int, str] = {}
        self.owner: dict[int, str] = {}
        self.queued: dict[int, str] = {}
        self.facts: dict[str, ev.Facts] = {}
        self.measured: dict[str, int] = {}
        self.pins: dict[str, str] = {}
        self.failed: dict[str, str] = {}
        self.wanted: set[str] = set()
        """Models that the operator or start-up asked for and that are not ready yet."""
        self.line: dict[str, None] = {}
        """Models that are waited for, in order of arrival."""
        self.line_since: dict[str, float] = {}
        """Since when, on the clock that stands still while the queue is held [s]."""
        self.held_times: list[tuple[float, float]] = []
        self.stuck_stay = False
        """What survived SIGKILL never exits."""
        self.budget: int | None = None
        self.stranded = 0
        self.held = False
        self.closing = False
        self.permit = ""
        """The model whose entry was given a step while the queue is held."""
        self.stepped = ""
        """The head at the last ``Step``."""
        self.removed: set[str] = set()
        self.answers: list[act.Action] = []

    # --- asking

    def of(self, model: str) -> Process | None:
        """The process of a model."""
        return next((p for p in self.processes.values() if p.model == model), None)

    def waiting(self, model: str | None = None) -> list[int]:
        """Requests that wait, for one model or all."""
        return [r for r, m in self.queued.items() if model is None or m == model]

    def flying(self) -> list[int]:
        """Requests that were granted and are not over."""
        return [r for p in self.processes.values() for r in p.flying]

    def decide(self, request: int, fate: str) -> None:
        """Write down what became of a request."""
        self.fates[request] = fate
        if fate == WAITING:
            self.queued[request] = self.owner[request]
        else:
            self.queued.pop(request, None)

    def known(self, model: str) -> int | None:
        """Declared or measured size, the larger [bytes]."""
        sizes = [s for s in (self.facts[model].declared, self.measured.get(model)) if s is not None]
        return max(sizes) if sizes else None

    def held_bytes(self) -> int:
        """What processes hold at least [bytes]."""
        return sum(p.reserved for p in self.processes.values())

    def head(self) -> str | None:
        """The first model in the queue that has no process left."""
        return next((m for m in self.machine.world.queue if self.of(m) is None), None)

    def moves(self) -> list[ev.Event]:
        """What may happen next by nature: loads end, the told exit, memory comes back, requests end."""
        found: list[ev.Event] = []
        for p in self.processes.values():
            if p.state == "settling":
                found.append(ev.Settled(p.id))
            elif p.told:
                found += [] if p.stuck and self.stuck_stay else [ev.Exited(p.id)]
            elif p.state == "loading":
                found.append(ev.Ready(p.id))
            found += [ev.Left(r, True) for r in sorted(p.flying)]
        return found

    def active(self, at: float) -> float:
        """A moment on the clock that stands still while the queue is held and no step is given [s]."""
        return at - sum(min(at, end) - start for start, end in self.held_times if start < at)

    # --- driving

    def feed(self, event: ev.Event) -> list[act.Action]:
        """Make an event true, hand it in, judge the answer.

        Raises:
            Broken: A rule does not hold.
        """
        if (happen := getattr(self, f"_{type(event).__name__.lower()}", None)) is not None:
            happen(event)
        done = self.machine.handle(event, self.now)
        self.answers = done
        judge.actions(self, done, event)
        judge.standing(self, done)
        return done

    def ask(self, model: str) -> int:
        """A new request for a model; its number."""
        number = len(self.fates) + 1
        self.feed(ev.Arrived(number, model))
        return number

    def pass_time(self, seconds: float) -> None:
        """Let time go by, with a tick wherever the scheduler asked for one."""
        end = self.now + seconds
        if self.held and not self.permit and seconds > 0:
            self.held_times.append((self.now, end))
        for _ in range(1000):
            at = self.machine.wake_at
            if at is None or at > end:
                self.now = end
                return
            self.now = max(self.now, at)
            self.feed(ev.Tick())
            after = self.machine.wake_at
            judge.need(after is None or after > self.now, f"asked for a tick at {after}, it is {self.now} already")
        raise Broken("asks for a tick again and again")

    def probe(self) -> None:
        """Whatever could be done was done: another look at the same moment changes nothing.

        A moment that is the scheduler's next but for rounding is not the same moment.
        """
        at = self.machine.wake_at
        if at is None or at > self.now + EPS_S:
            before = self.memory()
            done = self.feed(ev.Tick())
            judge.need(not done, f"left undone: {done}")
            judge.need(self.memory() == before, "a tick changed what is remembered")

    def stale(self, event: ev.Event) -> None:
        """News of what is long over changes nothing."""
        self.probe()
        before = self.memory()
        done = self.feed(event)
        judge.need(not done and self.memory() == before, f"{event} is stale and yet did {done}")

    def memory(self) -> str:
        """All that the scheduler remembers."""
        w = self.machine.world
        return repr((w.models, w.instances, w.queue, w.waiting, w.granted, w.reloads, w.hold, w.permit, w.drain_set))

    def behave(self, pace: Pace, *, stream: str | None = None, asked: float = 0.4) -> None:
        """Let the world behave until everybody is answered: children load and leave in time, requests end.

        Args:
            pace: How long things take.
            stream: A model that is asked again and again until those who wait now are answered.
            asked: Seconds between those requests [s].

        Raises:
            Broken: Somebody waits longer than the rules allow, or for ever.
        """
        mine = set(self.waiting())
        by = self.now + self.bound(pace)
        due: dict[ev.Event, float] = {}
        next_ask = self.now
        steps = 0
        while steps <= 500 + 60 * len(self.facts) + 5 * len(self.fates):
            steps += 1
            mine.intersection_update(self.waiting())
            judge.need(not mine or self.now <= by, f"{sorted(mine)} still wait at {self.now:.1f}, bound {by:.1f}")
            if not self.waiting() and not self.flying():
                return
            due = {m: due.get(m, self.now + self._takes(m, pace)) for m in self.moves()}
            first = min(due, key=lambda m: due[m], default=None)
            times = [due[first]] if first is not None else []
            times += [self.machine.wake_at] if self.machine.wake_at is not None else []
            times += [next_ask] if stream is not None and mine else []
            judge.need(bool(times), f"{self.waiting()} wait and nothing will ever happen")
            self.pass_time(max(0.0, min(times) - self.now))
            if first is not None and due[first] <= self.now:
                if first in self.moves():
                    self.feed(first)
            elif stream is not None and mine and next_ask <= self.now:
                next_ask = self.now + asked
                self.ask(stream)
        raise Broken(f"no end: {self.waiting()} wait, {self.flying()} run")

    def bound(self, pace: Pace) -> float:
        """How long those who wait now may have to, at worst [s]: each entry ahead takes its own time.

        Max-wait, what its victims had been granted, stop, settle, a load under way, its own load; once more for a load
        that had to be tried again. Without max-wait a model is idle 5 s after its last request at the latest.
        """
        entries = len(self.machine.world.queue) + len(self.processes)
        wait = 5.0 if self.limits.max_wait_s is None else self.limits.max_wait_s
        return 2.5 + (entries + 1) * (wait + pace.work + pace.stop + pace.settle + 2 * pace.load)

    @staticmethod
    def _takes(move: ev.Event, pace: Pace) -> float:
        names: dict[type[ev.Event], float] = {
            ev.Ready: pace.load,
            ev.Exited: pace.stop,
            ev.Settled: pace.settle,
            ev.Left: pace.work,
        }
        return names[type(move)]

    # --- what events make true

    def _arrived(self, event: ev.Arrived) -> None:
        if self.fates.get(event.request, OVER) == OVER:
            self.owner[event.request] = event.model
            self.decide(event.request, WAITING)

    def _left(self, event: ev.Left) -> None:
        self._over(event.request)

    def _over(self, request: int) -> None:
        if request in self.fates:
            self.decide(request, OVER)
        for p in self.processes.values():
            if request in p.flying:
                p.flying.discard(request)
                p.last_used = self.now

    def _ready(self, event: ev.Ready) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state == "loading" and not p.told:
            p.state, p.ready_at, p.last_used = "up", self.now, self.now
            self.wanted.discard(p.model)

    def _slept(self, event: ev.Slept) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state == "up":
            p.state = "asleep"

    def _woke(self, event: ev.Woke) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state == "asleep":
            p.state = "up"

    def _exited(self, event: ev.Exited) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state != "settling":
            self._note_failure(p.model, event.failure or Failure("crash", ""))
            p.state, p.stuck = "settling", False

    def _settled(self, event: ev.Settled) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state == "settling":
            self.gone.append(self.processes.pop(p.id).id)
            if p.model in self.removed:
                self.measured.pop(p.model, None)

    def _loadfailed(self, event: ev.LoadFailed) -> None:
        p = self.processes.get(event.instance)
        if p is not None:
            self._note_failure(p.model, event.failure)

    def _sick(self, event: ev.Sick) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.up and not p.told and p.sick_since is None:
            p.sick_since = self.now
            self._note_failure(p.model, event.failure)

    def _note_failure(self, model: str, failure: Failure) -> None:
        self.failed[model] = self.failed.get(model, "") + failure.kind + " "

    def _stuck(self, event: ev.Stuck) -> None:
        p = self.processes.get(event.instance)
        if p is not None and p.state != "settling":
            p.stuck = True

    def _measured(self, event: ev.Measured) -> None:
        if event.model in self.machine.world.models:  # of a model that was taken out nothing is kept
            self.measured[event.model] = event.footprint
            p = self.of(event.model)
            if p is not None and p.up and not p.told:
                p.reserved = self.known(event.model) or 0  # at least: one that took all the room may hold more

    def _budget(self, event: ev.Budget) -> None:
        self.budget, self.stranded = event.total, event.stranded

    def _limited(self, event: ev.Limited) -> None:
        self.limits = event.limits

    def _configured(self, event: ev.Configured) -> None:
        name = event.facts.name
        before = None if name in self.removed else self.facts.get(name)
        if name in self.removed and self.of(name) is None:
            self.pins[name] = ""  # a model that was gone is a new one, whatever was said of its name meanwhile
        if event.facts.pinned and not (before is not None and before.pinned):
            self.pins[name] = "preset"
        elif self.pins.get(name) == "preset" and not event.facts.pinned:
            self.pins[name] = ""
        if event.facts.measured is not None:
            self.measured[name] = event.facts.measured
        self.facts[name] = event.facts
        self.removed.discard(name)

    def _removed(self, event: ev.Removed) -> None:
        self.pins[event.model] = ""
        self.removed.add(event.model)
        self.wanted.discard(event.model)
        if self.of(event.model) is None:
            self.measured.pop(event.model, None)

    def _pin(self, event: ev.Pin) -> None:
        self.pins[event.model] = self.pins.get(event.model) or "operator"

    def _unpin(self, event: ev.Unpin) -> None:
        self.pins[event.model] = ""

    def _hold(self, _: ev.Hold) -> None:
        self.held = True

    def _resume(self, _: ev.Resume) -> None:
        self.held, self.permit = False, ""

    def _step(self, _: ev.Step) -> None:
        self.stepped = self.head() or ""

    def _checked(self, event: ev.Checked) -> None:
        if event.failure is not None:
            self._note_failure(event.model, event.failure)

    def _close(self, _: ev.Close) -> None:
        self.closing = True
        self.wanted.clear()

    def _stopall(self, _: ev.StopAll) -> None:
        self.closing = True
        self.wanted.clear()
