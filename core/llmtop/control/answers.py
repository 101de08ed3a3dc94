"""HTTP answers made of values, and the small JSON bodies of requests made structs."""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from llmtop.client import Reply
from llmtop.errors import Refusal, Refused

BODY_LIMIT = 64 * 1024
"""No body of the control API needs more [bytes]; the front door's own limit is for prompts."""

_NAME_SHOWN = 100
_BOM = b"\xef\xbb\xbf"

T = TypeVar("T", bound=msgspec.Struct)


class ModelBody(msgspec.Struct):
    """Body of ``/models/load`` and ``/models/unload``."""

    model: str


class InstanceBody(msgspec.Struct):
    """Body of the verbs on a model: which child is meant."""

    instance: Annotated[int, msgspec.Meta(gt=-(2**53), lt=2**53)] | None = None
    """None: whichever runs. Within what every JSON reader holds exactly: it comes back in the message of a conflict."""


class NoBody(msgspec.Struct):
    """Body of verbs that need none: nothing, or any object."""


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """The value as JSON. Nothing of the control API may be cached."""
    return Response(
        msgspec.json.encode(value),
        status_code=status,
        media_type="application/json",
        headers={"Cache-Control": "no-store", **(headers or {})},
    )


def refused(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    """The refusal as its error envelope, with ``Retry-After`` in whole seconds where waiting helps."""
    extra = dict(headers or {})
    if refusal.retry_after_s is not None:
        extra["Retry-After"] = str(max(1, math.ceil(refusal.retry_after_s)))
    return as_json(refusal.body(), refusal.code, extra)


def replied(reply: Reply) -> Response:
    """What became of a command."""
    if reply.success:
        return as_json({"success": True, "changed": reply.changed})
    return refused(reply.refusal or Refusal("internal_error", "the command was not carried out, and nothing says why"))


def shown(name: str) -> str:
    """A client's text as it may stand in a message: quoted, capped, nothing invisible."""
    cut = name if len(name) <= _NAME_SHOWN else name[:_NAME_SHOWN] + "…"
    return repr(cut)


async def body_as(request: Request, kind: type[T]) -> T:
    """Read the request's JSON body into a struct; an empty body is an empty object.

    Raises:
        Refused: It is too long (413), no JSON, or not of that shape (400).
    """
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > BODY_LIMIT:
            raise Refused(
                Refusal("payload_too_large", f"the body is longer than the {BODY_LIMIT} bytes that this route takes")
            )
    try:
        return msgspec.json.decode(bytes(raw).removeprefix(_BOM) if raw.strip() else b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # The decoder's words name the place and the type that is wrong; they hold nothing of the body but key names.
        raise Refused(Refusal("invalid_request", f"the body is not what this route takes: {error}")) from None
