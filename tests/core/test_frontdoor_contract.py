"""The HTTP contract where front door, control API and child meet: what each path is, and what every answer carries."""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from llmtop.control.app import ControlServer
from llmtop.control.feeds import Pace
from llmtop.frontdoor.gate import Upstream
from llmtop.frontdoor.names import JsonScanner, peek
from llmtop.snapshot import LogLine, Model
from llmtop.testing.control import FakeControl
from llmtop.testing.frontdoor import House, Request, house, request, until

pytestmark = pytest.mark.anyio

ASK = {"model": "A", "prompt": "x"}
PATH = "/v1/completions"
RELAYED = [
    *("chat/completions", "completions", "completion", "responses", "messages", "messages/count_tokens"),
    *("chat/completions/input_tokens", "responses/input_tokens", "embeddings", "embedding", "rerank", "reranking"),
    *("infill", "tokenize", "detokenize", "apply-template", "audio/transcriptions", "audio/translations"),
    *("audio/speech", "images/generations", "images/edits", "images/variations"),
]
"""Everything of OpenAI, Anthropic and llama-server that names its model in the body."""


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as it:
        yield it


@pytest.mark.parametrize("path", [f"{v}/{name}" for v in ("", "/v1") for name in RELAYED])
async def test_each_relayed_path_goes_to_the_model_that_its_body_names(place: House, path: str) -> None:
    assert (await place.ask("POST", path, {"model": "alias"})).status == 200
    assert [(t.model, t.asked["path"]) for t in place.gate.tickets] == [("A", path)]
    assert [q.target for q in place.child.requests] == [path]
    for method in ("GET", "HEAD", "PUT", "DELETE", "TRACE"):
        assert (await place.ask(method, path)).status == 405
    assert len(place.child.requests) == 1


async def test_each_answer_tells_its_request_and_its_waits(place: House) -> None:
    place.gate.control_upstream = Upstream("control", port=place.gate.upstream.port)
    asked = (
        *(("GET", "/health", b""), ("GET", "/v1/models", b""), ("GET", "/api/state", b""), ("POST", PATH, ASK)),
        *(("POST", PATH, b"{"), ("POST", PATH, {"model": "nobody"}), ("GET", "/nowhere", b""), ("PUT", PATH, b"")),
        *(("GET", "/slots?model=A", b""), ("GET", "/props?model=A", b""), ("POST", "/models/load", b"x")),
    )
    for method, path, body in asked:
        reply = await place.ask(method, path, body)
        told = {"x-llmtop-request-id", "x-llmtop-queue-ms", "x-llmtop-load-ms"} - set(reply.headers)
        assert not told, f"{method} {path} {reply.status}"


async def test_a_byte_order_mark_before_the_body_names_the_same_model(place: House) -> None:
    """As llama-server's own parser has it; what a shell on Windows writes into a file."""
    body = b'\xef\xbb\xbf{"model": "A", "stream": true}'
    assert (peek(body, b"").model, peek(body, b"").stream) == ("A", True)
    scanner = JsonScanner()
    scanner.feed(body)
    assert (scanner.finish().model, scanner.finish().stream) == ("A", True)
    assert (await place.ask("POST", PATH, body)).status == 200
    assert place.child.requests[0].body == body


@pytest.mark.parametrize("query", ["?reload=1", "?%72eload=1", "?%72%65%6C%6f%61%64=true", "?a=b&relo%61d=1"])
async def test_another_sites_page_cannot_hide_a_reload_behind_an_encoded_name(place: House, query: str) -> None:
    for site, status in (("cross-site", 403), ("same-site", 403), ("none", 200), ("same-origin", 200)):
        reply = await place.ask("GET", f"/v1/models{query}", b"", f"Sec-Fetch-Site: {site}\r\n")
        assert reply.status == status, site
    assert len(place.child.requests) == 2


async def test_a_sleeping_model_is_told_to_sleep_not_to_be_idle(place: House) -> None:
    place.gate.observed = Upstream("child-1", port=place.gate.upstream.port, asleep=True)
    for path in ("/slots?model=A", "/metrics?model=A", "/upstream/A/slots"):
        reply = await place.ask("GET", path)
        assert (reply.status, reply.error["type"]) == (409, "model_not_loaded")
        assert "A is sleeping" in reply.error["message"]
    place.gate.observed = place.gate.upstream
    assert "A is idle" in (await place.ask("GET", "/slots?model=A")).error["message"]
    assert not place.child.requests


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
async def test_with_a_key_no_method_opens_anything(tmp_path: Path, method: str) -> None:
    async with house(tmp_path, api_keys=("sekret",), allow_origins=("https://app.example",)) as locked:
        for path in ("/", "/models/load", "/api/queue/hold", "/v1/models", PATH, "/upstream/A/x", "/nowhere"):
            reply = await locked.ask("GET" if method == "CONNECT" else method, path, b"", "X-Api-Key: no\r\n")
            assert reply.status == 401, path
            assert reply.headers["www-authenticate"] == "Bearer"
        asked = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
        assert (await locked.ask("OPTIONS", PATH, b"", asked)).status == 204, "a question that no browser puts a key to"
        if method == "CONNECT":
            assert (await locked.raw(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n")).status == 401
        assert not locked.child.requests


async def test_a_reader_of_events_that_takes_nothing_is_cut_and_holds_no_more_than_the_rest(tmp_path: Path) -> None:
    core = FakeControl(Model("A", "loaded", instance=7))
    core.say(log=tuple(LogLine(n, 1.0, "A", "x" * 30_000) for n in range(100)))
    server = ControlServer(core, Pace(snapshot_s=0))
    async with house(tmp_path, client_stall_s=0.3) as place:
        try:
            place.gate.control_upstream = Upstream("control", host="", uds=await server.start())
            loop = asyncio.get_running_loop()
            with socket.socket() as slow:
                slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                slow.setblocking(False)
                await loop.sock_connect(slow, ("127.0.0.1", place.port))
                await loop.sock_sendall(slow, request("GET", "/api/events"))
                await until(lambda: core.subscribers == 1)
                held = 0

                def cut() -> bool:
                    nonlocal held
                    core.say(hold=not core.state.hold)
                    held = max([held, *(c.transport.get_write_buffer_size() for c in place.door.connections)])
                    return not place.door.connections

                await until(cut, 20)
            assert 0 < held < 4 * 2**20, "of 3 MB a snapshot"
            await until(lambda: core.subscribers == 0)
            assert (await place.ask("GET", "/api/state")).status == 200
        finally:
            await server.aclose()


@pytest.mark.parametrize("given", ["first", "second", "third", "wrong", "", "x" * 5000])
async def test_each_key_is_compared_in_constant_time_whichever_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    compared: list[bytes] = []
    same = hmac.compare_digest

    def compare(a: bytes, b: bytes) -> bool:
        compared.append(a)
        return same(a, b)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    async with house(tmp_path, api_keys=("first", "second", "third")) as locked:
        reply = await locked.ask("GET", "/slots?model=A", b"", f"X-Api-Key: {given}\r\n")
        assert reply.status == (409 if given in ("first", "second", "third") else 401)
    assert compared == [b"first", b"second", b"third"]


async def test_an_upload_that_stops_is_ended_and_one_that_drips_is_not(tmp_path: Path) -> None:
    async with house(tmp_path, client_stall_s=0.4) as place:
        data = request("POST", PATH, {"model": "A", "prompt": "x" * 5000})
        stopped, dripping = await place.client(), await place.client()
        for client in (stopped, dripping):
            await client.send(data[:400])
        ended, at = asyncio.create_task(stopped.ended()), 400
        while not ended.done():
            await dripping.send(data[at : at + 1])
            at += 1
            await asyncio.sleep(0.01)
        assert await ended
        await dripping.send(data[at:])
        assert (await dripping.reply()).status == 200
        await place.quiet()
        assert len(place.gate.tickets) == 1, "half a body asks for nothing"


async def test_a_page_that_is_allowed_may_read_and_gets_no_star(tmp_path: Path) -> None:
    async with house(tmp_path, allow_origins=("https://app.example", "*")) as place:
        place.gate.control_upstream = Upstream("control", port=place.gate.upstream.port)
        for path in ("/v1/models", "/api/state", "/models/load", "/health"):
            method, body = ("POST", {"model": "A"}) if path.endswith("load") else ("GET", b"")
            for origin in ("https://evil.example", "null", "https://app.example.evil.example", "http://app.example"):
                reply = await place.ask(method, path, body, f"Origin: {origin}\r\n")
                assert reply.status == 403
                assert not [name for name in reply.headers if name.startswith("access-control-")]
            reply = await place.ask(method, path, body, "Origin: https://app.example\r\n")
            assert reply.status == 200
            assert reply.headers["access-control-allow-origin"] == "https://app.example"
            assert "access-control-allow-credentials" not in reply.headers


CROOKED_LENGTHS = (
    "+{n}",
    "-{n}",
    "0x{n}",
    "{n}, {n}",
    "{n} {n}",
    "{n}e0",
    "{n}.0",
    "",
    " ",
    "9" * 30,
    "{n}\r\nX:y\r\nContent-Length: {n}",
)


async def test_heads_that_differ_in_their_length_alone_are_each_read_for_themselves(place: House) -> None:
    client = await place.client()
    bodies = [{"model": "A", "prompt": "x" * n} for n in (1, 1, 900, 0, 30_000, 1)]
    for body in bodies:
        await client.send(request("POST", PATH, body))
        assert (await client.reply()).status == 200
    await client.send(b"".join(request("POST", PATH, body) for body in bodies))
    assert [(await client.reply()).status for _ in bodies] == [200] * 6
    assert [msgspec.json.decode(q.body) for q in place.child.requests] == bodies * 2
    assert place.child.connections == 1


@pytest.mark.parametrize("length", CROOKED_LENGTHS)
async def test_a_crooked_length_behind_a_good_one_is_refused(place: House, length: str) -> None:
    good = request("POST", PATH, ASK)
    n = len(good.partition(b"\r\n\r\n")[2])
    crooked = good.replace(b"Content-Length: %d\r\n" % n, f"Content-Length: {length.format(n=n)}\r\n".encode())
    assert crooked != good
    client = await place.client()
    await client.send(good)
    assert (await client.reply()).status == 200
    await client.send(crooked)
    assert (await client.reply()).status == 400
    assert await client.ended()
    await place.quiet()
    assert len(place.child.requests) == 1


@pytest.mark.parametrize("length", CROOKED_LENGTHS)
async def test_an_answer_with_a_crooked_length_behind_a_good_one_is_no_answer(place: House, length: str) -> None:
    told = ["11", length.format(n="11")]

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        w.write(f'HTTP/1.1 200 OK\r\nContent-Length: {told.pop(0)}\r\n\r\n{{"ok":true}}'.encode())

    place.child.script = script
    client = await place.client()
    await client.send(request("POST", PATH, ASK))
    assert (await client.reply()).body == b'{"ok":true}'
    told.append(told[-1])  # it may be tried a second time
    await client.send(request("POST", PATH, ASK))
    reply = await client.reply()
    assert (reply.status, reply.error["type"]) == (502, "upstream_error")
    await place.quiet()


async def test_answers_that_differ_in_their_length_alone_are_each_passed_on_whole(place: House) -> None:
    bodies = [b"x" * n for n in (11, 11, 9, 0, 200_000, 12, 1)]
    left = list(bodies)

    async def script(_q: Request, _r: asyncio.StreamReader, w: asyncio.StreamWriter) -> None:
        body = left.pop(0)
        head = b"HTTP/1.1 200 OK\r\nContent-Type: x/y\r\nContent-Length: %d\r\n\r\n" % len(body)
        w.write(head + body[:5])
        await w.drain()
        await asyncio.sleep(0.01 * (len(left) % 2))
        w.write(body[5:])

    place.child.script = script
    client = await place.client()
    for body in bodies:
        await client.send(request("POST", PATH, ASK))
        reply = await client.reply()
        assert (reply.body, reply.headers["content-type"]) == (body, "x/y")
    assert place.child.connections == 1
