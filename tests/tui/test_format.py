"""Values as text."""

from __future__ import annotations

import math

import pytest

from llmtop_tui import format as fmt

GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0.0"),
        (1 << 20, "<0.1"),
        (10.94 * GIB, "10.9"),
        (300 * GIB, "300.0"),
        (math.nan, "-"),
        (-1, "-"),
    ],
)
def test_sizes_are_gib_with_one_decimal(size: float | None, text: str) -> None:
    assert fmt.gib(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (61, "1m01"),
        (600, "10m"),
        (3600, "1h00"),
        (90_061, "1d01h"),
        (9e6, "104d"),
        (None, "-"),
    ],
)
def test_ages_take_few_cells(seconds: float | None, text: str) -> None:
    assert fmt.age(seconds) == text
    assert len(text) <= 5


def test_quantised_ages_move_in_steps() -> None:
    assert [fmt.age(s, 5) for s in (0, 4.9, 5, 9, 61, 119)] == ["0s", "0s", "5s", "5s", "1m", "1m"]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, -3.0])
def test_odd_numbers_are_not_known(value: float) -> None:
    assert fmt.age(value) == fmt.until(value) == fmt.seconds(value) == "-"


def test_countdowns_round_up() -> None:
    assert fmt.until(0.2) == "1s"


def test_ids_are_cut_in_the_middle_so_that_the_quantization_stays() -> None:
    cut = fmt.cut_middle("mistral-small-24b-instruct-q4_k_m", 16)
    assert cut == "mistral-…-q4_k_m"
    assert len(cut) == 16


@pytest.mark.parametrize("width", range(12))
@pytest.mark.parametrize("text", ["", "a", "alphabet", "日本語のモデル", "a日b本c", "x\x1b[31my"])
def test_a_fitted_text_has_exactly_its_width(text: str, width: int) -> None:
    assert fmt.width_of(fmt.fit(text, width)) == width
    assert fmt.width_of(fmt.cut_middle(text, width)) <= width


def test_control_and_direction_characters_become_visible() -> None:
    cleaned = fmt.clean("a\x1b]0;x\x07\x9b\u202eb\x7f\r\n\0")
    assert cleaned == "a␛]0;x␇··b␡␍␊␀"
    assert cleaned.isprintable()


def test_ascii_text_keeps_its_width() -> None:
    for text in ("●x", "日本", "a…b"):
        assert fmt.ascii_only(text).isascii()
        assert len(fmt.ascii_only(text)) == fmt.width_of(text)
