"""Who holds the memory: ours, other programs', and what nobody gave back."""

from __future__ import annotations

from llmtop.snapshot import Memory
from llmtop_tui.format import clean, cut_middle, fit, gib, known
from llmtop_tui.ink import BANDS
from llmtop_tui.view import View, children_of, limit_of, size_of
from llmtop_tui.widgets.line import Line, clip, join
from llmtop_tui.widgets.models_table import plan_cell, size_cell

PRESSURE_STYLES = {"normal": "good", "warn": "warn bold", "critical": "bad bold reverse"}


def _fact(label: str, value: str, style: str = "text") -> Line:
    return ((f"{label} ", "muted"), (value, style))


def shares(view: View) -> tuple[int | None, int | None]:
    """What our children hold, and what others do [bytes]; None where it is not known."""
    memory = view.snapshot.memory
    used = known(memory.used)
    ours, others = known(memory.ours), known(memory.others)
    if ours is None and used is not None:
        ours = sum(size_of(model) for model in children_of(view.snapshot))
    if others is None and used is not None and ours is not None:
        others = max(0, used - ours - memory.stranded)
    return (None if ours is None else int(ours)), (None if others is None else int(others))


def _pressure(memory: Memory) -> Line:
    if memory.pressure is None:
        return ()
    word = clean(memory.pressure)[:12]
    return _fact("pressure", word, PRESSURE_STYLES.get(word, "text"))


def summary(view: View, cells: int) -> Line:
    """One row of it: ours, others, what was not returned, the system's own word."""
    ours, others = shares(view)
    parts = [
        _fact("ours", gib(ours)) if ours is not None else (),
        _fact("others", gib(others)) if others is not None else (),
        _fact("not returned", gib(view.snapshot.memory.stranded), "warn bold") if view.snapshot.memory.stranded else (),
        _pressure(view.snapshot.memory),
    ]
    return join((part for part in parts if part), "  ", max(0, cells))


def table(view: View, width: int) -> list[Line]:
    """A row a child with a bar of the limit, then everybody else, then where the figures come from."""
    memory, glyphs = view.snapshot.memory, view.glyphs
    limit = limit_of(memory) or 0
    name_cells = 34 if width >= 100 else 22
    bar_cells = max(0, width - name_cells - 34)

    def row(letter: str, style: str, name: str, size: int | None, figures: str, note: str) -> Line:
        share = min(1.0, (size or 0) / limit) if limit else 0.0
        filled = round(share * bar_cells)
        bar = ((glyphs.fill if glyphs.ascii or view.mono else " ") * filled, style)
        return clip(
            (
                (f" {letter} ", f"key{style.removeprefix('band')}" if style.startswith("band") else "muted"),
                (fit(cut_middle(name, name_cells, glyphs.ellipsis), name_cells) + " ", "text"),
                (f"{figures:>20} ", "text"),
                bar,
                (glyphs.free * (bar_cells - filled), "free"),
                (f" {note}", "warn bold"),
            ),
            width,
        )

    out: list[Line] = [((f"   {'CHILD':<{name_cells}} {'GiB':>9}{'PLAN':>11} ", "muted"), ("of the limit", "muted"))]
    for model in children_of(view.snapshot, view.letters):
        band = view.letters.band(model.id) % BANDS
        note = "grows" if model.id in view.growth else "settling" if model.settling else ""
        figures = f"{size_cell(model):>9}{plan_cell(model):>11}"
        out.append(row(view.letters[model.id] or "+", f"band{band}", model.id, size_of(model), figures, note))
    _, others = shares(view)
    if others is not None:
        out.append(row("-", "on-muted", "other programs", others, f"{gib(others):>9}{'':>11}", ""))
    if memory.stranded:
        out.append(row("?", "on-warn", "not returned", memory.stranded, f"{gib(memory.stranded):>9}{'':>11}", ""))
    planned = join(
        (
            _fact("reserved", gib(memory.reserved)),
            _fact("budget", gib(memory.budget)),
            _fact("available", gib(memory.available)),
            _fact("limit", gib(memory.limit)),
            _fact("total", gib(memory.total)),
            *([pressure] if (pressure := _pressure(memory)) else []),
        ),
        "  ",
        width - 3,
    )
    out += [(), (("   ", ""), *planned)]
    for name, source in sorted(memory.sources.items()):
        out.append(clip(((f"   {clean(name)[:12]:<12} ", "muted"), (clean(source)[:200], "muted")), width))
    return [clip(line, width) for line in out]
