"""Clients of ``/upstream/…`` that wait: who of them is told so, though nobody has read all of their request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.frontdoor.body import IN_MEMORY
from llmtop.testing.frontdoor import House, Request, house

pytestmark = pytest.mark.anyio
PATH = "/upstream/A/v1/chat/completions"
COMMENT = b": waiting\n\n"
LONG = "x" * (IN_MEMORY + 1000)
STREAM_TYPE = "Accept: text/event-stream\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path, heartbeat_s=0.03) as it:
        it.gate.hold = True
        yield it


def with_length(body: bytes, extra: str = "") -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


def in_chunks(*pieces: bytes, extra: str = "") -> bytes:
    head = f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n{extra}\r\n"
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)


ASKS_LATE = json.dumps({"messages": [{"content": LONG}], "stream": True}).encode()
ASKS_EARLY = json.dumps({"stream": True, "messages": [{"content": LONG}]}).encode()
ASKS_INSIDE = json.dumps({"messages": [{"content": LONG, "stream": True}, '"stream":true']}).encode()
FORM = b'--b\r\nContent-Disposition: form-data; name="stream"\r\n\r\ntrue\r\n--b\r\nContent-Disposition: form-data'
TOLD = {
    "a large body that says so behind its first MiB": with_length(ASKS_LATE),
    "a large body of which the rest is still to come": with_length(ASKS_EARLY)[:500],
    "a small one in chunks, whole": in_chunks(b'{"stream": true}', b""),
    "one in chunks of which the rest is still to come": in_chunks(b'{"a": 1, "stre', b'am": true, "b'),
    "a form": in_chunks(FORM, extra="Content-Type: multipart/form-data; boundary=b\r\n"),
    "a head that wants nothing else": in_chunks(b"\x00\x01", extra=STREAM_TYPE),
    "a head that wants nothing else, with a small body": with_length(b"{}", extra=STREAM_TYPE),
}
NOT_TOLD = {
    "a large body that does not ask": with_length(json.dumps({"messages": LONG}).encode()),
    "a large body that asks in a deeper place and in a string": with_length(ASKS_INSIDE),
    "one that has not come so far": with_length(ASKS_LATE)[:5000],
    "what is no JSON": in_chunks(b'\xff\xfe"stream":true}', b"{"),
    "a form that cannot be read": in_chunks(b'{"stream": true}', extra="Content-Type: multipart/form-data\r\n"),
    "a head that would take JSON too": in_chunks(b"{}", extra="Accept: application/json, text/event-stream\r\n"),
    "a body that knows better than its head": with_length(b'{"stream": false}', extra=STREAM_TYPE),
}


@pytest.mark.parametrize("sent", list(TOLD.values()), ids=list(TOLD))
async def test_a_waiting_stream_behind_the_upstream_path_hears_comments(place: House, sent: bytes) -> None:
    client = await place.client()
    await client.send(sent)
    head = await client.head()
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert [await client.chunk() for _ in range(2)] == [COMMENT] * 2


@pytest.mark.parametrize("sent", list(NOT_TOLD.values()), ids=list(NOT_TOLD))
async def test_what_may_be_no_stream_hears_none(place: House, sent: bytes) -> None:
    client = await place.client()
    await client.send(sent)
    await place.gate.admitted.wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(client.reader.read(1), 0.12)  # four heartbeats


async def test_the_rest_of_a_body_reaches_the_child_behind_the_comments(place: House) -> None:
    async def script(request: Request, _r: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer = b"data: %d\n\n" % len(request.body)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(answer), answer))

    place.child.script = script
    client = await place.client()
    whole = with_length(ASKS_EARLY)
    await client.send(whole[:5000])
    await client.head()
    await client.send(whole[5000:])
    place.gate.tickets[0].grant(place.gate.upstream)
    said = b""
    while piece := await client.chunk():
        said += piece if piece != COMMENT else b""
    assert said == b"data: %d\n\n" % len(ASKS_EARLY)
