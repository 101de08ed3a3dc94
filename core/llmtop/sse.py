"""Server-sent events, cut from the bytes of a stream as they come.

In bytes and with a bound, which the readers made for HTTP clients lack: what is at the other end is not trusted.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

EVENT_MAX = 16 * 2**20
"""Most bytes of one event: a picture of a thousand models takes a tenth of it."""


class TooLong(Exception):
    """An event has no end within the bound."""


class Event(msgspec.Struct, frozen=True):
    """What stood between two blank lines.

    Args:
        kind: Its ``event`` field, empty without one.
        data: Its ``data`` lines, joined by line feeds; empty where there were only comments: the sender lives.
    """

    kind: str
    data: bytes


class Reader:
    """Takes chunks, gives events. Lines end as the format allows: CR LF, LF, or CR.

    Args:
        limit: Most bytes from one blank line to the next.
    """

    def __init__(self, limit: int = EVENT_MAX) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data = bytearray()
        self._kind = ""
        self._size = 0
        self._after_cr = False

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Give the events that end in this chunk.

        Raises:
            TooLong: The bound is passed. Nothing more can be read.
        """
        if not chunk:
            return
        if self._after_cr and chunk[:1] == b"\n":  # the other half of a CR LF
            chunk = chunk[1:]
        self._after_cr = chunk[-1:] == b"\r"
        for piece in chunk.splitlines(keepends=True):
            self._size += len(piece)
            if self._size > self._limit:
                raise TooLong(f"an event of more than {self._limit >> 20} MiB")
            self._line += piece
            if piece[-1:] in (b"\n", b"\r"):
                line = bytes(self._line).rstrip(b"\r\n")
                self._line.clear()
                if line:
                    self._field(line)
                elif self._size > len(piece):
                    yield self._event()
                else:  # nothing stood before this blank line
                    self._size = 0

    def _field(self, line: bytes) -> None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value + b"\n"
        elif name == b"event":
            self._kind = value.decode("utf-8", "replace")

    def _event(self) -> Event:
        event = Event(self._kind, bytes(self._data).removesuffix(b"\n"))
        self._kind, self._data, self._size = "", bytearray(), 0
        return event
