# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""Memory in use since the view was opened, over the last ten minutes at most, half an hour where the screen is wide."""

from __future__ import annotations

from llmtop_tui.format import clean
from llmtop_tui.panels.rows import RowsPanel
from llmtop_tui.view import View, level_of
from llmtop_tui.widgets import books, chart
from llmtop_tui.widgets.line import Line, title

TALL = 20
"""Rows from which on the children stand under the chart."""
SPANS_S = (120, 600, 1800)
"""Times that the chart can show [s]: as much as there is, half an hour only where the screen is wide."""
HIGHEST = 16
"""Rows of the chart at most."""


class ChartPanel(RowsPanel):
    """A panel without rows: only its title takes part in the walk between panels."""

    NAME = "MEMORY"

    def _span_s(self, view: View) -> int:
        """The time shown."""
        longest = SPANS_S[-1] if level_of(self.host.size.width) == "wide" else SPANS_S[-2]
        return next((span for span in SPANS_S if view.history.age_s(view.snapshot.at) <= span <= longest), longest)

    def made_of(self, view: View) -> tuple[object, ...]:
        snapshot, span = view.snapshot, self._span_s(view)
        column = snapshot.at // (step := chart.step_s(span, self.content_size.width))
        peak = view.history.peak(column * step)
        return column, peak, span, snapshot.memory, snapshot.models, view.growth.models

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        span = self._span_s(view)
        label = clean(view.snapshot.memory.label)[:6]
        facts = f"{'' if label == 'MEM' else label} {span // 60} min, GiB".strip()
        right = books.summary(view, width - len(self.NAME) - len(facts) - 8)
        lead = title(self.NAME, facts, right, width, view.glyphs, focused=self.has_focus)
        step = chart.step_s(span, width)
        below = books.table(view, width) if height >= TALL else []
        room = max(height // 3, height - 1 - len(below)) if below else height - 1
        samples, top = view.history.samples, min(room, HIGHEST)
        rows = chart.render(samples, view.snapshot.at, step, width, top, view.glyphs, hold=True)
        return [lead, *rows, *below]
