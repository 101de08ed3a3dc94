"""Text made safe, and bytes made lines."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmtop.children.text import MAX_LINE, LineSplitter, safe_lines, safe_text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]text[/bold]", "plain [bold]text[/bold]"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[2J\x1b[Hgone", "gone"),
        ("\x9b31mred", "red"),
        ("bell\x07 nul\x00 del\x7f c1\x85", "bell\\x07 nul\\x00 del\\x7f c1\\x85"),
        ("right\u202eto left", "right\\u202eto left"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("tab\tend\r", "tab    end"),
        ("two\nlines", "two\\x0alines"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("日本語 ünïcode ✓", "日本語 ünïcode ✓"),
        ("open \x1b[", "open "),
    ],
)
def test_what_a_terminal_would_act_on_is_seen_or_gone(text: str, shown: str) -> None:
    assert safe_text(text) == shown


@given(st.text(), st.integers(1, 60))
def test_safe_text_prints_and_is_short(text: str, limit: int) -> None:
    shown = safe_text(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit
    assert safe_text(shown, limit) == shown


@given(st.binary(max_size=400).map(lambda b: b.replace(b"\r", b"\n")), st.lists(st.integers(1, 50)))
def test_lines_do_not_depend_on_how_they_were_read(data: bytes, sizes: list[int]) -> None:
    splitter = LineSplitter()
    lines: list[bytes] = []
    rest = data
    for size in sizes:
        lines += splitter.feed(rest[:size])
        rest = rest[size:]
    lines += splitter.feed(rest) + splitter.finish()
    assert b"\n".join(lines) == (data[:-1] if data.endswith(b"\n") else data)


@given(st.lists(st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")), min_size=1))
@example([b"plain", b"a tab\tand an end\r", b"blank  "])
@example([b"x" * 501, b"y"])
@example([b"\x1b[3\tA", b"\x1b]0;a title\x07b", "\u202e\u00a0".encode(), b"\xff\xc3"])
def test_lines_read_together_are_made_safe_as_each_alone(lines: list[bytes]) -> None:
    assert safe_lines(lines) == [safe_text(line.decode("utf-8", "replace")).rstrip() for line in lines]


def test_an_endless_line_is_cut_once_and_costs_no_memory() -> None:
    splitter = LineSplitter()
    lines: list[bytes] = []
    for _ in range(100):
        lines += splitter.feed(b"x" * 65536)
    assert [len(line) for line in lines] == [MAX_LINE]
    assert splitter.feed(b"tail\nnext\n") == [b"next"]
