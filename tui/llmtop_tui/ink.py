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

_BAND_HUES = ("#4f9cf0", "#e0a03c", "#3fb68b", "#c77dd6", "#d9706b", "#5bc0cf", "#a6b34a", "#9a8cf2")
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

        def tone(name: str) -> Style:
            return Style(color=Color.parse(variables[name]).rich_color)

        def mixed(share: float) -> Style:
            return Style(color=paper.blend(text, share).rich_color)

        self._names = {name: tone(theirs) for name, theirs in _TONES.items()} | {
            "text": mixed(0.92),
            "muted": mixed(0.52),
            "rule": mixed(0.26),
            "free": mixed(0.26),
            "chart": Style(color=paper.blend(Color.parse(variables["primary"]), 0.55).rich_color),
            "title": mixed(0.78) + Style(bold=True),
            "focus": tone("accent") + Style(bold=True),
            "cursor": Style(bgcolor=paper.blend(Color.parse(variables["accent"]), 0.2).rich_color),
            "shade": Style(bgcolor=paper.blend(text, 0.07).rich_color),
            "reverse": Style(reverse=True),
            "bold": Style(bold=True),
        }
        for name, tint in (
            ("muted", paper.blend(text, 0.52)),
            *((ours, Color.parse(variables[theirs])) for ours, theirs in _TONES.items()),
        ):
            ground = paper.blend(tint, 0.72)
            ink = ground.get_contrast_text(0.92)
            self._names[f"on-{name}"] = Style(color=ink.rich_color, bgcolor=ground.rich_color)
        for index, hue in enumerate(_BAND_HUES_CVD if color_blind else _BAND_HUES):
            color = Color.parse(hue)
            self._names[f"band{index}"] = Style(
                color=color.get_contrast_text(0.9).rich_color, bgcolor=paper.blend(color, 0.8).rich_color
            )
            self._names[f"key{index}"] = Style(color=color.rich_color, bold=True)
            self._names[f"grow{index}"] = Style(color=color.rich_color, bgcolor=paper.blend(color, 0.15).rich_color)

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
    """The style of the last span goes on to the end of the row (a cursor's or a footer's background)."""
    return bool(line) and any(part in ("cursor", "shade") for part in line[-1][1].split())


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
        for a, b in zip(old_text[::step], new_text[::step], strict=False):
            if a != b:
                break
            cells += width_of(a)
        break
    return cells
