"""Server-sent events, however the bytes come."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmtop.sse import Event, Reader, TooLong

STREAM = (
    b"\n\n: hello\n\n\r\n\r\r"
    b"event: snapshot\ndata: {}\n\nid: 7\r\nevent: journal\r\ndata:{}\r\n\r\ndata: a\rdata:  b\rdata\r\r"
    b"retry: 5\nevent: \xff\n\n"
)
EVENTS = [
    Event("", b""),
    Event("snapshot", b"{}"),
    Event("journal", b"{}"),
    Event("", b"a\n b\n"),
    Event("\ufffd", b""),
]


def read(chunks: list[bytes], limit: int = 1 << 20) -> list[Event]:
    reader = Reader(limit)
    return [event for chunk in chunks for event in reader.feed(chunk)]


@given(st.lists(st.integers(0, len(STREAM)), max_size=40))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[a:b] for a, b in pairwise(edges)]) == EVENTS


def test_an_event_without_its_blank_line_has_not_come() -> None:
    assert read([b"data: 1\n\ndata: 2\n"]) == [Event("", b"1")]


@pytest.mark.parametrize("line", [b"data: xy\n", b": what\n", b"x"])
def test_what_has_no_end_is_given_up_within_the_bound(line: bytes) -> None:
    reader = Reader(1000)
    for _ in range(1000 // len(line)):
        assert list(reader.feed(line)) == []
    with pytest.raises(TooLong):
        list(reader.feed(line))


def test_the_bound_is_on_one_event_not_on_the_stream() -> None:
    assert len(read([b"data: x\n\n"] * 1000, limit=50)) == 1000
    assert read([b"\n" * 1000], limit=50) == []
