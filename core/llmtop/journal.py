"""The journal: what the scheduler saw and did, in plain words, and the swaps that came of it. No clock, no file.

Every decision of the scheduler carries its reason in its action; this only puts each into a line. What happens with
every request (granted, over) is not a line: the journal is for what changes the set of models.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llmtop.children.text import safe_text
from llmtop.journal_swaps import Run, Seconds, SwapBook
from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler.room import gib
from llmtop.snapshot import EventLine, Failure, Swap, Swaps

REPEAT_S = 5.0
"""A refusal for the same reason within this is counted, not told again [s]: clients may ask 1,000 times a second."""
REPEATS_KEPT = 256

Line = tuple[str, str, str]
"""Kind, model, text."""


class Journal:
    """Lines and swaps, kept in memory and bounded.

    Args:
        max_events: Lines remembered [1].
        max_swaps: Swaps remembered [1].
    """

    def __init__(self, max_events: int = 2000, max_swaps: int = 200) -> None:
        self._lines: deque[EventLine] = deque(maxlen=max_events)
        self._book = SwapBook(max_swaps)
        self._seq = 0
        self._told: dict[tuple[str, str], tuple[float, int]] = {}
        self._limits: ev.Limits | None = None
        self._stranded = 0
        self._swaps: tuple[int, Swaps] | None = None

    # --- what goes in

    def observe(
        self, event: ev.Event | None, actions: Sequence[act.Action], now: float, wall: float
    ) -> tuple[EventLine, ...]:
        """Take in one step of the scheduler.

        Args:
            event: What it was told; None for actions without one.
            actions: What it asked for.
            now: Monotonic time of the step [s]; durations are made of it.
            wall: Time of day [s since the epoch]; only shown.

        Returns:
            The lines that this step added.
        """
        found: list[Line] = []
        told = _EVENTS.get(type(event))
        if told is not None:
            found.extend(told(self, event, now))
        refusals: list[act.Refuse | act.Cut] = []
        stopped = {action.instance for action in actions if isinstance(action, act.Stop)}
        for action in actions:
            if isinstance(action, act.Refuse | act.Cut):
                refusals.append(action)
            elif isinstance(action, act.Replied):
                found[:0] = _replied(event, action)
            elif isinstance(action, act.Lift) and action.instance in stopped:
                continue  # its drain ends because it goes: that is no return to service
            elif isinstance(action, act.Spawn):
                self._book.spawn(action, now, wall)
                waited = f", waited {_s(action.waited_s)}" if action.waited_s >= 0.05 else ""
                found.append(("load", action.model, f"load {action.model} ({action.reason}{waited})"))
            elif (done := _ACTIONS.get(type(action))) is not None:
                found.extend(done(self, action, now))
        if refusals:
            found.extend(self._refusals(refusals, now))
        if not found:
            return ()
        self._swaps = None
        return tuple(self._add(kind, model, text, wall) for kind, model, text in found)

    def note(self, kind: str, model: str, text: str, wall: float) -> EventLine:
        """Add any other line."""
        return self._add(kind, model, text, wall)

    def started(self, instance: int, now: float) -> None:
        """The child's process exists: its spawn is over and its load begins."""
        self._book.started(instance, now)
        self._swaps = None

    def stop_info(self, instance: int, signal: str, footprint_bytes: int | None) -> None:
        """Say how a child is made to leave (``exit line``, ``SIGTERM``, ``SIGKILL``) and what it held [bytes]."""
        if (leave := self._book.leave_of(instance)) is not None:
            leave.signal = signal
            leave.footprint_bytes = leave.footprint_bytes if footprint_bytes is None else footprint_bytes
            self._swaps = None

    def settled_info(self, instance: int, returned_bytes: int | None, settle_s: float | None) -> None:
        """Say how much of a child's memory came back [bytes] and how long it took [s]; before or after ``Settled``."""
        if (leave := self._book.leave_of(instance)) is not None:
            leave.returned_bytes, leave.settle_s = returned_bytes, settle_s
            self._swaps = None

    def restore(self, swaps: Sequence[Swap], seconds: Mapping[str, Seconds]) -> None:
        """Take over what an earlier run left: its swaps (shown, not counted) and what it learned of each model."""
        self._book.restore(swaps, seconds)
        self._swaps = None

    # --- what comes out

    @property
    def seq(self) -> int:
        """Number of the newest line, 0 before the first."""
        return self._seq

    def events(self, after_seq: int = 0) -> tuple[EventLine, ...]:
        """The lines still kept with a number greater than ``after_seq``, oldest first."""
        missing = min(self._seq - after_seq, len(self._lines))
        if missing <= 0:
            return ()
        start = len(self._lines) - missing
        return tuple(self._lines[i] for i in range(start, len(self._lines)))

    def swaps(self, recent: int = 200) -> Swaps:
        """How many swaps there were in this run, and the last ones remembered, newest last."""
        if self._swaps is None or self._swaps[0] != recent:
            self._swaps = (recent, self._book.swaps(recent))
        return self._swaps[1]

    def take_finished(self) -> tuple[Swap, ...]:
        """Swaps that ended since the last call: what a store keeps."""
        return self._book.take_finished()

    def seconds(self, model: str) -> Seconds:
        """What was learned of a model."""
        return self._book.seconds(model)

    def load_s(self, model: str) -> float | None:
        """What its next load will take, from spawn to ready: the median of the last few [s]."""
        return self._book.seconds(model).load_s

    def stop_s(self, model: str) -> float | None:
        """What its next stop will take, settling included: the median of the last few [s]."""
        return self._book.seconds(model).stop_s

    # --- how lines come about

    @property
    def book(self) -> SwapBook:
        """The pages of the children; for the line makers below."""
        return self._book

    def _add(self, kind: str, model: str, text: str, wall: float) -> EventLine:
        self._seq += 1
        line = EventLine(self._seq, wall, kind, safe_text(model), safe_text(text))
        self._lines.append(line)
        return line

    def _refusals(self, refused: Sequence[act.Refuse | act.Cut], now: float) -> Iterator[Line]:
        """One line a model and reason, not one a request; a name that no model has is the client's own affair."""
        groups: dict[tuple[str, str], list[act.Refuse | act.Cut]] = {}
        for action in refused:
            if action.refusal.type != "model_not_found":
                groups.setdefault((action.model, action.refusal.type), []).append(action)
        for key, same in groups.items():
            at, hidden = self._told.pop(key, (float("-inf"), 0))
            if now - at < REPEAT_S:
                self._told[key] = (at, hidden + len(same))
                continue
            self._told[key] = (now, 0)
            if len(self._told) > REPEATS_KEPT:
                del self._told[next(iter(self._told))]
            verb = "refused" if isinstance(same[0], act.Refuse) else "cut"
            more = f" ({hidden} more before)" if hidden else ""
            text = f"{verb} {_n(len(same), 'request')} for {key[0]}: {same[0].refusal.message}{more}"
            yield "refuse" if verb == "refused" else "cut", key[0], text

    def limited(self, limits: ev.Limits) -> Iterator[Line]:
        """The limits changed: say which."""
        before, self._limits = self._limits, limits
        if before is None:
            return
        for name in limits.__struct_fields__:
            old, new = getattr(before, name), getattr(limits, name)
            if old != new:
                yield "note", "", f"{name.removesuffix('_s').replace('_', '-')} is now {new} (was {old})"

    def budget(self, event: ev.Budget) -> Iterator[Line]:
        """Memory that stopped children did not give back, when it begins and when it is over."""
        before, self._stranded = self._stranded, event.stranded
        if event.stranded and not before:
            yield "note", "", f"{gib(event.stranded)} of stopped models have not come back and leave the budget"
        elif before and not event.stranded:
            yield "note", "", "all memory of stopped models is back"


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"


def _n(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _cause(failure: Failure) -> str:
    """How a process ended, and why, as far as it is known."""
    if failure.signal is not None:
        return f"killed by signal {failure.signal}: {failure.message}"
    return failure.message if failure.exit_code is None else f"exit {failure.exit_code}: {failure.message}"


def _model(journal: Journal, instance: int) -> str:
    run = journal.book.runs.get(instance)
    return "" if run is None else run.model


# --- events


def _ready(journal: Journal, event: ev.Ready, now: float) -> Iterator[Line]:
    model, took = _model(journal, event.instance), journal.book.ready(event.instance, now)
    if took is not None:
        yield "ready", model, f"{model} ready in {_s(took)}"


def _exited(journal: Journal, event: ev.Exited, now: float) -> Iterator[Line]:
    run = journal.book.exited(event.instance, now)
    if run is None:
        return
    if event.failure is not None:
        yield "exit", run.model, f"{run.model} {_cause(event.failure)}"
    else:
        yield "exit", run.model, f"{run.model} is gone{_after(run, now)}"


def _after(run: Run, now: float) -> str:
    return "" if run.leave.stop_at is None else f" after {_s(now - run.leave.stop_at)}"


def _settled(journal: Journal, event: ev.Settled, now: float) -> Iterator[Line]:
    run = journal.book.settled(event.instance, now)
    if run is None or run.leave.returned_bytes is None:
        return  # where memory is not measured there is nothing to tell
    held = run.leave.footprint_bytes
    part = f"{gib(run.leave.returned_bytes)}" + (f" of {gib(held)}" if held else "")
    yield "settle", run.model, f"{part} of {run.model} back in {_s(run.leave.record().settle_s or 0.0)}"


def _of_child(kind: str, text: Callable[[str, Any], str]) -> Callable[[Journal, Any, float], Iterator[Line]]:
    """A line about a child that is known; stale news gives none."""

    def line(journal: Journal, event: Any, _now: float) -> Iterator[Line]:
        model = _model(journal, event.instance)
        if model:
            yield kind, model, text(model, event)

    return line


def _checked(_journal: Journal, event: ev.Checked, _now: float) -> Iterator[Line]:
    if event.failure is not None:
        yield "fail", event.model, f"{event.model} cannot be loaded: {event.failure.message}"


def _removed(_journal: Journal, event: ev.Removed, _now: float) -> Iterator[Line]:
    yield "note", event.model, f"{event.model} is no longer configured"


def _said(kind: str, text: str) -> Callable[[Journal, Any, float], Iterator[Line]]:
    return lambda _journal, _event, _now: iter([(kind, "", text)])


_EVENTS: dict[type, Callable[[Journal, Any, float], Iterator[Line]]] = {
    ev.Ready: _ready,
    ev.Exited: _exited,
    ev.Settled: _settled,
    ev.Slept: _of_child("note", lambda m, _: f"{m} sleeps"),
    ev.Woke: _of_child("note", lambda m, _: f"{m} woke up"),
    ev.LoadFailed: _of_child("fail", lambda m, e: f"load of {m} is lost: {e.failure.message}"),
    ev.Sick: _of_child("sick", lambda m, e: f"{m} is sick: {e.failure.message}"),
    ev.Stuck: _of_child("stuck", lambda m, _: f"{m} survived SIGKILL: its slot and memory stay taken"),
    ev.Checked: _checked,
    ev.Removed: _removed,
    ev.Limited: lambda journal, event, _: journal.limited(event.limits),
    ev.Budget: lambda journal, event, _: journal.budget(event),
    ev.Close: _said("note", "shutting down: no new requests"),
    ev.StopAll: _said("note", "shutting down: all models are stopped"),
}


# --- actions


def _stop(journal: Journal, action: act.Stop, now: float) -> Iterator[Line]:
    journal.book.stop(action, now)
    if action.loading:
        wanted = f", {action.wanted_by} needs its room" if action.wanted_by else ""
        yield "stop", action.model, f"end the load of {action.model} ({action.reason}{wanted})"
    elif action.wanted_by:
        yield "evict", action.model, f"evict {action.model} for {action.wanted_by} ({action.reason})"
    else:
        yield "stop", action.model, f"stop {action.model} ({action.reason})"


def _kill(_journal: Journal, action: act.Kill, _now: float) -> Iterator[Line]:
    yield "kill", action.model, f"SIGKILL to {action.model}"


def _drain(journal: Journal, action: act.Drain, now: float) -> Iterator[Line]:
    journal.book.drain(action, now)
    wanted = f" for {action.wanted_by}" if action.wanted_by else ""
    yield "drain", action.model, f"drain {action.model}{wanted} ({action.reason})"


def _lift(journal: Journal, action: act.Lift, _now: float) -> Iterator[Line]:
    journal.book.lift(action.instance)
    yield "lift", action.model, f"{action.model} takes requests again"


def _dropped(_journal: Journal, action: act.Dropped, _now: float) -> Iterator[Line]:
    yield "drop", action.model, f"{action.model} is not loaded: {action.refusal.message}"


_ACTIONS: dict[type, Callable[[Journal, Any, float], Iterator[Line]]] = {
    act.Stop: _stop,
    act.Kill: _kill,
    act.Drain: _drain,
    act.Lift: _lift,
    act.Dropped: _dropped,
}


_VERBS: dict[type, tuple[str, str]] = {
    ev.Load: ("load", "load {model} asked by operator"),
    ev.Evict: ("evict", "evict {model} by operator"),
    ev.KillNow: ("kill", "kill {model} by operator"),
    ev.Pin: ("pin", "pin {model} by operator"),
    ev.Unpin: ("pin", "unpin {model} by operator"),
    ev.Cancel: ("cancel", "cancel a request by operator"),
    ev.Hold: ("hold", "hold the queue by operator"),
    ev.Resume: ("hold", "resume the queue by operator"),
    ev.Step: ("hold", "let one swap through by operator"),
}
"""Event to kind and words."""


def _replied(event: ev.Event | None, reply: act.Replied) -> Iterator[Line]:
    """What an operator's verb came to; one that changed nothing is not told."""
    verb = _VERBS.get(type(event))
    if verb is None:
        return
    kind, words = verb
    model = str(getattr(event, "model", ""))
    text = words.format(model=model)
    if isinstance(event, ev.Load) and event.startup:
        text = f"load {model} at start-up"
    if reply.refusal is not None and reply.refusal.type != "model_not_found":
        yield kind, model, f"{text}: refused, {reply.refusal.message}"
    elif reply.changed:
        yield kind, model, text
