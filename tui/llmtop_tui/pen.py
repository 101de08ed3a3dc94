"""Colours in fewer bytes: Textual writes each piece of text with its whole style and a reset; most change one colour.

Over ssh and through tmux these bytes are what a busy screen costs.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

from textual.driver import Driver

_SGR = re.compile(r"\x1b\[([\d;]*)m")
_LINE_END = re.compile(r"\r?\n(?=\x1b\[\d+;\d+H)")
"""A new line right before the cursor is put somewhere else."""
_MOVE = re.compile(r"(?:\x1b\[\d+;\d+H)+")
_OFF = {"1": "22", "2": "22", "3": "23", "4": "24", "7": "27", "9": "29"}
"""What ends a mark."""
_CODES = re.compile(
    r"(?P<fg>3[0-7]|39|9[0-7]|38;5;\d+|38;2;\d+;\d+;\d+)|(?P<bg>4[0-7]|49|10[0-7]|48;5;\d+|48;2;\d+;\d+;\d+)|(?P<mark>[1-9]|53)"
)


class Pen(NamedTuple):
    """What a terminal writes with: SGR codes, empty for its own colours, and the marks (bold, dim …) that are on."""

    fg: str = ""
    bg: str = ""
    marks: tuple[str, ...] = ()


PLAIN = Pen()


@lru_cache(maxsize=1024)
def pen_after(pen: Pen, codes: str) -> Pen | None:
    """The pen after one SGR sequence; None for codes that are not known here."""
    if codes in ("", "0"):
        return PLAIN
    at, fg, bg, marks = 0, pen.fg, pen.bg, pen.marks
    while at < len(codes):
        found = _CODES.match(codes, at)
        if found is None or codes[found.end() : found.end() + 1] not in ("", ";"):
            return None
        fg, bg = found["fg"] or fg, found["bg"] or bg
        if (mark := found["mark"]) is not None and mark not in marks:
            marks = (*marks, mark)
        at = found.end() + 1
    return Pen("" if fg == "39" else fg, "" if bg == "49" else bg, marks)


@lru_cache(maxsize=4096)
def change(now: Pen, wanted: Pen) -> str:
    """The shortest SGR sequence from one pen to another, empty where they are the same."""
    if now == wanted:
        return ""
    ended = [mark for mark in now.marks if mark not in wanted.marks]
    codes = [_OFF[mark] for mark in ended if mark in _OFF]
    kept = [mark for mark in now.marks if mark in wanted.marks and _OFF.get(mark) not in codes]
    codes += [mark for mark in wanted.marks if mark not in kept]
    if wanted.fg != now.fg:
        codes.append(wanted.fg or "39")
    if wanted.bg != now.bg:
        codes.append(wanted.bg or "49")
    step = ";".join(codes)
    afresh = ";".join(code for code in ("0", *wanted.marks, wanted.fg, wanted.bg) if code)
    endless = any(mark not in _OFF for mark in ended)  # only a reset is known to end it
    return f"\x1b[{afresh if endless or len(afresh) < len(step) else step}m"


def thrifty(data: str) -> str:
    """The same on the screen in fewer bytes; begins and ends with the terminal's own pen, as what it is given does."""
    if "\x1b[0m" not in data:
        return data
    out: list[str] = []
    now = wanted = PLAIN
    parts = _SGR.split(_LINE_END.sub("", data))
    for text, codes in zip(parts[::2], (*parts[1::2], None), strict=True):
        if text and _MOVE.fullmatch(text):
            out.append(text)  # moves nothing but the cursor, whatever the pen
        elif text:
            out += (change(now, wanted), text)
            now = wanted
        after = pen_after(wanted, codes) if codes is not None else PLAIN
        if after is None:
            return data  # Textual has learned something new: leave it as it is
        wanted = after
    out.append(change(now, PLAIN))
    return "".join(out)


def thrifty_driver(base: type[Driver]) -> type[Driver]:
    """A driver that writes so."""

    def write(self: Any, data: str) -> None:
        base.write(self, thrifty(data))

    return type(f"Thrifty{base.__name__}", (base,), {"write": write})
