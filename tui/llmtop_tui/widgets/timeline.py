"""The swaps of late as bars on one scale, and the one under the cursor in full, with the memory under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.snapshot import Swap
from llmtop_tui.format import DASH, clean, clock, cut_end, cut_middle, fit, seconds
from llmtop_tui.view import Sample, View, limit_of
from llmtop_tui.widgets import chart, phases
from llmtop_tui.widgets.line import Line, clip, spread, title

LIST_ROWS = 4
"""Swaps that have a row each before the one under the cursor gets its own part of the screen."""
MARGIN = 0.06
"""Time shown before and after a swap, as a share of its length."""
HIGHEST = 10
"""Rows of the memory chart at most."""
RESULTS = {"ok": "good", "": "primary", "cancelled": "warn"}


@dataclass(frozen=True)
class Place:
    """Cursor and first row, counted from the newest swap; ``clocked``: bars stand at their time, not at the left."""

    cursor: int = 0
    top: int = 0
    clocked: bool = False


def list_height(count: int, height: int) -> int:
    """Rows for the list of swaps: half the screen at most, where the rest is of use."""
    return max(1, min(count, max(LIST_ROWS, (height - 3) * 2 // 5), height - 3))


def render(view: View, swaps: Sequence[Swap], place: Place, width: int, height: int) -> list[Line]:
    """The whole page.

    Args:
        view: Its snapshot tells the time, its history the memory.
        swaps: Newest first.
        place: The cursor.
        width: Cells.
        height: Rows.
    """
    glyphs = view.glyphs
    facts = f"{view.snapshot.swaps.count} so far, the last {len(swaps)}" if swaps else "none so far"
    other = "by length" if place.clocked else "by the clock"
    keys: Line = ((f"enter whole  z {other}  esc closes", "muted"),)
    out: list[Line] = [title("SWAPS", facts, keys, width, glyphs, focused=True)]
    if not swaps:
        return [*out, (("  nothing was swapped yet", "muted"),)]
    solid = not (view.mono or glyphs.ascii)
    rows = list_height(len(swaps), height)
    shown = swaps[place.top : place.top + rows]
    names = 16 if width < 100 else 28
    lead_cells = 1 + 9 + names + 1 + 10 + 6
    plot = max(0, width - lead_cells - 1)
    now = view.snapshot.at
    axis = _Axis.around(shown, now, clocked=place.clocked)
    out.append(((" ", ""), *clip(phases.legend(solid=solid), width - 1)))
    head = f" {'SPAWNED':<8} {fit('MODEL', names)} {'RESULT':<9} {'TOTAL':>6} "
    out.append(spread(((head, "muted"), *axis.heads(plot)), (), width))
    for index, swap in enumerate(shown, start=place.top):
        marked = index == place.cursor
        line = _row(swap, view, names, axis, plot, solid=solid)
        gutter = (">", "focus") if marked else (" ", "")
        out.append((gutter, *line))
    room = height - len(out)
    if room >= 3:
        out += detail(view, swaps[place.cursor], width, room)
    return [clip(row, width) for row in out[:height]]


@dataclass(frozen=True)
class _Axis:
    """From moments to cells: all bars from the left, or each at its time."""

    start: float
    length: float
    clocked: bool

    @classmethod
    def around(cls, swaps: Sequence[Swap], now: float, *, clocked: bool) -> _Axis:
        ends = [phases.bounds(swap, now) for swap in swaps]
        if clocked:
            start = min(first for first, _ in ends)
            return cls(start, max(1e-3, max(last for _, last in ends) - start), True)
        return cls(0.0, max(1e-3, max(last - first for first, last in ends)), False)

    def heads(self, cells: int) -> Line:
        """Both ends of the scale."""
        if self.clocked:
            left, right = clock(self.start), clock(self.start + self.length)
        else:
            left, right = "0", seconds(self.length)
        return ((left + right.rjust(max(0, cells - len(left))), "muted"),)

    def offset(self, start: float, cells: int) -> int:
        return round((start - self.start) / self.length * cells) if self.clocked else 0


def _row(swap: Swap, view: View, names: int, axis: _Axis, plot: int, *, solid: bool) -> Line:
    now = view.snapshot.at
    parts = phases.spans(swap, now)
    first, last = phases.bounds(swap, now)
    size = max(len(parts), round((last - first) / axis.length * plot)) if parts else 0
    offset = max(0, min(axis.offset(first, plot), plot - size))
    result = swap.result or "under way"
    return clip(
        (
            (f"{clock(swap.at)} ", "muted"),
            (fit(cut_middle(swap.model, names, view.glyphs.ellipsis), names) + " ", "text"),
            (fit(clean(result), 9) + " ", RESULTS.get(swap.result, "bad")),
            (f"{seconds(last - first):>6} ", "text bold"),
            (" " * offset, ""),
            *phases.bar(parts, min(size, plot), solid=solid),
        ),
        10 + names + 1 + 10 + 7 + plot,
    )


def _fact(label: str, value: str, width: int, ellipsis: str, style: str = "text") -> Line:
    return ((f"  {label:<8} ", "muted"), (cut_end(value, max(0, width - 11), ellipsis), style))


def facts_of(swap: Swap, width: int, ellipsis: str, now: float) -> list[Line]:
    """Why, what went for it and how, and the phases in words."""
    evicted = ", ".join(swap.evicted) or "nobody"
    out = [
        _fact("why", f"{swap.reason or DASH}; evicted {evicted}", width, ellipsis),
        _fact("phases", phases.phases_text(swap, now) or "none", width, ellipsis),
    ]
    return out + [_fact("stopped", phases.stop_text(stop), width, ellipsis) for stop in swap.stops]


def detail(view: View, swap: Swap, width: int, height: int) -> list[Line]:
    """The swap under the cursor: facts, its bar over the whole width, memory on the same scale."""
    glyphs, now = view.glyphs, view.snapshot.at
    first, last = phases.bounds(swap, now)
    state = swap.result or "under way"
    head = title(
        cut_middle(swap.model, max(8, width - 40), glyphs.ellipsis),
        f"swap {swap.id}, {clean(state)}, {seconds(last - first)}",
        (),
        width,
        glyphs,
        focused=False,
    )
    facts = facts_of(swap, width, glyphs.ellipsis, now)
    out = [head, *facts[: max(0, height - 3)]]
    plot = width - chart.AXIS
    if height - len(out) < 2 or plot < 10:
        return out
    pad = max(0.2, (last - first) * MARGIN)
    start, length = first - pad, last - first + 2 * pad
    left = round(pad / length * plot)
    size = max(1, plot - 2 * left)
    parts = phases.bar(phases.spans(swap, now), size, solid=not (view.mono or glyphs.ascii))
    out.append(((" " * (chart.AXIS + left), ""), *parts))
    ticks = clock(first) + clock(last).rjust(max(0, size - 8))
    out.append(((" " * (chart.AXIS + left), ""), (ticks, "muted")))
    room = min(HIGHEST, height - len(out))
    if room >= 2:
        out += _memory(view, start, length, width, room)
    return out


def _memory(view: View, start: float, length: float, width: int, height: int) -> list[Line]:
    """Memory in use from ``start`` on for ``length`` seconds."""
    samples = view.history.between(start - chart.HOLD_S, start + length)
    if not any(start <= sample.at for sample in samples):
        return [(("  memory at that time is not known to this view", "muted"),)]
    scale = limit_of(view.snapshot.memory) or 0
    if scale:
        samples = [Sample(sample.at, sample.used, scale) for sample in samples]
    plot = width - chart.AXIS
    step = length / plot
    return chart.render(samples, start + length, step, width, height, view.glyphs, hold=True)
