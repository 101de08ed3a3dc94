"""Rows of the models table: state, letter, name, slots, sizes, waiters, and the note that says what comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from llmtop.snapshot import Model
from llmtop_tui.format import DASH, age, clean, cut_middle, fit, gib, known, until
from llmtop_tui.glyphs import STATE_STYLES, Glyphs, state_word
from llmtop_tui.ink import BANDS
from llmtop_tui.view import Level, View, holds_memory, size_of
from llmtop_tui.widgets.line import Line, clip
from llmtop_tui.widgets.words import squeeze

LEAD = 3
"""Cells before the first column: cursor, pin, glyph."""
WRONG = 0.10
"""An estimate that is further off than this share of what was measured stands out."""


@dataclass(frozen=True)
class Column:
    """A column of fixed width, with one cell of gutter after it."""

    head: str
    width: int
    sort: str = ""
    align: Literal["<", ">"] = "<"


STATE = Column("STATE", 9, "activity")
WAIT = Column("WAIT", 4, "wait", ">")


def _model(width: int) -> Column:
    return Column("MODEL", width, "name")


COLUMNS: dict[Level, tuple[Column, ...]] = {
    "slim": (_model(15), Column("GiB", 9, "size", ">"), WAIT, Column("NOTE", 0)),
    "narrow": (STATE, _model(21), Column("SLOT", 5, "", ">"), Column("GiB", 9, "size", ">"), WAIT, Column("NOTE", 0)),
    "normal": (
        STATE, _model(26), Column("SLOT", 5, "", ">"), Column("GiB", 9, "size", ">"), Column("EST", 6, "", ">"), WAIT,
        Column("IDLE", 5, "idle", ">"), Column("PORT", 5, "", ">"), Column("NOTE", 0),
    ),
    "wide": (
        STATE, _model(46), Column("SLOT", 5, "", ">"), Column("GiB", 10, "size", ">"), Column("EST", 6, "", ">"), WAIT,
        Column("IDLE", 6, "idle", ">"), Column("LOADS", 6, "", ">"), Column("PID", 8, "", ">"),
        Column("PORT", 6, "", ">"), Column("NOTE", 0),
    ),
}  # fmt: skip
"""Width 0 takes the rest of the row."""

SORTS = ("activity", "name", "size", "wait", "idle")


def sort_key(sort: str, model: Model) -> tuple[float, str]:
    """Where a model stands; ties go by name, so rows move only when something happens."""
    rank = {
        "activity": 0 if holds_memory(model) else 1 if model.waiting else 2 if model.failure else 3,
        "name": 0,
        "size": -(known(size_of(model)) or model.estimate_bytes or 0),
        "wait": -model.waiting,
        "idle": -(model.idle_s if model.idle_s is not None else -1),
    }[sort]
    return rank, model.id


def size_cell(model: Model, *, planned: bool = False) -> str:
    """Measured; ``3.1>5.1`` while it grows; ``~`` where nothing was measured; ``planned``: also of what is not up."""
    if not holds_memory(model):
        return gib(model.reserved_bytes or model.estimate_bytes, "~") if planned else DASH
    if model.footprint_bytes is None:
        return gib(model.reserved_bytes or model.estimate_bytes, "~")
    if model.state == "loading" and model.reserved_bytes > model.footprint_bytes:
        return f"{gib(model.footprint_bytes)}>{gib(model.reserved_bytes)}"
    return gib(model.footprint_bytes)


def plan_cell(model: Model) -> str:
    """What the scheduler plans with."""
    if model.reserved_bytes and model.reserved_bytes != model.estimate_bytes:
        return gib(model.reserved_bytes)
    return gib(model.estimate_bytes or model.reserved_bytes or None, "~")


def _plan_style(model: Model) -> str:
    """Dim as long as the plan holds, to a tenth of what was measured."""
    if model.footprint_bytes and model.state in ("loaded", "sleeping"):
        plan = model.reserved_bytes or model.estimate_bytes or 0
        if plan and abs(plan - model.footprint_bytes) > model.footprint_bytes * WRONG:
            return "warn" if plan < model.footprint_bytes else "text"
    return "muted"


def _size_style(model: Model, view: View) -> str:
    if model.id in view.growth:
        return "warn bold"
    return "text" if model.footprint_bytes is not None else "muted"


def _size(model: Model, view: View, *, planned: bool = False) -> str:
    """The size, with an arrow while it grows though nothing is loaded."""
    return (view.glyphs.up if model.id in view.growth else "") + size_cell(model, planned=planned)


def slot_cell(model: Model) -> str:
    """Requests in flight of slots."""
    if model.state == "unloaded" or (model.state == "loading" and not model.in_flight):
        return DASH
    return f"{model.in_flight}/{model.slots}" if model.slots is not None else str(model.in_flight)


def progress_note(model: Model) -> str:
    """``61 %, 8s of ~13s``, as far as the child tells."""
    progress = model.progress
    if progress is None:
        return ""
    parts: list[str] = []
    value = known(progress.value)
    if value is not None:
        parts.append(f"{min(1.0, value) * 100:.0f} %")
    expected = known(progress.expected_s)
    elapsed = known(progress.elapsed_s) or 0
    parts.append(age(elapsed) + (f" of ~{age(expected)}" if expected else ""))
    if expected and elapsed > 3 * expected:
        parts.append("slow?")
    if value is None and progress.phase:
        parts.append(progress.phase)
    return ", ".join(parts)


def note(model: Model) -> str:
    """What it does or waits for, with its countdowns."""
    parts: list[str] = []
    reason = model.reason
    # Countdowns first: where the note is cut, they still stand.
    if model.kill_in_s is not None and "kill in" not in reason:
        parts.append(f"kill in {until(model.kill_in_s)}")
    if model.quarantined_s > 0 and "retry" not in reason:
        parts.append(f"retry in {until(model.quarantined_s)}")
    marks = [name for name in ("stuck", "sick", "settling", "draining") if getattr(model, name)]
    if model.stale_config:
        marks.append("stale config")
    parts += [mark for mark in marks if mark[:5] not in reason.lower()]
    if model.state == "loading":
        parts.append(progress_note(model))
        if reason.lower().startswith("loading") or reason.endswith("waiting"):  # WAIT says how many
            reason = ""
    parts.append(reason)
    if not reason and state_word(model) == "FAILED" and model.failure is not None:
        parts.append(model.failure.message)
    if model.problem and model.problem not in reason:
        parts.append(model.problem)
    if model.pinned and not any(parts):
        parts.append("pinned" + (f" by {model.pinned_by}" if model.pinned_by else ""))
    return ", ".join(clean(part) for part in parts if part)


def _note_style(model: Model) -> str:
    if model.sick or model.stuck or state_word(model) == "FAILED" or model.problem:
        return "bad"
    return "warn" if model.draining or model.state == "stopping" or model.settling or model.stale_config else "muted"


Cell = Callable[[Model, View], tuple[str, str]]
CELLS: dict[str, Cell] = {
    "STATE": lambda m, v: (state_word(m), STATE_STYLES[state_word(m)].replace(" reverse", " bold")),
    "SLOT": lambda m, v: (slot_cell(m), "text bold" if m.in_flight else "muted"),
    "GiB": lambda m, v: (_size(m, v), _size_style(m, v)),
    "EST": lambda m, v: (plan_cell(m), _plan_style(m)),
    "WAIT": lambda m, v: (str(m.waiting) if m.waiting else DASH, "warn bold" if m.waiting else "muted"),
    "IDLE": lambda m, v: (age(m.idle_s, 5), "muted"),
    "LOADS": lambda m, v: (str(m.loads) if m.loads else DASH, "muted"),
    "PID": lambda m, v: (str(m.pid) if m.pid is not None else DASH, "muted"),
    "PORT": lambda m, v: (str(m.port) if m.port is not None else DASH, "muted"),
}


def _glyph(model: Model, glyphs: Glyphs) -> tuple[str, str]:
    word = state_word(model)
    sign = glyphs.states[word]
    if model.state == "loading" and model.progress is not None:
        sign = glyphs.spin[int(known(model.progress.elapsed_s) or 0) % len(glyphs.spin)]
    return sign, STATE_STYLES[word]


def row(model: Model, view: View, level: Level, width: int) -> Line:
    """One row without its cursor cell, ``width`` cells."""
    glyphs = view.glyphs
    spans: list[tuple[str, str]] = [
        ("P", "accent bold") if model.pinned else (" ", ""),
        _glyph(model, glyphs),
        (" ", ""),
    ]
    used = LEAD
    for column in COLUMNS[level]:
        room = column.width or max(0, width - used)
        used += room + 1
        if column.head == "MODEL":
            letter = view.letters[model.id]
            spans.append((f"{letter or ' '} ", f"key{view.letters.band(model.id) % BANDS}" if letter else "muted"))
            name = cut_middle(model.id, room - 2, glyphs.ellipsis)
            strong = "text bold" if model.state == "loaded" else "text" if holds_memory(model) else "muted"
            spans.append((fit(name, room - 2, ellipsis=glyphs.ellipsis) + " ", strong))
        elif column.head == "NOTE":
            spans.append((squeeze(note(model), view, room), _note_style(model)))
        elif column.head == "GiB" and level in ("slim", "narrow"):
            text = fit(_size(model, view, planned=True), room, ">", glyphs.ellipsis)
            spans.append((text + " ", _size_style(model, view)))
        else:
            text, style = CELLS[column.head](model, view)
            spans.append((fit(text, room, column.align, glyphs.ellipsis) + " ", style))
    return clip(spans, width)


def head(level: Level, width: int, sort: str, *, reverse: bool, glyphs: Glyphs, focused: bool) -> Line:
    """The names of the columns; the sorted one has an arrow."""
    spans: list[tuple[str, str]] = [(" " * LEAD, "")]
    used = LEAD
    for column in COLUMNS[level]:
        room = column.width or max(0, width - used)
        used += room + 1
        text = column.head
        marked = bool(column.sort) and column.sort == sort
        if marked:
            text += glyphs.down if reverse else glyphs.up
        spans.append((fit(text, room, column.align, "") + " ", "focus" if marked and focused else "muted"))
    return clip(spans, width)


def column_at(level: Level, x: int) -> Column | None:
    """The column under a cell of a row, counted after the cursor cell."""
    at = LEAD
    for column in COLUMNS[level]:
        if at <= x < at + column.width + 1 or (column.width == 0 and x >= at):
            return column
        at += column.width + 1
    return None
