"""Clients that leave, wait or do not read."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.errors import Refusal
from llmtop.frontdoor import connection as connections
from llmtop.frontdoor.gate import Upstream
from llmtop.testing.frontdoor import House, Reply, Request, Script, house, plain, request, until

pytestmark = pytest.mark.anyio
ASK = {"model": "A", "prompt": "x"}
STREAM = {"model": "A", "stream": True}
PATH = "/v1/completions"
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture(params=[False, True], ids=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": request.param}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path, heartbeat_s=0.03) as it:
        yield it


def hang(first: bytes = b"") -> Script:
    async def script(_q: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(first)
        await r.readexactly(1)

    return script


async def leave(place: House, how: str, writer: asyncio.StreamWriter) -> None:
    if how == "reset":
        sock: socket.socket = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()
    else:
        writer.write_eof()


@pytest.mark.parametrize("how", ["eof", "reset"])
async def test_a_client_that_leaves_the_queue_is_forgotten(place: House, how: str) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    await leave(place, how, client.writer)
    await asyncio.wait_for(place.gate.tickets[0].over.wait(), 1)
    assert place.gate.tickets[0].closed == [(499, False)]
    place.gate.tickets[0].grant(place.gate.upstream)
    await place.quiet()
    assert not place.child.requests, "a late grant sends nothing"


@pytest.mark.parametrize("how", ["eof", "reset"])
@pytest.mark.parametrize("first", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", SSE_HEAD + b"3\r\nabc\r\n"])
async def test_a_client_that_leaves_is_told_to_the_child_at_once(place: House, how: str, first: bytes) -> None:
    place.child.script = hang(first)
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.child.came.wait()
    if first:
        await client.head()
    loop = asyncio.get_running_loop()
    left = loop.time()
    await leave(place, how, client.writer)
    await asyncio.wait_for(place.child.gone.wait(), 1)
    assert loop.time() - left < 0.1
    await place.quiet()
    assert place.gate.tickets[0].closed == [(499, False)]
    assert place.door.clients_left == 1


async def test_a_client_that_leaves_in_its_body_never_comes_to_the_gate(place: House) -> None:
    client = await place.client()
    await client.send(request("POST", PATH, ASK)[:-3])
    client.writer.write_eof()
    assert await client.ended()
    await place.quiet()
    assert not place.gate.tickets


async def test_a_client_that_leaves_while_its_body_streams_is_told_to_the_child(place: House) -> None:
    place.child.wait_for_body = False
    place.child.script = hang()
    client = await place.client()
    await client.send(
        b"POST /upstream/A/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 1000
    )
    await place.child.came.wait()
    place.child.script = plain()
    client.writer.transport.abort()
    await place.quiet()
    assert place.gate.tickets[0].closed == [(499, False)]


async def test_an_answer_is_read_to_its_end_for_a_child_that_takes_leaving_badly(place: House) -> None:
    go = asyncio.Event()

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + b"3\r\nabc\r\n")
        await go.wait()
        w.write(b"3\r\nabc\r\n0\r\n\r\n")

    place.child.script = script
    place.gate.upstream = Upstream("child-1", port=place.gate.upstream.port, drain_on_abort=True)
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    await client.head()
    client.writer.write_eof()
    await until(lambda: not place.door.connections)
    assert not place.gate.tickets[0].closed, "the child is still busy with it"
    go.set()
    await place.quiet()
    assert place.gate.tickets[0].closed == [(499, False)]
    assert not place.child.gone.is_set()


async def test_a_drained_answer_can_still_be_cut(place: House) -> None:
    place.child.script = hang(SSE_HEAD)
    place.gate.upstream = Upstream("child-1", port=place.gate.upstream.port, drain_on_abort=True)
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    await client.head()
    client.writer.write_eof()
    await until(lambda: not place.door.connections)
    place.gate.tickets[0].cut.set_result(Refusal("upstream_error", "killed"))
    await asyncio.wait_for(place.child.gone.wait(), 1)
    await place.quiet()


async def test_a_waiting_stream_hears_comments_and_then_its_child(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + b"9\r\ndata: 1\n\n\r\n0\r\n\r\n")

    place.child.script = script
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    head = await client.head()
    assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
    assert head.headers["x-llmtop-request-id"] == "t0"
    assert "x-llmtop-queue-ms" not in head.headers
    assert [await client.chunk() for _ in range(3)] == [b": waiting\n\n"] * 3
    place.gate.tickets[0].grant(place.gate.upstream)
    rest = [part async for part in chunks_without_comments(client)]
    assert rest == [b"data: 1\n\n"]
    await client.send(request("GET", "/health"))
    assert (await client.reply()).status == 200


async def chunks_without_comments(client: object) -> AsyncIterator[bytes]:
    while part := await client.chunk():  # type: ignore[attr-defined]
        if part != b": waiting\n\n":
            yield part


async def waited(place: House, script: Script | None, refusal: Refusal | None = None) -> Reply:
    """What a client of a stream reads that had comments first."""
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    head = await client.head()
    if script:
        place.child.script = script
        place.gate.tickets[0].grant(place.gate.upstream)
    else:
        assert refusal
        place.gate.tickets[0].refuse(refusal)
    try:
        head.body = b"".join([part async for part in chunks_without_comments(client)])
    except (asyncio.IncompleteReadError, ValueError, ConnectionError):
        head.clean = False
    return head


async def test_after_a_comment_a_refusal_is_an_event_and_a_clean_end(place: House) -> None:
    reply = await waited(place, None, Refusal("load_failed", "it broke"))
    assert reply.clean
    assert reply.body.startswith(b'data: {"error":{"code":503,"message":"it broke","type":"load_failed"}}')


async def test_after_a_comment_the_childs_own_error_is_an_event_and_a_clean_end(place: House) -> None:
    reply = await waited(place, plain("400 Bad Request", b'{"error":{"code":400,"message":"no","type":"x"}}'))
    assert (reply.body, reply.clean) == (b'data: {"error":{"code":400,"message":"no","type":"x"}}\n\n', True)
    await place.quiet()
    assert place.gate.tickets[0].closed == [(400, False)]


async def test_after_a_comment_an_error_that_is_no_json_is_wrapped(place: House) -> None:
    reply = await waited(place, plain("500 Internal Server Error", b"oops", ""))
    assert reply.clean
    assert b'"message":"the model server answered 500: oops"' in reply.body


async def test_after_a_comment_a_child_that_breaks_before_its_answer_is_an_event(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, _w: asyncio.StreamWriter) -> None:
        raise ConnectionError

    reply = await waited(place, script)
    assert reply.clean
    assert b'"upstream_error"' in reply.body


async def test_after_a_comment_a_child_that_breaks_in_its_stream_has_no_clean_end(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + b"9\r\ndata: 1\n\n\r\n")
        await w.drain()
        raise ConnectionError

    assert not (await waited(place, script)).clean


async def test_no_comments_for_what_is_no_stream(place: House) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    await asyncio.sleep(0.1)
    place.gate.tickets[0].grant(place.gate.upstream)
    assert (await client.reply()).headers["content-type"] == "application/json"


async def flood(place: House, size: int, **settings: float) -> list[int]:
    """A child that sends ``size`` bytes; gives the count of those it could hand over, growing."""
    sent = [0]

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        piece = bytes(65536)
        while sent[0] < size:
            w.write(piece[: size - sent[0]])
            await w.drain()
            sent[0] += min(len(piece), size - sent[0])

    place.child.script = script
    return sent


async def small_buffers(place: House) -> tuple[socket.socket, asyncio.StreamReader, asyncio.StreamWriter]:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", place.port))
    reader, writer = await asyncio.open_connection(sock=sock, limit=4096)
    return sock, reader, writer


async def test_at_most_a_mebibyte_is_read_ahead_of_a_slow_client(place: House) -> None:
    size = 64 * 2**20
    sent = await flood(place, size)
    _, reader, writer = await small_buffers(place)
    writer.write(request("POST", PATH, ASK))
    await reader.readuntil(b"\r\n\r\n")
    before = -1
    while before != sent[0]:
        before = sent[0]
        await asyncio.sleep(0.1)
    (held,) = place.door.connections
    assert held.transport.get_write_buffer_size() <= connections.READ_AHEAD + 2 * 262144
    assert sent[0] < 16 * 2**20, "what the sockets hold, and no more"
    assert not place.gate.tickets[0].closed
    got = 0
    while got < size:
        got += len(await reader.read(2**20))
    await place.quiet()
    writer.close()
    await writer.wait_closed()


async def test_the_request_ends_for_the_scheduler_when_the_childs_answer_is_whole(place: House) -> None:
    size = 2**20 + 500_000
    await flood(place, size)
    _, reader, writer = await small_buffers(place)
    writer.write(request("POST", PATH, ASK))
    await asyncio.wait_for(place.gate.admitted.wait(), 5)
    await asyncio.wait_for(place.gate.tickets[0].over.wait(), 5)
    assert place.gate.tickets[0].closed == [(200, False)]
    got = len((await reader.readuntil(b"\r\n\r\n"))[:0])
    while got < size:
        got += len(await reader.read(2**20))
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("size", [64 * 2**20, 8 * 2**20])
async def test_a_client_that_takes_no_byte_has_left(tmp_path: Path, size: int) -> None:
    async with house(tmp_path, client_stall_s=0.2) as place:
        await flood(place, size)
        _, reader, writer = await small_buffers(place)
        writer.write(request("POST", PATH, ASK))
        await asyncio.wait_for(place.gate.admitted.wait(), 5)
        await asyncio.wait_for(place.gate.tickets[0].over.wait(), 5)
        assert place.gate.tickets[0].closed == [(499, False)]
        await until(lambda: not place.door.connections)
        writer.close()
        del reader


async def test_slow_heads_and_idle_connections_are_closed(place: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    monkeypatch.setattr(connections, "IDLE_S", 0.05)
    slow, idle = await place.client(), await place.client()
    await slow.send(b"GET /health HTTP/1.1\r\n")
    assert await slow.ended()
    assert await idle.ended()


@pytest.mark.parametrize(("first", "drop"), [(b"GET /health HTTP/1.1\r\nX: ", b"x"), (b"", b"\r\n"), (b"\r", b"\n\r")])
async def test_a_head_that_drips_does_not_hold_its_connection(
    place: House, monkeypatch: pytest.MonkeyPatch, first: bytes, drop: bytes
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.15)
    monkeypatch.setattr(connections, "IDLE_S", 0.15)
    client = await place.client()
    await client.send(first + drop)

    async def drip() -> None:
        while True:
            await asyncio.sleep(0.03)
            await client.send(drop)

    dripping = asyncio.create_task(drip())
    try:
        assert await asyncio.wait_for(client.ended(), 2)
    finally:
        dripping.cancel()
        await asyncio.gather(dripping, return_exceptions=True)
    await until(lambda: not place.door.connections)


async def test_bytes_behind_a_request_are_bounded_and_end_the_connection_after_its_answer(place: House) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK) + bytes(200_000))
    await place.gate.admitted.wait()
    (held,) = place.door.exchanges
    await until(lambda: held.answer_out.close)
    place.gate.tickets[0].grant(place.gate.upstream)
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    await place.quiet()
