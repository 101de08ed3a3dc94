# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""A page of text over the screen: help and details."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.app import ComposeResult
from textual.geometry import Size, clamp
from textual.screen import ModalScreen

from llmtop_tui.panels.base import LineView
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line, title, wrap

_STEPS = {
    "j": 1,
    "down": 1,
    "k": -1,
    "up": -1,
    "pagedown": 10,
    "space": 10,
    "pageup": -10,
    "g": -(10**6),
    "home": -(10**6),
    "G": 10**6,
    "end": 10**6,
}
_CLOSE = ("escape", "q", "enter", "question_mark", "f1", "ctrl+c")


class Page(LineView, can_focus=True):
    """Lines that scroll."""

    def __init__(self, id: str, name: str, text: Callable[[], list[Line]], indent: int) -> None:
        super().__init__(id)
        self.indent = indent
        self._heading = name
        self._text = text
        self.top = 0

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        rows = [row for line in self._text() for row in wrap(line, width - 4, self.indent)]
        room = max(1, height - 2)
        self.top = clamp(self.top, 0, max(0, len(rows) - room))
        more = len(rows) - self.top - room
        right: Line = ((f"{more} more, j k scroll, esc closes" if more > 0 else "esc closes", "muted"),)
        head = title(self._heading, "", right, width, view.glyphs, focused=True)
        return [head, *(((" " * 2, ""), *row) for row in rows[self.top : self.top + room])]

    def scroll(self, by: int) -> None:
        """Scroll by rows."""
        self.top += by
        self.redraw()

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(len(wrap(line, max(8, width - 4), self.indent)) for line in self._text()) + 2

    def on_mouse_scroll_down(self) -> None:
        self.scroll(3)

    def on_mouse_scroll_up(self) -> None:
        self.scroll(-3)


class PagerScreen(ModalScreen[None]):
    """Shows a page until a key closes it."""

    def __init__(self, name: str, text: Callable[[], list[Line]], view: View, indent: int = 11) -> None:
        super().__init__()
        self._page = Page("page", name, text, indent)
        self._page.view = view

    def compose(self) -> ComposeResult:
        yield self._page

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key in _CLOSE:
            self.dismiss(None)
        elif event.key in _STEPS:
            self._page.scroll(_STEPS[event.key])

    def refresh_page(self) -> None:
        """Draw the page from newer state."""
        self._page.redraw()
