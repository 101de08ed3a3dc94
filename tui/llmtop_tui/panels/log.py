# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The children's output: a bounded ring of our own, followed, filtered, of one model or of all."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

from llmtop.snapshot import LogLine, Snapshot
from llmtop_tui.actions import Item
from llmtop_tui.format import cut_middle
from llmtop_tui.panels.rows import RowsPanel, matches
from llmtop_tui.view import View
from llmtop_tui.widgets import lists
from llmtop_tui.widgets.line import Line

KEPT = 5000
"""Lines that the view keeps."""
SLACK_S = 1.0
"""So much may a picture be older than the one before it, and be of the same core [s]."""


class LogPanel(RowsPanel):
    """A tail; scrolling up turns follow off and counts what is new since."""

    NAME = "LOG"

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.follow = True
        self.wrap = False
        self.model: str | None = None
        self.new = 0
        self._ring: deque[LogLine] = deque(maxlen=KEPT)
        self._shown: list[LogLine] = []
        self._seq = -1
        self._core, self._up_s, self._cores = 0, 0.0, 0

    def key_of(self, item: Item) -> str:
        return str(cast("LogLine", item).seq)

    def text_of(self, item: Item) -> str:
        line = cast("LogLine", item)
        return f"{line.model} {line.text}"

    def _wanted(self, line: LogLine) -> bool:
        if self.model is not None and line.model != self.model:
            return False
        return not self.pattern or matches(self.text_of(line), self.pattern)

    def put(self, items: Sequence[Item]) -> None:
        """Take new rows; while it follows, the cursor is on the last."""
        if self.follow:
            self.cursor, self.cursor_key = max(0, len(items) - 1), None
        super().put(items)

    def collect(self, snapshot: Snapshot) -> None:
        """Keep what is new, also while the display stands still."""
        if self._is_another(snapshot):  # it counts its lines anew
            self._seq, self._cores = -1, self._cores + 1
            self._ring.clear()
            self.refill()
        self._core, self._up_s = snapshot.pid, snapshot.uptime_s
        fresh = [line for line in snapshot.log if line.seq > self._seq]
        if fresh:
            self._seq = fresh[-1].seq
            self._ring.extend(fresh)
            wanted = [line for line in fresh if self._wanted(line)]
            self._shown += wanted
            if not self.follow:
                self.new += len(wanted)
            surplus = len(self._shown) - KEPT
            if surplus > 0:
                del self._shown[:surplus]
                self.cursor, self.top = max(0, self.cursor - surplus), max(0, self.top - surplus)
            self.put(self._shown)

    def _is_another(self, snapshot: Snapshot) -> bool:
        """Another core than the last time. In a container each start has the same pid, but a clock of its own.

        That clock is not held against the time of day: the two drift apart where a machine sleeps.
        """
        return snapshot.pid != self._core or snapshot.uptime_s < self._up_s - SLACK_S

    def show(self, view: View) -> None:
        self.collect(view.snapshot)
        super().show(view)

    def made_of(self, view: View) -> tuple[object, ...]:
        return self._cores, self._seq

    def refill(self) -> None:
        """Choose again from the ring, after a change of model or filter."""
        self._shown = [line for line in self._ring if self._wanted(line)]
        self.put(self._shown)
        self.redraw()

    def set_filter(self, pattern: str) -> None:
        self.pattern = pattern
        self.refill()

    def show_model(self, model: str | None) -> None:
        """Lines of one model, of all with None."""
        self.model = model
        self.set_follow(True)
        self.refill()

    def merge(self, lines: tuple[LogLine, ...]) -> None:
        """Take older lines of a child that the merged tail had dropped."""
        have = {line.seq for line in self._ring}
        merged = sorted((*self._ring, *(line for line in lines if line.seq not in have)), key=lambda line: line.seq)
        self._ring = deque(merged, maxlen=KEPT)
        if self._ring:
            self._seq = max(self._seq, self._ring[-1].seq)
        self.refill()

    def set_follow(self, follow: bool) -> None:
        """Follow the end, or stay here."""
        self.follow = follow
        self.new = 0
        if follow:
            self.cursor = max(0, len(self.items) - 1)
            self._bind()
        self.redraw()

    def set_wrap(self, wrap: bool) -> None:
        """Wrap long lines, or cut them."""
        self.wrap = wrap
        self.redraw()

    def move_to(self, index: int) -> None:
        if self.follow:
            self.new = 0
        super().move_to(index)

    def show_text(self, model: str, text: str) -> None:
        """Stop at the newest line of that model that contains the text."""
        for index in range(len(self.items) - 1, -1, -1):
            line = cast("LogLine", self.items[index])
            if line.model == model and text[:60] in line.text:
                self.move_to(index)
                self.top = max(0, index - self.page() // 2)
                self.redraw()
                return

    def facts(self, view: View) -> str:
        whose = "all models" if self.model is None else cut_middle(self.model, 30, view.glyphs.ellipsis)
        away = f"+{self.new} new, f follows" if self.new else "scrolled, f follows"
        mode = "follow" if self.follow else away
        return f"{whose}, {mode}" + (", wrap" if self.wrap else "")

    def empty(self, view: View) -> str:
        if view.kind:
            return f"a {view.kind} keeps its models' output to itself"
        return "nothing matches" if self.pattern else "no output yet"

    def _wraps(self) -> bool:
        return self.wrap

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        return lists.log_rows(cast("LogLine", item), view, width, wrap=self.wrap)
