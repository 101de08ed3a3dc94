"""Heads that come again: only what equals the last one but for the digits of its length is taken for the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.frontdoor import head as heads
from llmtop.testing.frontdoor import House, Request, house, request, until

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"
RAW = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\ncontent-length: 12\r\nX-A: 1\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path, max_body=1000) as it:
        yield it


@pytest.mark.parametrize(
    ("raw", "digits"),
    [
        (RAW, b"12"),
        (RAW.replace(b"12", b"7"), b"7"),
        (RAW.replace(b"12", b"123456789012345"), b"123456789012345"),
        (RAW.replace(b"12", b"1234567890123456"), None),
        (RAW.replace(b"12", b""), None),
        (RAW.replace(b"12", b"+1"), None),
        (RAW.replace(b"12", b"1 2"), None),
        (RAW.replace(b"12", b"1\r\nContent-Length: 2"), None),
        (RAW.replace(b"X-A: 1", b"X-A: 2"), None),
        (RAW.replace(b"Host: x", b"Host: y"), None),
        (RAW.replace(b"content-length: 12\r\n", b""), None),
        (RAW[: RAW.index(b"12")], None),
        (b"", None),
    ],
)
async def test_a_head_is_the_same_if_nothing_but_its_length_differs(raw: bytes, digits: bytes | None) -> None:
    assert heads.Seen(RAW).again(raw) == digits


async def test_a_head_without_a_length_is_the_same_to_the_byte() -> None:
    raw = RAW.replace(b"content-length: 12\r\n", b"")
    assert heads.Seen(raw).again(raw) == b""
    assert heads.Seen(raw).again(RAW) is None
    assert heads.Seen().again(raw) is None


async def test_requests_of_one_client_differ_in_length_and_each_is_taken_for_what_it_is(place: House) -> None:
    client = await place.client()
    for size in (1, 300, 20, 300, 5):
        body = {"model": "A", "prompt": "x" * size}
        await client.send(request("POST", PATH, body))
        assert (await client.reply()).status == 200
        seen = place.child.requests[-1]
        assert json.loads(seen.body) == body
        assert seen.headers["content-length"] == str(len(seen.body))
    await client.send(request("POST", PATH, {"model": "A", "prompt": "x" * 2000}))
    assert (await client.reply()).status == 413, "the limit holds for a head that came before"


def answer(body: bytes, length: int | None = None, extra: bytes = b"X-A: 1\r\n") -> bytes:
    size = len(body) if length is None else length
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n%b" % (size, extra, body)


async def test_answers_of_one_child_differ_in_length_and_each_is_taken_for_what_it_is(place: House) -> None:
    answers = [
        (answer(b"1"), b"1"),
        (answer(b"2" * 500), b"2" * 500),
        (answer(b""), b""),
        (answer(b"3", extra=b"X-A: 2\r\n"), b"3"),
        (answer(b"4"), b"4"),
        (answer(b"55extra", length=2), b"55"),
        (answer(b"6"), b"6"),
    ]
    said = iter([wire for wire, _ in answers])

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(next(said))

    place.child.script = script
    client = await place.client()
    for number, (wire, body) in enumerate(answers):
        await client.send(request("POST", PATH, {"model": "A"}))
        reply = await client.reply()
        assert (reply.status, reply.body) == (200, body)
        assert reply.headers["x-a"] == ("2" if b"X-A: 2" in wire else "1")
        assert place.child.connections == (1 if number < 6 else 2), "one that said too much is not used again"


async def test_an_answer_in_pieces_behind_a_head_that_came_before(place: House) -> None:
    halves = asyncio.Event()

    async def script(q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        wire = answer(b"abcdef")
        if len(place.child.requests) == 1:
            w.write(wire)
            return
        w.write(wire[:-3])
        await w.drain()
        await halves.wait()
        w.write(wire[-3:])

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, {"model": "A"}))
    assert (await client.reply()).body == b"abcdef"
    await client.send(request("POST", PATH, {"model": "A"}))
    head = await client.head()
    assert head.headers["content-length"] == "6"
    assert await client.reader.readexactly(3) == b"abc", "what has come is passed on"
    halves.set()
    assert await client.reader.readexactly(3) == b"def"
    await until(lambda: not place.door.exchanges)
    assert place.child.connections == 1


async def test_a_head_request_has_no_body_though_its_answer_tells_a_length(place: House) -> None:
    place.gate.control_upstream = place.gate.upstream

    async def script(q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(answer(b"" if q.method == "HEAD" else b"abc", length=3))

    place.child.script = script
    for method, body in (("GET", b"abc"), ("HEAD", b""), ("GET", b"abc")):
        client = await place.client()
        await client.send(request(method, "/v1/models"))
        reply = await client.reply(head_only=method == "HEAD")
        assert (reply.status, reply.headers["content-length"], reply.body) == (200, "3", body)
