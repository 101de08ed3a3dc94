"""One answer to a client: framed for its HTTP version, and able to say even late what went wrong."""

from __future__ import annotations

import http
import math
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec

from llmtop.errors import Refusal
from llmtop.frontdoor.head import RequestHead
from llmtop.frontdoor.tap import Tap

_STATUS = {s.value: b"HTTP/1.1 %d %b\r\n" % (s.value, s.phrase.encode()) for s in http.HTTPStatus}
_SSE = b"content-type: text/event-stream\r\ncache-control: no-cache\r\n"


class Out(Protocol):
    """The client's connection, as an answer sees it."""

    def send(self, data: bytes) -> None:
        """Write; the connection holds what the client does not take yet."""
        ...

    def next_id(self) -> str:
        """An id for an answer that has no ticket's."""
        ...

    def cut(self, *, reset: bool) -> None:
        """End it once all is written, so that no client takes it for a clean end; ``reset`` where only that shows."""
        ...


def error_event(error: dict[str, Any]) -> bytes:
    """An error as an event of a stream."""
    return b"data: " + msgspec.json.encode(error) + b"\n\n"


def error_of_child(status: int, body: bytes) -> dict[str, Any]:
    """The error object in a child's own answer, or one that says what it was."""
    try:
        said = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        said = None
    if isinstance(said, dict) and "error" in said:
        return {"error": said["error"]}
    text = body[:500].decode("utf-8", "replace")
    return Refusal("upstream_error", f"the model server answered {status}: {text}", status=status).body()


class Answer:
    """Writes one answer.

    Attributes:
        started: The head is out.
        waiting: The head that is out is the one of a stream that still waits for its child.
        streamed: Bytes of the child's stream are out.
        sse: It is a stream of events.
        close: The connection ends with this answer.
        status: As sent; 0 before.
    """

    started = False
    waiting = False
    streamed = False
    sse = False
    status = 0
    _chunked = False
    _until_close = False

    def __init__(self, out: Out, head: RequestHead, cors: bytes) -> None:
        self._out = out
        self._head = head
        self._cors = cors
        self.request_id = ""
        self.close = not head.keep_alive

    def head(
        self,
        status: int,
        lines: bytes,
        *,
        length: int | None,
        times: tuple[int, int] | None,
        bodyless: bool = False,
    ) -> bytes:
        """The head's bytes, for the caller to send together with what follows.

        Args:
            status: HTTP status.
            lines: Header lines, without those on framing and connection.
            length: Body bytes; None when not known before the end.
            times: Queue and load [ms]; None leaves them out.
            bodyless: There is no body whatever ``length`` says (204, 304, HEAD).
        """
        self.started = True
        self.status = status
        out = b"%b%bX-Llmtop-Request-Id: %b\r\n" % (
            _STATUS.get(status) or b"HTTP/1.1 %d \r\n" % status,
            lines,
            (self.request_id or self._out.next_id()).encode(),
        )
        if times is not None:
            out += b"X-Llmtop-Queue-Ms: %d\r\nX-Llmtop-Load-Ms: %d\r\n" % times
        if self._cors:
            out += self._cors
        if length is not None:
            if status != 204:
                out += b"Content-Length: %d\r\n" % length
        elif not bodyless:
            if self._head.minor:
                self._chunked = True
                out += b"Transfer-Encoding: chunked\r\n"
            else:
                self._until_close = self.close = True
        if self.close:
            out += b"Connection: close\r\n"
        elif not self._head.minor:
            out += b"Connection: keep-alive\r\n"
        return out + b"\r\n"

    def frame(self, data: bytes) -> bytes:
        """Body bytes as they go on the wire."""
        if self._chunked and data:
            return b"%x\r\n%b\r\n" % (len(data), data)
        return data

    def tail(self) -> bytes:
        """What ends the body on the wire."""
        return b"0\r\n\r\n" if self._chunked else b""

    def whole(
        self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, times: tuple[int, int] = (0, 0)
    ) -> None:
        """Send an answer of our own; one that never came to the gate has waited for nothing."""
        lines = b"".join([b"%b: %b\r\n" % pair for pair in headers])
        out = self.head(status, lines, length=len(body), times=times)
        self._out.send(out if self._head.method == "HEAD" else out + body)

    def refuse(self, refusal: Refusal, *, times: tuple[int, int] | None = None) -> None:
        """Say why not: as an answer, or as an event where a stream's head is out. The exchange is over after it."""
        if not self.started:
            body = msgspec.json.encode(refusal.body())
            self.whole(refusal.code, _refusal_headers(refusal), body, times=times or (0, 0))
        else:
            self.end_with_error(refusal.body())

    def end_with_error(self, error: dict[str, Any]) -> None:
        """End an answer that has begun. Only a stream of which nothing but comments is out ends cleanly."""
        event = error_event(error)
        if self.waiting and not self.streamed:
            self._out.send(self.frame(event) + self.tail())
            return
        self.close = True
        if self.sse:
            self._out.send(self.frame(event))
        self._out.cut(reset=self._until_close)

    def late(self, status: int, tap: Tap) -> None:
        """Give what was held back, to the client of a stream that had begun before its child answered otherwise."""
        if status == 200:
            self._out.send(self.frame(tap.event()) + self.tail())
        else:
            self.end_with_error(error_of_child(status, tap.body))

    def wait(self) -> None:
        """Tell the client of a stream that its request still waits."""
        out = b""
        if not self.started:
            self.waiting = self.sse = True
            out = self.head(200, _SSE, length=None, times=None)
        self._out.send(out + self.frame(b": waiting\n\n"))


def _refusal_headers(refusal: Refusal) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", b"application/json")]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % max(1, math.ceil(refusal.retry_after_s))))
    if refusal.type == "unauthorized":
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.type == "method_not_allowed":
        headers.append((b"allow", str(refusal.details.get("allow", "")).encode()))
    return headers
