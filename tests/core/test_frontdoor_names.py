"""The model's name, found in bodies of all shapes and sizes."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmtop.errors import Refused
from llmtop.frontdoor.body import IN_MEMORY, Spool, SpoolSpace
from llmtop.frontdoor.names import JsonScanner, MultipartScanner, peek
from llmtop.testing.frontdoor import House, Request, house, request

PATH = "/v1/completions"


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as it:
        yield it


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status"),
    [
        *(
            (b"", 400),
            (b"{", 400),
            (b"[]", 400),
            (b"null", 400),
            (b'"A"', 400),
            (b"\xff\xfe", 400),
            (b'{"a": ' * 2000, 400),
        ),
        *(
            (b'{"model": 7}', 400),
            (b'{"model": ""}', 400),
            (b'{"model": ["A"]}', 400),
            (b'{"model": null}', 400),
            (b'{"prompt": "x"}', 400),
        ),
        *((b'{"model": "nope"}', 404), (b'{"model": "a"}', 404), (b'{"model": "' + b"A" * 100_000 + b'"}', 404)),
        *(
            (b'{"model": "nope", "model": "A"}', 200),
            (b'{"model": "A", "model": "nope"}', 404),
            (b'{"mod\\u0065l": "A"}', 200),
        ),
    ],
)
async def test_a_body_that_names_no_known_model_is_refused(place: House, body: bytes, status: int) -> None:
    client = await place.client()
    await client.send(request("POST", PATH, body))
    reply = await client.reply()
    assert reply.status == status
    if status != 200:
        assert reply.error["code"] == status
        assert len(reply.error["message"]) < 400
    await client.send(request("GET", "/health"))
    assert (await client.reply()).status == 200, "the connection goes on"


@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "x"])
async def test_json_is_read_whatever_it_is_called(place: House, kind: str) -> None:
    assert (await place.ask("POST", PATH, {"model": "A"}, f"Content-Type: {kind}\r\n")).status == 200


def form(fields: dict[str, bytes], boundary: bytes = b"XX") -> bytes:
    parts = [
        b'--%b\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (boundary, k.encode(), v)
        for k, v in fields.items()
    ]
    return b"".join(parts) + b"--" + boundary + b"--\r\n"


@pytest.mark.anyio
@pytest.mark.parametrize("size", [4000, 3 * IN_MEMORY])
async def test_a_form_names_its_model_in_a_field(place: House, size: int) -> None:
    body = form({"file": b"RIFF" * (size // 4), "model": b"A", "stream": b"true"})
    reply = await place.ask(
        "POST", "/v1/audio/transcriptions", body, "Content-Type: multipart/form-data; boundary=XX\r\n"
    )
    assert reply.status == 200
    assert place.gate.tickets[0].asked["stream"] is True
    assert place.child.requests[0].body == body
    assert place.child.requests[0].headers["content-type"] == "multipart/form-data; boundary=XX"


@pytest.mark.anyio
async def test_the_query_names_the_model_where_the_body_does_not(place: House) -> None:
    assert (await place.ask("POST", "/tokenize?model=A", {"content": "x"})).status == 200
    assert (await place.ask("POST", "/tokenize?model=nope", {"model": "A"})).status == 200, "the body goes first"
    assert (await place.ask("POST", "/tokenize?model=A", b"no JSON")).status == 200
    assert (await place.ask("POST", "/tokenize?model=nope", {"content": "x"})).status == 404


@pytest.mark.anyio
async def test_a_large_body_is_named_and_arrives_whole(place: House) -> None:
    body = msgspec.json.encode({"prompt": 'a"\\' * 1_000_000, "model": "A", "stream": True, "x": [{"model": "B"}]})
    reply = await place.ask("POST", PATH, body)
    assert reply.status == 200
    assert place.gate.tickets[0].asked["stream"] is True
    assert place.child.requests[0].body == body
    await place.quiet()


@pytest.mark.anyio
async def test_a_body_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    async with house(tmp_path, max_body=2**21) as place:
        client = await place.client()
        await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2097153\r\n\r\n")
        reply = await client.reply()
        assert (reply.status, reply.error["type"], reply.headers["connection"]) == (413, "payload_too_large", "close")
        chunks = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"40000\r\n"
            + bytes(0x40000)
            + b"\r\n"
        )
        reply = await place.raw(chunks + (b"40000\r\n" + bytes(0x40000) + b"\r\n") * 9)
        assert reply.status == 413
        await place.quiet()


@pytest.mark.anyio
async def test_all_bodies_together_are_bounded(place: House) -> None:
    place.door.space.limit = 1000
    reply = await place.ask("POST", PATH, {"model": "A", "prompt": "x" * 1000})
    assert (reply.status, reply.error["type"]) == (503, "too_busy")
    assert (await place.ask("POST", PATH, {"model": "A"})).status == 200


@pytest.mark.anyio
async def test_a_body_that_cannot_be_held_is_refused(place: House) -> None:
    place.door.space.folder = Path("/nonexistent")
    reply = await place.ask("POST", PATH, {"model": "A", "prompt": "x" * 2 * IN_MEMORY})
    assert (reply.status, reply.error["type"]) == (503, "too_busy")
    await place.quiet()


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.anyio
async def test_a_large_body_waits_on_disk_for_its_grant(place: House, tmp_path: Path) -> None:
    place.gate.hold = True
    body = msgspec.json.encode({"model": "A", "prompt": "x" * 5_000_000})
    client = await place.client()
    await client.send(request("POST", PATH, body))
    await place.gate.admitted.wait()
    assert place.door.space.used == len(body)
    assert not names_in(tmp_path), "the file has no name"
    place.gate.tickets[0].grant(place.gate.upstream)
    assert (await client.reply()).status == 200
    assert place.child.requests[0].body == body
    await place.quiet()


@pytest.mark.anyio
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_streams_once_granted(place: House, chunked: bool) -> None:
    size = 5_000_000
    frame = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    client = await place.client()
    await client.send(f"POST /upstream/A/x HTTP/1.1\r\nHost: 127.0.0.1\r\n{frame}\r\n\r\n".encode())
    data = random.Random(1).randbytes(size)
    for at in range(0, size, 100_000):
        piece = data[at : at + 100_000]
        await client.send(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
    if chunked:
        await client.send(b"0\r\n\r\n")
    assert (await client.reply()).status == 200
    assert place.child.requests[0].body == data
    await place.quiet()


@pytest.mark.slow
@pytest.mark.anyio
async def test_memory_does_not_grow_with_an_upload(place: House) -> None:
    size = 200 * 2**20

    async def script(_q: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        left = size
        while left:
            left -= len(await r.read(2**18))
        w.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    place.child.wait_for_body = False
    place.child.script = script
    start = b'{"model":"A","prompt":"'
    client = await place.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size + start)
    tracemalloc.start()
    left = size - len(start) - 2
    piece = b"x" * 2**18
    while left:
        await client.send(piece[:left])
        left -= len(piece[:left])
    await client.send(b'"}')
    assert (await client.reply()).status == 200
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 2**20
    await place.quiet()


def scanned(data: bytes, cuts: list[int]) -> Any:
    scanner = JsonScanner()
    at = 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        scanner.feed(data[at:cut])
        at = cut
    try:
        found = scanner.finish()
    except Refused:
        return "refused"
    return found.model, found.stream


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["model", "stream", 'a"b', "x\\", "{", ""]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(value=values, cuts=st.lists(st.integers(0, 400), max_size=6), indent=st.integers(0, 2))
def test_the_scanner_of_pieces_agrees_with_the_decoder(value: Any, cuts: list[int], indent: int) -> None:
    data = msgspec.json.format(msgspec.json.encode(value), indent=indent)
    try:
        found = peek(data, b"")
        want: Any = found.model, found.stream
        # what is no string or literal there is only known to be none
        want = tuple([] if isinstance(v, list | dict) else v for v in want)
    except Refused:
        want = "refused"
    assert scanned(data, cuts) == want


@given(cut=st.integers(0, 200))
def test_a_form_may_be_cut_anywhere(cut: int) -> None:
    data = form({"x": b"\r\n--X\r\n--", "model": b"\r\nA\r\n", "stream": b"1"})
    scanner = MultipartScanner(b"XX")
    scanner.feed(data[:cut])
    scanner.feed(data[cut:])
    found = scanner.finish()
    assert (found.model, found.stream) == ("\r\nA\r\n", True)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('form-data; name="file"; filename="a; name=model"', ""),
        ('form-data; filename="a; name=model"; name="file"', ""),
        ('form-data; filename="a\\"; name=\\"model"; name="file"', ""),
        ('form-data; filename="x"; name="model"', "A"),
        ("form-data; name=model", "A"),
        ('form-data ; NAME = "model" ; filename=x', "A"),
        ('form-data; xname="model"', ""),
        ('form-data; name="model', ""),
    ],
)
def test_a_fields_name_is_read_outside_of_quotes_only(line: str, field: str) -> None:
    body = f"--b\r\nContent-Disposition: {line}\r\n\r\nA\r\n--b--\r\n".encode()
    found = peek(body, b"multipart/form-data; boundary=b")
    assert (found.model or "") == field


def test_a_form_with_two_models_is_refused() -> None:
    with pytest.raises(Refused, match="several"):
        peek(form({"model": b"A"})[:-8] + form({"model": b"B"}), b"multipart/form-data; boundary=XX")


def test_a_spool_gives_back_what_it_took_as_often_as_asked(tmp_path: Path) -> None:
    space = SpoolSpace(tmp_path)
    spool = Spool(space)
    data = random.Random(3).randbytes(3 * IN_MEMORY + 17)
    for at in range(0, len(data), 70_001):
        spool.append(data[at : at + 70_001])
    for _ in range(2):
        got = b""
        while piece := spool.take(99_999):
            got += piece
        assert got == data
        spool.rewind()
    assert space.used == len(data)
    spool.close()
    spool.close()
    assert space.used == 0
