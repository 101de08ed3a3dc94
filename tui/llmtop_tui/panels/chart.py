# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""Memory in use over the last ten minutes, half an hour where the screen is wide."""

from __future__ import annotations

from llmtop_tui.format import clean
from llmtop_tui.panels.rows import RowsPanel
from llmtop_tui.view import View, level_of
from llmtop_tui.widgets import books, chart
from llmtop_tui.widgets.line import Line, title

TALL = 20
"""Rows from which on the children stand under the chart."""
HIGHEST = 16
"""Rows of the chart at most."""


class ChartPanel(RowsPanel):
    """A panel without rows: only its title takes part in the walk between panels."""

    NAME = "MEMORY"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        span = 1800 if level_of(self.host.size.width) == "wide" else 600
        label = clean(view.snapshot.memory.label)[:6]
        facts = f"{label} {span // 60} min, GiB"
        right = books.summary(view, width - len(self.NAME) - len(facts) - 8)
        lead = title(self.NAME, facts, right, width, view.glyphs, focused=self.has_focus)
        plot = max(1, width - chart.AXIS)
        step = max(1.0, span / plot)
        below = books.table(view, width) if height >= TALL else []
        room = max(height // 3, height - 1 - len(below)) if below else height - 1
        rows = chart.render(view.history.samples, view.snapshot.at, step, width, min(room, HIGHEST), view.glyphs)
        return [lead, *rows, *below]
