"""One client's connection: heads in, one exchange at a time, and the signs by which a client is known to be gone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from typing import TYPE_CHECKING, cast

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor import head as heads
from llmtop.frontdoor import planning, routes
from llmtop.frontdoor.answer import Answer
from llmtop.frontdoor.head import HEAD_BYTES_MAX, ChunkedBody, RequestHead, Seen
from llmtop.frontdoor.plan import Plan, too_large
from llmtop.frontdoor.relay import Exchange

if TYPE_CHECKING:
    from llmtop.frontdoor.server import FrontDoor

_log = logging.getLogger(__name__)
READ_AHEAD = 2**20
"""Bytes of an answer that may wait for a slow client [bytes]."""
PIPELINE_BYTES_MAX = 64 * 1024
IDLE_S = 75.0
HEAD_S = 20.0
LINGER_S = 2.0
_HEALTH = b'{"status":"ok"}'
_JSON = ((b"content-type", b"application/json"),)


class ClientConnection(asyncio.Protocol):
    """One connection.

    Attributes:
        exchange: The request that is being answered.
        paused: More than ``READ_AHEAD`` waits for the client.
        peer: Its address.
        received_at: When it sent something last, or the answer to what it had sent before was over [s, monotonic].
    """

    def __init__(self, door: FrontDoor) -> None:
        self.door = door
        self.exchange: Exchange | None = None
        self.paused = False
        self.peer = ""
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._buffer = b""
        self._seen = 0
        self._last = Seen()
        self._last_head = RequestHead()
        self._last_plan: Plan | None = None
        self._left = 0
        self._chunks: ChunkedBody | None = None
        self._advancing = False
        self._unread = False
        self._discarding = False
        self._closed = False
        self._since = self.received_at = time.monotonic()
        self._written = 0
        self._taken = 0
        self._taken_at = 0.0

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=READ_AHEAD, low=READ_AHEAD // 4)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if peer else ""
        self.door.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._closed = True
        self.door.connection_gone(self)
        self._gone()

    def eof_received(self) -> None:
        """Called by the loop: a client that will not send any more has left."""
        leaving = self.exchange is not None
        self._closed = True
        self._gone()
        if leaving:
            self.transport.abort()
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Called by the loop."""
        self.paused = True
        if self.exchange is not None:
            self.exchange.client_paused()

    def resume_writing(self) -> None:
        """Called by the loop."""
        self.paused = False
        if self.exchange is not None:
            self.exchange.client_resumed()
        elif self._buffer:
            self._advance()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if self._discarding or self._closed:
            return
        self.received_at = time.monotonic()
        # A head's time runs from its first byte, and empty lines are none.
        if self.exchange is not None or (not self._buffer and (data[0] > 0x20 or data.strip(b"\r\n"))):
            self._since = self.received_at
        self._buffer = self._buffer + data if self._buffer else data
        self._advance()

    def _gone(self) -> None:
        if self.exchange is not None:
            self.exchange.client_gone()

    # Requests.

    def _advance(self) -> None:
        """Take all that can be taken from the buffer. Answers given on the spot come back here, so it never nests."""
        if self._advancing:
            return
        self._advancing = True
        try:
            while self._buffer and not self._closed and not self._discarding:
                if self._chunks is not None or self._left:
                    self._take_body()
                elif self.exchange is not None:
                    if (
                        len(self._buffer) > PIPELINE_BYTES_MAX
                    ):  # read on all the same: only a read tells that a client left
                        self._buffer, self._unread = b"", True
                        self.exchange.answer_out.close = True
                    break
                elif self.paused or not self._take_head():
                    break
        except Exception:  # the last place where a fault of ours can become an answer
            _log.exception("a request failed inside llmtop")
            self._fault()
        finally:
            self._advancing = False

    def _fault(self) -> None:
        refusal = Refusal("internal_error", "llmtop failed on this request; its log says more")
        self._buffer, self._unread = b"", True
        if self.exchange is not None:
            self.exchange.answer_out.close = True
            self.exchange.refuse(refusal)
        else:
            self._reject(refusal)

    def _take_head(self) -> bool:
        buffer = self._buffer
        while buffer.startswith(b"\r\n"):
            buffer = buffer[2:]
        if buffer == b"\r":  # half an empty line
            self._buffer = buffer
            return False
        end = buffer.find(b"\r\n\r\n", max(0, self._seen - 3))
        try:
            if end < 0 or end > HEAD_BYTES_MAX:
                self._buffer = buffer
                heads.check_partial(buffer, self._seen)
                self._seen = len(buffer)
                return False
            self._seen = 0
            self._buffer = buffer[end + 4 :]
            raw = buffer[: end + 4]
            digits = self._last.again(raw)
            if digits is None:
                self._last_head = heads.parse(raw)
                self._last, self._last_plan = Seen(raw), None
            elif digits:  # whoever had the head before is over
                self._last_head.length = int(digits)
        except Refused as refused:
            self._reject(refused.refusal)
            return False
        self._start(self._last_head)
        return True

    def _reject(self, refusal: Refusal) -> None:
        """Answer what is no request, and listen no more."""
        head = RequestHead()
        head.keep_alive = False
        Answer(self, head, b"").refuse(refusal)
        self._buffer, self._unread = b"", True
        self._close()

    def _start(self, head: RequestHead) -> None:
        door = self.door
        door.requests += 1
        answer = Answer(self, head, door.access.cors(head) if b"origin" in head.one else b"")
        try:
            plan = self._plan(head, answer)
        except Refused as refused:
            if not self._skip_body(head):
                self._unread = answer.close = True
            answer.refuse(refused.refusal)
            self._answered(answer)
            return
        if plan is None:
            if not self._skip_body(head):
                self._unread = True
            self._answered(answer)
            return
        exchange = self.exchange = Exchange(door, self, head, plan, answer)
        exchange.begin()
        if exchange.over:
            return
        if head.length == 0:
            exchange.end_of_body()
            return
        if head.length is None:
            self._chunks = ChunkedBody()
        else:
            self._left = head.length
        if b"expect" in head.one and not self._buffer and head.minor:
            self.send(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _plan(self, head: RequestHead, answer: Answer) -> Plan | None:
        """Who answers, None when it is answered already; all that the head can be refused for is refused here."""
        plan = self._last_plan
        if plan is None or self.door.closing:
            plan = self._new_plan(head, answer)
        if plan is None:
            return None
        if (head.length or 0) > plan.body_max:
            raise Refused(too_large(plan.body_max))
        if plan.by_body:  # nothing in it depends on what runs, nor on the length
            self._last_plan = plan
        return plan

    def _new_plan(self, head: RequestHead, answer: Answer) -> Plan | None:
        door = self.door
        access = door.access
        if access.preflight(head):
            answer.whole(204, planning.PREFLIGHT, b"")
            return None
        keyed = access.check_key(head)
        if not keyed:
            access.check_origin(head)
        route = routes.find(head)
        access.check_route(head, route, keyed=keyed)
        if door.closing:
            answer.close = True
            raise Refused(Refusal("shutting_down", "llmtop is shutting down", retry_after_s=5))
        if head.one.get(b"expect", b"100-continue").lower() != b"100-continue":
            raise heads.bad("of expectations only 100-continue is known", status=417)
        if route.kind is routes.Kind.HEALTH:
            answer.whole(200, _JSON, _HEALTH)
            return None
        return planning.plan(door, head, route, answer)

    def _skip_body(self, head: RequestHead) -> bool:
        """Pass over the body of a request that was answered without it; False when it has not come yet."""
        if head.length is None or head.length > len(self._buffer):
            return False
        self._buffer = self._buffer[head.length :]
        return True

    def _take_body(self) -> None:
        data, exchange = self._buffer, self.exchange
        if self._chunks is not None:
            self._buffer = b""
            try:
                data = self._chunks.feed(data)
            except Refused as refused:
                self._chunks = None
                self._unread = True
                if exchange is not None:
                    exchange.refuse(refused.refusal)
                return
            whole = self._chunks.done
            if self._chunks.dirty and exchange is not None:
                self._unread = exchange.answer_out.close = True
            if whole:
                self._chunks = None
        else:
            if len(data) > self._left:
                data, self._buffer = data[: self._left], data[self._left :]
            else:
                self._buffer = b""
            self._left -= len(data)
            whole = self._left == 0
        if exchange is not None:
            if data:
                exchange.feed(data)
            if whole:
                exchange.end_of_body()

    # Answers.

    def send(self, data: bytes) -> None:
        """Write bytes of an answer."""
        if not self._closed:
            self._written += len(data)
            self.transport.write(data)

    def next_id(self) -> str:
        """An id for an answer that has no ticket's."""
        return self.door.next_id()

    def cut(self, *, reset: bool) -> None:
        """End the connection short of its answer's end, once what is written is on its way."""
        if self._closed:
            return
        if reset:
            sock = self.transport.get_extra_info("socket")
            with contextlib.suppress(OSError, AttributeError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._closed = True
        self.transport.close()

    def exchange_over(self, exchange: Exchange) -> None:
        """The exchange has ended."""
        if exchange is self.exchange:
            self.exchange = None
            if not exchange.body_whole:
                self._unread = True
            self._answered(exchange.answer_out)

    def _answered(self, answer: Answer) -> None:
        self._since = self.received_at = time.monotonic()
        if answer.close or self._unread or self.door.closing:
            self._close()
        elif self._buffer:
            self._advance()

    def _close(self) -> None:
        """Close in order. With bytes unread a plain close would reset the client before it has read the answer."""
        if self._closed:
            return
        if not self._unread:
            self._closed = True
            self.transport.close()
            return
        self._discarding = True
        self._buffer, self._chunks, self._left = b"", None, 0
        with contextlib.suppress(OSError, RuntimeError):
            self.transport.write_eof()

    # Time.

    def check(self, now: float, stall_s: float | None) -> None:
        """Find out whether the client is gone without having said so; called a few times a second."""
        waiting = self.transport.get_write_buffer_size()
        taken = self._written - waiting
        if not waiting or taken != self._taken:
            self._taken, self._taken_at = taken, now
        elif stall_s is not None and now - self._taken_at >= stall_s:
            self.abort()
            return
        idle = now - self._since
        if self._discarding:
            over = not waiting and idle > LINGER_S
        elif self.exchange is not None:
            over = stall_s is not None and not self.exchange.body_whole and idle > stall_s
        else:
            over = not waiting and idle > (HEAD_S if self._buffer else IDLE_S)
        if over:
            self.abort()

    def abort(self) -> None:
        """End it at once."""
        self._closed = True
        self._gone()
        self.transport.abort()

    def close_when_idle(self) -> None:
        """Close it now if no answer is on its way."""
        if self.exchange is None and not self._discarding:
            self._unread = False
            self._close()
