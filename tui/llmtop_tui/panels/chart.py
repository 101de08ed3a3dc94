# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""Memory in use over the last ten minutes, half an hour where the screen is wide."""

from __future__ import annotations

from llmtop_tui.format import clean
from llmtop_tui.panels.rows import RowsPanel
from llmtop_tui.view import View, level_of
from llmtop_tui.widgets import chart
from llmtop_tui.widgets.line import Line, title


class ChartPanel(RowsPanel):
    """A panel without rows: only its title takes part in the walk between panels."""

    NAME = "MEMORY"

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        span = 1800 if level_of(self.host.size.width) == "wide" else 600
        label = clean(view.snapshot.memory.label)[:6]
        lead = title(self.NAME, f"{label} {span // 60} min, GiB", (), width, view.glyphs, focused=self.has_focus)
        plot = max(1, width - chart.AXIS)
        step = max(1.0, span / plot)
        rows = chart.render(view.history.samples, view.snapshot.at, step, width, height - 1, view.glyphs)
        return [lead, *rows]
