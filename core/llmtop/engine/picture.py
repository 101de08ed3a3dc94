"""The snapshot: one picture of everything, made from the scheduler's world and what the engine remembers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from llmtop import __version__
from llmtop.children.command import masked
from llmtop.scheduler import reasons
from llmtop.scheduler.state import Child
from llmtop.scheduler.state import Model as World
from llmtop.snapshot import Memory, Model, Oom, Phase, Progress, QueueEntry, Request, Snapshot, State

if TYPE_CHECKING:
    from llmtop.engine.driver import Engine

STATES: dict[Child, State] = {
    Child.LOADING: "loading",
    Child.LOADED: "loaded",
    Child.SLEEPING: "sleeping",
    Child.STOPPING: "stopping",
    Child.SETTLING: "unloaded",
}
EVENTS_SHOWN = 60
LOG_SHOWN = 120
SWAPS_SHOWN = 40


def picture(engine: Engine, url: str, *, exposed: bool) -> Snapshot:
    """The whole of it, as of now."""
    now = engine.now()
    w = engine.machine.world
    settings, server = engine.settings, engine.configuration.server
    return Snapshot(
        version=__version__,
        pid=os.getpid(),
        at=time.time(),
        url=url,
        uptime_s=now - engine.started_at,
        models_max=settings.models_max,
        models_max_source=settings.models_max_source,
        hold=w.hold,
        shutting_down=w.closing,
        exposed=exposed,
        running=len(w.instances),
        server=_server(engine) if server is not None else "",
        requests_total=engine.requests_total,
        errors_total=engine.errors_total,
        models=tuple(_model(engine, m, now) for m in w.models.values()),
        queue=_queue(engine, now),
        next_swap=reasons.next_swap(w, now),
        requests=_requests(engine, now),
        memory=_memory(engine),
        swaps=engine.journal.swaps(SWAPS_SHOWN),
        oom=Oom(engine.oom.count, engine.oom.last, engine.oom.acknowledged),
        events=engine.journal.events()[-EVENTS_SHOWN:],
        log=engine.supervisor.tail()[-LOG_SHOWN:],
        faults=tuple(engine.chronicle.faults),
    )


def _server(engine: Engine) -> str:
    """The llama-server in words; a path is not for every screen."""
    demo, server = engine.configuration.demo, engine.configuration.server
    if demo is not None:
        return demo.server
    build = getattr(getattr(server, "help", None), "build", None)
    return f"llama-server b{build}" if build else "llama-server"


def _model(engine: Engine, m: World, now: float) -> Model:
    i = m.instance
    child = engine.children.get(i.id) if i is not None else None
    spec = engine.specs[m.name]
    state: State = "unloaded" if i is None else STATES[i.state]
    waiting = len(m.entry.waiters) if m.entry is not None else 0
    progress = None
    if i is not None and i.state is Child.LOADING:
        expected = m.load_s if m.load_s is not None else engine.journal.load_s(m.name)
        value, phase = (child.progress, child.phase) if child is not None else (None, "")
        progress = Progress(phase, value, now - i.spawned_at, expected)
    return Model(
        id=m.name,
        state=state,
        instance=i.id if i is not None else None,
        pid=child.pid if child is not None else None,
        port=child.port if child is not None else None,
        pinned=bool(m.pinned_by),
        pinned_by=m.pinned_by,
        draining=i is not None and bool(i.drain) and i.up,
        sick=i is not None and i.sick,
        settling=i is not None and i.state is Child.SETTLING,
        stuck=i is not None and i.stuck,
        quarantined_s=max(0.0, m.quarantined_until - now) if m.refusal is not None else 0.0,
        in_flight=len(i.in_flight) if i is not None else 0,
        waiting=waiting,
        reserved_bytes=i.reserved if i is not None else 0,
        footprint_bytes=engine.deeds.footprint(child) if child is not None else None,
        estimate_bytes=m.known_bytes if m.known_bytes is not None else m.facts.estimated,
        idle_s=now - i.last_used if i is not None and i.up and not i.in_flight else None,
        progress=progress,
        reason=reasons.model_reason(engine.machine.world, m, now),
        failure=m.broken or m.failure,
        args=child.args if child is not None and child.args else masked((*spec.source_args, *spec.args)),
        aliases=spec.aliases,
        slots=child.slots if child is not None else None,
        kill_in_s=max(0.0, child.kill_at - now) if child is not None and child.kill_at is not None else None,
        loads=m.loads,
        problem=spec.problem,
        stale_config=child is not None and not child.spec.starts_like(spec),
    )


def _queue(engine: Engine, now: float) -> tuple[QueueEntry, ...]:
    w = engine.machine.world
    entries: list[QueueEntry] = []
    for position, entry in enumerate(w.queue.values(), start=1):
        i = w.models[entry.model].instance
        child = engine.children.get(i.id) if i is not None else None
        progress = child.progress if child is not None else None
        entries.append(
            QueueEntry(
                entry.model,
                position,
                len(entry.waiters),
                now - entry.since,
                reasons.entry_reason(w, entry, progress, now),
                reasons.eta_s(w, entry, progress, now),
                bool(entry.operator),
            )
        )
    return tuple(entries)


def _requests(engine: Engine, now: float) -> tuple[Request, ...]:
    w = engine.machine.world
    shown: list[Request] = []
    for ticket in engine.tickets.values():
        phase: Phase = "running"
        if ticket.serial in w.waiting:
            i = w.models[ticket.model].instance
            phase = "loading" if i is not None and i.state is Child.LOADING else "queued"
        shown.append(
            Request(ticket.id, ticket.model, phase, now - ticket.arrived_at, ticket.path, ticket.client, ticket.stream)
        )
    return tuple(shown)


def _memory(engine: Engine) -> Memory:
    w, sample = engine.machine.world, engine.desk.watch.latest
    budget = engine.desk.budget
    if sample is None:
        why = engine.desk.watch.fault or "not read yet"
        return Memory(budget=w.budget, reserved=w.reserved(), sources={"wired": why, "budget": budget.why})
    limit, used = sample.limit.bytes, sample.level.bytes
    sizes = [engine.deeds.footprint(child) for child in engine.children.values()]
    ours = sum(size for size in sizes if size is not None) if any(size is not None for size in sizes) else None
    return Memory(
        total=sample.total.bytes,
        wired=sample.wired.bytes,
        available=sample.available.bytes,
        limit=limit,
        budget=w.budget,
        reserved=w.reserved(),
        stranded=w.stranded,
        label=sample.label,
        used=used,
        ours=ours,
        others=None if used is None else max(0, used - (ours or 0) - w.stranded),
        pressure=sample.pressure.level,
        sources={**sample.sources, "budget": budget.why},
    )
