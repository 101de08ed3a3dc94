"""A line of text as a tuple of (text, style name) spans: plain values, for tests to compare and panels to diff."""

from __future__ import annotations

from collections.abc import Iterable

from llmtop_tui.format import cut_end, fit, width_of
from llmtop_tui.glyphs import Glyphs

Span = tuple[str, str]
Line = tuple[Span, ...]


def plain(line: Line) -> str:
    """The text alone."""
    return "".join(text for text, _ in line)


def width(line: Line) -> int:
    """Cells of a line."""
    return sum(width_of(text) for text, _ in line)


def clip(line: Iterable[Span], cells: int) -> Line:
    """As much of the line as fits."""
    out: list[Span] = []
    for text, style in line:
        if cells <= 0:
            break
        if width_of(text) > cells:
            out.append((fit(text, cells, ellipsis=""), style))
            break
        out.append((text, style))
        cells -= width_of(text)
    return tuple(out)


def also(line: Line, style: str) -> Line:
    """The line with one more style on each span."""
    return tuple((text, f"{name} {style}" if name else style) for text, name in line)


def spread(left: Line, right: Line, cells: int, filler: str = " ", style: str = "") -> Line:
    """Left and right parts with filler between; the right one gives way where both do not fit."""
    room = cells - width(left)
    if width(right) + 2 > room:
        right = ()
    gap = room - width(right)
    if gap <= 0:
        return clip(left, cells)
    return (*left, (filler * gap, style), *right)


def join(parts: Iterable[Line], gap: str, cells: int) -> Line:
    """Parts in order with gaps, as many as fit: what comes last is dropped first, nothing is cut."""
    out: list[Span] = []
    used = 0
    for part in parts:
        size = width(part) + (len(gap) if out else 0)
        if used + size > cells:
            break
        if out:
            out.append((gap, ""))
        out += part
        used += size
    return tuple(out)


def title(name: str, facts: str, right: Line, cells: int, glyphs: Glyphs, *, focused: bool) -> Line:
    """The rule on top of a panel: ``─QUEUE 4 waiting──────── next swap …──``."""
    head: list[Span] = [(glyphs.rule, "rule"), (name, "focus" if focused else "title")]
    if facts:
        head.append((" " + cut_end(facts, max(0, cells - len(name) - 3), glyphs.ellipsis), "muted"))
    head.append((" ", ""))
    tail = ((" ", ""), *right, (" " + glyphs.rule, "rule")) if right else ()
    return spread(tuple(head), tail, cells, glyphs.rule, "rule")


def _first(text: str, room: int) -> str:
    """The start of a text that is too long for the room, up to a blank where there is one near the end."""
    piece = fit(text, room, ellipsis="").rstrip(" ")
    if not text[len(piece) :].startswith(" "):
        blank = piece.rfind(" ")
        piece = piece[:blank] if blank > room // 2 else piece
    return piece or text[:1]


def wrap(line: Line, cells: int, indent: int = 0) -> list[Line]:
    """The line in rows of at most ``cells``, all but the first indented."""
    rows: list[Line] = []
    current: list[Span] = []
    room = cells
    for text, style in line:
        while text:
            piece = text if width_of(text) <= room else _first(text, room)
            current.append((piece, style))
            room -= width_of(piece)
            text = text[len(piece) :]
            if text:
                text = text.lstrip(" ")
            if text or room <= 0:
                rows.append(tuple(current))
                current, room = [(" " * indent, "")], max(1, cells - indent)
    if any(text.strip() for text, _ in current) or not rows:
        rows.append(tuple(current))
    return rows
