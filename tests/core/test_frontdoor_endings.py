"""How requests end: cut by the core, in a compute error, counted, refused after a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.errors import Refusal
from llmtop.testing.frontdoor import House, Request, house, plain, request

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
    async with house(tmp_path) as it:
        yield it


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def test_a_cut_before_the_answer_is_a_502_and_closes_the_childs_connection(place: House) -> None:
    hang = asyncio.Event()

    async def script(_q: Request, r: asyncio.StreamReader, _w: asyncio.StreamWriter) -> None:
        hang.set()
        await r.readexactly(1)

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await hang.wait()
    place.gate.tickets[0].cut.set_result(Refusal("upstream_error", "A was killed by the operator"))
    reply = await client.reply()
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    assert "killed by the operator" in reply.error["message"]
    await asyncio.wait_for(place.child.gone.wait(), 5)
    await place.quiet()


async def test_a_request_that_the_operator_cancels_is_told_so(place: House) -> None:
    async def script(_q: Request, r: asyncio.StreamReader, _w: asyncio.StreamWriter) -> None:
        await r.readexactly(1)

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.child.came.wait()
    place.gate.tickets[0].cut.set_result(Refusal("request_cancelled", "cancelled by the operator"))
    reply = await client.reply()
    assert (reply.status, reply.error["type"]) == (503, "request_cancelled")
    await asyncio.wait_for(place.child.gone.wait(), 5)
    await place.quiet()
    assert place.door.upstream_errors == 0, "the child did nothing wrong"


async def test_a_child_that_is_gone_before_the_word_of_its_kill_changes_no_answer(place: House) -> None:
    async def script(_q: Request, r: asyncio.StreamReader, _w: asyncio.StreamWriter) -> None:
        await r.readexactly(1)

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.child.came.wait()
    (exchange,) = place.door.exchanges
    assert exchange._connection is not None
    place.gate.tickets[0].cut.set_result(Refusal("upstream_error", "A was killed by the operator"))
    exchange._connection.eof_received()  # before the loop has turned
    reply = await client.reply()
    assert (reply.status, reply.error["message"]) == (502, "A was killed by the operator")
    await place.quiet()


async def test_a_cut_stream_ends_with_an_error_event(place: House) -> None:
    async def script(_q: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await r.readexactly(1)

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    await client.head()
    assert await client.chunk() == b"data: 1\n\n"
    place.gate.tickets[0].cut.set_result(Refusal("upstream_error", "A was stopped: drain timeout"))
    assert b"drain timeout" in await client.chunk()
    assert await client.ended()
    await place.quiet()


async def test_a_compute_error_is_told_to_the_gate(place: House) -> None:
    body = b'{"error":{"code":500,"message":"Compute error.","type":"server_error"}}'
    place.child.script = plain("500 Internal Server Error", body)
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.body) == (500, body)
    await place.quiet()
    assert place.gate.tickets[0].closed == [(500, True)]


ERROR_EVENT = b'data: {"error":{"code":500,"message":"Compute error.","type":"server_error"}}\n\n'


@pytest.mark.parametrize(
    ("pieces", "sick"),
    [
        ([b'data: {"text":"a"}\n\n', ERROR_EVENT], True),
        ([ERROR_EVENT[i : i + 1] for i in range(len(ERROR_EVENT))], True),
        ([b"data: " + b"x" * 100_000 + b"\n\n" + ERROR_EVENT, b"data: [DONE]\n\n"], True),
        ([b'error: {"code":500,"message":"Compute error.","type":"server_error"}\n\n'], True),
        ([b'data: {"text":"Compute error."}\n\n', b"data: [DONE]\n\n"], False),
        ([b'data: {"error":null,"text":"\\"error\\":{ Compute error."}\n\n'], False),
        ([ERROR_EVENT, b'data: {"text":"a"}\n\n' * 200], False),
    ],
)
async def test_a_stream_that_ends_in_a_compute_error_is_told_to_the_gate(
    place: House, pieces: list[bytes], sick: bool
) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD)
        for piece in pieces:
            w.write(chunk(piece))
            await w.drain()
            await asyncio.sleep(0)
        w.write(b"0\r\n\r\n")

    place.child.script = script
    reply = await place.ask("POST", PATH, STREAM)
    assert (reply.status, reply.body, reply.clean) == (200, b"".join(pieces), True)
    await place.quiet()
    assert place.gate.tickets[0].closed == [(500, True) if sick else (200, False)]


@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        (b'{"usage":{"completion_tokens":7,"prompt_tokens":3,"total_tokens":10}}', 7),
        (b'{"usage":{"completion_tokens":7},"timings":{"prompt_n":3,"predicted_n":8,"predicted_ms":1.5}}', 8),
        (b'{"usage": {"input_tokens": 3, "output_tokens": 12}}', 12),
        (b'{"content":"\\"predicted_n\\":99,"}', 0),
        (b'{"predicted_n":1e9}', 0),
        (b'{"predicted_n":-3}', 0),
        (b'{"predicted_n":12345678901234567890}', 0),
        (b'{"predicted_n":', 0),
        (b'{"predicted_n":5}' + b" " * 5000, 0),
    ],
)
async def test_generated_tokens_are_read_off_the_answers_end(place: House, body: bytes, tokens: int) -> None:
    for path, told in ((PATH, tokens), ("/v1/embeddings", 0)):
        place.child.script = plain(body=body)
        assert (await place.ask("POST", path, ASK)).body == body
        await place.quiet()
        assert place.gate.log[-1]["tokens"] == told


async def test_a_request_that_is_refused_after_a_wait_is_logged_with_its_wait(place: House) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    await asyncio.sleep(0.03)
    place.gate.tickets[0].refuse(Refusal("queue_full", "full", retry_after_s=1.2))
    reply = await client.reply()
    assert reply.headers["retry-after"] == "2", "coming back a moment too early would be refused again"
    await place.quiet()
    assert place.gate.log[0]["queue_ms"] >= 29


async def test_a_cancelled_ticket_is_told(place: House) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    place.gate.tickets[0].granted.cancel()
    assert (await client.reply()).error["type"] == "request_cancelled"
    await place.quiet()
