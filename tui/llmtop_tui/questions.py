"""What a dangerous key asks before it acts: the consequence in words, with names, pid, requests and cost. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from llmtop.snapshot import Model, Request, Snapshot
from llmtop_tui.format import age, clean, count, cut_middle, gib, known
from llmtop_tui.view import size_of


@dataclass(frozen=True)
class Question:
    """A dialog: title, consequences, and the answers.

    Args:
        title: What is about to happen.
        lines: What it costs, one fact a line.
        yes: Label of the answer that does it (key ``y``).
        keep: Label of a second, milder answer (key ``k``), empty where there is none.
        stay: Label of the default, which changes nothing (``n``, esc, Enter).
        names: Any of these has to be typed before it can be done; nothing where empty.
    """

    title: str
    lines: tuple[str, ...]
    yes: str
    keep: str = ""
    stay: str = "Cancel"
    names: tuple[str, ...] = ()


def _name(model: str) -> str:
    return cut_middle(model, 44)


def _in_flight(model: Model) -> str:
    return f"{count(model.in_flight, 'request')} end{'s' if model.in_flight == 1 else ''} with an error"


def reload_cost(model: Model, snapshot: Snapshot) -> str:
    """How long it took to load the last time, as far as that is known."""
    took = known(model.progress.expected_s) if model.progress else None
    for swap in reversed(snapshot.swaps.recent):
        if took is None and swap.model == model.id and swap.result == "ok":
            took = known(swap.phases.load_s)
    return f"reload ~{age(took)}" if took is not None else "reload time not known yet"


def kill(model: Model, snapshot: Snapshot) -> Question:
    """Always asked: SIGKILL to the process group. Where it is pinned or serves somebody, its name is to be typed."""
    facts = [f"pid {model.pid if model.pid is not None else 'unknown'}"]
    if model.in_flight:
        facts.append(_in_flight(model))
    if model.waiting:
        facts.append(f"{model.waiting} waiting for it")
    facts.append(reload_cost(model, snapshot))
    lines = [", ".join(facts), "SIGKILL to its process group: nothing is finished or saved."]
    if model.stuck:
        lines.append("It survived SIGKILL before: the system may not be able to end it.")
    elif known(model.kill_in_s) is not None:
        lines.append(f"It is stopping; without you it is killed in {age(model.kill_in_s)}.")
    if model.pinned:
        lines.append("It is pinned: it will be loaded again through the queue.")
    if not model.pinned and not model.in_flight:
        return Question(f"Force-kill {_name(model.id)}?", tuple(lines), "Kill")
    lines.append("Type its name to kill it" + (", or an alias:" if model.aliases else ":"))
    return Question(f"Force-kill {model.id}?", tuple(lines), "Kill", names=(model.id, *model.aliases))


def evict(model: Model, snapshot: Snapshot) -> Question | None:
    """Asked only if somebody is served or waits."""
    if not model.in_flight and not model.waiting:
        return None
    facts: list[str] = []
    if model.in_flight:
        facts.append(f"{count(model.in_flight, 'request')} in flight may finish first")
    if model.waiting:
        facts.append(f"{model.waiting} waiting for it")
    facts.append(reload_cost(model, snapshot))
    verb = "The load is ended" if model.state == "loading" else "It drains, then stops"
    freed = f"; {gib(size_of(model))} GiB come back." if size_of(model) else "."
    return Question(f"Evict {_name(model.id)}?", (", ".join(facts), verb + freed), "Evict")


def idle_models(snapshot: Snapshot) -> tuple[Model, ...]:
    """What ``E`` would evict: up, idle, not pinned."""
    return tuple(
        m
        for m in snapshot.models
        if m.state in ("loaded", "sleeping") and not m.pinned and not m.in_flight and not m.waiting and not m.draining
    )


def evict_all(snapshot: Snapshot) -> Question:
    """Always asked, with names and sizes."""
    models = idle_models(snapshot)
    listed = [f"{_name(m.id)}  {gib(size_of(m))} GiB" for m in models[:8]]
    if len(models) > 8:
        listed.append(f"and {len(models) - 8} more")
    total = sum(size_of(m) for m in models)
    return Question(
        f"Evict {count(len(models), 'idle model')}?",
        (*listed, f"{gib(total)} GiB come back; each is loaded again when it is asked for."),
        "Evict",
    )


def cancel(requests: tuple[Request, ...]) -> Question | None:
    """Asked if a request is running, or if more than one would go."""
    running = [r for r in requests if r.phase == "running"]
    if not running and len(requests) < 2:
        return None
    who = ", ".join(sorted({clean(r.client) for r in requests})[:4])
    what = "running request" if running else "waiting request"
    lines = (
        f"for {_name(requests[0].model)}, oldest {age(max(r.age_s for r in requests))}, from {who}",
        "Its answer is cut off with an error." if running else "Each gets an error at once and may ask again.",
    )
    return Question(
        f"Cancel {count(len(requests), what)}?",
        lines,
        "Cancel it" if len(requests) == 1 else "Cancel them",
        stay="Keep",
    )


def leave(snapshot: Snapshot) -> Question:
    """Asked of a view that owns its core while any child is up."""
    up = [m for m in snapshot.models if m.state != "unloaded" or m.stuck]
    busy = sum(m.in_flight for m in snapshot.models)
    waiting = sum(e.waiters for e in snapshot.queue)
    names = ", ".join(_name(m.id) for m in up[:4]) + (f" and {len(up) - 4} more" if len(up) > 4 else "")
    served = f"{count(busy, 'request')} in flight, {waiting} waiting." if busy or waiting else "Nobody is being served."
    return Question(
        "Leave llmtop?",
        (
            f"{count(len(up), 'model')} up: {names}.",
            served,
            "Keep serving goes on without this screen, in the same process.",
        ),
        "Stop all",
        keep="Keep serving",
        stay="Stay",
    )
