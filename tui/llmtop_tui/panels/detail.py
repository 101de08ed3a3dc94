# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""All about the model under the cursor, beside the log, where the screen is wide."""

from __future__ import annotations

from llmtop_tui.format import cut_middle
from llmtop_tui.panels.base import LineView
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line, title, wrap
from llmtop_tui.widgets.pages import LABEL, model_page


class DetailPanel(LineView):
    """Follows the cursor of the models."""

    def lines(self, view: View, width: int, height: int) -> list[Line]:
        glyphs = view.glyphs
        model = view.model(self.host.main.selected_model())
        name = cut_middle(model.id, max(8, width - 20), glyphs.ellipsis) if model is not None else ""
        head = title("DETAIL", name, (), width - 1, glyphs, focused=False)
        body = model_page(model, view) if model is not None else []
        rows = [row for line in body for row in wrap(line, max(8, width - 3), LABEL)]
        edge = (glyphs.bar + " ", "rule")
        out: list[Line] = [((glyphs.tee, "rule"), *head)]
        out += [(edge, *row) for row in rows[: height - 1]]
        if len(rows) > height - 1:
            out[-1] = (edge, (f"{len(rows) - height + 2} more rows: enter", "muted"))
        return out + [((glyphs.bar, "rule"),)] * (height - len(out))
