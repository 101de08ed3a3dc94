"""Request heads that two parsers may read in two ways are refused; so is what no head should be."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.errors import Refused
from llmtop.frontdoor import head as heads
from llmtop.testing.frontdoor import House, house, request, until

pytestmark = pytest.mark.anyio
BODY = b'{"model": "A", "prompt": "x"}'
CHUNKED = b"1d\r\n" + BODY + b"\r\n0\r\n\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"

AMBIGUOUS = {
    "length and chunks": POST + b"Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunks and length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 29\r\n\r\n" + CHUNKED,
    "two lengths": POST + b"Content-Length: 29\r\nContent-Length: 5\r\n\r\n" + BODY,
    "the same length twice": POST + b"Content-Length: 29\r\nContent-Length: 29\r\n\r\n" + BODY,
    "list of lengths": POST + b"Content-Length: 29, 29\r\n\r\n" + BODY,
    "signed length": POST + b"Content-Length: +29\r\n\r\n" + BODY,
    "negative length": POST + b"Content-Length: -1\r\n\r\n" + BODY,
    "hexadecimal length": POST + b"Content-Length: 0x1d\r\n\r\n" + BODY,
    "length with a space inside": POST + b"Content-Length: 2 9\r\n\r\n" + BODY,
    "empty length": POST + b"Content-Length: \r\n\r\n" + BODY,
    "endless length": POST + b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
    "space before the colon": POST + b"Content-Length : 29\r\n\r\n" + BODY,
    "folded line": POST + b"Content-Length: 29\r\n Transfer-Encoding: chunked\r\n\r\n" + BODY,
    "folded value": POST + b"X: a\r\n\tb\r\nContent-Length: 29\r\n\r\n" + BODY,
    "unknown encoding": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
    "two encodings": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKED,
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "chunked identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n" + CHUNKED,
    "quoted encoding": POST + b'Transfer-Encoding: "chunked"\r\n\r\n' + CHUNKED,
    "encoding with a control byte": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n" + CHUNKED,
    "chunks in HTTP/1.0": b"POST /completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    "bare line feeds": b"GET /health HTTP/1.1\nHost: x\n\n",
    "one bare line feed": b"GET /health HTTP/1.1\r\nHost: x\nX: y\r\n\r\n",
    "bare carriage return": b"GET /health HTTP/1.1\r\nHost: x\rX: y\r\n\r\n",
    "NUL in a value": b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    "NUL in the target": b"GET /health\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
    "no name": b"GET /health HTTP/1.1\r\nHost: x\r\n: y\r\n\r\n",
    "no colon": b"GET /health HTTP/1.1\r\nHost: x\r\nhello\r\n\r\n",
    "no Host": b"GET / HTTP/1.1\r\n\r\n",
    "two Hosts": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "the same Host twice": b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n",
    "crooked Host": b"GET /health HTTP/1.1\r\nHost: a/b@c\r\n\r\n",
    "two spaces": b"GET  /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "tab in the first line": b"GET\t/health HTTP/1.1\r\nHost: x\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "other version": b"GET /health HTTP/1.2\r\nHost: x\r\n\r\n",
    "no version": b"GET /health\r\n\r\n",
    "lower case": b"get /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "unknown method": b"FROB /health HTTP/1.1\r\nHost: x\r\n\r\n",
    "no HTTP": b"garbage\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00",
    "fragment": b"GET /health#x HTTP/1.1\r\nHost: x\r\n\r\n",
    "crooked chunk": POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n",
    "signed chunk": POST + b"Transfer-Encoding: chunked\r\n\r\n+1d\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk with a bare line feed": POST + b"Transfer-Encoding: chunked\r\n\r\n1d\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk shorter than said": POST + b"Transfer-Encoding: chunked\r\n\r\n1c\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk of endless size": POST + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
}


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as it:
        yield it


@pytest.mark.parametrize("raw", AMBIGUOUS.values(), ids=AMBIGUOUS)
async def test_what_can_be_read_in_two_ways_is_refused_and_closes(place: House, raw: bytes) -> None:
    client = await place.client()
    await client.send(raw)
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (400, "close")
    assert reply.error["type"] == "invalid_request"
    assert reply.headers["x-llmtop-request-id"]
    assert await client.ended()
    await place.quiet()
    assert not place.gate.tickets
    assert not place.child.requests


@pytest.mark.parametrize(
    "raw",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /" + b"a" * 100_000,
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 101 + b"\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    ],
    ids=["long target", "endless target", "101 headers", "20000 headers"],
)
async def test_a_head_that_is_too_large_is_a_431(place: House, raw: bytes) -> None:
    reply = await place.raw(raw)
    assert (reply.status, reply.error["type"]) == (431, "headers_too_large")


@pytest.mark.parametrize("value", [b"websocket", b"h2c, websocket", b"TLS/1.0", b"h2c\r\nUpgrade: websocket"])
async def test_upgrades_are_refused(place: House, value: bytes) -> None:
    extra = b"Upgrade: " + value + b"\r\nConnection: Upgrade\r\n"
    reply = await place.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n" + extra + b"\r\n")
    assert (reply.status, reply.error["type"]) == (501, "not_implemented")


@pytest.mark.parametrize("value", ["h2c", "H2C"])
async def test_an_offer_of_http_2_is_answered_in_http_1_1(place: House, value: str) -> None:
    """What Java's client sends with every first request."""
    headers = f"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: {value}\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    client = await place.client()
    for _ in range(2):
        await client.send(request("POST", "/v1/completions", {"model": "A", "prompt": "x"}, headers))
        assert (await client.reply()).status == 200
    for seen in place.child.requests:
        assert not {"upgrade", "http2-settings", "connection"} & set(seen.headers)
        assert seen.body == b'{"model":"A","prompt":"x"}'


@pytest.mark.parametrize(
    ("raw", "keep", "length"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", True, 0),
        (b"GET / HTTP/1.0\r\n\r\n", False, 0),
        (b"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", True, 0),
        (b"GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n", False, 0),
        (b"POST / HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length:\t7 \r\n\r\n", True, 7),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n", True, None),
    ],
)
def test_a_good_head_is_read_as_meant(raw: bytes, keep: bool, length: int | None) -> None:
    head = heads.parse(raw)
    assert (head.keep_alive, head.length) == (keep, length)


def test_a_head_is_refused_as_soon_as_nothing_can_make_it_good() -> None:
    heads.check_partial(b"POST /v1/completions HTTP/1.1\r\nHos", 0)
    for raw in (b"\x16\x03\x01", b"{}", b"GET / HTTP/1.1\n", b"A" * 70_000):
        with pytest.raises(Refused):
            heads.check_partial(raw, 0)


async def test_empty_lines_before_a_request_are_passed_over(place: House) -> None:
    reply = await place.raw(b"\r\n\r\n" + request("GET", "/health"))
    assert (reply.status, reply.json()) == (200, {"status": "ok"})


async def test_a_head_may_come_byte_by_byte(place: House) -> None:
    client = await place.client()
    for byte in b"\r\n" + request("POST", "/v1/completions", {"model": "A"}):
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert (await client.reply()).status == 200


async def test_mutated_requests_leave_nothing_behind(place: House) -> None:
    rng = random.Random(7)
    seeds = [
        request("POST", "/v1/completions", {"model": "A", "prompt": "x"}),
        POST + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED,
        request("GET", "/slots?model=A") + request("GET", "/health"),
        request("POST", "/upstream/org%2Fm/x", b"abc"),
        request(
            "POST",
            "/v1/audio/transcriptions",
            b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nA\r\n--b--\r\n',
            "Content-Type: multipart/form-data; boundary=b\r\n",
        ),
    ]

    async def one(raw: bytes) -> None:
        client = await place.client()
        client.writer.write(raw)
        client.writer.write_eof()
        data = b""
        with contextlib.suppress(ConnectionError):
            data = await asyncio.wait_for(client.reader.read(), 5)
        assert not data or data.startswith((b"HTTP/1.1 2", b"HTTP/1.1 4", b"HTTP/1.1 5", b"HTTP/1.1 100")), data[:80]
        assert b"internal_error" not in data
        await client.close()

    for _ in range(20):
        batch = []
        for _ in range(25):
            raw = bytearray(rng.choice(seeds))
            for _ in range(rng.randrange(1, 6)):
                match rng.randrange(3):
                    case 0:
                        raw[rng.randrange(len(raw))] = rng.randrange(256)
                    case 1:
                        del raw[rng.randrange(len(raw))]
                    case _:
                        raw.insert(rng.randrange(len(raw)), rng.choice(b'\r\n :,"{}0\x00\xff'))
            batch.append(one(bytes(raw)))
        await asyncio.gather(*batch)
    await place.quiet()
    assert not place.door.exchanges
    assert place.door.space.used == 0
    await until(lambda: not place.door.connections)
