"""Fewer bytes, the same screen."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.color import Color, ColorSystem
from rich.style import Style
from textual.strip import Strip

from llmtop_tui import pen
from llmtop_tui.pen import PLAIN, Pen, change, pen_after, thrifty

COLOURS = st.sampled_from([None, "#10141a", "#f0716b", "red", "bright_blue", "default", "color(208)"])
STYLES = st.builds(
    lambda fg, bg, bold, dim, underline, reverse: Style(
        color=fg, bgcolor=bg, bold=bold, dim=dim, underline=underline, reverse=reverse
    ),
    COLOURS, COLOURS, *[st.sampled_from([None, True])] * 4,
)  # fmt: skip
PIECES = st.lists(
    st.tuples(STYLES, st.sampled_from(["x", "LOADED", " ", "\x1b[3;7H", "a\nb", "\r\n", "\n\x1b[1;2H"])), max_size=12
)


def screen(data: str) -> list[tuple[str, Pen]]:
    """Every character with the pen that a terminal has when it comes; control sequences count as one."""
    cells: list[tuple[str, Pen]] = []
    fg, bg, marks = "", "", set[str]()
    for token in re.findall(r"\x1b\[[\d;]*[A-Za-z]|[\s\S]", data):
        if not (token.startswith("\x1b[") and token.endswith("m")):
            moves = token.endswith("H") and token.startswith("\x1b")
            while moves and cells and cells[-1][0] in ("\r", "\n"):
                cells.pop()  # the cursor goes elsewhere anyway
            cells.append((token, PLAIN if moves else Pen(fg, bg, tuple(sorted(marks)))))
            continue
        codes = token[2:-1].split(";")
        while codes:
            code = codes.pop(0)
            if code in ("38", "48"):
                size = 1 if codes[0] == "5" else 3
                code, codes = ";".join((code, *codes[: size + 1])), codes[size + 1 :]
            if code in ("", "0"):
                fg, bg, marks = "", "", set()
            elif code in ("22", "23", "24", "25", "27", "29"):
                marks -= {"22": {"1", "2"}}.get(code, {code[1]})
            elif code[0] == "3" or (code[0] == "9" and len(code) == 2):
                fg = "" if code == "39" else code
            elif code[:2] in ("40", "41", "42", "43", "44", "45", "46", "47", "48", "49") or len(code) == 3:
                bg = "" if code == "49" else code
            else:
                marks.add(code)
    cells.append(("", Pen(fg, bg, tuple(sorted(marks)))))
    return cells


@settings(max_examples=60, deadline=None)
@given(PIECES, st.sampled_from([ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT, ColorSystem.STANDARD]))
def test_what_is_shown_is_the_same_and_never_longer(pieces: list[tuple[Style, str]], system: ColorSystem) -> None:
    data = "".join(Strip.render_style(style, text, system) for style, text in pieces)
    short = thrifty(data)
    assert screen(short) == screen(data)
    assert len(short) <= len(data)


def test_a_change_of_one_colour_is_one_colour() -> None:
    assert change(Pen("31", "48;5;16"), Pen("32", "48;5;16")) == "\x1b[32m"
    assert change(Pen("31", "41"), Pen("", "41")) == "\x1b[39m"
    assert change(Pen("31", "41", ("1",)), Pen("31", "41")) == "\x1b[22m"
    assert change(Pen("31", "", ("1", "2")), Pen("31", "", ("2",))) == "\x1b[22;2m"
    assert change(Pen("31", "41", ("53",)), Pen("31", "41")) == "\x1b[0;31;41m"


def test_what_is_not_known_is_left_as_it_is() -> None:
    assert pen_after(PLAIN, "58;5;3") is None
    data = "\x1b[4:3mwave\x1b[0m\x1b[58;5;3mcolour\x1b[0m"
    assert thrifty(data) == data


@pytest.mark.anyio
async def test_the_screen_is_written_so(open_screen: Any) -> None:
    async with open_screen() as (app, _, _pilot):
        assert app.get_driver_class().__name__.startswith("Thrifty")
        console = app.console
        whole = "".join(strip.render(console) for strip in app.screen._compositor.render_strips())
        assert len(thrifty(whole)) < 0.75 * len(whole)
        assert screen(thrifty(whole)) == screen(whole)


def test_a_parsed_colour_is_known() -> None:
    for colour in ("#123456", "color(208)", "red", "bright_red"):
        for system in (ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT, ColorSystem.STANDARD):
            for ground in (True, False):
                codes = ";".join(Color.parse(colour).downgrade(system).get_ansi_codes(ground))
                assert pen.pen_after(PLAIN, codes) is not None
