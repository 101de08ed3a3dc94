"""The relay between a client, the gate and a child."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.errors import Refusal
from llmtop.testing.frontdoor import House, Request, house, plain, request, until

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


async def test_an_answer_comes_through_with_its_times(place: House) -> None:
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.body) == (200, b'{"ok":true}')
    assert reply.headers["x-llmtop-request-id"] == "t0"
    assert (reply.headers["x-llmtop-queue-ms"], reply.headers["x-llmtop-load-ms"]) == ("7", "3")
    await place.quiet()
    assert place.gate.tickets[0].closed == [(200, False)]
    (line,) = place.gate.log
    assert (line["request"], line["model"], line["path"], line["status"]) == ("t0", "A", PATH, 200)


async def test_the_child_sees_its_own_key_and_none_of_the_connections_headers(place: House) -> None:
    extra = "Authorization: Bearer mine\r\nX-Api-Key: mine\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
    extra += "TE: trailers\r\nX-Kept: 2\r\nX-Llmtop-Model: z\r\n"
    await place.ask("POST", PATH + "?a=b", ASK, extra)
    (seen,) = place.child.requests
    assert seen.target == PATH + "?a=b"
    assert seen.headers["authorization"] == "Bearer child-key"
    assert seen.headers["x-kept"] == "2"
    assert seen.headers["host"] == f"127.0.0.1:{place.gate.upstream.port}"
    assert not {"x-api-key", "x-hop", "te", "connection", "x-llmtop-model"} & set(seen.headers)


async def test_answer_headers_about_the_connection_or_foreign_origins_are_dropped(place: House) -> None:
    place.child.script = plain(
        extra="Keep-Alive: timeout=5\r\nAccess-Control-Allow-Origin: *\r\nX-Llmtop-Queue-Ms: 99\r\nX-Kept: 2\r\n"
    )
    reply = await place.ask("POST", PATH, ASK)
    assert reply.headers["x-kept"] == "2"
    assert reply.headers["x-llmtop-queue-ms"] == "7"
    assert not {"keep-alive", "access-control-allow-origin"} & set(reply.headers)


async def test_requests_in_one_go_are_answered_in_order(place: House) -> None:
    async def script(req: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(req.body), req.body))

    place.child.script = script
    client = await place.client()
    bodies = [{"model": "A", "n": n} for n in range(5)]
    await client.send(b"".join(request("POST", PATH, body) for body in bodies) + request("GET", "/health"))
    assert [(await client.reply()).json() for _ in range(6)] == [*bodies, {"status": "ok"}]
    assert place.child.connections == 1, "the child's connection is kept"


async def test_a_chunked_body_reaches_the_child_with_a_length(place: House) -> None:
    body = b'{"model": "A"}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    client = await place.client()
    for piece in (head, chunk(body[:5]), b"9;ext=1\r\n" + body[5:] + b"\r\n", b"0\r\nTrailer: 1\r\n\r\n"):
        await client.send(piece)
    assert (await client.reply()).status == 200
    assert place.child.requests[0].body == body
    assert place.child.requests[0].headers["content-length"] == str(len(body))
    await client.send(request("GET", "/health"))
    assert (await client.reply()).status == 200


async def test_a_request_behind_a_chunked_one_ends_the_connection_after_the_answer(place: House) -> None:
    client = await place.client()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    await client.send(head + chunk(b'{"model": "A"}') + b"0\r\n\r\n" + request("GET", "/health"))
    reply = await client.reply()
    assert (reply.status, reply.headers["connection"]) == (200, "close")
    assert await client.ended()


async def test_a_client_that_expects_it_is_told_to_continue(place: House) -> None:
    client = await place.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 13\r\n\r\n")
    assert (await client.head()).status == 100
    await client.send(b'{"model":"A"}')
    assert (await client.reply()).status == 200
    assert "expect" not in place.child.requests[0].headers
    other = await place.ask("POST", "/nowhere", ASK, "Expect: 100-continue\r\n")
    assert other.status == 404


async def test_http_1_0_gets_a_body_without_chunks(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk(b"one ") + chunk(b"two") + b"0\r\n\r\n"
        )

    place.child.script = script
    reply = await place.raw(b"POST /completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n" + b'{"model":"A"}')
    assert (reply.status, reply.body, reply.headers["connection"]) == (200, b"one two", "close")
    assert "transfer-encoding" not in reply.headers


async def test_head_and_bodyless_answers_keep_the_connection_in_step(place: House) -> None:
    place.gate.observed = place.gate.upstream
    client = await place.client()
    await client.send(request("HEAD", "/props?model=A"))
    reply = await client.reply(head_only=True)
    assert (reply.status, reply.headers["content-length"]) == (200, "11")
    place.child.script = plain("204 No Content", b"", "")
    await client.send(request("POST", PATH, ASK))
    assert (await client.reply()).status == 204
    place.child.script = plain()
    await client.send(request("POST", PATH, ASK))
    assert (await client.reply()).body == b'{"ok":true}'


async def test_an_answer_that_ends_with_its_connection_is_framed_anew(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(b"HTTP/1.1 200 OK\r\n\r\nall of it")
        raise ConnectionError

    place.child.script = script
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.body, reply.clean, reply.headers["transfer-encoding"]) == (b"all of it", True, "chunked")


async def test_interim_answers_of_the_child_are_swallowed(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    place.child.script = script
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.body) == (200, b"ok")
    assert "link" not in reply.headers


async def test_a_stream_arrives_piece_by_piece(place: House) -> None:
    go = asyncio.Event()

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await go.wait()
        w.write(chunk(b"data: 2\n\n") + b"0\r\n\r\n")

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, STREAM))
    assert (await client.head()).headers["content-type"] == "text/event-stream"
    assert await client.chunk() == b"data: 1\n\n"
    go.set()
    assert [await client.chunk(), await client.chunk()] == [b"data: 2\n\n", b""]
    assert place.gate.tickets[0].asked["stream"] is True


async def test_a_stream_whose_child_dies_ends_with_an_error_event_and_no_clean_end(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await w.drain()
        raise ConnectionError

    place.child.script = script
    reply = await place.ask("POST", PATH, STREAM)
    assert not reply.clean
    assert reply.body.startswith(b"data: 1\n\ndata: {")
    assert b'"upstream_error"' in reply.body
    await place.quiet()
    assert place.gate.tickets[0].closed == [(502, False)]


async def test_another_body_that_breaks_off_is_cut_short(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await w.drain()
        raise ConnectionError

    place.child.script = script
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.body, reply.clean) == (200, b"half", False)
    old = await place.raw(b"POST /completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n" + b'{"model":"A"}')
    assert not old.clean, "an HTTP/1.0 client has a length to see it by"


async def test_an_answer_without_length_to_an_http_1_0_client_is_reset_when_it_breaks_off(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(SSE_HEAD + chunk(b"data: 1\n\n"))
        await w.drain()
        raise ConnectionError

    place.child.script = script
    reply = await place.raw(b"POST /completions HTTP/1.0\r\nContent-Length: 13\r\n\r\n" + b'{"model":"A"}')
    assert not reply.clean


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_a_child_that_breaks_before_its_answer_is_a_502(place: House, answer: bytes) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(answer)
        await w.drain()
        raise ConnectionError

    place.child.script = script
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    await place.quiet()


async def test_a_child_that_cannot_be_reached_is_a_502(place: House) -> None:
    await place.child.close()
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    await place.quiet()
    assert place.gate.tickets[0].closed == [(502, False)]


async def test_a_stale_connection_is_replaced_once(place: House) -> None:
    async def stale(req: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        if len(place.child.requests) == 2:
            raise ConnectionError
        await plain()(req, r, w)

    place.child.script = stale
    client = await place.client()
    for _ in range(2):
        await client.send(request("POST", PATH, ASK))
        assert (await client.reply()).status == 200
    assert (place.door.retries, len(place.child.requests)) == (1, 3)
    assert place.child.requests[1].body == place.child.requests[2].body


async def test_a_large_body_is_sent_whole_a_second_time(place: House) -> None:
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await client.reply()

    async def stale(req: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        if len(place.child.requests) == 2:
            raise ConnectionError
        await plain()(req, r, w)

    place.child.script = stale
    body = b'{"model":"A","p":"' + b"x" * 900_000 + b'"}'
    await client.send(request("POST", PATH, body))
    assert (await client.reply()).status == 200
    assert place.child.requests[2].body == body


async def test_a_connection_in_use_is_closed_after_it_where_its_instance_was_forgotten(place: House) -> None:
    async def script(req: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        place.door.forget("child-1")
        await plain()(req, r, w)

    place.child.script = script
    assert (await place.ask("POST", PATH, ASK)).status == 200
    await asyncio.wait_for(place.child.gone.wait(), 2)


async def test_a_fresh_connection_that_breaks_is_not_tried_again(place: House) -> None:
    async def script(_q: Request, _r: asyncio.StreamReader, _w: asyncio.StreamWriter) -> None:
        raise ConnectionError

    place.child.script = script
    assert (await place.ask("POST", PATH, ASK)).status == 502
    assert len(place.child.requests) == 1


async def test_a_forgotten_instance_keeps_no_connection(place: House) -> None:
    client = await place.client()
    for _ in range(2):
        await client.send(request("POST", PATH, ASK))
        await client.reply()
        place.door.forget("child-1")
    assert place.child.connections == 2


async def test_an_early_answer_closes_both_connections(place: House) -> None:
    place.child.wait_for_body = False
    place.child.script = plain("413 Payload Too Large", b"no", "")
    client = await place.client()
    await client.send(
        b"POST /upstream/A/v1/audio HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3000000\r\n\r\n" + b"x" * 1000
    )
    reply = await client.reply()
    assert (reply.status, reply.body, reply.headers["connection"]) == (413, b"no", "close")
    await client.send(b"x" * 1000)  # still read, so that the answer is not lost
    await place.quiet()
    place.child.wait_for_body = True
    assert (await place.ask("POST", PATH, ASK)).status == 413
    assert place.child.connections == 2, "half a body makes a connection useless"


async def test_the_gates_refusal_is_the_answer(place: House) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    place.gate.tickets[0].refuse(Refusal("load_failed", "it broke", retry_after_s=2.2, details={"exit_code": 3}))
    reply = await client.reply()
    assert (reply.status, reply.headers["retry-after"]) == (503, "3")
    assert reply.error == {"code": 503, "message": "it broke", "type": "load_failed", "exit_code": 3}
    await client.send(request("GET", "/health"))
    assert (await client.reply()).status == 200
    await place.quiet()


async def test_a_fault_inside_is_a_500_and_leaves_nothing_behind(
    place: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_args: object, **_more: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(place.gate, "admit", broken)
    reply = await place.ask("POST", PATH, ASK)
    assert (reply.status, reply.error["type"], reply.headers["connection"]) == (500, "internal_error", "close")
    assert "a bug" not in reply.error["message"]
    assert "a bug" in caplog.text
    await place.quiet()


async def test_a_ticket_that_fails_unforeseen_is_a_500(place: House, caplog: pytest.LogCaptureFixture) -> None:
    place.gate.hold = True
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    await place.gate.admitted.wait()
    place.gate.tickets[0].granted.set_exception(RuntimeError("a bug"))
    assert (await client.reply()).error["type"] == "internal_error"
    assert "a bug" in caplog.text
    await place.quiet()


async def test_no_new_requests_are_taken_while_shutting_down(place: House) -> None:
    client = await place.client()
    await client.send(request("GET", "/health"))
    assert (await client.reply()).status == 200
    await place.door.close_listeners()
    await client.send(request("POST", PATH, ASK))
    reply = await client.reply()
    assert (reply.status, reply.error["type"], reply.headers["connection"]) == (503, "shutting_down", "close")
    with pytest.raises(OSError, match="Connect"):
        await place.client()


async def test_what_runs_may_end_within_the_grace_and_is_cut_after_it(tmp_path: Path) -> None:
    async with house(tmp_path) as place:
        go = asyncio.Event()

        async def script(req: Request, r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
            await (go.wait() if b"slow" in req.body else asyncio.Event().wait())
            await plain()(req, r, w)

        place.child.script = script
        slow, never = await place.client(), await place.client()
        await slow.send(request("POST", PATH, {"model": "A", "p": "slow"}))
        await never.send(request("POST", PATH, ASK))
        await until(lambda: len(place.child.requests) == 2)
        closing = asyncio.create_task(place.door.aclose(0.2))
        await asyncio.sleep(0)
        go.set()
        assert (await slow.reply()).status == 200
        assert (await never.reply()).error["type"] == "shutting_down"
        await closing
        assert not place.door.connections
        await place.quiet()
