"""A connection to a child: its answers are parsed as they come."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol, cast

import httptools
import msgspec

from llmtop.frontdoor.head import HOP_BY_HOP, Seen

if TYPE_CHECKING:
    from llmtop.frontdoor.pool import Place

HEAD_BYTES_MAX = 256 * 1024
WRITE_HIGH = 1024 * 1024

_OURS = (b"access-control-", b"x-llmtop-")


class ChildHead(msgspec.Struct, frozen=True):
    """The head of an answer.

    Args:
        status: Of the answer.
        lines: Its headers as the client gets them, without those about the connection.
        content_type: In lower case.
        until_close: The end of the connection is the end of the body.
        keep_alive: The child takes another request on this connection.
    """

    status: int
    lines: bytes
    content_type: bytes
    until_close: bool
    keep_alive: bool


class Receiver(Protocol):
    """Who takes an answer: called as bytes come in."""

    def answer(self, connection: UpstreamConnection) -> None:
        """There is news: a head, more of the body in ``parts``, the end."""
        ...

    def broken(self, connection: UpstreamConnection, reason: str) -> None:
        """The connection is gone before the answer was whole."""
        ...

    def writable(self) -> None:
        """The child takes bytes again."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """One connection to a child, one answer at a time.

    Attributes:
        receiver: The exchange that it works for; None while idle.
        reused: It has answered before, so it may turn out stale.
        heard_at: When the first byte of the present answer came [s, monotonic]; 0 before.
        head: Of the answer; None before it is whole.
        length: Announced body bytes; None when only the end will tell.
        parts: Body bytes not yet taken over by the receiver.
        done: The answer is whole.
        full: More should not be written now.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.receiver: Receiver | None = None
        self.reused = False
        self.full = False
        self.idle_since = 0.0
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._parser = httptools.HttpResponseParser(self)
        self._closed = False
        self._paused = False
        self._reset(bodyless=False)

    def _reset(self, *, bodyless: bool) -> None:
        self.heard_at = 0.0
        self.head: ChildHead | None = None
        self.length: int | None = None
        self.parts: list[bytes] = []
        self.done = False
        self._headers: list[tuple[bytes, bytes]] = []
        self._bodyless = bodyless
        self._began = False
        self._interim = False
        self._keep = False
        self._head_bytes = 0

    # What the receiver does with it.

    def begin(self, receiver: Receiver, *, bodyless: bool) -> None:
        """Work for a receiver from now on; ``bodyless``: the request is a HEAD."""
        self._reset(bodyless=bodyless)
        self.receiver = receiver

    def release(self, *, reusable: bool) -> None:
        """The receiver needs it no more: back into the pool, or closed."""
        self.receiver = None
        if reusable and self.done and self._keep and not self._closed and not self._paused:
            self.reused = True
            self.place.put(self)
        else:
            self.close()

    def close(self) -> None:
        """Close at once, whatever is on its way."""
        self.receiver = None
        self._closed = True
        self.place.open.discard(self)
        self.transport.abort()

    @property
    def usable(self) -> bool:
        """It can take a request."""
        return not self._closed and not self.transport.is_closing()

    def pause(self) -> None:
        """Take no more of the answer for now."""
        if not self._paused and not self._closed:
            self._paused = True
            self.transport.pause_reading()

    def resume(self) -> None:
        """Go on taking the answer."""
        if self._paused and not self._closed:
            self._paused = False
            self.transport.resume_reading()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_HIGH)
        self.place.open.add(self)

    def pause_writing(self) -> None:
        """Called by the loop."""
        self.full = True

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.full = False
        if self.receiver is not None:
            self.receiver.writable()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        receiver = self.receiver
        if receiver is None or self.done:
            self._keep = False
            if receiver is None:
                self.close()  # nobody asked: whatever it says would answer the next request
            return
        first = not self.heard_at
        if first:
            self.heard_at = time.monotonic()
            if self._same_again(data):
                receiver.answer(self)
                return
        if self.head is None:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self.done:
                if self.head is not None and self.parts:
                    receiver.answer(self)
                self._fail(f"sent a malformed answer ({error})")
                return
        else:
            if first and self.done:
                self._remember(data)
        if self.head is not None:
            receiver.answer(self)
        elif self._head_bytes > HEAD_BYTES_MAX:
            self._fail("sent an endless answer head")

    def _same_again(self, data: bytes) -> bool:
        """It is a whole answer with the head of the last one: the parser would say of it what it said before."""
        place = self.place
        end = data.find(b"\r\n\r\n") + 4
        digits = place.seen.again(data[:end])
        if not digits or len(data) - end != int(digits) or self._bodyless or place.seen_head is None:
            return False
        self.head, self.length = place.seen_head, len(data) - end
        self._keep = self.head.keep_alive
        self.parts.append(data[end:])
        self.done = True
        return True

    def _remember(self, data: bytes) -> None:
        """Keep the head of a plain good answer that came in one piece."""
        end = data.find(b"\r\n\r\n") + 4
        body = data[end:]
        if self.length == len(body) and self.parts == [body] and data.startswith(b"HTTP/1.1 200 "):
            self.place.seen, self.place.seen_head = Seen(data[:end]), self.head

    def eof_received(self) -> None:
        """Called by the loop."""
        self._over(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._over(exc)

    def _over(self, exc: Exception | None) -> None:
        self._closed = True
        self.place.drop(self)
        receiver = self.receiver
        if receiver is None or self.done:
            return
        if self.head is not None and self.head.until_close and exc is None:
            self.done = True
            receiver.answer(self)
        else:
            self._fail("closed the connection before its answer was whole")

    def _fail(self, reason: str) -> None:
        receiver = self.receiver
        self.close()
        if receiver is not None:
            receiver.broken(self, reason)

    # What the parser tells.

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._began:
            raise ValueError("more than one answer")
        self._began = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if self.head is None:  # later ones are trailers
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Called by the parser."""
        status = self._parser.get_status_code()
        if status < 200:
            if status == 101:
                raise ValueError("switching protocols")
            self._interim = True
            return
        if status > 999:
            raise ValueError("no such status")
        self._keep = self._parser.should_keep_alive()
        if status in (204, 304):
            self._bodyless = True
        elif self._bodyless:  # the parser would wait for a body
            self._keep = False
            self.done = True
        self.head = self._sorted(status)

    def _sorted(self, status: int) -> ChildHead:
        """Take out of the headers what is about this connection."""
        lines = content_type = b""
        until_close = True
        for name, value in self._headers:
            if name == b"content-length":
                self.length = int(value)
                until_close = False
            elif name == b"transfer-encoding":
                until_close = value.lower().rpartition(b",")[2].strip() != b"chunked"
            elif name not in HOP_BY_HOP and not name.startswith(_OURS):
                lines += b"%b: %b\r\n" % (name, value)
                if name == b"content-type":
                    content_type = value.strip().lower()
        return ChildHead(status, lines, content_type, until_close and not self._bodyless, self._keep)

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        if not self._bodyless:
            self.parts.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._interim:
            self._interim = self._began = False
            self._headers.clear()
        else:
            self.done = True
