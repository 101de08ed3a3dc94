"""One request on its way: body in, leave from the gate, child, answer out, and the end, exactly once."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor import head as heads
from llmtop.frontdoor import names
from llmtop.frontdoor.answer import Answer
from llmtop.frontdoor.body import PIECE, Spool, framed
from llmtop.frontdoor.gate import Grant, Ticket, Upstream
from llmtop.frontdoor.last_known import Known
from llmtop.frontdoor.plan import Client, Plan, Shared, too_large
from llmtop.frontdoor.tap import Tail, Tap
from llmtop.frontdoor.upstream import UpstreamConnection

if TYPE_CHECKING:
    from llmtop.frontdoor.head import RequestHead

_log = logging.getLogger(__name__)


class Exchange:
    """One request and its answer.

    Attributes:
        answer_out: The answer as the client sees it.
        body_whole: The client has sent all of its body.
        over: Nothing more will happen.
    """

    body_whole = False
    over = False
    _received = 0
    _ticket: Ticket | None = None
    _times: tuple[int, int] = (0, 0)
    _connection: UpstreamConnection | None = None
    _connecting: asyncio.Task[None] | None = None
    _timer: asyncio.TimerHandle | None = None
    _chunked = False
    _body_sent = False
    _dropped = False
    _retried = False
    _child_head = False
    _draining = False
    _tap: Tap | Tail | None = None
    _heard_at = 0.0
    _relay_s = 0.0

    def __init__(self, shared: Shared, client: Client, head: RequestHead, plan: Plan, answer: Answer) -> None:
        self._shared = shared
        self._client = client
        self._head = head
        self._plan = plan
        self._model = plan.model
        self._upstream = plan.upstream
        self.answer_out = answer
        self._arrived = self._ready_at = client.received_at
        self._spool = Spool(shared.space)
        kind = head.one.get(b"content-type", b"")
        self._finder = names.Finder(kind, tolerant=plan.early) if plan.upstream is None else None
        shared.exchanges.add(self)

    @property
    def holds_shutdown(self) -> bool:
        """It is worth waiting for when llmtop ends (a view's event stream is not)."""
        return bool(self._model or self._plan.by_body)

    # The client's side.

    def begin(self) -> None:
        """The head is there and was found good."""
        if self._plan.early:
            try:
                self._admit(self._plan.model, stream=self._plan.stream)
            except Refused as refused:
                self.refuse(refused.refusal)

    def feed(self, data: bytes) -> None:
        """More of the body."""
        if self.over:
            return None
        self._received += len(data)
        if self._received > self._plan.body_max:
            return self.refuse(too_large(self._plan.body_max))
        connection, spool = self._connection, self._spool
        streams = connection is not None and not connection.full and self._received > heads.HEAD_BYTES_MAX
        if connection is not None and streams and spool.sent == spool.size:
            self._dropped = True
            connection.transport.write(framed(data, chunked=self._chunked))
            return None
        try:
            spool.append(data)
            if self._finder is not None and self._upstream is None:
                self._finder.feed(data, spool)
        except Refused as refused:
            return self.refuse(refused.refusal)
        if connection is not None:
            self._pump(connection)
        return None

    def end_of_body(self) -> None:
        """The body is whole."""
        if self.over:
            return
        self.body_whole = True
        if self._connection is not None:
            self._pump(self._connection)
        elif self._ticket is None and self._connecting is None:
            try:
                self._ask()
            except Refused as refused:
                self.refuse(refused.refusal)

    def client_gone(self) -> None:
        """The client has left; the child is told by closing its connection, unless it takes that badly."""
        if self.over or self._draining:
            return
        self._shared.clients_left += 1
        connection = self._connection
        if connection is not None and self._body_sent and self._upstream is not None and self._upstream.drain_on_abort:
            self._draining = True
            connection.resume()
            return
        self._drop_connection()
        self._end(499)

    def client_paused(self) -> None:
        """The client does not keep up."""
        if self._connection is not None and not self._draining:
            self._connection.pause()

    def client_resumed(self) -> None:
        """The client takes bytes again."""
        if self._connection is not None:
            self._connection.resume()

    def refuse(self, refusal: Refusal) -> None:
        """End it with an error of our own."""
        if self.over:
            return
        self._drop_connection()
        if not self._draining:
            if not self.body_whole:
                self.answer_out.close = True
            self.answer_out.refuse(refusal, times=self._waits() if self._ticket is not None else None)
        self._end(499 if self._draining else refusal.code)

    # The gate.

    def _ask(self) -> None:
        """All is known: go to the child, or ask for leave to."""
        plan = self._plan
        self._ready_at = self._client.received_at
        if self._finder is None:
            return self._connect()
        found = self._finder.find(self._spool, lenient=not plan.by_body or bool(plan.query_model))
        model = names.model_of(found, plan.query_model, self._shared.gate) if plan.by_body else plan.model
        return self._admit(model, stream=found.stream is True or (found.stream is None and plan.stream))

    def _admit(self, model: str, *, stream: bool) -> None:
        self._model = model
        ticket = self._shared.gate.admit(
            model, path=self._head.shown, client=self._client.peer, stream=stream, autoload=self._plan.autoload
        )
        self._ticket, self.answer_out.request_id = ticket, ticket.id
        if ticket.granted.done():
            self._granted(ticket.granted)
            return
        ticket.granted.add_done_callback(self._granted)
        pause = self._shared.settings.heartbeat_s
        if pause > 0 and (stream or self._plan.early):
            self._timer = self._shared.loop.call_later(pause, self._heartbeat, pause, stream)

    def _heartbeat(self, pause: float, stream: bool) -> None:
        """The client of a stream has waited: let it know that somebody is there."""
        if self.answer_out.started or self._upstream is None:
            if stream := stream or (self._finder is not None and self._finder.asks_for_stream(self._spool)):
                self.answer_out.wait()
            self._timer = self._shared.loop.call_later(pause, self._heartbeat, pause, stream)

    def _granted(self, granted: asyncio.Future[Grant]) -> None:
        error = None if granted.cancelled() else granted.exception()
        if self.over:
            return
        if granted.cancelled():
            self.refuse(Refusal("request_cancelled", "the request was cancelled"))
        elif error is None:
            grant = granted.result()
            self._upstream = grant.upstream
            self._times = grant.queue_ms, grant.load_ms
            self._ready_at = max(self._ready_at, grant.at)
            assert self._ticket is not None
            self._ticket.cut.add_done_callback(self._cut)
            self._connect()
        elif isinstance(error, Refused):
            self.refuse(error.refusal)
        else:
            _log.error("a request was neither granted nor refused", exc_info=error)
            self.refuse(Refusal("internal_error", "llmtop failed to schedule this request; its log says more"))

    def _cut(self, cut: asyncio.Future[Refusal]) -> None:
        if not self.over:
            refusal = cut.result()
            self._shared.upstream_errors += refusal.type == "upstream_error"
            self.refuse(refusal)

    # The child's side.

    def _connect(self, *, fresh: bool = False) -> None:
        assert self._upstream is not None
        connection = None if fresh else self._shared.pool.idle(self._upstream)
        if connection is not None:
            self._send(connection)
        else:
            self._connecting = self._shared.loop.create_task(self._connect_fresh(self._upstream))

    async def _connect_fresh(self, upstream: Upstream) -> None:
        try:
            connection = await self._shared.pool.connect(upstream)
        except OSError:
            self._connecting = None
            if not self.over:
                self._child_failed("cannot be reached")
            return
        self._connecting = None
        if self.over:
            connection.close()
        elif not connection.usable:
            self.broken(connection, "closed the connection at once")
        else:
            self._send(connection)

    def _send(self, connection: UpstreamConnection) -> None:
        assert self._upstream is not None
        self._connection = connection
        connection.begin(self, bodyless=self._head.method == "HEAD")
        if self._client.paused:
            connection.pause()
        spool = self._spool
        spool.rewind()
        length = spool.size if self.body_whole else self._head.length
        self._chunked = length is None
        out = heads.for_child(self._head, self._plan.target, connection.place.lines, length)
        if self.body_whole and spool.size <= PIECE:
            connection.transport.write(out + spool.take(PIECE))
            self._body_sent = True
        else:
            connection.transport.write(out)
            self._pump(connection)
        self._relay_s += time.monotonic() - self._ready_at

    def _pump(self, connection: UpstreamConnection) -> None:
        if not self._body_sent:
            try:
                self._body_sent = self._spool.pump(connection, whole=self.body_whole, chunked=self._chunked)
            except OSError:
                self._child_failed("did not get the request body: it could not be read back")

    def writable(self) -> None:
        """The child takes more of the body."""
        if self._connection is not None:
            self._pump(self._connection)

    def answer(self, connection: UpstreamConnection) -> None:
        """The child has sent something."""
        body = b"".join(connection.parts)
        if body:
            connection.parts = []
        if self._draining:
            if connection.done:
                self._finish_child(connection, b"")
            return
        out = b"" if self._child_head else self._answer_head(connection)
        if body:
            tap, answer = self._tap, self.answer_out
            if tap is not None:
                tap.feed(body)
            if tap is None or not tap.instead:
                out += answer.frame(body)
                answer.streamed = True
        if connection.done:
            self._finish_child(connection, out)
        elif out:
            self._pass_on(out)

    def _answer_head(self, connection: UpstreamConnection) -> bytes:
        head = connection.head
        assert head is not None
        self._child_head = True
        self._stop_timer()
        answer = self.answer_out
        stream = head.content_type.startswith(b"text/event-stream")
        if answer.waiting:
            self._tap = Tap(instead=True) if not stream or head.status != 200 else Tail()
            return b""
        if head.status == 500 or (self._plan.remember and head.status == 200):
            self._tap = Tap(instead=False)
        elif stream or self._plan.generates:
            self._tap = Tail()
        answer.sse = stream
        if not self.body_whole:
            answer.close = True
        self._heard_at = connection.heard_at
        bodyless = self._head.method == "HEAD" or head.status in (204, 304)
        return answer.head(head.status, head.lines, length=connection.length, times=self._times, bodyless=bodyless)

    def _pass_on(self, out: bytes) -> None:
        """Bytes for the client; those of the child's first word are timed."""
        self._client.send(out)
        if self._heard_at:
            self._relay_s += time.monotonic() - self._heard_at
            self._heard_at = 0.0

    def _finish_child(self, connection: UpstreamConnection, out: bytes) -> None:
        """The child's answer is whole."""
        self._connection = None
        head, tap = connection.head, self._tap
        assert head is not None
        status = 499 if self._draining else head.status
        if self._draining:
            pass
        elif isinstance(tap, Tap) and tap.instead:
            self.answer_out.late(status, tap)
        else:
            self._pass_on(out + self.answer_out.tail())
        if isinstance(tap, Tap) and self._plan.remember and tap.whole and self._head.method == "GET" and self._upstream:
            known = Known(self._upstream.key, self._shared.loop.time(), head.content_type, tap.body)
            self._shared.last_known.put(self._model, self._plan.target, known)
        connection.release(reusable=self._body_sent)
        self._end(status, tap)

    def broken(self, connection: UpstreamConnection, reason: str) -> None:
        """The child's connection is gone before its answer was whole."""
        self._connection = None
        untouched = connection.reused and not connection.heard_at and not self._dropped
        if untouched and not self._retried and not self._draining:
            self._retried = True
            self._body_sent = False
            self._shared.retries += 1
            self._ready_at = time.monotonic()
            self._connect(fresh=True)
        else:
            self._child_failed(reason)

    def _child_failed(self, reason: str) -> None:
        if self._ticket is not None and self._ticket.cut.done():  # a killed child may be gone before the word of it
            return self._cut(self._ticket.cut)
        self._shared.upstream_errors += 1
        who = "the model server" if self._model else "the control API"
        return self.refuse(Refusal("upstream_error", f"{who} {reason}"))

    # The end.

    def _drop_connection(self) -> None:
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _waits(self) -> tuple[int, int]:
        """Queue and load, of a request that still waits so far [ms]."""
        if self._upstream is not None:
            return self._times
        return round((time.monotonic() - self._arrived) * 1000), 0

    def _end(self, status: int, tap: Tap | Tail | None = None) -> None:
        self.over = True
        self._stop_timer()
        self._spool.close()
        shared, ticket = self._shared, self._ticket
        shared.exchanges.discard(self)
        if ticket is not None:
            ticket.cut.remove_done_callback(self._cut)
            compute_error = tap is not None and status in (200, 500) and tap.compute_error
            ticket.close(500 if compute_error else status, compute_error=compute_error)
            queue_ms, load_ms = self._waits()
            shared.gate.finished(
                request=ticket.id,
                model=self._model,
                path=self._head.shown,
                status=status,
                queue_ms=queue_ms,
                load_ms=load_ms,
                total_ms=(time.monotonic() - self._arrived) * 1000,
                tokens=tap.tokens if tap is not None and status == 200 else 0,
                relay_s=self._relay_s,
            )
        self._client.exchange_over(self)
