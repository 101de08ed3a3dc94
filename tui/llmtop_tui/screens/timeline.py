# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The swaps of late over the whole screen: where did the time go."""

from __future__ import annotations

from dataclasses import replace

from textual import events
from textual.app import ComposeResult
from textual.geometry import clamp
from textual.screen import ModalScreen

from llmtop.snapshot import Swap
from llmtop_tui.panels.base import LineView
from llmtop_tui.view import View
from llmtop_tui.widgets import timeline
from llmtop_tui.widgets.line import Line

_FAR = 10**6
_STEPS = {"j": 1, "down": 1, "k": -1, "up": -1, "pagedown": 8, "pageup": -8, "g": -_FAR, "home": -_FAR, "G": _FAR,
          "end": _FAR}  # fmt: skip
_CLOSE = ("escape", "q", "T", "ctrl+c")
PASSED_ON = ("hold", "step", "pause", "refresh", "faster", "slower", "next_swap", "next_oom", "help", "leave")
"""Actions whose keys work here as on the main screen: one may step through swaps and watch."""


class TimelinePage(LineView, can_focus=True):
    """The page; its cursor belongs to a swap, and stays on the newest while it is there."""

    def __init__(self) -> None:
        super().__init__("timeline")
        self.place = timeline.Place()
        self._swap: int | None = None
        """Swap under the cursor, None for whichever is newest."""

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """Newest first."""
        return tuple(reversed(self.view.snapshot.swaps.recent)) if self.view is not None else ()

    @property
    def swap(self) -> Swap | None:
        """The swap under the cursor."""
        swaps = self.swaps
        return swaps[self.place.cursor] if self.place.cursor < len(swaps) else None

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        self._find(height)
        return timeline.render(view, self.swaps, self.place, width, height)

    def _find(self, height: int) -> None:
        """Put the cursor where its swap is by now, in sight."""
        ids = [swap.id for swap in self.swaps]
        cursor = ids.index(self._swap) if self._swap in ids else 0
        if self._swap is not None and self._swap not in ids:
            cursor = clamp(self.place.cursor, 0, max(0, len(ids) - 1))
        rows = timeline.list_height(len(ids), height)
        top = clamp(self.place.top, max(0, cursor - rows + 1), cursor)
        self.place = replace(self.place, cursor=cursor, top=min(top, max(0, len(ids) - rows)))

    def move(self, by: int) -> None:
        """Move the cursor by swaps."""
        swaps = self.swaps
        cursor = clamp(self.place.cursor + by, 0, max(0, len(swaps) - 1))
        self._swap = swaps[cursor].id if swaps and cursor else None
        self.place = replace(self.place, cursor=cursor)
        self.redraw()

    def turn(self) -> None:
        """Bars by length, or at their time."""
        self.place = replace(self.place, clocked=not self.place.clocked)
        self.redraw()

    def on_click(self, event: events.Click) -> None:
        self.move(event.y - 3 + self.place.top - self.place.cursor)

    def on_mouse_scroll_down(self) -> None:
        self.move(1)

    def on_mouse_scroll_up(self) -> None:
        self.move(-1)


class TimelineScreen(ModalScreen[None]):
    """Shows the page until a key closes it."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self.page = TimelinePage()
        self.page.view = view

    def compose(self) -> ComposeResult:
        yield self.page

    def on_key(self, event: events.Key) -> None:
        event.stop()
        event.prevent_default()
        host = self.page.host
        action = host.action_of(event.key)
        if event.key in _CLOSE:
            self.dismiss(None)
        elif event.key in _STEPS:
            self.page.move(_STEPS[event.key])
        elif event.key == "z":
            self.page.turn()
        elif event.key == "enter" and self.page.swap is not None:
            host.open_row(self.page.swap)
        elif action in PASSED_ON:
            host.do(action)

    def refresh_page(self) -> None:
        """Draw the page from newer state."""
        self.page.redraw()
