"""A core elsewhere, as a view sees it."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import msgspec
import pytest

from llmtop.errors import StartError
from llmtop.remote import RemoteClient
from llmtop.snapshot import LogLine, Model, Snapshot

pytestmark = pytest.mark.anyio

SNAPSHOT = Snapshot(version="0", pid=1, at=0.0, url="http://x", models=(Model("a/b"),))
Answer = Callable[[httpx.Request], httpx.Response]


def client(answer: Answer) -> RemoteClient:
    return RemoteClient("http://x/", "kéy", transport=httpx.MockTransport(answer))


def as_json(value: object, status: int = 200) -> httpx.Response:
    return httpx.Response(status, stream=httpx.ByteStream(msgspec.json.encode(value)))


async def test_a_snapshot_comes_back_as_it_was_sent_with_the_key() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return as_json(SNAPSHOT)

    core = client(answer)
    assert core.latest is None
    assert await core.refresh() == SNAPSHOT == core.latest
    assert (core.url, core.embedded, core.stale_s) == ("http://x", False, 0.0)
    assert (b"Authorization", "Bearer kéy".encode()) in seen[0].headers.raw
    await core.aclose()


async def test_verbs_go_to_their_routes_with_the_instance() -> None:
    seen: list[tuple[str, str, object]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.raw_path.decode(), json.loads(request.content or b"null")))
        return as_json({"success": True, "changed": True})

    core = client(answer)
    replies = [
        await core.model("evict", "a/b", 7),
        await core.model("pin", "A"),
        await core.queue("hold"),
        await core.cancel("r1"),
        await core.acknowledge_oom(),
    ]
    assert all(reply.success and reply.changed and reply.refusal is None for reply in replies)
    assert seen == [
        ("POST", "/api/models/a%2Fb/evict", {"instance": 7}),
        ("POST", "/api/models/A/pin", {}),
        ("POST", "/api/queue/hold", {}),
        ("DELETE", "/api/requests/r1", None),
        ("POST", "/api/oom/acknowledge", {}),
    ]
    await core.aclose()


async def test_a_refusal_keeps_its_type_status_and_details() -> None:
    error = {"error": {"code": 409, "message": "another child runs", "type": "conflict", "instance": 8}}
    core = client(lambda _: as_json(error, 409))
    refusal = (await core.model("kill", "A", 7)).refusal
    assert refusal is not None
    assert (refusal.type, refusal.code, refusal.message, refusal.details) == (
        "conflict",
        409,
        "another child runs",
        {"instance": 8},
    )
    await core.aclose()


@pytest.mark.parametrize("body", ["<html>", "{}", '{"error": 5}', "[]"])
async def test_an_answer_that_means_nothing_is_a_refusal_not_a_fault(body: str) -> None:
    core = client(lambda _: httpx.Response(502, stream=httpx.ByteStream(body.encode())))
    refusal = (await core.queue("hold")).refusal
    assert refusal is not None
    assert "answers 502" in refusal.message
    await core.aclose()


async def test_a_look_that_fails_says_why_and_leaves_the_picture() -> None:
    answers = iter([as_json(SNAPSHOT), httpx.Response(500, stream=httpx.ByteStream(b""))])
    core = client(lambda _: next(answers))
    await core.refresh()
    with pytest.raises(StartError, match="answers 500"):
        await core.refresh()
    assert (core.latest, core.fault) == (SNAPSHOT, "")
    await core.aclose()


async def test_a_verb_to_nobody_is_a_refusal() -> None:
    def answer(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    core = client(answer)
    reply = await core.queue("hold")
    assert not reply.success
    assert await core.log("A") == ()
    await core.aclose()


async def test_a_log_is_its_lines() -> None:
    lines = (LogLine(1, 0.0, "A", "x"), LogLine(2, 0.0, "A", "y"))
    core = client(lambda _: as_json({"model": "A", "lines": lines}))
    assert await core.log("A") == lines
    await core.aclose()
