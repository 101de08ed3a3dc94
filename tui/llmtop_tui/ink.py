"""Style names to colours of the theme in use; the only place where a line of text gets its colours."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.strip import Strip

from llmtop_tui.format import ascii_only, clean, width_of
from llmtop_tui.widgets.line import Line

BANDS = 8
"""How many colours tell children apart in the gauge, before they repeat."""

LEGIBLE = 4.5
"""Least contrast of a text with its ground (WCAG 2, level AA)."""

_BAND_HUES = ("#4f9cf0", "#e0a03c", "#3fb68b", "#c77dd6", "#d9706b", "#5bc0cf", "#9a8cf2", "#a6b34a")
_BAND_HUES_CVD = ("#0072b2", "#e69f00", "#56b4e9", "#cc79a7", "#009e73", "#d55e00", "#f0e442", "#999999")
_TONES = {
    "good": "success",
    "warn": "warning",
    "bad": "error",
    "primary": "primary",
    "secondary": "secondary",
    "accent": "accent",
}
"""Our names to the theme's."""
_MONO = {
    "muted": Style(dim=True),
    "rule": Style(dim=True),
    "good": Style(bold=True),
    "warn": Style(bold=True),
    "bad": Style(bold=True),
    "accent": Style(bold=True),
    "focus": Style(bold=True, underline=True),
    "cursor": Style(bold=True),
    "reverse": Style(reverse=True),
    "bold": Style(bold=True),
}


def contrast(one: Color, other: Color) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2, relative luminance)."""
    low, high = sorted(_luminance(colour) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Color) -> float:
    parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def readable(colour: Color, grounds: Sequence[Color]) -> Color:
    """The colour, made darker or lighter until it can be read on each ground; the terminal's own stay as they are."""
    if any(one.ansi is not None for one in (colour, *grounds)):
        return colour
    end = opposite(grounds[0])
    steps = (colour.blend(end, share / 50) for share in range(50))
    return next((step for step in steps if all(contrast(step, ground) >= LEGIBLE for ground in grounds)), end)


def opposite(ground: Color) -> Color:
    """Black or white, whichever can be read better on it."""
    return max((Color(0, 0, 0), Color(255, 255, 255)), key=lambda colour: contrast(colour, ground))


class Ink:
    """Resolves style names; several in one string add up (``"warn bold"``)."""

    def __init__(
        self, variables: dict[str, str], *, color_blind: bool = False, mono: bool = False, ascii: bool = False
    ) -> None:
        self._ascii = ascii
        self._cache: dict[str, Style] = {}
        self.mono = mono
        if mono:
            self._names = _MONO
            return
        paper, text = Color.parse(variables["background"]), Color.parse(variables["foreground"])
        row = paper.blend(text, 0.1)
        grounds = (paper, row, Color.parse(variables["panel"]))

        def ink(colour: Color) -> Style:
            return Style(color=readable(colour, grounds).rich_color)

        def tone(name: str) -> Style:
            return ink(Color.parse(variables[name]))

        def mixed(share: float) -> Style:
            return Style(color=paper.blend(text, share).rich_color)

        self._names = {name: tone(theirs) for name, theirs in _TONES.items()} | {
            "text": mixed(0.92),
            "muted": ink(paper.blend(text, 0.52)),
            "rule": mixed(0.26),
            "free": mixed(0.26),
            "chart": Style(color=paper.blend(Color.parse(variables["primary"]), 0.55).rich_color),
            "title": mixed(0.78) + Style(bold=True),
            "focus": tone("accent") + Style(bold=True),
            "cursor": Style(bgcolor=row.rich_color),
            "reverse": Style(reverse=True),
            "bold": Style(bold=True),
        }
        for name, tint in (
            ("muted", paper.blend(text, 0.52)),
            *((ours, Color.parse(variables[theirs])) for ours, theirs in _TONES.items()),
        ):
            ground = paper.blend(tint, 0.72)
            self._names[f"on-{name}"] = Style(color=opposite(ground).rich_color, bgcolor=ground.rich_color)
        for index, hue in enumerate(_BAND_HUES_CVD if color_blind else _BAND_HUES):
            color = Color.parse(hue)
            band, faint = paper.blend(color, 0.8), paper.blend(color, 0.15)
            self._names[f"band{index}"] = Style(color=opposite(band).rich_color, bgcolor=band.rich_color)
            self._names[f"key{index}"] = ink(color) + Style(bold=True)
            self._names[f"grow{index}"] = Style(color=color.rich_color, bgcolor=faint.rich_color)

    def __getitem__(self, name: str) -> Style:
        style = self._cache.get(name)
        if style is None:
            style = self._names.get("text", Style())
            for part in name.split():
                style += self._names.get(part, Style())
            self._cache[name] = style
        return style

    def strip(self, line: Line, width: int, ground: Style) -> Strip:
        """A line as the terminal gets it: cleaned once more, coloured, exactly ``width`` cells on its ground."""
        segments: list[Segment] = []
        last = ""
        for text, name in line:
            safe = ascii_only(clean(text)) if self._ascii else clean(text)
            style = self[name]
            # A blank takes the style before it where that looks the same: a change of style costs 40 bytes.
            if segments and (name == last or (safe.isspace() and _blank(style) and _blank(self[last]))):
                segments[-1] = Segment(segments[-1].text + safe, segments[-1].style)
            else:
                segments.append(Segment(safe, ground + style))
                last = name
        return Strip(segments).adjust_cell_length(width, ground + self[line[-1][1] if _runs_on(line) else ""])


def _blank(style: Style) -> bool:
    """A space in this style shows nothing."""
    return style.bgcolor is None and not style.reverse and not style.underline


def _runs_on(line: Sequence[tuple[str, str]]) -> bool:
    """The style of the last span goes on to the end of the row (a cursor's background)."""
    return bool(line) and "cursor" in line[-1][1].split()


def changed_cells(old: Line, new: Line) -> tuple[int, int] | None:
    """First cell and number of cells in which two lines differ, None if they are equal.

    Only these are sent to the terminal: a clock costs eight cells a second, not a row.
    """
    if old == new:
        return None
    old_width, new_width = (sum(width_of(text) for text, _ in line) for line in (old, new))
    left = _common(old, new, backwards=False)
    if old_width != new_width:
        return left, max(old_width, new_width) - left
    right = min(_common(old, new, backwards=True), new_width - left)
    return left, max(1, new_width - left - right)


def _common(old: Line, new: Line, *, backwards: bool) -> int:
    """Cells that both lines share at one end."""
    step = -1 if backwards else 1
    cells = 0
    for (old_text, old_style), (new_text, new_style) in zip(old[::step], new[::step], strict=False):
        if old_style != new_style:
            break
        if old_text == new_text:
            cells += width_of(old_text)
            continue
        pairs = enumerate(zip(old_text[::step], new_text[::step], strict=False))
        shared = next((at for at, (a, b) in pairs if a != b), min(len(old_text), len(new_text)))
        cells += width_of(old_text[len(old_text) - shared :] if backwards else old_text[:shared])
        break
    return cells
