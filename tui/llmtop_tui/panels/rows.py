# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""A panel of rows: title, column heads, a cursor that belongs to a row and not to a place, filter and follow mode."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from textual import events
from textual.geometry import clamp

from llmtop_tui.actions import Item
from llmtop_tui.messages import ActionAsked, CursorMoved
from llmtop_tui.panels.base import LineView
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line, also, title
from llmtop_tui.widgets.line import width as width_of_line


def matches(text: str, pattern: str) -> bool:
    """A glob where the pattern has ``*`` or ``?``, else a part of the text; case does not count."""
    text, pattern = text.lower(), pattern.lower()
    return fnmatchcase(text, f"*{pattern}*") if "*" in pattern or "?" in pattern else pattern in text


class RowsPanel(LineView, can_focus=True):
    """Base of the tables and of the log.

    The cursor is bound to the key of its row: it stays on it when rows are sorted, arrive or leave. Only when its own
    row leaves, it goes to the one that takes its place.
    """

    NAME = ""
    always_cursor = False
    """The cursor is shown also while another panel is in use."""
    divided = False
    """A rule on the left, for the right one of two panels."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.items: Sequence[Item] = ()
        self.pattern = ""
        self.follow = False
        self.top = 0
        self.cursor = 0
        self.cursor_key: str | None = None
        self._rows: list[int | None] = []

    # What a panel says of itself

    def key_of(self, item: Item) -> str:
        """What the cursor is bound to."""
        raise NotImplementedError

    def text_of(self, item: Item) -> str:
        """What the filter looks at."""
        raise NotImplementedError

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        """The rows of an item, one where it does not wrap."""
        raise NotImplementedError

    def facts(self, view: View) -> str:
        """The title's figures."""
        return ""

    def title_right(self, view: View, width: int) -> Line:
        """The title's right end."""
        return ()

    def head(self, view: View, width: int) -> Line | None:
        """Names of the columns."""
        return None

    def empty(self, view: View) -> str:
        """What to say when there is no row."""
        return ""

    def has_title(self, width: int) -> bool:
        """There is room for a title."""
        return True

    # Rows and cursor

    def put(self, items: Sequence[Item]) -> None:
        """Take new rows, filtered already; the cursor stays on its own."""
        self.items = items
        if self.cursor_key is None:
            self._bind()
            return
        for index in self._likely(len(items)):
            if self.key_of(items[index]) == self.cursor_key:
                self.cursor = index
                return
        self._bind()

    def _likely(self, size: int) -> Sequence[int]:
        """Indices, the one where the cursor was first."""
        return (self.cursor, *range(size)) if self.cursor < size else range(size)

    def _bind(self, *, by_user: bool = False) -> None:
        before = self.cursor_key
        self.cursor = clamp(self.cursor, 0, max(0, len(self.items) - 1))
        self.cursor_key = self.key_of(self.items[self.cursor]) if self.items else None
        if by_user or (self.cursor_key != before and not self.follow):
            self.post_message(CursorMoved(self.id or "", by_user=by_user))

    @property
    def item(self) -> Item:
        """The row under the cursor."""
        return self.items[self.cursor] if self.cursor < len(self.items) else None

    def move_to(self, index: int) -> None:
        """Put the cursor on a row, as the user's own move."""
        self.follow = False
        self.cursor = index
        self._bind(by_user=True)
        self.redraw()

    def move(self, by: int) -> None:
        """Move the cursor by rows."""
        self.move_to(clamp(self.cursor + by, 0, max(0, len(self.items) - 1)))

    def page(self) -> int:
        """Rows of a page."""
        return max(1, self.content_size.height - 3)

    def select(self, key: str) -> bool:
        """Put the cursor on the row of that key."""
        for index, item in enumerate(self.items):
            if self.key_of(item) == key:
                self.cursor = index
                self._bind()
                self.redraw()
                return True
        return False

    def set_filter(self, pattern: str) -> None:
        """Show only what matches."""
        self.pattern = pattern
        self.retake()

    def retake(self) -> None:
        """Choose and order the rows anew, after a change of filter or order."""
        if self.view is not None:
            self.take(self.view)
            self.redraw()

    # Drawing

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        lead: list[Line] = []
        inner = width - 2 if self.divided else width
        if self.has_title(inner) or self.pattern:
            facts = self.facts(view)
            if self.pattern:
                facts = f"{facts}  filter: {self.pattern}".strip()
            room = width - 1 if self.divided else width
            right = self.title_right(view, inner)
            lead.append(title(self.NAME, facts, right, room, view.glyphs, focused=self.has_focus))
        head = self.head(view, inner - 1)
        if head is not None:
            lead.append(((" ", ""), *head))
        body = self._body(view, inner, max(0, height - len(lead)))
        self._rows = [None] * len(lead) + [index for index, _ in body]
        rows = lead + [line for _, line in body]
        if not body and (text := self.empty(view)):
            rows.append((("  " + text, "muted"),))
        return self._divide(rows, view, height) if self.divided else rows

    def _divide(self, rows: list[Line], view: View, height: int) -> list[Line]:
        first: Line = ((view.glyphs.tee, "rule"), *rows[0]) if rows else ()
        rest: list[Line] = [((view.glyphs.bar + " ", "rule"), *line) for line in rows[1:]]
        blank: list[Line] = [((view.glyphs.bar, "rule"),)] * (height - len(rows))
        return [first, *rest, *blank]

    def _body(self, view: View, width: int, height: int) -> list[tuple[int, Line]]:
        """The visible rows with the index of their item."""
        if self.follow:
            out: list[tuple[int, Line]] = []
            for index in range(len(self.items) - 1, -1, -1):
                if len(out) >= height:
                    break
                rows = self._item(index, view, width)
                out[:0] = [(index, line) for line in rows]
            return out[-height:] if height else []
        self.top = clamp(self.top, 0, max(0, len(self.items) - 1))
        self.top = min(self.top, self.cursor)
        if len(self.items) - self.top < height and not self._wraps():
            self.top = max(0, len(self.items) - height)
        while True:
            out = []
            index = self.top
            while index < len(self.items) and len(out) < height:
                out += [(index, line) for line in self._item(index, view, width)]
                index += 1
            if self.cursor < index or self.top >= self.cursor or not height:
                return out[:height]
            self.top = self.cursor - height + 1 if self.top < self.cursor - height + 1 else self.top + 1

    @property
    def _in_use(self) -> bool:
        """The cursor is shown; also while another window has the focus."""
        return self.has_focus or self.always_cursor or self.host.main.active is self

    def _wraps(self) -> bool:
        return False

    def _item(self, index: int, view: View, width: int) -> list[Line]:
        item = self.items[index]
        marked = index == self.cursor and not self.follow and self._in_use
        gutter = (">", "focus" if self.has_focus else "text bold") if marked else (" ", "")
        rows = self.item_rows(item, view, width - 1)
        out: list[Line] = []
        for number, row in enumerate(rows):
            line: Line = (gutter if number == 0 else (" ", ""), *row)
            if marked and self.has_focus:
                pad = max(0, width - width_of_line(line))
                line = also((*line, (" " * pad, "")), "cursor")
            out.append(line)
        return out

    # Mouse and focus

    def watch_has_focus(self, has_focus: bool) -> None:
        super().watch_has_focus(has_focus)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        index = self._rows[event.y] if 0 <= event.y < len(self._rows) else None
        if index is not None:
            self.move_to(index)
            if event.chain == 2:
                self.post_message(ActionAsked("detail"))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        if self.follow:
            self.cursor = max(0, len(self.items) - self.page())
        self.move(-3)
