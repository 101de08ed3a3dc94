"""Values as text: sizes, ages, clocks, and cutting to a width. Pure; the last guard against escapes in foreign text."""

from __future__ import annotations

import math
import time
from typing import Literal

from rich.cells import cell_len, get_character_cell_size

GIB = 1 << 30
DASH = "-"

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)
_VISIBLE = (
    {code: chr(0x2400 + code) for code in range(0x20)}
    | {0x7F: "\u2421"}
    | dict.fromkeys((*range(0x80, 0xA0), *_BIDI, 0x2028, 0x2029, 0xFEFF), "\u00b7")
    | {0x09: " "}
)


def clean(text: str) -> str:
    """Foreign text with every control character and direction mark made visible (an escape becomes ``␛``)."""
    return text if text.isascii() and text.isprintable() else text.translate(_VISIBLE)


def ascii_only(text: str) -> str:
    """The same width in plain ASCII: what has no ASCII form becomes ``?``."""
    if text.isascii():
        return text
    return "".join(c if c.isascii() else "?" * get_character_cell_size(c) for c in text)


def width_of(text: str) -> int:
    """Cells that the text takes in a terminal."""
    return len(text) if text.isascii() else cell_len(text)


def _take(text: str, width: int) -> str:
    """The longest start of the text that fits."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, character in enumerate(text):
        used += get_character_cell_size(character)
        if used > width:
            return text[:index]
    return text


def cut_end(text: str, width: int, ellipsis: str = "…") -> str:
    """The text, cut at its end with an ellipsis where it is too wide."""
    if width <= 0:
        return ""
    # Only what can be seen is measured: one line of a child may be very long.
    text = clean(text[: 4 * width + 4])
    return text if width_of(text) <= width else _take(text, width - len(ellipsis)) + ellipsis


def cut_middle(text: str, width: int, ellipsis: str = "…") -> str:
    """The text, cut in its middle: a model's name tells its size first and its quantization last."""
    text = clean(text[:512])
    if width <= 0:
        return ""
    if width_of(text) <= width:
        return text
    if width < 5:
        return _take(text, width - 1) + ellipsis
    tail = (width - 1) // 2
    return _take(text, width - 1 - tail) + ellipsis + _take(text[::-1], tail)[::-1]


def fit(text: str, width: int, align: Literal["<", ">"] = "<", ellipsis: str = "…") -> str:
    """The text in exactly ``width`` cells."""
    text = cut_end(text, width, ellipsis)
    pad = " " * (width - width_of(text))
    return pad + text if align == ">" else text + pad


def known(value: float | None) -> float | None:
    """The value, or None for what is not a finite number that is 0 or more."""
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def gib(size: float | None, mark: str = "") -> str:
    """Bytes as GiB with one decimal, always that unit; ``-`` when not known, ``<0.1`` where the decimal would say 0."""
    size = known(size)
    if size is None:
        return DASH
    return "<0.1" if 0 < size < GIB / 20 else f"{mark}{size / GIB:.1f}"


def stepped(seconds: float | None) -> float | None:
    """A duration that moves only when its text does: every 5 seconds, then every minute [s]."""
    value = known(seconds)
    if value is None:
        return None
    step = 5 if value < 60 else 60
    return value // step * step


def age(seconds: float | None, step: int = 1) -> str:
    """A duration in at most five cells; below a minute it moves in steps of ``step`` seconds, then of a minute."""
    value = known(seconds)
    if value is None:
        return DASH
    whole = int(value)
    if whole < 60:
        return f"{whole // step * step}s"
    if whole < 600 and step == 1:
        return f"{whole // 60}m{whole % 60:02}"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02}"
    return f"{whole // 86400}d{whole // 3600 % 24:02}h" if whole < 864000 else f"{whole // 86400}d"


def seconds(value: float | None) -> str:
    """A short duration with one decimal below ten seconds."""
    value = known(value)
    if value is None:
        return DASH
    return f"{value:.1f}s" if value < 9.95 else age(value)


def until(value: float | None) -> str:
    """A countdown, rounded up: it never says 0 before the time."""
    value = known(value)
    return DASH if value is None else age(math.ceil(value))


def clock(at: float) -> str:
    """Local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at)) if known(at) is not None else "--:--:--"


def count(number: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
