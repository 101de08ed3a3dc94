"""Sizes and times as people write them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmtop.config.units import (
    is_text,
    parse_bool,
    parse_cache_ram,
    parse_count,
    parse_duration,
    parse_size,
    parse_span,
)

GIB = 2**30


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("48GiB", 48 * GIB),
        ("48 gib", 48 * GIB),
        ("12GB", 12 * 10**9),
        ("500MiB", 500 * 2**20),
        ("1.5G", GIB + GIB // 2),
        ("123456", 123456),
        ("0", 0),
    ],
)
def test_sizes_are_binary_unless_they_say_gb(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "12 iB", "1e9", "GiB", "12GiBs"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="48GiB"):
        parse_size(text)


@pytest.mark.parametrize("read", [parse_size, parse_duration, parse_span, parse_count, parse_cache_ram])
@pytest.mark.parametrize("text", ["9" * 19, "9" * 20 + ".5", "9" * 400, "9" * 5000])
def test_what_no_timer_and_no_json_could_hold_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each reader has its own words
        read(text)


def test_a_word_from_the_system_is_text_or_not() -> None:
    assert is_text("a 漢字 \u202e\x1b")
    assert not is_text("lat\udce9")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("15", 15), ("90s", 90), ("5m", 300), ("1.5h", 5400), ("250ms", 0.25), ("off", None), ("0", 0)],
)
def test_times_have_units_and_off(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["0", "off", "never", "-1"])
def test_no_time_at_all_means_never(text: str) -> None:
    assert parse_span(text) is None


@pytest.mark.parametrize("text", ["", "5x", "m", "-5", "inf", "nan"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="90s"):
        parse_duration(text)


def test_flags_take_llama_cpps_words() -> None:
    assert [parse_bool(word) for word in ("true", "ON", "enabled", "1")] == [True] * 4
    assert [parse_bool(word) for word in ("false", "off", "disabled", "0")] == [False] * 4
    with pytest.raises(ValueError, match="true"):
        parse_bool("perhaps")


def test_a_prompt_cache_may_be_off_or_unlimited_but_not_less() -> None:
    assert (parse_cache_ram("0"), parse_cache_ram("-1"), parse_cache_ram("8192")) == (0, -1, 8192)
    with pytest.raises(ValueError, match="MiB"):
        parse_cache_ram("-2")
