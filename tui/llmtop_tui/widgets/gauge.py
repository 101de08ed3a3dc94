"""The memory gauge: one run of cells a child, keyed by its letter, against the limit."""

from __future__ import annotations

import re

from llmtop.snapshot import Memory, Model
from llmtop_tui.format import GIB, clean, cut_end, cut_middle, gib, known
from llmtop_tui.ink import BANDS
from llmtop_tui.view import View, children_of, limit_of, size_of
from llmtop_tui.widgets.line import Line, clip, join, spread
from llmtop_tui.widgets.line import width as line_width

STEM = 9
"""Cells for the first word of a name, where the whole has no room."""

ALARM_STYLES = {"OK": "good", "WARN": "warn bold", "CRIT": "bad bold reverse"}


def scale_of(memory: Memory) -> int:
    """Bytes that the whole bar stands for: the machine where a device's limit is a part of it, else the limit."""
    limit = limit_of(memory) or 0
    return max(memory.total or 0, limit) if memory.limit and memory.label != "VRAM" else limit


def _cells(view: View, width: int) -> list[tuple[str, str]]:
    """The bar's cells in order, before the limit's mark."""
    snapshot, glyphs = view.snapshot, view.glyphs
    scale = scale_of(snapshot.memory)
    out: list[tuple[str, str]] = []
    bytes_drawn = 0

    def run(size: float, first: str, rest: str, style: str, least: int = 0) -> None:
        nonlocal bytes_drawn
        # Ends are rounded, not lengths: rounding errors do not add up along the bar.
        end = min(width, max(len(out) + least, round((bytes_drawn + size) / scale * width)))
        bytes_drawn += int(size)
        for _ in range(end - len(out)):
            out.append((first, style))
            first = rest

    children = children_of(snapshot, view.letters)
    for model in children:
        letter, band = view.letters[model.id] or "+", view.letters.band(model.id) % BANDS
        size = known(size_of(model)) or 0
        run(size, letter, letter if view.mono or glyphs.ascii else " ", f"band{band} bold", least=1)
    used = known(snapshot.memory.used)
    if used is not None:
        run(max(0, used - bytes_drawn), "-", "-", "muted")
    for model in children:
        if model.state == "loading" and model.footprint_bytes is not None:
            growth = max(0, model.reserved_bytes - model.footprint_bytes)
            band = view.letters.band(model.id) % BANDS
            mark = view.letters[model.id].lower() if view.mono or glyphs.ascii else glyphs.growing
            run(growth, mark, mark, f"grow{band}")
    return out + [(glyphs.free, "free")] * (width - len(out))


def bar(view: View, width: int) -> Line:
    """The bar alone, exactly ``width`` cells."""
    memory = view.snapshot.memory
    scale, limit = scale_of(memory), limit_of(memory)
    if width <= 0:
        return ()
    if not scale:
        return ((view.glyphs.free * width, "free"),)
    cells = _cells(view, width)
    if limit and limit < scale:
        cells[min(width - 1, round(limit / scale * width))] = (view.glyphs.bar, "bad bold")
    out: list[tuple[str, str]] = []
    for text, style in cells:
        if out and out[-1][1] == style:
            out[-1] = (out[-1][0] + text, style)
        else:
            out.append((text, style))
    return tuple(out)


def render(view: View, width: int) -> Line:
    """Label, bar, figures and the word."""
    memory = view.snapshot.memory
    limit, share = limit_of(memory), view.share
    figures: list[tuple[str, str]] = []
    if known(memory.used) is None:
        figures.append((" n/a", "warn"))
    else:
        used = gib(memory.used)
        figures += [(f" {used:>4}", "text bold"), ("/", "muted"), (gib(limit), "text"), (" GiB", "text")]
    if share is not None:
        figures.append((f" {share * 100:3.0f}%", "text"))
        figures.append((f" {view.alarms.word:<4}", ALARM_STYLES[view.alarms.word]))
    label = f" {clean(memory.label)[:6]} "
    tail: Line = (("]", "muted"), *figures, (" ", ""))
    taken = len(label) + 1 + sum(len(text) for text, _ in tail)
    if width - taken < 4:
        return clip(((label.rstrip(), "title"), *(span for span in figures if "GiB" not in span[0])), width)
    return ((label, "title"), ("[", "muted"), *bar(view, width - taken), *tail)


def _key(view: View, model: Model, name_width: int) -> Line:
    size = gib(model.footprint_bytes)
    if model.footprint_bytes is None:
        size = gib(model.reserved_bytes or None, "~")
    elif model.state == "loading" and model.reserved_bytes > model.footprint_bytes:
        size = f"{size}>{gib(model.reserved_bytes)}"
    band = view.letters.band(model.id) % BANDS
    if name_width > STEM:
        name = cut_middle(model.id, name_width, view.glyphs.ellipsis) + " "
    else:
        name = cut_end(re.split(r"[-_:/ ]", model.id, maxsplit=1)[0], name_width, view.glyphs.ellipsis) + " " * (
            name_width > 0
        )
    return ((view.letters[model.id] or "+", f"key{band}"), (f" {name}", "muted"), (size, "text"))


def legend(view: View, cells: int) -> Line:
    """Who has how much, what else is in use, and where the limit comes from."""
    memory = view.snapshot.memory
    children = children_of(view.snapshot, view.letters)
    rest: list[Line] = []
    used = known(memory.used)
    if used is None:
        why = memory.sources.get("used") or memory.sources.get(memory.label.lower()) or "not measured here"
        rest.append((("n/a: ", "warn"), (clean(why)[:60], "muted")))
    else:
        other = known(memory.others)
        if other is None:
            other = max(0, used - sum(size_of(model) for model in children) - memory.stranded)
        if other >= GIB / 20:
            rest.append((("-", "muted"), (" other ", "muted"), (gib(other), "text")))
    pad = " " * (len(memory.label[:6]) + 3)
    left: Line = ()
    right: Line = ()
    for name_width, sourced in ((40, True), (24, True), (24, False), (14, False), (STEM, False), (0, False)):
        right = _limits(memory, sourced=sourced)
        parts = [*(_key(view, model, name_width) for model in children), *rest]
        room = cells - len(pad) - line_width(right) - 2
        left = join(parts, "  ", room)
        if sum(line_width(part) + 2 for part in parts) - 2 <= room:
            break
    return spread(((pad, ""), *left), right, cells)


def _limits(memory: Memory, *, sourced: bool) -> Line:
    """What is planned with, and against what."""
    out: list[tuple[str, str]] = []
    if memory.stranded:
        out += [("not returned ", "muted"), (gib(memory.stranded), "warn"), ("  ", "")]
    if memory.budget is not None:
        out += [("reserved ", "muted"), (gib(memory.reserved), "text"), (" of ", "muted"), (gib(memory.budget), "text")]
    if memory.limit:
        source = clean(memory.sources.get("limit", ""))[:28] if sourced else ""
        out += [("  limit ", "muted"), (gib(memory.limit), "text"), (f" {source}" if source else "", "muted")]
    return (*out, (" ", ""))
