"""Sizes, times and yes-or-no as people write them. A ``ValueError`` says what would have been right."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*([kmgt]?)(i?)(b?)", re.IGNORECASE)
_TIME = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(ms|s|m|h|d)?", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MOST_BYTES = 2**60
MOST_SECONDS = 1e9
MOST = 10**9
"""Beyond these a number is a slip of the finger, and too large for timers and for JSON's readers."""
_TRUE = frozenset({"true", "1", "on", "yes", "enabled"})
_FALSE = frozenset({"false", "0", "off", "no", "disabled"})


def is_text(word: str) -> bool:
    """Words from the system may hold bytes that are not UTF-8; no answer in JSON could hold such a one."""
    return word.isascii() or not any("\ud800" <= char <= "\udfff" for char in word)


def parse_size(text: str) -> int:
    """Read a size: ``48GiB`` and ``48G`` are binary, ``12GB`` is decimal, a bare number is bytes.

    Args:
        text: What the user wrote.

    Returns:
        Size [bytes].
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("is not a size: write 48GiB, 12GB, 500MiB or a number of bytes")
    number, unit, binary, byte = match.groups()
    if binary and not unit:
        raise ValueError("is not a size: write 48GiB, 12GB, 500MiB or a number of bytes")
    base = 1000 if byte and unit and not binary else 1024
    size = int(float(number) * base ** _POWER[unit.lower()])
    if size > MOST_BYTES:
        raise ValueError("is more than any machine has")
    return size


def parse_duration(text: str) -> float | None:
    """Read a time: ``15``, ``90s``, ``5m``, ``1h``, ``250ms``; ``off`` and ``never`` are None.

    Args:
        text: What the user wrote.

    Returns:
        Duration [s], None for "off".
    """
    word = text.strip().lower()
    if word in {"off", "never", "none"}:
        return None
    match = _TIME.fullmatch(word)
    if match is None:
        raise ValueError("is not a time: write 15, 90s, 5m or off")
    seconds = float(match[1]) * _SECONDS[match[2] or "s"]
    if seconds > MOST_SECONDS:
        raise ValueError("is longer than anybody waits: write off for no limit")
    return seconds


def parse_span(text: str) -> float | None:
    """Read a time where nothing at all means never: ``0`` and ``off`` are None, and so is llama.cpp's ``-1`` [s]."""
    return None if text.strip() == "-1" else (parse_duration(text) or None)


def parse_bool(text: str) -> bool:
    """Read a yes or no, with the words that llama.cpp takes too."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ValueError("is neither true nor false")


def parse_count(text: str, *, least: int = 0) -> int:
    """Read a whole number of at least ``least`` [1]."""
    try:
        number = int(text.strip())
    except ValueError:
        raise ValueError(f"is not a whole number of {least} or more") from None
    if number < least:
        raise ValueError(f"must be {least} or more")
    if number > MOST:
        raise ValueError(f"must be {MOST} or less")
    return number


def parse_cache_ram(text: str) -> int:
    """Read a prompt cache in MiB: 0 is off, -1 no limit [MiB]."""
    try:
        return parse_count(text, least=-1)
    except ValueError:
        raise ValueError("is a number of MiB (0 off, -1 no limit)") from None
