"""News of children, made events for the scheduler and notes for the screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from llmtop.children import news
from llmtop.engine.records import ChildRecord
from llmtop.scheduler import events
from llmtop.snapshot import OomLine

if TYPE_CHECKING:
    from llmtop.engine.driver import Engine


ABORT_S = 2.0
"""A child that ends so soon after a client left may have died of it [s]."""


class NewsDesk:
    """Takes what the supervisor tells. News of a child that is forgotten is dropped."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._table: dict[type[news.News], Callable[[ChildRecord, Any], None]] = {
            news.Started: self._started,
            news.Loading: self._loading,
            news.Ready: self._ready,
            news.Slept: lambda c, n: self._feed(events.Slept(n.instance)),
            news.Woke: lambda c, n: self._feed(events.Woke(n.instance)),
            news.LoadFailed: lambda c, n: self._feed(events.LoadFailed(n.instance, n.failure)),
            news.Sick: lambda c, n: self._feed(events.Sick(n.instance, n.failure)),
            news.Stopping: self._stopping,
            news.Killed: self._killed,
            news.Stuck: self._stuck,
            news.Exited: self._exited,
            news.OomSeen: self._oom,
            news.Line: lambda c, n: self._engine.changed(),
            news.Sized: self._sized,
            news.Slots: self._slots,
        }

    def take(self, item: news.News) -> None:
        """One piece of news."""
        child = self._engine.children.get(item.instance)
        if child is not None:
            self._table[type(item)](child, item)

    def _feed(self, event: events.Event) -> None:
        self._engine.feed(event)

    def _started(self, child: ChildRecord, item: news.Started) -> None:
        child.started(item.pid, item.port, item.args, item.api_key)
        self._engine.desk.started(item.instance, item.pid, child.spec.id)
        self._engine.journal.started(item.instance, self._engine.now())
        self._engine.changed()

    def _loading(self, child: ChildRecord, item: news.Loading) -> None:
        child.phase, child.progress = item.phase, item.value
        self._engine.changed()

    def _ready(self, child: ChildRecord, item: news.Ready) -> None:
        child.progress = None
        if item.slots is not None:
            child.slots = item.slots
        self._engine.desk.ready(item.instance)
        self._feed(events.Ready(item.instance))
        self._engine.deeds.learn(child)

    def _stopping(self, child: ChildRecord, item: news.Stopping) -> None:
        child.kill_at = self._engine.now() + item.kill_in_s
        child.signal = item.how or child.signal
        self._engine.changed()

    def _killed(self, child: ChildRecord, item: news.Killed) -> None:
        child.signal, child.kill_at = "SIGKILL", None
        self._engine.note("kill", child.spec.id, f"SIGKILL to {child.spec.id} (pid {child.pid})")

    def _stuck(self, child: ChildRecord, item: news.Stuck) -> None:
        text = f"{child.spec.id} (pid {child.pid}, state {item.process_state}) survived SIGKILL"
        self._engine.note("stuck", child.spec.id, text)
        self._feed(events.Stuck(item.instance))

    def _exited(self, child: ChildRecord, item: news.Exited) -> None:
        after = None if item.asked or child.left_at is None else self._engine.now() - child.left_at
        if after is not None and after < ABORT_S and child.spec.on_client_abort == "cancel":
            text = f"{child.spec.id} ended {after:.1f} s after a client left in the middle of an answer"
            self._engine.note("note", child.spec.id, f"{text}; on-client-abort = drain in its preset spares it that")
        self._feed(events.Exited(item.instance, None if item.asked else item.failure))

    def _oom(self, child: ChildRecord, item: news.OomSeen) -> None:
        more = item.count - child.oom_lines
        child.oom_lines = item.count
        line = OomLine(time.time(), child.spec.id, item.text, item.count)
        self._engine.oom.add(line, more)
        if more == item.count:
            self._engine.note("oom", child.spec.id, f"{child.spec.id}: {item.text}")
        self._engine.changed()

    def _slots(self, child: ChildRecord, item: news.Slots) -> None:
        child.slots = item.total

    def _sized(self, child: ChildRecord, item: news.Sized) -> None:
        child.sized = item.total
        self._engine.deeds.learn(child)
