"""Carries the scheduler's actions out: children are started and stopped, requests answered, memory waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmtop.config.discovery import cache_share
from llmtop.engine.records import ChildRecord
from llmtop.scheduler import actions as act
from llmtop.scheduler import events, queue, room

if TYPE_CHECKING:
    from llmtop.engine.driver import Engine

GROWTH = 1.05
GROWTH_STEP = 512 * 2**20
"""A child that holds 5 % more than its reservation is named, again after each so many bytes more [bytes]."""
LEARN_STEP = 64 * 2**20
"""A footprint that grew by less is not worth an event [bytes]."""


class Deeds:
    """One method for each action that has to be carried out; the others only tell.

    Args:
        engine: Whose children and requests these are.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.table: dict[type[act.Action], Callable[[Any], None]] = {
            act.Spawn: self._spawn,
            act.Stop: self._stop,
            act.Kill: self._kill,
            act.Settle: self._settle,
            act.Grant: self._grant,
            act.Refuse: self._refuse,
            act.Cut: self._cut,
        }

    def _spawn(self, action: act.Spawn) -> None:
        spec = self._engine.specs[action.model]
        self._engine.children[action.instance] = ChildRecord(action.instance, spec, self._engine.now())
        m = self._engine.machine.world.models[action.model]
        expected = m.known_bytes if m.known_bytes is not None else m.facts.estimated
        self._engine.desk.opened(action.instance, expected)
        share = cache_share(self._engine.settings, self._engine.configuration.catalog, spec)
        self._engine.supervisor.spawn(action.instance, spec, cache_ram_mib=share)

    def _stop(self, action: act.Stop) -> None:
        if self._engine.desk.stop_needs_reading and not action.loading and action.reason != "shutdown":
            self._engine.background(self._stop_after_reading(action))
        else:
            self._ask_to_leave(action)

    async def _stop_after_reading(self, action: act.Stop) -> None:
        await self._engine.desk.before_stop(action.instance)
        self._ask_to_leave(action)

    def _ask_to_leave(self, action: act.Stop) -> None:
        child = self._engine.children.get(action.instance)
        if child is not None:
            child.signal = "SIGTERM" if action.loading else "exit line"
            if child.upstream is not None:
                # A llama-server waits some 100 ms for idle kept connections before it leaves (measured, build 10434).
                self._engine.forget_upstream(child.upstream.key)
            self._engine.supervisor.stop(action.instance, loading=action.loading, footprint_bytes=self.footprint(child))

    def _kill(self, action: act.Kill) -> None:
        self._engine.supervisor.kill(action.instance)

    def _settle(self, action: act.Settle) -> None:
        child = self._engine.children.pop(action.instance, None)
        if child is not None:
            self._engine.desk.gone(child.pid)
            if child.upstream is not None:
                self._engine.forget_upstream(child.upstream.key)
            self._learn(child)
            self._engine.journal.stop_info(action.instance, child.signal or "exit", self.footprint(child))
        if child is None or child.pid is None or self._engine.desk.settles_at_once():
            self._engine.desk.close_page(action.instance)
            self._engine.journal.settled_info(action.instance, None, 0.0)
            self._engine.feed(events.Settled(action.instance))
        else:
            self._engine.background(self._wait_settled(action.instance, self.footprint(child) or 0))

    async def _wait_settled(self, instance: int, footprint: int) -> None:
        result = await self._engine.desk.settle(instance, footprint, self._head_fits)
        self._engine.journal.settled_info(instance, result.returned_bytes, result.seconds)
        if result.stranded_bytes:
            self._engine.note("note", "", f"{room.gib(result.stranded_bytes)} not returned: {result.reason}")
        if self._engine.desk.watch.latest is not None:
            self._engine.on_sample(self._engine.desk.watch.latest)
        self._engine.feed(events.Settled(instance))

    def _head_fits(self, stranded: int) -> bool:
        """The head would fit with that many more bytes off the budget; with no head anything does."""
        w = self._engine.machine.world
        head = queue.find_head(w)
        if head is None or w.room is None:
            return True
        want = room.need(w, w.models[head.model])
        return want.bytes + sum(i.reserved for i in room.staying(w)) + stranded <= w.room

    def _grant(self, action: act.Grant) -> None:
        engine = self._engine
        ticket, child = engine.tickets.get(action.request), engine.children.get(action.instance)
        if ticket is not None and child is not None:
            i = engine.machine.world.instances[action.instance]
            waited_for_it = i.ready_at > ticket.arrived_at
            load_s = i.ready_at - max(i.spawned_at, ticket.arrived_at) if waited_for_it else 0.0
            ticket.grant(child, engine.now(), load_s)

    def _refuse(self, action: act.Refuse) -> None:
        ticket = self._engine.tickets.pop(action.request, None)
        if ticket is not None:
            ticket.closed = True
            self._engine.errors_total += 1
            ticket.refuse(action.refusal)

    def _cut(self, action: act.Cut) -> None:
        ticket = self._engine.tickets.get(action.request)
        if ticket is not None:
            ticket.end(action.refusal)

    def footprint(self, child: ChildRecord) -> int | None:
        """What a child holds, as best known [bytes]."""
        if child.pid is not None and (seen := self._engine.desk.watch.footprint(child.pid)) is not None:
            child.footprint = seen
        return child.footprint if child.footprint is not None else child.sized

    def learn(self, child: ChildRecord) -> None:
        """A measured footprint becomes the model's reservation."""
        w = self._engine.machine.world
        i, m = w.instances.get(child.instance), w.models.get(child.spec.id)
        sizes = [s for s in (self.footprint(child), child.sized) if s is not None]
        if i is None or m is None or not i.up or not sizes:
            return
        if self._engine.desk.wired and child.sized is None and m.facts.estimated is not None:
            sizes.append(m.facts.estimated)  # a process's footprint leaves mapped weights out on macOS
        size = max(sizes)
        known = m.known_bytes  # an estimate that was wrong is no growth
        if known is not None and size > max(i.reserved, known) * GROWTH and size > child.told + GROWTH_STEP:
            child.told = size
            text = f"{m.name} grew to {room.gib(size)}, {room.gib(i.reserved)} were reserved for it"
            self._engine.note("grow", m.name, text)
        if m.measured is None or size > m.measured + LEARN_STEP or i.alone:
            self._engine.feed(events.Measured(m.name, size))

    def _learn(self, child: ChildRecord) -> None:
        """Keep a footprint over restarts; only of a child that was ready."""
        m = self._engine.machine.world.models.get(child.spec.id)
        if m is not None and m.measured is not None and child.answered:
            self._engine.desk.learned.put(child.spec, m.measured, "measured")
