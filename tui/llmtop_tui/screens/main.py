# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The main screen: which panels there are, which one is in use, and how state reaches them."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import Input

from llmtop_tui.actions import ACTIONS
from llmtop_tui.panels.bars import AlertBar, ClockBar, FooterBar, GaugeBar, HeaderBar
from llmtop_tui.panels.base import LineView
from llmtop_tui.panels.chart import ChartPanel
from llmtop_tui.panels.detail import DetailPanel
from llmtop_tui.panels.log import LogPanel
from llmtop_tui.panels.rows import RowsPanel
from llmtop_tui.panels.tables import EventsPanel, FlightPanel, ModelsPanel, QueuePanel
from llmtop_tui.view import View

BINDINGS: list[BindingType] = [
    Binding(",".join(action.keys), f"app.do('{action.id}')", action.label, show=False, id=action.id)
    for action in ACTIONS
]


class MainScreen(Screen[None]):
    """Header, gauge, tables, log, footer."""

    BINDINGS = BINDINGS
    AUTO_FOCUS = "ModelsPanel"

    def __init__(self) -> None:
        super().__init__()
        self.models: ModelsPanel = ModelsPanel("models")
        self.queue: QueuePanel = QueuePanel("queue")
        self.flight: FlightPanel = FlightPanel("flight")
        self.chart: ChartPanel = ChartPanel("memory")
        self.history: EventsPanel = EventsPanel("events")
        self.log_panel: LogPanel = LogPanel("log")
        self.detail: DetailPanel = DetailPanel("detail")
        self.panels: tuple[RowsPanel, ...] = (
            self.models,
            self.queue,
            self.flight,
            self.chart,
            self.history,
            self.log_panel,
        )
        self.header: HeaderBar = HeaderBar("header")
        self.alert: AlertBar = AlertBar("alert")
        self.footer: FooterBar = FooterBar("footer")
        self.filter = Input(
            id="filter", placeholder="text, or a glob with * and ?; Enter keeps it, esc clears it", compact=True
        )
        self._active: RowsPanel = self.models
        self._parts: tuple[LineView, ...] = ()

    def on_mount(self) -> None:
        self._parts = tuple(self.query(LineView))

    def compose(self) -> ComposeResult:
        with Horizontal(id="top"):
            yield self.header
            yield ClockBar("clock")
        yield GaugeBar("gauge")
        yield self.models
        with Horizontal(id="middle"):
            yield self.queue
            yield self.flight
        with Horizontal(id="past"):
            yield self.chart
            yield self.history
        with Horizontal(id="last"):
            yield self.log_panel
            yield self.detail
        with Vertical(id="bottom"):
            yield self.alert
            yield self.filter
            yield self.footer

    def show(self, view: View) -> None:
        """Give the state to every panel."""
        for panel in self._parts:
            panel.show(view)

    # The panel in use

    @property
    def active(self) -> RowsPanel:
        """The panel in use; it stays so while a dialog or another window has the focus."""
        return self._active if self._visible(self._active) else self.models

    @staticmethod
    def _visible(panel: RowsPanel) -> bool:
        return all(node.display for node in panel.ancestors_with_self if isinstance(node, LineView | Horizontal))

    def use(self, panel: RowsPanel) -> None:
        """Go to a panel; one that the layout has dropped is shown over the whole screen."""
        if self.zoomed or not self._visible(panel):
            self.zoom(panel)
        self._active = panel
        panel.focus()
        self.footer.redraw()

    def use_queue(self) -> None:
        """Go to the queue; from it to the requests and back: they share a place where the screen is not wide."""
        here = self.active
        shared = not (self._visible(self.queue) and self._visible(self.flight))
        if here is self.queue:
            there: RowsPanel = self.flight
        else:
            there = self.queue
        if shared and not self.zoomed:
            self.set_class(there is self.flight, "-requests")
        self.use(there)

    def use_next(self, by: int) -> None:
        """Go to the next panel that is on the screen."""
        shown = [panel for panel in self.panels if self._visible(panel)]
        at = shown.index(self.active) if self.active in shown else 0
        self.use(shown[(at + by) % len(shown)])

    def on_descendant_focus(self, event: events.DescendantFocus) -> None:
        if isinstance(event.widget, RowsPanel):
            left, self._active = self._active, event.widget
            left.redraw()
            self.footer.redraw()

    @property
    def zoomed(self) -> bool:
        """One panel has the whole screen."""
        return self.has_class("-zoom")

    def zoom(self, panel: RowsPanel | None) -> None:
        """Give a panel the whole screen, None to take it back."""
        self.query(".-zoomed").remove_class("-zoomed")
        self.set_class(panel is not None, "-zoom")
        if panel is not None:
            panel.add_class("-zoomed")
            parent = panel.parent
            if isinstance(parent, Horizontal):
                parent.add_class("-zoomed")

    # The filter

    def open_filter(self) -> None:
        """Let the user type a filter for the panel in use."""
        self.filter.value = self.active.pattern
        self.filter.add_class("-open")
        self.add_class("-filtering")
        self.filter.focus()

    def close_filter(self, *, clear: bool) -> None:
        """Back to the panel, with its filter or without."""
        panel = self.active
        self.filter.remove_class("-open")
        self.remove_class("-filtering")
        if clear:
            panel.set_filter("")
        panel.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        if self.filter.has_class("-open"):
            self.active.set_filter(event.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.close_filter(clear=False)

    def on_key(self, event: events.Key) -> None:
        if event.key == "escape" and self.filter.has_class("-open"):
            event.stop()
            event.prevent_default()
            self.close_filter(clear=True)

    def selected_model(self) -> str | None:
        """The model that the verbs act on."""
        return self.models.cursor_key if self.models.items else None

    def panel(self, name: str) -> RowsPanel:
        """A panel by its id."""
        return self.query_one(f"#{name}", RowsPanel)
