"""Faults put into the scheduler's source, one by one: a rule test or a random walk with a fixed seed catches each."""

# ruff: noqa: E501  a fault is a row of a table
from __future__ import annotations

import importlib.util
import inspect
import signal
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import llmtop.scheduler
from llmtop.scheduler import actions, events
from llmtop.testing.scenes import Make
from llmtop.testing.walk import walk
from llmtop.testing.world import World

HERE = Path(__file__).parent
SOURCE = Path(llmtop.scheduler.__path__[0])
ORDER = ("state", "room", "queue", "children", "requests", "timers", "verbs", "checks", "machine")
"""Modules in the order in which they import each other."""
COPY = "llmtop_scheduler_copy"
PATIENCE_S = 1.0
"""CPU time that one test or walk may take [s]; they take milliseconds."""
WALKS = 60
"""Walks with a fault at most; most faults are caught in the first ten."""
WALKS_WITHOUT = 200
"""Walks without a fault."""


class Fault(NamedTuple):
    """One change of the source; ``old`` is found exactly once."""

    module: str
    old: str
    new: str


FAULTS: dict[str, Fault] = {
    # --- the queue
    "head has an instance left": Fault(
        "queue", "if not entry.claimed and w.models[entry.model].instance is None:", "if not entry.claimed:"
    ),
    "last in, first out": Fault("queue", "for entry in w.queue.values():\n        if not", "for entry in reversed(w.queue.values()):\n        if not"),
    "hold ignored": Fault("queue", "if head is None or (w.hold and w.permit is not head):", "if head is None:"),
    "drain not lifted when held": Fault("queue", "w.permit is not head):\n        lift(w)\n", "w.permit is not head):\n"),
    "drain kept though its set makes no room": Fault("queue", "if w.drain_for is head and _still_makes_room(w, want):", "if w.drain_for is head:"),
    "drain of a pinned model kept": Fault("queue", "return not m.pinned_by and (bool(i.drain) if i.up", "return (bool(i.drain) if i.up"),
    "operator's drain lifted": Fault("queue", 'if i.drain == "head" and i not in but:', "if i.drain and i not in but:"),
    "impossible head waits": Fault("queue", "refused(w, m, now) or room.impossible(w, m, want)", "refused(w, m, now)"),
    "start-up load evicts": Fault("queue", 'if head.operator == "startup" and not head.waiters:', "if False:"),
    "clock starts before the entry is head": Fault("queue", "head.head_active_s = w.active_s(now)", "head.head_active_s = 0.0"),
    "load drained with the busy": Fault("queue", "if victim.up and not victim.drain:", "if not victim.drain:"),
    "pinned model refused for now never tried again": Fault(
        "queue", 'if head.operator == "pinned" and m.broken is None', 'if head.operator == "none" and m.broken is None'
    ),
    "pinned model reloaded beside its own process": Fault(
        "timers", "and now >= m.reload_at and m.instance is None:", "and now >= m.reload_at:"
    ),
    "second try shares the machine": Fault("room", "return not any(i.alone for i in stay)", "return True"),
    "grace not given after a drain": Fault("queue", "i.asked_again |= since > i.ready_at", "i.asked_again |= False"),
    "unwanted load cancelled for ever": Fault("queue", "m.unwanted = True", "m.unwanted = False"),
    "asked to leave twice": Fault("queue", "i.state, i.stop_reason, i.stop_since, i.evicting_for = Child.STOPPING, reason,", "i.stop_reason, i.stop_since, i.evicting_for = reason,"),
    "reservation not kept": Fault("queue", "Instance(w.serial, m.name, reserved, now,", "Instance(w.serial, m.name, 0, now,"),
    "permit outlives its claim": Fault("queue", "if w.permit is entry:", "if False:"),
    "permit outlives its entry": Fault("queue", "(not w.hold or w.queue.get(w.permit.model) is not w.permit)", "not w.hold"),
    "grant not counted in flight": Fault("queue", "i.in_flight.add(request)", "pass"),
    "waiter granted twice": Fault("queue", "                grant(w, i, request, now)\n            forget(w, m.entry)", "                grant(w, i, request, now)"),
    "refused entry not removed": Fault("queue", "entry.refused = refusal\n    forget(w, entry)", "entry.refused = refusal"),
    "waiters of a lifted drain forgotten": Fault("queue", "    _grant_waiters(w, now)  # a drain", "    pass  # a drain"),
    "quarantine ignored": Fault("queue", "if now < m.quarantined_until and m.refusal is not None:", "if False:"),
    "own stuck process ignored": Fault("queue", "if m.instance is not None and m.instance.stuck:", "if False:"),
    "broken files ignored": Fault("queue", "if m.broken is not None:\n        return failure_refusal", "if False:\n        return failure_refusal"),
    # --- requests
    "draining model grants": Fault("requests", "m.instance.admits and not w.closing", "m.instance.up and not w.closing"),
    "no look at the queue after a request": Fault("requests", "return bool(w.queue)", "return False"),
    "a raised reservation forgets what is known": Fault("room", "Need(known or 0, alone=True)", "Need(0, alone=True)"),
    "a sleeper stays after its last request": Fault("requests", " or i.state is Child.SLEEPING", ""),
    "no look at the queue after a waiter left": Fault("requests", "return _leave_queue(w, event.request)", "_leave_queue(w, event.request)\n        return False"),
    "entry without waiters stays": Fault("requests", "    if not m.entry.operator:\n        queue.forget", "    if False:\n        queue.forget"),
    "asked again not noted": Fault("requests", "m.instance.asked_again = True", "pass"),
    "drain not ended": Fault("requests", "        drained(w, i, now)\n        return True\n    _ask", "        return True\n    _ask"),
    "cut request stays in flight": Fault("requests", "    i.in_flight.discard(request)\n    w.out", "    w.out"),
    "one too many in the queue": Fault("requests", "len(m.entry.waiters) >= most:", "len(m.entry.waiters) > most:"),
    "latest use not noted": Fault("requests", "i.in_flight.discard(event.request)\n    i.last_used = now", "i.in_flight.discard(event.request)"),
    "too large is queued": Fault("requests", "if (large := room.too_large(w, m)) is not None:", "if (large := room.too_large(w, m)) is not None and not m:"),
    # --- children
    "slot freed at exit": Fault("children", "    w.out.append(Settle(i.id, i.model))", "    w.out.append(Settle(i.id, i.model))\n    del w.instances[i.id]\n    m.instance = None"),
    "stale exit hits the next instance": Fault(
        "children",
        "i = w.instances.get(event.instance)\n    if i is None or i.state is Child.SETTLING:\n        return\n    m = w.models[i.model]\n    was",
        "i = w.instances.get(event.instance) or next(iter(w.instances.values()), None)\n    if i is None or i.state is Child.SETTLING:\n        return\n    m = w.models[i.model]\n    was",
    ),
    "exit heard twice": Fault(
        "children",
        "if i is None or i.state is Child.SETTLING:\n        return\n    m = w.models[i.model]\n    was",
        "if i is None:\n        return\n    m = w.models[i.model]\n    was",
    ),
    "in flight after exit": Fault("children", "    i.in_flight.clear()\n", ""),
    "raised never cleared": Fault("children", "m.raised, m.alone, m.unwanted, m.failure = None, False, False, None", "m.unwanted, m.failure = False, None"),
    "cancelled once is never cancelled again": Fault("children", "m.raised, m.alone, m.unwanted, m.failure = None, False, False, None", "m.raised, m.alone, m.failure = None, False, None"),
    "out of memory tried for ever": Fault("children", "m.entry.retried = True", "pass"),
    "out of memory tried in the same room": Fault("children", "m.raised = w.room - sum(o.reserved for o in others) + 1", "m.raised = None"),
    "taken port told": Fault("children", 'if failure.kind == "port" and (entry is None', 'if failure.kind == "none" and (entry is None'),
    "quarantine does not grow": Fault("children", "2.0 ** (m.failures - 1)", "1.0"),
    "sick again and again": Fault("children", "if again or not i.good:", "if not i.good:"),
    "sick before a good answer loads again": Fault("children", "if again or not i.good:", "if again:"),
    "sick child takes requests": Fault("children", 'i.drain, i.drain_since = "sick", now', "i.drain_since = now"),
    "pinned model not brought back": Fault("queue", "if m.pinned_by and m.broken is None", "if False and m.broken is None"),
    "stuck slot freed": Fault("children", "    i.stuck = True\n    m = w.models[i.model]", "    i.stuck = True\n    m = w.models[i.model]\n    del w.instances[i.id]\n    m.instance = None"),
    "settled before it exited": Fault("children", "if i is None or i.state is not Child.SETTLING:", "if i is None:"),
    "clock of a victim starts at zero": Fault("children", "i.ready_active_s = w.active_s(now)", "i.ready_active_s = 0.0"),
    "ready heard twice": Fault("children", "if i is None or i.state is not Child.LOADING:\n        return\n    m", "if i is None:\n        return\n    m"),
    "young crash forgiven": Fault("children", "now - i.ready_at < YOUNG_S", "now - i.ready_at < 0"),
    # --- room
    "one too many for the cap": Fault("room", "len(stay) >= cap:", "len(stay) > cap:"),
    "last byte not used": Fault("room", "want.bytes + sum(i.reserved for i in stay) <= w.room", "want.bytes + sum(i.reserved for i in stay) < w.room"),
    "victim busy": Fault("room", "elif i.up and not i.in_flight and not m.pinned_by", "elif i.up and not m.pinned_by"),
    "victim pinned": Fault("room", "elif i.up and not i.in_flight and not m.pinned_by", "elif i.up and not i.in_flight"),
    "grace ignored": Fault("room", "if now >= i.last_used + grace_s(i) or (left is not None and left <= 0):", "if True:"),
    "grace outlives the head's clock": Fault("room", "if now >= i.last_used + grace_s(i) or (left is not None and left <= 0):", "if now >= i.last_used + grace_s(i):"),
    "grace of a whole load": Fault("room", "i.load_s / 10", "i.load_s"),
    "busy models drained at once": Fault("room", "if left is not None and left <= 0:\n                found.append(((2,", "if left is not None:\n                found.append(((2,"),
    "pinned model drained": Fault("room", "if i.up and i.in_flight and not w.models[i.model].pinned_by and not", "if i.up and i.in_flight and not"),
    "wanted load cancelled": Fault("room", "not wanted and not m.unwanted", "not m.unwanted"),
    "unwanted load never cancelled": Fault("room", "            if given_up(m, i):", "            if False:"),
    "operator's load cancelled": Fault("room", "wanted = m.entry is not None or", "wanted = (m.entry is not None and m.entry.waiters) or"),
    "what leaves still counts": Fault("room", "if not i.leaving]", "if i]"),
    "latest use does not count": Fault("room", "key=lambda c: (c[0], c[1].id)", "key=lambda c: c[1].id"),
    "fewest bytes do not count": Fault("room", "if short <= total < fewest:", "if short <= total and total > fewest:"),
    "unknown size loads beside others": Fault("room", "return all(i.stuck or w.is_pinned(i) for i in stay) and (", "return ("),
    "exactly the budget is too large": Fault("room", "known <= w.budget", "known < w.budget"),
    "clock ignores when the victim was ready": Fault("room", "max(head_active_s, i.ready_active_s)", "head_active_s"),
    "stuck blamed on memory": Fault("room", "if stuck and fits(w, want, pinned):", "if False:"),
    "pins blamed on memory": Fault("room", "if pinned and fits(w, want, []):", "if False:"),
    # --- state
    "stranded bytes used": Fault("state", "self.budget - self.stranded", "self.budget"),
    "smaller of two sizes": Fault("state", "return max(sizes)", "return min(sizes)"),
    "clock runs while held": Fault("state", "stopped = self.hold and self.permit is None", "stopped = False"),
    "time held not taken off": Fault("state", "self.held_s += now - self.held_since", "pass"),
    # --- timers
    "no wake-up for the head's clock": Fault("timers", "            yield now + left", "            yield now + left + 1000"),
    "no wake-up for the end of a grace": Fault("timers", "if not i.in_flight and (at := i.last_used + room.grace_s(i)) > now:", "if (at := now + 1000) < now:"),
    "no wake-up for a reload": Fault("timers", "times += [m.reload_at for m in coming", "times += [m.reload_at + 1e6 for m in coming"),
    "sick requests run on": Fault("timers", "return SICK_DRAIN_S if i.sick else w.limits.drain_timeout_s", "return w.limits.drain_timeout_s"),
    "pinned model idle-unloaded": Fault("timers", "not (m.pinned_by or w.hold or", "not (w.hold or"),
    "idle-unload while held": Fault("timers", "(m.pinned_by or w.hold or i.in_flight", "(m.pinned_by or i.in_flight"),
    # --- verbs
    "evict does not drain": Fault("verbs", 'i.drain, i.drain_since = "operator", now', "i.drain_since = now"),
    "waiters of an ended load forgotten": Fault("verbs", '    queue.stop(w, i, "operator", now)\n    if m.entry is not None:', '    queue.stop(w, i, "operator", now)\n    if False:'),
    "verb hits another instance": Fault("verbs", "if instance is None or (m.instance is not None and m.instance.id == instance):", "if True:"),
    "killed requests run on": Fault("verbs", 'cut(w, i, request, Refusal("upstream_error", f"{m.name} was killed by the operator"))', "pass"),
    "operator's wish for a load under way forgotten": Fault(
        "verbs", "    changed = m.entry is None or", "    if i is not None and i.state is Child.LOADING:\n        return Replied(False)\n    changed = m.entry is None or"
    ),
    "operator's load keeps the quarantine": Fault("verbs", "    if m.broken is None:\n        m.failures", "    if False:\n        m.failures"),
    "start-up load taken for the operator's": Fault("verbs", '(entry.operator or "startup") if event.startup else "operator"', '"operator"'),
    "step without hold": Fault("verbs", "    if not w.hold:\n        return", "    if False:\n        return"),
    # --- machine
    "no look at the queue after settling": Fault("machine", "children.settled(w, event, now)", "children.settled(w, event, now)\n                return False"),
    "no look at the queue after ready": Fault("machine", "children.ready(w, event, now)", "children.ready(w, event, now)\n                return False"),
    "wake-up not asked for": Fault("machine", "w.wake_at = timers.next_wake(w, now)", "w.wake_at = w.wake_at"),
    "timers not looked at": Fault("machine", "            timers.due(w, now)\n", ""),
    "larger measurement not counted": Fault("machine", "i.reserved, i.alone = known, False", "i.reserved, i.alone = min(i.reserved, known), False"),
    "all the room kept after measuring": Fault("machine", "i.reserved, i.alone = known, False", "i.reserved, i.alone = max(i.reserved, known), False"),
    "requests taken while closing": Fault("machine", "    w.closing = True\n", ""),
    "waiters of a removed model forgotten": Fault("machine", '    if m.entry is not None:\n        queue.refuse_entry(w, m.entry, Refusal("model_not_found"', '    if False:\n        queue.refuse_entry(w, m.entry, Refusal("model_not_found"'),
    "removed model keeps its pin": Fault("machine", 'm.removed, m.pinned_by = True, ""', "m.removed = True"),
}  # fmt: skip


@cache
def source(module: str) -> str:
    """A module's text, with its imports turned to the copy."""
    return (SOURCE / f"{module}.py").read_text("utf-8").replace("llmtop.scheduler", COPY)


@cache
def compiled(module: str) -> types.CodeType:
    return compile(source(module), module, "exec")


def faulty(fault: Fault | None) -> Make:
    """A world around a copy of the scheduler with one fault."""
    package = types.ModuleType(COPY)
    package.__path__ = []
    parts: dict[str, Any] = {"": package, ".actions": actions, ".events": events}
    package.__dict__.update(actions=actions, events=events)
    sys.modules.update({COPY + name: part for name, part in parts.items()})
    try:
        for name in ORDER:
            part = sys.modules[f"{COPY}.{name}"] = types.ModuleType(f"{COPY}.{name}")
            code = compiled(name)
            if fault is not None and fault.module == name:
                text = source(name)
                assert text.count(fault.old) == 1, f"{name}.py has {fault.old!r} {text.count(fault.old)} times"
                code = compile(text.replace(fault.old, fault.new), name, "exec")
            exec(code, part.__dict__)
            setattr(package, name, part)
        machine, check = package.machine.Machine, package.checks.broken
    finally:
        for name in [name for name in sys.modules if name.startswith(COPY)]:
            del sys.modules[name]
    return lambda limits: World(limits, machine, check)


@cache
def rule_tests() -> tuple[tuple[str, Callable[[Make], None]], ...]:
    """Every case of the rule tests that runs in a world of its own."""
    return tuple(_rule_cases())


def _rule_cases() -> Iterator[tuple[str, Callable[[Make], None]]]:
    for path in sorted(HERE.glob("test_scheduler_rules*.py")):
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for name, test in inspect.getmembers(module, inspect.isfunction):
            if name.startswith("test_") and "make" in inspect.signature(test).parameters:
                marks = [m for m in getattr(test, "pytestmark", []) if m.name == "parametrize"]
                for values in marks[0].args[1] if marks else [()]:
                    yield name, _case(test, marks[0].args[0] if marks else (), values)


def _case(test: Callable[..., None], names: Any, values: Any) -> Callable[[Make], None]:
    given = {names: values} if isinstance(names, str) else dict(zip(names, values, strict=True))
    return lambda make: test(make=make, **given)


@contextmanager
def patience(seconds: float) -> Iterator[None]:
    """A fault that makes the scheduler go round for ever is caught as well: by its CPU time."""

    def give_up(*_: object) -> None:
        raise RuntimeError("it goes round for ever")

    before = signal.signal(signal.SIGVTALRM, give_up)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def caught_by_rule(make: Make) -> str:
    """The first rule test that fails."""
    for name, test in rule_tests():
        try:
            with patience(PATIENCE_S):
                test(make)
        except Exception:
            return name
    return ""


def caught_by_walk(make: Make) -> int:
    """The number of the first walk that fails; 0 if none does."""
    for seed in range(WALKS):
        try:
            with patience(PATIENCE_S):
                walk(seed, make)
        except Exception:
            return seed + 1
    return 0


def test_the_scheduler_as_it_is_survives_rule_tests_and_walks() -> None:
    make = faulty(None)
    assert caught_by_rule(make) == ""
    for seed in range(WALKS_WITHOUT):
        walk(seed, make)


@pytest.mark.timeout(400)
def test_every_fault_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    lines, survivors, walked = [], [], 0
    for name, fault in FAULTS.items():
        make = faulty(fault)
        rule, number = caught_by_rule(make), caught_by_walk(make)
        walked += number > 0
        lines.append(f"{name:<45} walk {number or '-':>3}  {rule or '-'}")
        if not rule and not number:
            survivors.append(name)
    with capsys.disabled():
        print("\n" + "\n".join(lines))  # noqa: T201
        print(f"{len(FAULTS) - len(survivors)} of {len(FAULTS)} faults caught, {walked} by a walk")  # noqa: T201
    assert not survivors
