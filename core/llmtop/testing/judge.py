"""What the rules say of each action and of what stands after a step, asked of the simulated world's reality."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev

if TYPE_CHECKING:
    from llmtop.testing.world import World

EPS_S = 1e-5
"""Times are sums of floats [s]."""
LASTING = ("operator", "sick", "removed")
"""Drains that nobody lifts."""
WAITING, GRANTED, OVER = "waiting", "granted", "over"
HEADS_NEED = ("cap", "bytes", "max-wait", "unwanted")
"""Reasons of a stop that belong to the head's need."""


class Broken(AssertionError):
    """A rule does not hold."""


@dataclass(slots=True)
class Process:
    """A child as it really is."""

    id: int
    model: str
    reserved: int
    spawned_at: float
    state: str = "loading"
    """``loading``, ``up``, ``asleep`` or ``settling``."""
    told: str = ""
    """Why it was asked to leave; empty when it was not."""
    drain: str = ""
    wanted_by: str = ""
    stuck: bool = False
    sick_since: float | None = None
    drained_since: float = 0.0
    ready_at: float = 0.0
    last_used: float = 0.0
    asked_again: bool = False
    flying: set[int] = field(default_factory=set)

    @property
    def up(self) -> bool:
        """It can answer."""
        return self.state in ("up", "asleep")


def need(holds: bool, otherwise: str) -> None:
    """Raise ``Broken`` unless a rule holds."""
    if not holds:
        raise Broken(otherwise)


# --- actions


def _spawn(w: World, a: act.Spawn, _: ev.Event) -> None:
    """A claim is for the first in line, within cap and budget as they stand, with nothing of that model left."""
    need(w.of(a.model) is None, f"a second process of {a.model}")
    need(a.instance not in w.gone and a.instance not in w.processes, f"instance {a.instance} is used again")
    need(not w.closing, "a claim while shutting down")
    cap = w.limits.models_max
    need(cap == 0 or len(w.processes) < cap, f"{a.model} claims beyond the cap of {cap}")
    if w.budget is not None:
        room = w.budget - w.stranded
        need(w.held_bytes() + a.reserved <= room, f"{a.model} claims {a.reserved} of {room} - {w.held_bytes()}")
        size = w.known(a.model)
        need(size is None or a.reserved >= size, f"{a.model} reserves {a.reserved}, it is known to need {size}")
    wanted = bool(w.waiting(a.model)) or a.model in w.wanted or bool(w.pins.get(a.model)) or a.reason == "pinned"
    need(wanted, f"{a.model} loads and nobody wants it")
    need(not w.held or w.permit == a.model, f"{a.model} claims while the queue is held")
    w.permit = ""
    if a.reason != "pinned" and not w.pins.get(a.model):
        for model in list(w.line)[: list(w.line).index(a.model) if a.model in w.line else 0]:
            over = not w.waiting(model) and model not in w.wanted  # refused in this very step
            need(over or w.of(model) is not None, f"{a.model} claims before {model}, which came first")
    w.processes[a.instance] = Process(a.instance, a.model, a.reserved, w.now)


def _stop(w: World, a: act.Stop, event: ev.Event) -> None:
    """A child is asked to leave once, and for the head only when it may be a victim."""
    p = w.processes[a.instance]
    need(not p.told and p.state != "settling", f"{a.model} is asked to leave twice")
    need(a.loading == (p.state == "loading"), f"{a.model} is {p.state}, the stop says loading={a.loading}")
    need(p.model == a.model, f"a stop for {a.model} hits {p.model}")
    if a.reason in HEADS_NEED:
        _victim(w, p, a)
    elif a.reason in ("idle", "sleep"):
        need(not p.flying and not w.pins.get(a.model), f"{a.model} is unloaded though busy or pinned")
        need(not w.held, f"{a.model} is unloaded while the queue is held")
        idle = w.facts[a.model].idle_unload_s
        need(a.reason == "sleep" or (idle is not None and w.now >= p.last_used + idle), f"{a.model} is not idle")
    elif a.reason == "operator":
        need(p.drain == "operator" or isinstance(event, ev.Evict | ev.KillNow), f"no operator asked for {a.model}")
    else:
        grounds = {
            "sick": p.sick_since is not None,
            "removed": p.drain == "removed" or isinstance(event, ev.Removed),
            "load-failed": isinstance(event, ev.LoadFailed),
            "shutdown": w.closing,
        }
        need(grounds[a.reason], f"{a.model} is stopped as {a.reason} without grounds")
    p.told = a.reason


def _victim(w: World, p: Process, a: act.Stop) -> None:
    """Idle, not pinned, out of its grace; or a load that nobody wants."""
    need(not w.pins.get(a.model), f"{a.model} is pinned and evicted")
    need(not p.flying, f"{a.model} is busy and evicted")
    need(not p.stuck, f"{a.model} is stuck and evicted")
    need(a.wanted_by in w.line, f"{a.model} is evicted for {a.wanted_by}, which nobody waits for")
    need(not w.held or w.permit == a.wanted_by, f"{a.model} is evicted while the queue is held")
    need(w.of(a.wanted_by) is None, f"{a.model} is evicted for {a.wanted_by}, which has a process")
    if p.state == "loading":
        need(not w.waiting(a.model) and a.model not in w.wanted, f"the load of {a.model} is wanted and cancelled")
        return
    grace = min((p.ready_at - p.spawned_at) / 10, 5.0) if p.asked_again else 0.0
    quiet = w.now >= p.last_used + grace - EPS_S
    need(quiet or _may_be_out(w, a.wanted_by, p), f"{a.model} was asked again a moment ago and is evicted")


def _may_be_out(w: World, head: str, p: Process) -> bool:
    """The head's clock may have run out: it has been in line, and the victim ready, for max-wait."""
    most = w.limits.max_wait_s
    if most is None:
        return False
    since = max(w.line_since.get(head, 0.0), w.active(p.ready_at))
    return w.active(w.now) - since >= most - EPS_S


def _kill(w: World, a: act.Kill, event: ev.Event) -> None:
    need(isinstance(event, ev.KillNow), f"{a.model} is killed and nobody asked")
    need(bool(w.processes[a.instance].told), f"{a.model} is killed and not counted as leaving")


def _settle(w: World, a: act.Settle, event: ev.Event) -> None:
    p = w.processes[a.instance]
    need(p.state == "settling" and isinstance(event, ev.Exited), f"{a.model} is to settle and has not just exited")


def _grant(w: World, a: act.Grant, event: ev.Event) -> None:
    """A grant goes to a child that is up, stays, and takes requests."""
    need(w.fates.get(a.request) == WAITING, f"request {a.request} is granted and is {w.fates.get(a.request)}")
    p = w.processes[a.instance]
    need(p.model == a.model == w.owner[a.request], f"a request for {w.owner[a.request]} goes to {p.model}")
    need(p.up and not p.told and not p.drain and not p.stuck, f"granted to {p.model}: {p.state} {p.told} {p.drain}")
    w.decide(a.request, GRANTED)
    p.flying.add(a.request)
    p.last_used = w.now
    p.asked_again |= isinstance(event, ev.Arrived)


def _refuse(w: World, a: act.Refuse, event: ev.Event) -> None:
    """Who is refused was waiting, and the reason is true."""
    need(w.fates.get(a.request) == WAITING, f"request {a.request} is refused and is {w.fates.get(a.request)}")
    w.decide(a.request, OVER)
    size = w.known(a.model) if a.model in w.facts else None
    true = {
        "queue_full": len(w.waiting()) >= w.limits.max_queue > 0,
        "slot_stuck": any(p.stuck for p in w.processes.values()),
        "all_slots_pinned": any(w.pins.get(p.model) and p.state != "settling" for p in w.processes.values()),
        "model_too_large": w.budget is not None and size is not None and size > w.budget,
        "insufficient_memory": "oom" in w.failed.get(a.model, "") or w.budget is not None,
        "load_failed": bool(w.failed.get(a.model)),
        "model_not_found": a.model in w.removed or a.model not in w.facts,
        "load_cancelled": isinstance(event, ev.Evict | ev.KillNow),
        "shutting_down": w.closing,
        "request_cancelled": isinstance(event, ev.Cancel),
        "model_not_loaded": not w.limits.autoload or (isinstance(event, ev.Arrived) and event.autoload is False),
    }
    need(true[a.refusal.type], f"request {a.request} is refused without grounds: {a.refusal}")
    need(a.refusal.code >= 400 and bool(a.refusal.message), "a refusal says why")


def _cut(w: World, a: act.Cut, event: ev.Event) -> None:
    """Who is cut was granted, and its child is gone, leaving or out of time."""
    need(w.fates.get(a.request) == GRANTED, f"request {a.request} is cut and is {w.fates.get(a.request)}")
    p = next(p for p in w.processes.values() if a.request in p.flying)
    limit = 2.0 if p.sick_since is not None else w.limits.drain_timeout_s
    late = bool(p.drain) and limit is not None and w.now - p.drained_since >= limit - EPS_S
    asked = isinstance(event, ev.KillNow | ev.Cancel | ev.StopAll)
    need(p.state == "settling" or late or asked, f"request {a.request} is cut on {p.model} without grounds")
    w.decide(a.request, OVER)
    p.flying.discard(a.request)


def _drain(w: World, a: act.Drain, event: ev.Event) -> None:
    """A drain for the head starts when its clock is out; others have a cause of their own."""
    p = w.processes[a.instance]
    need(p.up and not p.told, f"{a.model} drains and is {p.state}")
    if a.reason == "max-wait":
        need(not w.pins.get(a.model), f"{a.model} is pinned and drained")
        need(_may_be_out(w, a.wanted_by, p) or not p.flying, f"{a.model} is drained for {a.wanted_by} too early")
        need(not w.held or w.permit == a.wanted_by, f"{a.model} is drained while the queue is held")
        if p.drain in LASTING:
            return
    else:
        grounds = {"operator": ev.Evict, "sick": ev.Sick, "removed": ev.Removed}
        need(isinstance(event, grounds[a.reason]), f"{a.model} drains as {a.reason} without grounds")
    p.drain, p.wanted_by, p.drained_since = a.reason, a.wanted_by, w.now


def _lift(w: World, a: act.Lift, _: ev.Event) -> None:
    p = w.processes[a.instance]
    need(p.drain == "max-wait", f"{a.model} is drained as {p.drain!r} and lifted")
    p.drain = p.wanted_by = ""


def _dropped(w: World, a: act.Dropped, _: ev.Event) -> None:
    need(not w.waiting(a.model), f"{a.model} is dropped and somebody waits for it")
    w.wanted.discard(a.model)


def _replied(w: World, a: act.Replied, event: ev.Event) -> None:
    if isinstance(event, ev.Load) and a.refusal is None:
        p = w.of(event.model)
        if p is None or not p.up or p.drain or p.told:
            w.wanted.add(event.model)
    if isinstance(event, ev.Step):
        need(w.held or a.refusal is not None, "a step is taken though the queue is not held")
        w.permit = w.stepped if a.changed else w.permit


TABLE: dict[type[act.Action], Callable[[Any, Any, Any], None]] = {
    act.Spawn: _spawn,
    act.Stop: _stop,
    act.Kill: _kill,
    act.Settle: _settle,
    act.Grant: _grant,
    act.Refuse: _refuse,
    act.Cut: _cut,
    act.Drain: _drain,
    act.Lift: _lift,
    act.Dropped: _dropped,
    act.Replied: _replied,
}


def actions(w: World, done: Sequence[act.Action], event: ev.Event) -> None:
    """Judge the actions of a step, one after the other, and make them true.

    Raises:
        Broken: The rules forbid one of them here.
    """
    _queue_up(w)
    for a in sorted(done, key=lambda a: not isinstance(a, act.Replied)):  # the answer says what the verb was taken for
        TABLE[type(a)](w, a, event)


# --- what stands after a step


def standing(w: World, done: Sequence[act.Action]) -> None:
    """Judge what stands after a step.

    Raises:
        Broken: Somebody waits for what is there, or what is remembered is not what is real.
    """
    _queue_up(w)
    faults = list(w.check(w.machine.world, done))
    need(not faults, f"the scheduler's own checks: {faults}")
    seen = w.machine.world
    need(sorted(seen.waiting) == sorted(w.waiting()), f"waiting: {sorted(seen.waiting)} are not {w.waiting()}")
    need(sorted(seen.granted) == sorted(w.flying()), f"in flight: {sorted(seen.granted)} are not {w.flying()}")
    need(sorted(seen.instances) == sorted(w.processes), "instances remembered are not the processes there are")
    for p in w.processes.values():
        _child(w, p)
    _head(w)


def _queue_up(w: World) -> None:
    """Keep the line: who came first, and since when on the head's clock."""
    for model in list(w.wanted):
        p = w.of(model)
        if model not in w.machine.world.queue and (p is None or p.state != "loading" or p.told):
            w.wanted.discard(model)  # refused with those who waited
    for model in list(w.line):
        if not w.waiting(model) and model not in w.wanted and model not in w.machine.world.queue:
            del w.line[model], w.line_since[model]
            w.permit = "" if w.permit == model else w.permit
    for model in [*w.machine.world.queue, *w.queued.values()]:
        if model not in w.line:
            w.line[model], w.line_since[model] = None, w.active(w.now)


def _child(w: World, p: Process) -> None:
    """One child after a step."""
    if p.up and not p.told and not p.drain:
        need(not w.waiting(p.model), f"{p.model} takes requests and {w.waiting(p.model)} wait for it")
    if p.state in ("settling", "loading"):
        need(not p.flying, f"{p.model} is {p.state} with requests in flight")
    if p.up and not p.told and p.drain in LASTING:
        need(bool(p.flying), f"{p.model} has drained ({p.drain}) and is not stopped")
    if p.up and not p.told and p.drain == "max-wait":
        need(p.wanted_by in w.line, f"{p.model} drains for {p.wanted_by}, which nobody waits for")
        need(w.of(p.wanted_by) is None, f"{p.model} drains for {p.wanted_by}, which has its room")
        need(not w.pins.get(p.model), f"{p.model} is pinned and still drained")
        need(not w.held or w.permit == p.wanted_by, f"{p.model} drains while the queue is held")


def _head(w: World) -> None:
    """The head never waits while there is room; it is found by what is real."""
    if w.held or w.closing:
        return
    head = w.head()
    if head is None:
        return
    cap = w.limits.models_max
    if cap > 0 and len(w.processes) >= cap:
        return
    m = w.machine.world.models[head]
    if w.budget is None:
        alone = m.alone or any(i.alone for i in w.machine.world.instances.values())
        need(alone, f"{head} waits while there is a slot and bytes do not count")
        return
    size = w.known(head)
    if size is None or m.raised is not None:
        need(bool(w.processes) or w.budget - w.stranded <= 0, f"{head} waits and nothing runs")
        return
    taken = sum(i.reserved for i in w.machine.world.instances.values())
    need(size + taken > w.budget - w.stranded, f"{head} needs {size}, {taken} are taken, and it waits")
