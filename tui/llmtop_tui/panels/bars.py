# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The one- and two-row panels at the top and bottom: header, gauge, sticky line, footer."""

from __future__ import annotations

from textual import events

from llmtop_tui.messages import ActionAsked
from llmtop_tui.panels.base import LineView
from llmtop_tui.view import View, level_of
from llmtop_tui.widgets import alert, footer, gauge, header
from llmtop_tui.widgets.line import Line


class HeaderBar(LineView):
    """Name, address, mood, figures."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        return [header.render(view, width, level_of(self.host.size.width))]


class ClockBar(LineView):
    """The clock, a widget of its own: Textual writes a widget's row from its start to the cell that changed."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        return [header.time_of_day(view)]


class GaugeBar(LineView):
    """The gauge, and its legend where there is a second row."""

    def made_of(self, view: View) -> tuple[object, ...]:
        return view.snapshot.models, view.snapshot.memory, view.alarms.word

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        rows = [gauge.render(view, width)]
        return [*rows, gauge.legend(view, width)] if height > 1 else rows


class AlertBar(LineView):
    """The last out-of-memory line, there only while it is due."""

    def made_of(self, view: View) -> tuple[object, ...]:
        return view.snapshot.oom, view.snapshot.faults

    def take(self, view: View) -> None:
        self.set_class(alert.due(view.snapshot), "-due")

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        return [alert.render(view, width)]

    def on_click(self) -> None:
        self.post_message(ActionAsked("alarm"))


class FooterBar(LineView):
    """The keys."""

    def made_of(self, view: View) -> tuple[object, ...]:
        snapshot = view.snapshot
        return snapshot.models, snapshot.queue, snapshot.requests, snapshot.hold, snapshot.oom

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        return [footer.render(self.host.target, width, readonly=view.readonly, ascii=view.glyphs.ascii)]

    def on_click(self, event: events.Click) -> None:
        view = self.view
        if view is None:
            return
        width = self.content_size.width
        action = footer.action_at(self.host.target, event.x, width, readonly=view.readonly, ascii=view.glyphs.ascii)
        if action:
            self.post_message(ActionAsked(action))
