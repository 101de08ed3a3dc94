"""Who may ask for what, by the head alone: keys, and without them the Origin and Host rules that keep web pages out."""

from __future__ import annotations

import hmac

from llmtop.config.spec import Settings
from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.head import RequestHead
from llmtop.frontdoor.routes import Kind, Route, query_of

_LOCAL = ("localhost", "127.0.0.1", "[::1]")


class Access:
    """The rules of one front door.

    Args:
        settings: ``api_keys``, ``host``, ``allow_hosts`` and ``allow_origins`` of it are read.
    """

    def __init__(self, settings: Settings) -> None:
        self._keys = [key.encode() for key in settings.api_keys]
        own = f"[{settings.host}]" if ":" in settings.host else settings.host
        self._hosts = {name.lower().encode() for name in (*_LOCAL, own, *settings.allow_hosts) if name}
        self._origins = {origin.rstrip("/").lower().encode() for origin in settings.allow_origins}

    def preflight(self, head: RequestHead) -> bool:
        """It is a browser's question about an origin that the operator allowed."""
        return (
            head.method == "OPTIONS"
            and bool(head.header(b"access-control-request-method"))
            and head.one.get(b"origin", b"").lower() in self._origins
        )

    def cors(self, head: RequestHead) -> bytes:
        """Header lines that let a page of an allowed origin read the answer; empty for any other."""
        origin = head.one.get(b"origin")
        if origin is None or origin.lower() not in self._origins:
            return b""
        return b"Access-Control-Allow-Origin: %b\r\nVary: Origin\r\n" % origin

    def check_key(self, head: RequestHead) -> bool:
        """Whether a valid key came along; always False where none is set.

        Raises:
            Refused: One is needed and was not given.
        """
        if not self._keys:
            return False
        if self._has_key(head):
            return True
        if head.path == b"/health" and head.method in ("GET", "HEAD"):
            return False
        raise Refused(Refusal("unauthorized", "a valid key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY"))

    def _has_key(self, head: RequestHead) -> bool:
        good = False
        for name, value in head.headers:
            if name == b"authorization":
                scheme, _, given = value.partition(b" ")
                given = given.strip() if scheme.lower() == b"bearer" else b""
            elif name == b"x-api-key":
                given = value
            else:
                continue
            for key in self._keys:  # all of them, each in constant time
                good |= hmac.compare_digest(key, given)
        return good

    def check_origin(self, head: RequestHead) -> None:
        """Refuse the request of a page that is neither ours nor allowed (asked only where no key came along).

        Raises:
            Refused: ``forbidden``.
        """
        origin = head.one.get(b"origin")
        if origin is None or origin.lower() in self._origins:
            return
        scheme, _, authority = origin.lower().partition(b"://")
        host = head.one.get(b"host", b"").lower()
        if scheme not in (b"http", b"https") or authority != host or not self._known(host):
            raise Refused(Refusal("forbidden", "requests from this Origin are refused; --allow-origin adds one"))

    def check_route(self, head: RequestHead, route: Route, *, keyed: bool) -> None:
        """Refuse what a page could do by a forged name or a simple form.

        Raises:
            Refused: ``forbidden``, or 415 for a management call that is not JSON.
        """
        if (
            not keyed
            and route.kind not in (Kind.INFERENCE, Kind.HEALTH)
            and not self._known(head.one.get(b"host", b"").lower())
        ):
            raise Refused(Refusal("forbidden", "requests for this Host are refused; --allow-host adds one"))
        from_page = head.query and not keyed and head.header(b"sec-fetch-site") in (b"cross-site", b"same-site")
        if from_page and "reload" in query_of(head):  # an image's request carries no Origin
            raise Refused(Refusal("forbidden", "another site's page may not ask for a reload"))
        if route.kind is Kind.CONTROL and head.method == "POST":
            kind = head.one.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json":
                raise Refused(
                    Refusal("invalid_request", "management calls need Content-Type: application/json", status=415)
                )

    def _known(self, host: bytes) -> bool:
        return host in self._hosts or _without_port(host) in self._hosts


def _without_port(host: bytes) -> bytes:
    name, colon, port = host.rpartition(b":")
    return name if colon and (not port or port.isdigit()) else host
