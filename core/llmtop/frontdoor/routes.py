"""Every path the front door knows, in one table. Paths are compared as sent: nothing is decoded or tidied up."""

from __future__ import annotations

import enum
import re
from urllib.parse import parse_qsl, unquote

import msgspec

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.gate import Gate
from llmtop.frontdoor.head import RequestHead, bad


class Kind(enum.Enum):
    """Who answers."""

    HEALTH = "the front door itself"
    INFERENCE = "the child of the model that the body names, loaded where it must be"
    OBSERVE = "the child of ?model=, only while it runs"
    UPSTREAM = "the child that the path names"
    CONTROL = "the control API"


class Route(msgspec.Struct, frozen=True):
    """One line of the table."""

    kind: Kind
    methods: frozenset[str]
    neutral: bool = False
    """A child answers it without waking up and without counting it as use."""
    generates: bool = False
    """It makes tokens, and a good answer ends with their number."""


_GET = frozenset(("GET", "HEAD"))
_POST = frozenset(("POST",))
_ANY = frozenset(("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"))
READS = frozenset(("GET", "HEAD", "OPTIONS"))

_INFERENCE = [
    "chat/completions",
    "chat/completions/input_tokens",
    "completions",
    "completion",
    "responses",
    "responses/input_tokens",
    "messages",
    "messages/count_tokens",
    "embeddings",
    "embedding",
    "rerank",
    "reranking",
    "infill",
    "tokenize",
    "detokenize",
    "apply-template",
    "audio/transcriptions",
    "audio/translations",
    "audio/speech",
    "images/generations",
    "images/edits",
    "images/variations",
]
_GENERATING = frozenset(("chat/completions", "completions", "completion", "responses", "messages", "infill"))

_TABLE: dict[bytes, Route] = {
    b"/health": Route(Kind.HEALTH, _GET),
    b"/": Route(Kind.CONTROL, _GET),
    b"/models": Route(Kind.CONTROL, _GET),
    b"/v1/models": Route(Kind.CONTROL, _GET),
    b"/models/load": Route(Kind.CONTROL, _POST),
    b"/models/unload": Route(Kind.CONTROL, _POST),
    b"/models/sse": Route(Kind.CONTROL, _GET),
    b"/props": Route(Kind.CONTROL, _GET),
    b"/metrics": Route(Kind.CONTROL, _GET),
    b"/slots": Route(Kind.OBSERVE, _GET),
    b"/lora-adapters": Route(Kind.OBSERVE, _GET),
    **{
        f"{v}/{name}".encode(): Route(Kind.INFERENCE, _POST, generates=name in _GENERATING)
        for v in ("", "/v1")
        for name in _INFERENCE
    },
}
_BY_MODEL: dict[bytes, Route] = {
    b"/props": Route(Kind.OBSERVE, _GET, neutral=True),
    b"/metrics": Route(Kind.OBSERVE, _GET),
}
"""Ours without ``?model=``, the child's with it."""
_UPSTREAM = b"/upstream/"
_PREFIXES: tuple[tuple[bytes, Route], ...] = (
    (_UPSTREAM, Route(Kind.UPSTREAM, _ANY)),
    (b"/v1/models/", Route(Kind.CONTROL, _GET)),
    (b"/api/", Route(Kind.CONTROL, frozenset(("GET", "HEAD", "POST", "DELETE")))),
)
_CROOKED = re.compile(rb"//|/(?:\.|%2e){1,2}(?:/|%2f|$)|\\|%5c|%00", re.IGNORECASE)
_TRUE = frozenset(("1", "true", "on", "yes"))
_FALSE = frozenset(("0", "false", "off", "no"))


def find(head: RequestHead) -> Route:
    """The line of the table for a request.

    Raises:
        Refused: There is none, or not with this method.
    """
    path = head.path
    route = _TABLE.get(path)
    if route is None:
        route = next((r for prefix, r in _PREFIXES if path.startswith(prefix) and len(path) > len(prefix)), None)
        if route is None or _CROOKED.search(path):
            raise Refused(Refusal("not_found", "no such path; see / for what is here"))
    elif head.query and path in _BY_MODEL and "model" in query_of(head):
        route = _BY_MODEL[path]
    if head.method not in route.methods:
        allowed = ", ".join(sorted(route.methods))
        raise Refused(Refusal("method_not_allowed", f"this path takes {allowed}", details={"allow": allowed}))
    return route


def query_of(head: RequestHead) -> dict[str, str]:
    """The query's members.

    Raises:
        Refused: It has too many, or names several models.
    """
    if not head.query:
        return {}
    try:
        pairs = parse_qsl(head.query.decode("ascii"), keep_blank_values=True, max_num_fields=100)
    except ValueError:
        raise bad("malformed query") from None
    if len({value for key, value in pairs if key == "model"}) > 1:
        raise bad("the query names several models")
    return dict(pairs)


def autoload_of(query: dict[str, str]) -> bool | None:
    """What ``?autoload=`` says; None when it says nothing."""
    value = query.get("autoload", "").lower()
    return True if value in _TRUE else False if value in _FALSE else None


def split_upstream(head: RequestHead, gate: Gate) -> tuple[str, bytes]:
    """Take a ``/upstream/{model}/…`` target apart; the longest known id wins, raw or percent-encoded.

    Returns:
        The model's id, and the target for its child.

    Raises:
        Refused: No known model stands there.
    """
    rest = head.path[len(_UPSTREAM) :]
    ends = [match.start() for match in re.finditer(rb"/", rest)][:64]
    for end in (len(rest), *reversed(ends)):
        try:
            name = unquote(rest[:end].decode("ascii"), errors="strict")
        except UnicodeDecodeError:
            continue
        model = gate.resolve(name) if name else None
        if model is not None:
            target = rest[end:] or b"/"
            return model, target + (b"?" + head.query if head.query else b"")
    raise Refused(Refusal("model_not_found", "no known model stands behind /upstream/; see /v1/models"))
