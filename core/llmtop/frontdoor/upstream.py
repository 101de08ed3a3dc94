"""Connections to children: kept alive in one pool an instance, answers parsed as they come."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol, cast

import httptools

from llmtop.frontdoor.gate import Upstream
from llmtop.frontdoor.head import HOP_BY_HOP

IDLE_MAX = 64
IDLE_S = 1.0
"""A llama-server gives each open connection one of its few threads: none is kept longer than a burst needs it [s]."""
CONNECT_TIMEOUT_S = 10.0
HEAD_BYTES_MAX = 256 * 1024
FORGOTTEN_KEPT = 256
"""So many instances that are gone are remembered, for a request that was granted before and connects after [1]."""
WRITE_HIGH = 1024 * 1024

_NOT_FOR_CLIENTS = HOP_BY_HOP | {b"content-length"}
_OURS = (b"access-control-", b"x-llmtop-")


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
        heard: A byte of the present answer has come.
        status: Of the answer; 0 before its head is whole.
        headers: Of the answer, ready to be passed on.
        content_type: Of the answer, in lower case.
        length: Announced body bytes; None when only the end will tell.
        parts: Body bytes not yet taken over by the receiver.
        done: The answer is whole.
        full: More should not be written now.
    """

    def __init__(self, pool: _Idle) -> None:
        self.pool = pool
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
        self.heard = False
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.content_type = b""
        self.length: int | None = None
        self.parts: list[bytes] = []
        self.done = False
        self._bodyless = bodyless
        self._began = False
        self._interim = False
        self._until_close = True
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
            self.pool.put(self)
        else:
            self.close()

    def close(self) -> None:
        """Close at once, whatever is on its way."""
        self.receiver = None
        self._closed = True
        self.pool.open.discard(self)
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
        self.pool.open.add(self)

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
        self.heard = True
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._keep = False
            if not self.done:
                if self.status and self.parts:
                    receiver.answer(self)
                self._fail(f"sent a malformed answer ({error})")
                return
        if self.status or self.done:
            receiver.answer(self)
        elif self._head_bytes > HEAD_BYTES_MAX:
            self._fail("sent an endless answer head")

    def eof_received(self) -> None:
        """Called by the loop."""
        self._over(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._over(exc)

    def _over(self, exc: Exception | None) -> None:
        self._closed = True
        self.pool.drop(self)
        receiver = self.receiver
        if receiver is None or self.done:
            return
        if self.status and self._until_close and exc is None:
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
        if not self.status:  # later ones are trailers
            self.headers.append((name.lower(), value))

    def _sort(self) -> None:
        """Take out of the headers what is about this connection."""
        kept: list[tuple[bytes, bytes]] = []
        for pair in self.headers:
            name = pair[0]
            if name in _NOT_FOR_CLIENTS:
                if name == b"content-length":
                    self.length = int(pair[1])
                    self._until_close = False
                elif name == b"transfer-encoding":
                    self._until_close = pair[1].lower().rpartition(b",")[2].strip() != b"chunked"
                continue
            if name == b"content-type":
                self.content_type = pair[1].strip().lower()
            elif name.startswith(_OURS):
                continue
            kept.append(pair)
        self.headers = kept

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
        self._sort()
        self._keep = self._parser.should_keep_alive()
        self.status = status
        if status in (204, 304):
            self._bodyless = True
        elif self._bodyless:  # the parser would wait for a body
            self._keep = False
            self.done = True
        if self._bodyless:
            self._until_close = False

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        if not self._bodyless:
            self.parts.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        if self._interim:
            self._interim = self._began = False
            self.headers.clear()
        else:
            self.done = True


class _Idle:
    """The connections of one child instance."""

    def __init__(self, upstream: Upstream) -> None:
        self.upstream = upstream
        self.open: set[UpstreamConnection] = set()
        self.connecting = 0
        self.forgotten = False
        self._idle: list[UpstreamConnection] = []

    def get(self) -> UpstreamConnection | None:
        while self._idle:
            connection = self._idle.pop()  # the one used last: the others age and go
            if connection.usable:
                return connection
        return None

    def put(self, connection: UpstreamConnection) -> None:
        if self.forgotten or len(self._idle) >= IDLE_MAX or not connection.usable:
            connection.close()
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)

    def drop(self, connection: UpstreamConnection) -> None:
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, before: float) -> None:
        while self._idle and self._idle[0].idle_since < before:
            self._idle.pop(0).close()

    def close_idle(self) -> None:
        for connection in self._idle[:]:
            connection.close()
        self._idle.clear()


class Pool:
    """All connections to children and to the control API."""

    def __init__(self) -> None:
        self._places: dict[str, _Idle] = {}
        self._forgotten: deque[str] = deque(maxlen=FORGOTTEN_KEPT)

    def _place(self, upstream: Upstream) -> _Idle:
        place = self._places.get(upstream.key)
        if place is None:
            place = self._places[upstream.key] = _Idle(upstream)
            place.forgotten = upstream.key in self._forgotten
        return place

    def idle(self, upstream: Upstream) -> UpstreamConnection | None:
        """A connection that was used before, if one is free."""
        return self._place(upstream).get()

    async def connect(self, upstream: Upstream) -> UpstreamConnection:
        """A fresh connection.

        Raises:
            OSError: Nothing listens there, or not within ``CONNECT_TIMEOUT_S``.
        """
        loop = asyncio.get_running_loop()
        place = self._place(upstream)

        def factory() -> UpstreamConnection:
            return UpstreamConnection(place)

        place.connecting += 1
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if upstream.uds:
                    _, connection = await loop.create_unix_connection(factory, upstream.uds)
                else:
                    _, connection = await loop.create_connection(factory, upstream.host, upstream.port)
        finally:
            place.connecting -= 1
        return connection

    def forget(self, key: str) -> None:
        """Drop what is idle of an instance that is gone; what is in use is closed after use."""
        self._forgotten.append(key)
        place = self._places.pop(key, None)
        if place is not None:
            place.forgotten = True
            place.close_idle()

    def sweep(self, now: float) -> None:
        """Close what was idle for ``IDLE_S``, and forget places without connections."""
        for key, place in list(self._places.items()):
            place.sweep(now - IDLE_S)
            if not place.open and not place.connecting:
                del self._places[key]

    def close(self) -> None:
        """Close everything."""
        for key in list(self._places):
            place = self._places[key]
            self.forget(key)
            for connection in list(place.open):
                connection.close()
