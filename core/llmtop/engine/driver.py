"""Drives the scheduler: hands events in with the time, carries its actions out, and keeps what views ask for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from llmtop.children.supervisor import Supervisor
from llmtop.config.discovery import cache_share, recheck
from llmtop.config.resolve import Configuration
from llmtop.config.spec import ModelSpec, Settings
from llmtop.engine.desk import Desk
from llmtop.engine.records import CLIENT_LEFT, ChildRecord, OomBook, Ticket
from llmtop.journal import Journal
from llmtop.memory.sample import Sample
from llmtop.scheduler import actions as act
from llmtop.scheduler import checks, events, queue, room
from llmtop.scheduler.machine import Machine
from llmtop.snapshot import EventLine, Failure

_log = logging.getLogger(__name__)
PUBLISH_S = 0.1
"""Views hear of a change at most this often [s]."""
LEARN_STEP = 64 * 2**20
"""A footprint that grew by less is not worth an event [bytes]."""
FAULTS_KEPT = 20


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
        from llmtop.engine.news import NewsDesk

        settings = configuration.settings
        self.configuration = configuration
        self.settings = settings
        self.specs: dict[str, ModelSpec] = dict(configuration.catalog.models)
        """Every model the scheduler knows, those included that are on their way out of the configuration."""
        self.loop = asyncio.get_running_loop()
        self.desk = desk
        self.machine = Machine(_limits(settings))
        self.journal = Journal()
        self.children: dict[int, ChildRecord] = {}
        self.tickets: dict[int, Ticket] = {}
        self.oom = OomBook()
        self.faults: deque[str] = deque(maxlen=FAULTS_KEPT)
        self.started_at = self.loop.time()
        self.requests_total = 0
        self.errors_total = 0
        self.forget_upstream: Callable[[str], None] = lambda _: None
        self.news = NewsDesk(self)
        self.supervisor = supervise(self.news.take)
        self._serial = 0
        self._later: deque[events.Event] = deque()
        self._busy = False
        self._turned = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._signatures: dict[str, tuple[Any, ...]] = {}
        self._listeners: set[asyncio.Event] = set()
        self._publish: asyncio.TimerHandle | None = None
        self._second: asyncio.TimerHandle | None = None
        self._perform: dict[type[act.Action], Callable[[Any], None]] = {
            act.Spawn: self._spawn,
            act.Stop: self._stop,
            act.Kill: self._kill,
            act.Settle: self._settle,
            act.Grant: self._grant,
            act.Refuse: self._refuse,
            act.Cut: self._cut,
        }

    # --- life

    async def start(self) -> None:
        """Learn what is known of the models, read the memory, and begin the start-up loads."""
        server = self.configuration.server.path if self.configuration.server is not None else ""
        await self.desk.start(server, self._on_sample)
        specs = list(self.specs.values())
        for facts in await asyncio.to_thread(lambda: [self.desk.facts(spec) for spec in specs]):
            self._know(facts)
        for warning in self.settings.warnings:
            self.note("note", "", warning)
        if self.desk.watch.latest is not None:
            self._on_sample(self.desk.watch.latest)
        self._second = self.loop.call_later(1.0, self._every_second)

    def _know(self, facts: events.Facts) -> None:
        """Tell the scheduler of a model, and whether its files are in order."""
        spec = self.specs[facts.name]
        self.feed(events.Configured(facts))
        self._note_files(spec)
        if spec.problem:
            self.feed(events.Checked(spec.id, _file_failure(spec)))

    def reconfigure(self, fresh: Configuration) -> bool:
        """Take a configuration that was read again; only models that changed are touched. True when anything did."""
        before, after = self.configuration.catalog.models, fresh.catalog.models
        changed = [spec for name, spec in after.items() if before.get(name) != spec]
        gone = [name for name in before if name not in after]
        self.configuration, self.settings = fresh, fresh.settings
        self.specs.update(after)
        for spec in changed:
            self._know(self.desk.facts(spec))
            self.note("config", spec.id, f"{spec.id} changed: its new settings hold from the next load on")
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
        deadline = self.loop.time() + grace_s
        while self.machine.world.granted and self.loop.time() < deadline:
            await self._something_ends(0.1)
        self.feed(events.StopAll())
        while self.children and not self._all_stuck():
            await self._something_ends(0.5)

    async def _something_ends(self, timeout_s: float) -> None:
        """Wait for an event of the scheduler, a while at most."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._turned.wait(), timeout_s)
        self._turned.clear()

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
        self._turned.set()
        self._set_timer()
        self.changed()
        return actions

    def _step(self, event: events.Event) -> Sequence[act.Action]:
        now = self.loop.time()
        actions = self.machine.handle(event, now)
        routine = isinstance(event, (events.Arrived, events.Left)) and all(type(a) is act.Grant for a in actions)
        for action in actions:
            perform = self._perform.get(type(action))
            if perform is not None:
                perform(action)
        if not routine:
            self._report(self.journal.observe(event, actions, now, time.time()))
        if any(type(a) is act.Spawn for a in actions):
            self._check(actions)
        return actions

    def _set_timer(self) -> None:
        at = self.machine.wake_at
        if self._timer is not None:
            if at is not None and self._timer.when() <= at and not self._timer.cancelled():
                return  # it fires early enough; a tick too soon only looks again
            self._timer.cancel()
        self._timer = None if at is None else self.loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self.feed(events.Tick())

    def _check(self, actions: Sequence[act.Action]) -> None:
        """Broken invariants are bugs of llmtop: said, shown, and lived with."""
        for fault in checks.broken(self.machine.world, actions):
            self.fault(f"invariant: {fault}")

    def fault(self, text: str) -> None:
        """Something that must not happen happened."""
        _log.error("%s", text)
        if text not in self.faults:
            self.faults.append(text)
            self.note("fault", "", text)

    def note(self, kind: str, model: str, text: str) -> None:
        """A line for the events panel that is not the scheduler's."""
        self._report((self.journal.note(kind, model, text, time.time()),))
        self.changed()

    def _report(self, lines: Sequence[EventLine]) -> None:
        for line in lines:
            _log.info("%s %s", line.kind, line.text)

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
            now=self.loop.time(),
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
        child = self.children.get(ticket.instance) if ticket.instance is not None else None
        if child is not None and status not in (CLIENT_LEFT, 502):
            worrying = child.judge(status)
            if compute_error:
                self.feed(events.Sick(child.instance, Failure("sick", "answers Compute error.", at=time.time())))
            elif worrying:
                self.supervisor.verify(child.instance)
        self.feed(events.Left(ticket.serial, good))

    def recheck_files(self, model: str) -> None:
        """Look at a model's files before anything is evicted for it, if they changed since the last look."""
        m = self.machine.world.models.get(model)
        spec = self.specs.get(model)
        if m is None or spec is None or m.instance is not None or not spec.files:
            return
        if self._note_files(spec):
            fresh = recheck(spec)
            self.specs[model] = self.configuration.catalog.models[model] = fresh
            self.feed(events.Checked(model, _file_failure(fresh) if fresh.problem else None))

    def _note_files(self, spec: ModelSpec) -> bool:
        """Remember size and time of a model's files. True when they changed."""
        signature = tuple(_stat(file) for file in spec.files)
        changed = self._signatures.get(spec.id) != signature
        self._signatures[spec.id] = signature
        return changed

    # --- actions

    def _spawn(self, action: act.Spawn) -> None:
        spec = self.specs[action.model]
        self.children[action.instance] = ChildRecord(action.instance, spec, self.loop.time())
        self.desk.opened(action.instance, action.reserved or None)
        share = cache_share(self.settings, self.configuration.catalog, spec)
        self.supervisor.spawn(action.instance, spec, cache_ram_mib=share)

    def _stop(self, action: act.Stop) -> None:
        if self.desk.stop_needs_reading and not action.loading and action.reason != "shutdown":
            self._background(self._stop_after_reading(action))
        else:
            self._ask_to_leave(action)

    async def _stop_after_reading(self, action: act.Stop) -> None:
        await self.desk.before_stop(action.instance)
        self._ask_to_leave(action)

    def _ask_to_leave(self, action: act.Stop) -> None:
        child = self.children.get(action.instance)
        if child is not None:
            child.signal = "SIGTERM" if action.loading else "exit line"
            self.supervisor.stop(action.instance, loading=action.loading, footprint_bytes=self.footprint(child))

    def _kill(self, action: act.Kill) -> None:
        self.supervisor.kill(action.instance)

    def _settle(self, action: act.Settle) -> None:
        child = self.children.pop(action.instance, None)
        if child is not None:
            self.desk.gone(child.pid)
            if child.upstream is not None:
                self.forget_upstream(child.upstream.key)
            self._learn(child)
            self.journal.stop_info(action.instance, child.signal or "exit", self.footprint(child))
        if child is None or child.pid is None or self.desk.settles_at_once():
            self.desk.close_page(action.instance)
            self.journal.settled_info(action.instance, None, 0.0)
            self._later.append(events.Settled(action.instance))
        else:
            self._background(self._wait_settled(action.instance, self.footprint(child) or 0))

    async def _wait_settled(self, instance: int, footprint: int) -> None:
        result = await self.desk.settle(instance, footprint, self._head_fits)
        self.journal.settled_info(instance, result.returned_bytes, result.seconds)
        if result.stranded_bytes:
            self.note("note", "", f"{room.gib(result.stranded_bytes)} not returned: {result.reason}")
        if self.desk.watch.latest is not None:
            self._on_sample(self.desk.watch.latest)
        self.feed(events.Settled(instance))

    def _head_fits(self, stranded: int) -> bool:
        """The head would fit with that many more bytes off the budget; with no head anything does."""
        w = self.machine.world
        head = queue.find_head(w)
        if head is None or w.room is None:
            return True
        want = room.need(w, w.models[head.model])
        return want.bytes + sum(i.reserved for i in room.staying(w)) + stranded <= w.room

    def _grant(self, action: act.Grant) -> None:
        ticket, child = self.tickets.get(action.request), self.children.get(action.instance)
        if ticket is not None and child is not None:
            i = self.machine.world.instances[action.instance]
            waited_for_it = i.ready_at > ticket.arrived_at
            load_s = i.ready_at - max(i.spawned_at, ticket.arrived_at) if waited_for_it else 0.0
            ticket.grant(child, self.loop.time(), load_s)

    def _refuse(self, action: act.Refuse) -> None:
        ticket = self.tickets.pop(action.request, None)
        if ticket is not None:
            ticket.closed = True
            self.errors_total += 1
            ticket.refuse(action.refusal)

    def _cut(self, action: act.Cut) -> None:
        ticket = self.tickets.get(action.request)
        if ticket is not None:
            ticket.end(action.refusal)

    # --- memory

    def footprint(self, child: ChildRecord) -> int | None:
        """What a child holds, as best known [bytes]."""
        if child.pid is not None and (seen := self.desk.watch.footprint(child.pid)) is not None:
            child.footprint = seen
        return child.footprint if child.footprint is not None else child.sized

    def learn(self, child: ChildRecord) -> None:
        """A measured footprint becomes the model's reservation."""
        w = self.machine.world
        i, m = w.instances.get(child.instance), w.models.get(child.spec.id)
        sizes = [s for s in (self.footprint(child), child.sized) if s is not None]
        if i is None or m is None or not i.up or not sizes:
            return
        size = max(sizes)
        if m.measured is None or size > m.measured + LEARN_STEP or i.alone:
            self.feed(events.Measured(m.name, size))

    def _learn(self, child: ChildRecord) -> None:
        """Keep a footprint over restarts; only of a child that was ready."""
        m = self.machine.world.models.get(child.spec.id)
        if m is not None and m.measured is not None and child.answered:
            self.desk.learned.put(child.spec, m.measured, "measured")

    def _on_sample(self, sample: Sample) -> None:
        w = self.machine.world
        budget = self.desk.rebudget(sample, len(w.instances), w.reserved())
        if (budget.bytes, self.desk.stranded) != (w.budget, w.stranded):
            self.feed(events.Budget(budget.bytes, self.desk.stranded))
        for child in list(self.children.values()):
            self.learn(child)
        self.changed()

    # --- views

    def changed(self) -> None:
        """Something that views show changed; they hear of it soon."""
        if self._publish is None and self._listeners:
            self._publish = self.loop.call_later(PUBLISH_S, self._tell)

    def _tell(self) -> None:
        self._publish = None
        for listener in self._listeners:
            listener.set()

    def _every_second(self) -> None:
        self._second = self.loop.call_later(1.0, self._every_second)
        self._check(())
        for listener in self._listeners:
            listener.set()

    def listen(self, listener: asyncio.Event) -> None:
        """Have an event set whenever there is something new."""
        self._listeners.add(listener)

    def unlisten(self, listener: asyncio.Event) -> None:
        """Never mind."""
        self._listeners.discard(listener)

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fault(f"{type(error).__name__}: {error}")


def _limits(settings: Settings) -> events.Limits:
    """The settings that bound the scheduler."""
    s = settings
    return events.Limits(s.models_max, s.max_wait_s, s.max_queue, s.drain_timeout_s, s.autoload)


def _file_failure(spec: ModelSpec) -> Failure:
    """A configured problem as the failure that its loads would have."""
    return Failure(spec.problem_kind, spec.problem, at=time.time())


def _stat(file: str) -> tuple[int, int] | None:
    """Size and time of a file; None where there is none."""
    try:
        s = os.stat(file)
    except OSError:
        return None
    return s.st_size, s.st_mtime_ns
