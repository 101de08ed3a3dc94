"""Colours: every text can be read on every ground, and a terminal of 256 colours keeps apart what differs."""

from __future__ import annotations

import math
from itertools import combinations

import pytest
from rich.color import Color as RichColor
from rich.color import ColorSystem
from rich.color_triplet import ColorTriplet
from textual.color import Color
from textual.theme import Theme

from llmtop_tui.glyphs import ASCII, STATE_STYLES, UNICODE
from llmtop_tui.ink import BANDS, LEGIBLE, Ink, contrast
from llmtop_tui.themes import COLOR_BLIND, THEMES
from llmtop_tui.widgets.phases import PHASES

TEXTS = ("text", "muted", "title", "focus", "good", "warn", "bad", "primary", "secondary", "accent")
STATES = sorted({style.split()[0] for style in STATE_STYLES.values()})
APART = 60.0
"""Least distance of two colours that mean different things, in a cube of 0 to 255."""


def ink_of(theme: Theme) -> tuple[Ink, dict[str, str]]:
    variables = theme.to_color_system().generate()
    return Ink(variables, color_blind=theme is COLOR_BLIND), variables


def colour(rich: RichColor | None) -> Color:
    assert rich is not None
    assert rich.triplet is not None
    return Color(*rich.triplet)


def in_256(rich: RichColor | None) -> ColorTriplet:
    assert rich is not None
    return rich.downgrade(ColorSystem.EIGHT_BIT).get_truecolor()


def distance(one: ColorTriplet, other: ColorTriplet) -> float:
    return math.dist(one, other)


def test_the_contrast_of_black_and_white_is_21() -> None:
    assert contrast(Color(0, 0, 0), Color(255, 255, 255)) == pytest.approx(21)
    assert contrast(Color(119, 119, 119), Color(255, 255, 255)) == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_every_text_can_be_read_on_the_screen_on_a_page_and_on_the_cursors_row(theme: Theme) -> None:
    ink, variables = ink_of(theme)
    grounds = {name: Color.parse(variables[name]) for name in ("background", "panel")}
    grounds["cursor"] = colour(ink["cursor"].bgcolor)
    keys = [f"key{band}" for band in range(BANDS)]
    poor = {
        (name, ground): round(contrast(colour(ink[name].color), paper), 2)
        for name in (*TEXTS, *keys)
        for ground, paper in grounds.items()
        if contrast(colour(ink[name].color), paper) < LEGIBLE
    }
    assert poor == {}


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_letters_in_bars_can_be_read(theme: Theme) -> None:
    ink, _ = ink_of(theme)
    names = [f"band{band}" for band in range(BANDS)] + [f"on-{style}" for _, _, style in PHASES]
    poor = [n for n in names if contrast(colour(ink[n].color), colour(ink[n].bgcolor)) < LEGIBLE]
    assert poor == []


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_states_stay_apart_in_256_colours(theme: Theme) -> None:
    ink, _ = ink_of(theme)
    seen = {name: in_256(ink[name].color) for name in STATES}
    near = {(a, b): round(distance(seen[a], seen[b])) for a, b in combinations(STATES, 2)}
    assert {pair: far for pair, far in near.items() if far < APART} == {}


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_children_next_to_each_other_stay_apart_in_256_colours(theme: Theme) -> None:
    ink, _ = ink_of(theme)
    seen = [in_256(ink[f"band{band}"].bgcolor) for band in range(BANDS)]
    assert len(set(seen)) == BANDS
    assert [n for n in range(BANDS) if distance(seen[n], seen[(n + 1) % BANDS]) < APART] == []


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_the_cursors_row_and_the_page_are_seen_in_256_colours(theme: Theme) -> None:
    ink, variables = ink_of(theme)
    screen = in_256(RichColor.parse(variables["background"].lower()))
    assert distance(in_256(ink["cursor"].bgcolor), screen) >= 15
    assert in_256(ink["text"].color) != in_256(ink["muted"].color)


def test_a_state_is_told_by_glyph_and_word_and_colour() -> None:
    assert set(STATE_STYLES) == set(UNICODE.states) == set(ASCII.states)
    for glyphs in (UNICODE, ASCII):
        assert len(set(glyphs.states.values())) == len(STATE_STYLES)
    assert len(set(STATE_STYLES.values())) == len(STATE_STYLES)
