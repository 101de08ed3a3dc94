"""Lines of spans, and what of them is sent to the terminal."""

from __future__ import annotations

import pytest
from rich.style import Style

from llmtop_tui.ink import Ink, changed_cells
from llmtop_tui.themes import DARK
from llmtop_tui.widgets.line import Line, clip, join, plain, spread, width, wrap


@pytest.fixture
def ink() -> Ink:
    return Ink(DARK.to_color_system().generate())


def test_equal_lines_send_nothing() -> None:
    assert changed_cells((("abc", "x"),), (("abc", "x"),)) is None


@pytest.mark.parametrize(
    ("old", "new", "cells"),
    [
        ((("12:00:01", "m"),), (("12:00:02", "m"),), (7, 1)),
        ((("ab", "x"), ("cd", "y")), (("ab", "x"), ("ce", "y")), (3, 1)),
        ((("ab", "x"), ("cd", "y")), (("ab", "z"), ("cd", "y")), (0, 2)),
        ((("ab", "x"),), (("abcd", "x"),), (2, 2)),
        ((("aXa", "x"),), (("aYa", "x"),), (1, 1)),
        ((("aaa", "x"),), (("aaaa", "x"),), (3, 1)),
        ((), (("ab", "x"),), (0, 2)),
        ((("日本", "x"),), (("日木", "x"),), (2, 2)),
    ],
)
def test_only_the_cells_that_differ_are_sent(old: Line, new: Line, cells: tuple[int, int]) -> None:
    assert changed_cells(old, new) == cells


def test_a_strip_is_clean_and_exactly_as_wide_as_asked(ink: Ink) -> None:
    strip = ink.strip((("a\x1b[31mb", "bad"),), 12, Style())
    assert strip.text == "a␛[31mb     "
    assert strip.cell_length == 12


def test_style_names_add_up(ink: Ink) -> None:
    assert ink["bad bold"].bold
    assert ink["bad bold"].color == ink["bad"].color
    assert ink["reverse"].reverse


def test_without_colour_the_cues_are_bold_dim_and_reverse() -> None:
    mono = Ink({}, mono=True)
    assert all(mono[name].color is None for name in ("good", "bad", "muted", "warn reverse"))
    assert mono["muted"].dim
    assert mono["bad reverse"].reverse


def test_parts_that_do_not_fit_are_dropped_whole() -> None:
    parts: list[Line] = [(("one", ""),), (("two", ""),), (("three", ""),)]
    assert plain(join(parts, "  ", 9)) == "one  two"


def test_the_right_part_gives_way() -> None:
    left, right = (("left", ""),), (("right", ""),)
    assert plain(spread(left, right, 12)) == "left   right"
    assert plain(spread(left, right, 10)) == "left      "


def test_clipping_stops_at_the_width() -> None:
    assert plain(clip((("abc", ""), ("def", "")), 4)) == "abcd"


def test_wrapped_rows_hold_all_the_text() -> None:
    rows = wrap((("alpha ", "x"), ("beta gamma delta", "y")), 10, 2)
    assert all(width(row) <= 10 for row in rows)
    assert "".join(plain(row).replace(" ", "") for row in rows) == "alphabetagammadelta"


def test_rows_are_wrapped_at_blanks_where_there_are_any() -> None:
    rows = wrap((("drain and then unload", "x"),), 12)
    assert [plain(row) for row in rows] == ["drain and", "then unload"]
    assert [plain(row) for row in wrap((("a" * 25, "x"),), 10)] == ["a" * 10, "a" * 10, "a" * 5]
