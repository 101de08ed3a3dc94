"""The memory history as a chart of eighth blocks, 0 to the limit: never scaled to its own minimum and maximum."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop_tui.format import GIB
from llmtop_tui.glyphs import Glyphs
from llmtop_tui.view import Sample
from llmtop_tui.widgets.line import Line

AXIS = 5
"""Cells of the scale on the left."""
HOLD_S = 3.0
"""For so long a reading stands for the steps after it that have none of their own [s]."""


def step_s(span_s: float, width: int) -> float:
    """Time of a column where the chart and its scale take ``width`` cells, a second at least [s]."""
    return max(1.0, span_s / max(1, width - AXIS))


def columns(samples: Sequence[Sample], now: float, step_s: float, width: int) -> list[int | None]:
    """The largest reading of each time step, oldest first, None where nothing was read [bytes].

    Steps are cut at multiples of ``step_s`` since the epoch, so the picture moves once a step and not with each sample.
    """
    out: list[int | None] = [None] * width
    last = int(now // step_s)
    for sample in samples:
        index = width - 1 - (last - int(sample.at // step_s))
        if 0 <= index < width:
            out[index] = max(out[index] or 0, sample.used)
    return out


def held(values: list[int | None], steps: int) -> list[int | None]:
    """The values with gaps of up to ``steps`` filled by the value before them."""
    out, last, age = list(values), None, 0
    for index, value in enumerate(values):
        last, age = (value, 0) if value is not None else (last, age + 1)
        out[index] = last if age <= steps else None
    return out


def render(
    samples: Sequence[Sample],
    now: float,
    step_s: float,
    width: int,
    height: int,
    glyphs: Glyphs,
    *,
    hold: bool = False,
) -> list[Line]:
    """``height`` rows, the limit's on top. ``hold`` fills steps that are shorter than the time between readings."""
    plot = width - AXIS
    if plot < 4 or height < 1:
        return [()] * max(0, height)
    limit = samples[-1].limit if samples else 0
    if not limit:
        return [(("  no reading yet", "muted"),)] + [()] * (height - 1)
    values = columns(samples, now, step_s, plot)
    if hold:
        values = held(values, round(HOLD_S / step_s))
    eighths = [None if value is None else round(min(1.0, value / limit) * height * 8) for value in values]
    digits = 0 if limit >= 10 * GIB else 1
    marks = {0: f"{limit / GIB:4.{digits}f} ", height - 1: "   0 "}
    if height % 2 and height > 3:
        marks[height // 2] = f"{limit / 2 / GIB:4.{digits}f} "
    rows: list[Line] = []
    for row in range(height):
        base = (height - 1 - row) * 8
        top = row == 0
        mark = marks.get(row, " " * AXIS)
        cells: list[tuple[str, str]] = [(mark, "muted")]
        run, style = "", ""
        for value in eighths:
            filled = 0 if value is None else max(0, min(8, value - base))
            sign = glyphs.blocks[filled] if filled else (glyphs.dashes if top else " ")
            kind = "chart" if filled else "rule"
            if kind != style and run:
                cells.append((run, style))
                run = ""
            run, style = run + sign, kind
        cells.append((run, style))
        rows.append(tuple(cells))
    return rows
