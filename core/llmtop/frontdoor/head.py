"""Request heads: read strictly and written anew, so that nothing two parsers may read in two ways passes through."""

from __future__ import annotations

import re

import httptools

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.gate import Upstream

HEAD_BYTES_MAX = 64 * 1024
HEADERS_MAX = 100
LENGTH_DIGITS = 15

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_HEAD = re.compile(
    rb"[A-Z]{1,20} [\x21\x22\x24-\x7e]+ HTTP/1\.[01]\r\n"
    + rb"(?:"
    + _TOKEN
    + rb"++:[\t\x20-\x7e\x80-\xff]*+\r\n)*+\r\n"
)
_DIGITS = re.compile(rb"[0-9]{1,%d}" % LENGTH_DIGITS)
_LENGTH_LINE = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,%d})\r\n" % LENGTH_DIGITS, re.IGNORECASE)
_IGNORED_UPGRADE = re.compile(rb"h2c", re.IGNORECASE)
"""Java's client offers it first and is content with HTTP/1.1: a server may ignore an upgrade (RFC 9110, 7.8)."""
_BARE_LF = re.compile(rb"(?<!\r)\n")
_HOST = re.compile(rb"(?:[A-Za-z0-9._~%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""Headers about one connection only (RFC 9110, 7.6.1): never passed on in either direction."""

_NOT_FOR_CHILDREN = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"authorization", b"x-api-key", b"origin"}
_SINGLE = frozenset((b"host", b"content-length", b"transfer-encoding", b"origin", b"content-type", b"expect"))


def bad(message: str, *, type_: str = "invalid_request", status: int = 0) -> Refused:
    """A refusal of what the client sent."""
    return Refused(Refusal(type_, message, status=status))


class RequestHead:
    """One request's head, checked. Nothing but ``length`` changes once it is read.

    Attributes:
        method: In capitals.
        target: As sent; ``path`` and ``query`` are its two halves, still percent-encoded.
        shown: The path as text.
        minor: HTTP/1.x.
        headers: Names in lower case, values without white space around, in the order sent.
        one: The values of headers that may occur once.
        passed: The headers that the child gets, as they go on the wire.
        keep_alive: The client allows another request on this connection.
        length: Body bytes announced; None when it comes in chunks.
    """

    __slots__ = (
        "headers", "keep_alive", "length", "method", "minor", "one", "passed", "path", "query", "shown", "target"
    )  # fmt: skip

    def __init__(self) -> None:
        self.method = ""
        self.target = b""
        self.path = b""
        self.query = b""
        self.shown = ""
        self.minor = 1
        self.headers: list[tuple[bytes, bytes]] = []
        self.one: dict[bytes, bytes] = {}
        self.passed = b""
        self.keep_alive = True
        self.length: int | None = 0

    def on_url(self, url: bytes) -> None:
        """Called by the parser."""
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        self.headers.append((name.lower(), value.strip(b" \t")))

    def header(self, name: bytes) -> bytes | None:
        """The value of the first header of that (lower-case) name."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


class Seen:
    """The text of a good head. What comes next on a connection often says the same, but for the digits of its length.

    Args:
        raw: The head, which was parsed: it has one length at most.
    """

    __slots__ = ("_after", "_before", "_digits", "_raw")

    def __init__(self, raw: bytes = b"") -> None:
        line = _LENGTH_LINE.search(raw)
        start, end = line.span(1) if line is not None else (len(raw), len(raw))
        self._raw = raw
        self._before, self._digits, self._after = raw[:start], raw[start:end], raw[end:]

    def again(self, raw: bytes) -> bytes | None:
        """Whether this is the same head.

        Returns:
            The digits of its length, empty where it has none; None when it is another head.
        """
        if raw == self._raw:
            return self._digits
        if not self._digits or not raw.startswith(self._before) or not raw.endswith(self._after):
            return None
        digits = raw[len(self._before) : len(raw) - len(self._after)]
        return digits if digits.isdigit() and len(digits) <= LENGTH_DIGITS else None


def parse(raw: bytes) -> RequestHead:
    """Read a whole head, the empty line included.

    Raises:
        Refused: It is malformed, ambiguous or too large, or asks for what is not done here.
    """
    if not _HEAD.fullmatch(raw):
        raise bad("malformed request head")
    head = RequestHead()
    parser = httptools.HttpRequestParser(head)
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        pass  # all headers are read by now; the check below judges an upgrade, CONNECT ends as an unknown route
    except httptools.HttpParserError as error:
        raise bad(f"malformed request head: {error}") from None
    head.method = parser.get_method().decode("ascii")
    head.minor = 0 if raw[raw.index(b"\r\n") - 1] == 0x30 else 1
    head.path, _, head.query = head.target.partition(b"?")
    head.shown = head.path.decode("ascii", "replace")
    _check(head)
    return head


def _check(head: RequestHead) -> None:
    if len(head.headers) > HEADERS_MAX:
        raise bad(f"more than {HEADERS_MAX} headers", type_="headers_too_large")
    one = head.one
    connection = b""
    for name, value in head.headers:
        if name in _SINGLE:
            if name in one:
                raise bad(f"several {name.decode()} headers")
            one[name] = value
        elif name == b"connection":
            connection += b"," + value.lower()
        elif name == b"upgrade" and not _IGNORED_UPGRADE.fullmatch(value):
            raise bad("upgrades are not supported", type_="not_implemented")
    host = one.get(b"host")
    if (host is None and head.minor == 1) or (host and not _HOST.fullmatch(host)):
        raise bad("a Host header is missing or malformed")
    _frame(head)
    if connection:
        tokens = {token.strip() for token in connection.split(b",")}
        head.keep_alive = b"close" not in tokens and (head.minor == 1 or b"keep-alive" in tokens)
        dropped = _NOT_FOR_CHILDREN | (tokens - {b"content-type"})
    else:
        head.keep_alive = head.minor == 1
        dropped = _NOT_FOR_CHILDREN
    head.passed = b"".join(
        [
            b"%b: %b\r\n" % pair
            for pair in head.headers
            if pair[0] not in dropped and not pair[0].startswith(b"x-llmtop-")
        ]
    )


def _frame(head: RequestHead) -> None:
    length, encoding = head.one.get(b"content-length"), head.one.get(b"transfer-encoding")
    if encoding is not None:
        if length is not None or head.minor == 0 or encoding.lower() != b"chunked":
            raise bad("ambiguous body length: send either Content-Length or Transfer-Encoding: chunked")
        head.length = None
    elif length is not None:
        if not _DIGITS.fullmatch(length):
            raise bad("malformed Content-Length")
        head.length = int(length)


def check_partial(raw: bytes, seen: int) -> None:
    """Refuse the beginning of a head early where no continuation can make it good.

    Args:
        raw: What came so far, without the empty line that ends a head.
        seen: Bytes of it that were checked before.

    Raises:
        Refused: It is too large, no HTTP, or has lines that end with a bare line feed.
    """
    if len(raw) > HEAD_BYTES_MAX:
        raise bad(f"request head larger than {HEAD_BYTES_MAX} bytes", type_="headers_too_large")
    if raw and not 0x41 <= raw[0] <= 0x5A:
        raise bad("this is not an HTTP request")
    if _BARE_LF.search(raw, max(seen, 1)):
        raise bad("lines of a request head end with CR LF")


def place_lines(upstream: Upstream) -> bytes:
    """The header lines that every request to a child gets: its name, and its own key in place of the client's."""
    host = f"{upstream.host}:{upstream.port}" if not upstream.uds else "localhost"
    key = f"Authorization: Bearer {upstream.api_key}\r\n" if upstream.api_key else ""
    return f"Host: {host}\r\n{key}".encode()


def for_child(head: RequestHead, target: bytes, lines: bytes, length: int | None) -> bytes:
    """Write the head that the child gets.

    Args:
        head: The client's.
        target: Path and query to ask for.
        lines: ``place_lines`` of the child.
        length: Body bytes; None sends it in chunks.
    """
    if length is None:
        framing = b"Transfer-Encoding: chunked\r\n"
    elif length or head.method not in ("GET", "HEAD", "OPTIONS"):
        framing = b"Content-Length: %d\r\n" % length
    else:
        framing = b""
    return b"%b %b HTTP/1.1\r\n%b%b%b\r\n" % (head.method.encode(), target, lines, head.passed, framing)


class ChunkedBody:
    """Takes the chunks of a request body apart.

    Attributes:
        done: The last chunk and its trailers have come.
        dirty: Bytes came behind it: whatever they are, the connection cannot be used again.
    """

    def __init__(self) -> None:
        self.done = False
        self.dirty = False
        self._began = False
        self._idle_bytes = 0
        self._parts: list[bytes] = []
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")

    def on_message_begin(self) -> None:
        """Called by the parser."""
        if self._began:
            self.dirty = True
            raise ValueError("behind the end")
        self._began = True

    def on_body(self, data: bytes) -> None:
        """Called by the parser."""
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.done = True

    def feed(self, data: bytes) -> bytes:
        """Take bytes from the connection, give those of the body.

        Raises:
            Refused: The chunks are malformed, or their extensions or trailers endless.
        """
        self._parts.clear()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.done:
                raise bad("malformed chunked body") from None
            self.dirty = True
        body = b"".join(self._parts)
        self._parts.clear()
        self._idle_bytes = 0 if body else self._idle_bytes + len(data)
        if self._idle_bytes > HEAD_BYTES_MAX:
            raise bad("chunk extensions or trailers larger than the body they belong to")
        return body
