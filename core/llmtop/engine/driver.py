"""Drives the scheduler: hands events in with the time, carries its actions out, and keeps what views ask for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from llmtop.children.supervisor import Supervisor
from llmtop.config.resolve import Configuration
from llmtop.config.spec import ModelSpec, Settings
from llmtop.engine.chronicle import Chronicle
from llmtop.engine.deeds import Deeds
from llmtop.engine.desk import Desk
from llmtop.engine.files import FileCheck
from llmtop.engine.meters import Meters
from llmtop.engine.news import NewsDesk
from llmtop.engine.records import CLIENT_LEFT, ChildRecord, OomBook, Ticket
from llmtop.memory.sample import Sample
from llmtop.scheduler import actions as act
from llmtop.scheduler import checks, events
from llmtop.scheduler.machine import Machine
from llmtop.snapshot import Failure, Snapshot

_log = logging.getLogger(__name__)
TICK_S = 0.001
"""Resolution of the loop's timers [s]."""
PUBLISH_S = 0.1
"""Views hear of a change at most this often [s]."""
_OF_A_REQUEST = frozenset((events.Arrived, events.Left))
_GRANTS = {act.Grant}
_Look = tuple[ModelSpec, events.Facts, str]


class Engine:
    """One scheduler and all it stands on. Everything here runs on the core's loop.

    Args:
        configuration: Settings and models.
        desk: The memory.
        supervise: Makes the supervisor, given the sink of its news.
    """

    def __init__(
        self, configuration: Configuration, desk: Desk, supervise: Callable[[Callable[[Any], None]], Supervisor]
    ) -> None:
        settings = configuration.settings
        self.configuration = configuration
        self.settings = settings
        self.specs: dict[str, ModelSpec] = dict(configuration.catalog.models)
        """Every model the scheduler knows, those included that are on their way out of the configuration."""
        self.loop = asyncio.get_running_loop()
        self.desk = desk
        self.machine = Machine(_limits(settings))
        self.chronicle = Chronicle(settings, Path(settings.state_dir), self.now(), self.changed)
        self.journal = self.chronicle.journal
        self.children: dict[int, ChildRecord] = {}
        self.tickets: dict[int, Ticket] = {}
        self.oom = OomBook()
        self.meters = Meters()
        self.started_at = self.now()
        self.requests_total = 0
        self.errors_total = 0
        self.snapshot: Callable[[], Snapshot]
        """Set by whoever makes the pictures; used for recordings."""
        self.forget_upstream: Callable[[str], None] = lambda _: None
        self.deeds = Deeds(self)
        self.supervisor = supervise(NewsDesk(self).take)
        self._serial = 0
        self._later: deque[events.Event] = deque()
        self._busy = False
        self._turned: asyncio.Event | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._files = FileCheck(self.feed)
        self._listeners: set[asyncio.Event] = set()
        self._publish: asyncio.TimerHandle | None = None
        self._second: asyncio.TimerHandle | None = None

    now = staticmethod(time.monotonic)
    """Time of the scheduler's events [s]: finer than the clock of uvloop's loop, whose milliseconds make ties."""

    # --- life

    async def start(self) -> None:
        """Learn what is known of the models, read the memory, and begin the start-up loads."""
        server = self.configuration.server.path if self.configuration.server is not None else ""
        await self.desk.start(server, self.on_sample)
        specs = list(self.specs.values())
        self._know(await self._look(specs))
        for warning in self.settings.warnings:
            self.note("note", "", warning)
        if self.desk.watch.latest is not None:
            self.on_sample(self.desk.watch.latest)
        self._second = self.loop.call_later(1.0, self._every_second)

    async def _look(self, specs: Sequence[ModelSpec]) -> list[_Look]:
        """Read the headers of models: what is known of them, and whether a file is cut short."""
        desk = self.desk
        return await asyncio.to_thread(lambda: [(spec, desk.facts(spec), desk.cut_short(spec)) for spec in specs])

    def _know(self, looks: Sequence[_Look]) -> None:
        """Tell the scheduler of models, and whether their files are in order."""
        for spec, facts, cut_short in looks:
            self.feed(events.Configured(facts))
            self._files.whole(spec, cut_short)

    async def _know_again(self, spec: ModelSpec) -> None:
        """A file was replaced: its size and wholeness are read anew, unless the configuration is faster."""
        looks = await self._look([spec])
        if self.specs.get(spec.id) is spec:
            self._know(looks)

    async def reconfigure(self, fresh: Configuration) -> bool:
        """Take a configuration that was read again; only models that changed are touched. True when anything did."""
        before, after = self.configuration.catalog.models, fresh.catalog.models
        changed = [spec for name, spec in after.items() if before.get(name) != spec]
        looks = await self._look(changed)
        gone = [name for name in before if name not in after]
        self.configuration, self.settings = fresh, fresh.settings
        self.specs.update(after)
        self._know(looks)
        for name in gone:
            self.feed(events.Removed(name))
        if (limits := _limits(fresh.settings)) != self.machine.world.limits:
            self.feed(events.Limited(limits))
        return bool(changed or gone)

    def load_startup_models(self) -> None:
        """Queue what the presets want at the start; to be called once the front door is open."""
        for spec in self.specs.values():
            if spec.load_on_startup:
                self.feed(events.Load(spec.id, startup=True))

    async def close(self, grace_s: float) -> None:
        """End in order: waiters are told, requests in flight get their grace, all children are stopped side by side."""
        self.feed(events.Close())
        deadline = self.now() + grace_s
        while self.machine.world.granted and self.now() < deadline:
            await self._something_ends(0.1)
        self.feed(events.StopAll())
        while self.children and not self._all_stuck():
            await self._something_ends(0.5)

    async def _something_ends(self, timeout_s: float) -> None:
        """Wait for an event of the scheduler, a while at most."""
        self._turned = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._turned.wait(), timeout_s)

    async def aclose(self) -> None:
        """Let go of everything; the children are gone."""
        for timer in (self._timer, self._publish, self._second):
            if timer is not None:
                timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.supervisor.aclose()
        await self.desk.stop()
        await asyncio.to_thread(self.chronicle.close)

    def kill_all(self) -> None:
        """No more patience: SIGKILL to every child."""
        for instance in list(self.children):
            self.supervisor.kill(instance)

    def _all_stuck(self) -> bool:
        return all(i.stuck for i in self.machine.world.instances.values())

    # --- events in, actions out

    def feed(self, event: events.Event) -> Sequence[act.Action]:
        """Hand an event to the scheduler and carry out what it asks for."""
        if self._busy:  # news that came out of an action: after the one in hand
            self._later.append(event)
            return ()
        self._busy = True
        try:
            actions = self._step(event)
            while self._later:
                self._step(self._later.popleft())
        finally:
            self._busy = False
        if self._turned is not None:
            self._turned.set()
        if self._timer is not None or self.machine.world.wake_at is not None:
            self._set_timer()
        if self._listeners:
            self.changed()
        return actions

    def _step(self, event: events.Event) -> Sequence[act.Action]:
        now = self.now()
        actions = self.machine.handle(event, now)
        if type(event) in _OF_A_REQUEST and (not actions or {*map(type, actions)} == _GRANTS):
            for action in actions:  # most steps grant or end one request, and there can be thousands of them a second
                self.deeds.table[act.Grant](action)
            if self.chronicle.recorder is not None:
                self.chronicle.step(event, actions, now, routine=True)
            return actions
        self.meters.step(event, actions, self.machine.world, self.children, now)
        for action in actions:
            perform = self.deeds.table.get(type(action))
            if perform is not None:
                perform(action)
        self.chronicle.step(event, actions, now, routine=False)
        if any(type(a) is act.Spawn for a in actions):
            self._check(actions)
        return actions

    def _set_timer(self) -> None:
        at = self.machine.wake_at
        if self._timer is not None:
            if at is not None and self._timer_at <= at and not self._timer.cancelled():
                return  # it fires early enough; a tick too soon only looks again
            self._timer.cancel()
        self._timer_at = at or 0.0  # kept here: uvloop's handle of a call that is due at once has no time
        self._timer = None if at is None else self.loop.call_later(max(TICK_S, at - self.now()), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.Tick())

    def _check(self, actions: Sequence[act.Action]) -> None:
        """Broken invariants are bugs of llmtop: said, shown, and lived with."""
        for fault in checks.broken(self.machine.world, actions):
            self.chronicle.fault(f"invariant: {fault}")

    def note(self, kind: str, model: str, text: str) -> None:
        """A line for the events panel that is not the scheduler's."""
        self.chronicle.note(kind, model, text)

    # --- requests

    def admit(self, model: str, *, path: str, client: str, stream: bool, autoload: bool | None) -> Ticket:
        """A request comes in; how it goes is said through its ticket."""
        self._serial += 1
        self.requests_total += 1
        ticket = Ticket(
            self.loop,
            self._serial,
            model,
            path=path,
            client=client,
            stream=stream,
            now=self.now(),
            on_close=self._closed,
        )
        self.tickets[ticket.serial] = ticket
        self.recheck_files(model)
        self.feed(events.Arrived(ticket.serial, model, autoload))
        return ticket

    def _closed(self, ticket: Ticket, status: int, compute_error: bool) -> None:
        """A ticket is given back."""
        self.tickets.pop(ticket.serial, None)
        good = None if status in (CLIENT_LEFT, 502) else status < 500
        if status >= 500:
            self.errors_total += 1
        child = self.children.get(ticket.instance)
        if child is not None and status == CLIENT_LEFT:
            child.left_at = self.now()
        elif child is not None and status != 502:
            worrying = child.judge(status)
            if compute_error:
                self.feed(events.Sick(child.instance, Failure("sick", "answers Compute error.", at=time.time())))
            elif worrying:
                self.supervisor.verify(child.instance)
        self.feed(events.Left(ticket.serial, good))

    def recheck_files(self, model: str) -> None:
        """Look at a model's files again before they are needed."""
        m, spec = self.machine.world.models.get(model), self.specs.get(model)
        if m is not None and m.instance is None and spec is not None and spec.files:
            fresh = self._files.again(spec)
            if fresh is not spec:
                self.specs[model] = self.configuration.catalog.models[model] = fresh
                self.background(self._know_again(fresh))

    # --- memory

    def on_sample(self, sample: Sample) -> None:
        """The memory was read: budget and footprints follow."""
        w = self.machine.world
        budget = self.desk.rebudget(sample, len(w.instances), w.reserved())
        if (budget.bytes, self.desk.stranded) != (w.budget, w.stranded):
            self.feed(events.Budget(budget.bytes, self.desk.stranded))
        for child in list(self.children.values()):
            self.deeds.learn(child)
        self.changed()

    # --- views

    def changed(self) -> None:
        """Something that views show changed; they hear of it soon."""
        if self._publish is None and self._listeners:
            self._publish = self.loop.call_later(PUBLISH_S, self._tell)

    def _tell(self) -> None:
        if self._publish is not None:
            self._publish.cancel()
        self._publish = None
        if self.chronicle.recorder is not None:
            self.chronicle.picture(self.snapshot(), self.now())
        for listener in self._listeners:
            listener.set()

    def _every_second(self) -> None:
        self._second = self.loop.call_later(1.0, self._every_second)
        self._check(())
        self.chronicle.look()
        self._tell()

    def listen(self, listener: asyncio.Event) -> None:
        """Have an event set whenever there is something new."""
        self._listeners.add(listener)

    def unlisten(self, listener: asyncio.Event) -> None:
        """Never mind."""
        self._listeners.discard(listener)

    def background(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes a while; a fault in it is told."""
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.chronicle.fault(f"{type(error).__name__}: {error}")


def _limits(settings: Settings) -> events.Limits:
    """The settings that bound the scheduler."""
    s = settings
    return events.Limits(s.models_max, s.max_wait_s, s.max_queue, s.drain_timeout_s, s.autoload)
