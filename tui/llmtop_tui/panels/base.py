# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""A widget that draws lines of spans and sends to the terminal only the cells that changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rich.style import Style
from textual.geometry import Region, Size
from textual.strip import Strip
from textual.widget import Widget

from llmtop_tui.ink import changed_cells
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


class LineView(Widget):
    """Base of all panels.

    ``show`` takes the view's state; ``lines`` makes the rows from it. Rows are made anew only where what they are made
    of has changed, and are compared with those on the screen: a tick that changes nothing costs and writes nothing.
    """

    ALLOW_SELECT = False

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self.auto_links = False
        self.view: View | None = None
        self._drawn: list[Line] = []
        self._made_of: tuple[object, ...] | None = None

    @property
    def host(self) -> LlmtopApp:
        """The app, by its own type."""
        return cast("LlmtopApp", self.app)

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        """The rows to draw."""
        raise NotImplementedError

    def made_of(self, view: View) -> tuple[object, ...] | None:
        """What of the state the rows are made of; None where they follow the time.

        A panel's own state, its cursor or filter, is not part of it: what changes that also calls ``redraw``.
        """
        return None

    def take(self, view: View) -> None:
        """Take new state in, before the rows are made."""

    def show(self, view: View) -> None:
        """Take new state and repaint what differs."""
        self.view = view
        parts = self.made_of(view)
        if parts is None or parts != self._made_of:
            self._made_of = parts
            self.take(view)
            self.redraw()

    def redraw(self) -> None:
        """Compare with what is on the screen, repaint the difference."""
        width, height = self.content_size
        if self.view is None or not width or not height:
            return
        old, new = self._drawn, self.lines(self.view, width, height)[:height]
        self._drawn = new
        dirty: list[Region] = []
        for y in range(max(len(old), len(new))):
            span = changed_cells(old[y] if y < len(old) else (), new[y] if y < len(new) else ())
            if span is not None:
                left = min(span[0], width - 1)
                dirty.append(Region(left, y, max(1, min(span[1], width - left)), 1))
        if dirty:
            self.refresh(*dirty)

    def on_resize(self) -> None:
        self._drawn = []
        self.redraw()
        self.refresh()

    def render_line(self, y: int) -> Strip:
        line = self._drawn[y] if y < len(self._drawn) else ()
        ink = self.host.ink
        ground = Style() if ink.mono else Style(bgcolor=self.background_colors[1].rich_color)
        return ink.strip(line, self.content_size.width, ground)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return 1
