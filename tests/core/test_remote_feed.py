"""A core elsewhere followed by its events, over real sockets: a scripted server says what no real one would."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import httpx
import msgspec
import pytest

from llmtop import remote
from llmtop.control.feeds import HEARTBEAT, frame
from llmtop.remote import RemoteClient, aged
from llmtop.snapshot import EventLine, Model, Snapshot
from llmtop.testing.scripted import FEED, PATIENCE_S, Asked, Server, answers, following, until, whole

pytestmark = pytest.mark.anyio

CHUNKED = FEED[:-2] + b"Transfer-Encoding: chunked\r\n\r\n"


def picture(pid: int = 1, *seqs: int) -> Snapshot:
    return Snapshot("0", pid, 100.0, "http://x", models=(Model("a", idle_s=1.0), Model("b")), events=events(*seqs))


def events(*seqs: int) -> tuple[EventLine, ...]:
    return tuple(EventLine(seq, float(seq), "note", "a", f"line {seq}") for seq in seqs)


async def first(changes: AsyncGenerator[Snapshot], test: Callable[[Snapshot], object]) -> Snapshot:
    async for seen in changes:
        if test(seen):
            return seen
    raise AssertionError("changes never end")


async def faulty(server: Server, says: str, **options: Any) -> RemoteClient:
    """Follow until the fault is told."""
    client = RemoteClient(server.url, **options)
    async with following(client) as changes:
        asking = asyncio.ensure_future(anext(changes))
        await until(lambda: client.fault)
        asking.cancel()
        await asyncio.wait([asking])
    assert client.fault.startswith(says)
    assert client.fault.isprintable()
    assert client.stale_s > 0
    return client


async def test_the_feed_gives_snapshots_and_journal_lines_at_once_and_asks_for_nothing_else() -> None:
    journal = b"".join(frame("journal", line, line.seq) for line in events(1, 2, 3))
    feed = answers(FEED, frame("snapshot", picture(1, 1, 2)), journal, stay=True)
    async with Server(events=feed).up() as server:
        client = RemoteClient(server.url, "k")
        async with following(client) as changes:
            seen = await first(changes, lambda seen: len(seen.events) == 3)
        assert seen.events == events(1, 2, 3)
        assert (client.fault, client.stale_s) == ("", 0.0)
        (asked,) = server.asked
        assert (asked.method, asked.path) == ("GET", "/api/events")
        assert (asked.headers["authorization"], asked.headers["accept-encoding"]) == ("bearer k", "identity")
        assert "last-event-id" not in asked.headers


async def test_who_leaves_closes_the_connection() -> None:
    left = asyncio.Event()

    async def feed(asked: Asked) -> None:
        await asked.say(FEED + frame("snapshot", picture()))
        await asked.left()
        left.set()

    async with Server(events=feed).up() as server:
        client = RemoteClient(server.url)
        async with following(client) as changes:
            await anext(changes)
            assert not left.is_set()
        async with asyncio.timeout(PATIENCE_S):
            await left.wait()


async def test_a_core_that_comes_back_is_asked_from_the_last_line_and_its_own_lines_replace_the_old_ones() -> None:
    again = frame("snapshot", picture(2, 1, 2)) + b"".join(frame("journal", line, line.seq) for line in events(2, 3))
    scripts = [
        answers(FEED, frame("snapshot", picture(1, 40, 41))),
        answers(FEED, again, stay=True),
    ]
    async with Server(events=scripts).up() as server:
        client = RemoteClient(server.url)
        async with following(client) as changes:
            before = await anext(changes)
            await until(lambda: client.fault)
            assert client.latest == before
            assert client.stale_s > 0
            assert "ended its feed" in client.fault
            seen = await first(changes, lambda seen: seen.pid == 2 and len(seen.events) == 3)
        assert seen.events == events(1, 2, 3)
        assert client.fault == ""
        assert [asked.headers.get("last-event-id") for asked in server.asked] == [None, "41"]


async def test_nobody_there_is_told_and_found_again_on_the_same_port() -> None:
    server = Server(events=answers(FEED, frame("snapshot", picture()), stay=True))
    async with server.up():
        port = int(server.url.rsplit(":", 1)[1])
    await faulty(server, "refuses connections")
    client = RemoteClient(server.url)
    async with following(client) as changes:
        asking = asyncio.ensure_future(anext(changes))
        await until(lambda: client.fault)
        async with server.up(port):
            assert (await asking).pid == 1


async def test_a_silent_feed_is_dead_and_one_with_comments_lives() -> None:
    async def lives(asked: Asked) -> None:
        await asked.say(FEED + frame("snapshot", picture(1)))
        for _ in range(30):
            await asyncio.sleep(0.1)
            await asked.say(HEARTBEAT)
        await asked.say(frame("snapshot", picture(2)))
        await asked.left()

    async with Server(events=lives).up() as server:
        client = RemoteClient(server.url, silence_s=2.0)
        async with following(client) as changes:
            async for seen in changes:
                assert client.fault == ""
                if seen.pid == 2:
                    break
        assert len(server.asked) == 1
    async with Server(events=answers(FEED, frame("snapshot", picture()), stay=True)).up() as server:
        client = await faulty(server, "has fallen silent", silence_s=0.3)
        assert client.latest == picture()


async def test_comments_alone_are_no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    async def feed(asked: Asked) -> None:
        await asked.say(FEED)
        while True:
            await asked.say(HEARTBEAT + frame("journal", events(1)[0], 1))
            await asyncio.sleep(0.05)

    monkeypatch.setattr(remote, "TIMEOUT_S", 0.5)
    async with Server(events=feed).up() as server:
        assert (await faulty(server, "has fallen silent")).latest is None


async def test_an_event_or_an_answer_without_end_is_given_up() -> None:
    async def endless(asked: Asked) -> None:
        await asked.say(FEED + b"event: snapshot\ndata: ")
        while True:
            await asked.say(b"x" * 65536)

    async with Server(events=endless).up() as server:
        await faulty(server, "is another version, or no llmtop: an")
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    async with Server(state=answers(head, *[b" " * (1 << 20)] * 17)).up() as server:
        await faulty(server, "is another version, or no llmtop: an")


@pytest.mark.parametrize("status", ["404 Not Found", "405 Method Not Allowed"])
async def test_a_core_without_the_feed_is_asked_again_and_again_and_for_the_feed_after_a_fault(status: str) -> None:
    state = [answers(whole("200 OK", msgspec.json.encode(picture(pid)))) for pid in (1, 2)]
    broken = answers(whole("500 Internal Server Error"))
    feed = answers(FEED, frame("snapshot", picture(3)), stay=True)
    async with Server(events=[answers(whole(status)), feed], state=[*state, broken]).up() as server:
        client, pids = RemoteClient(server.url, poll_s=0.01), set[int]()
        async with following(client) as changes:
            async for seen in changes:
                pids.add(seen.pid)
                if seen.pid == 3:
                    break
        assert pids >= {2, 3}
        assert (server.times("/api/events"), server.times("/api/state")) == (2, 3)


REFUSED = b'{"error": {"message": "Host \\u001b[31mx is not ours", "type": "forbidden"}}'
TEXT = "text/html"


@pytest.mark.parametrize(
    ("answer", "key", "says"),
    [
        (whole("401 Unauthorized"), "", "wants its key: give --api-key"),
        (whole("401 Unauthorized"), "k", "takes another key: give --api-key"),
        (whole("403 Forbidden", REFUSED), "", "answers 403: Host x is not ours"),
        (whole("403 Forbidden", b"<html>"), "", "answers 403"),
        (whole("404 Not Found"), "", "answers 404, so it is no llmtop"),
        (whole("503 Service Unavailable", b"[]"), "", "answers 503"),
        (whole("200 OK", b"<html>", TEXT), "", "is another version, or no llmtop"),
        (FEED + b"event: snapshot\ndata: {}\n\n", "", "is another version, or no llmtop"),
        (FEED + b"event: snapshot\ndata: " + b"[" * 100_000 + b"\n\n", "", "is another version, or no llmtop"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "", "speaks no HTTP"),
        (b"", "", "has closed the connection"),
        (CHUNKED + b"5\r\nevent", "", "has closed the connection"),
    ],
)
async def test_what_is_wrong_there_is_said_in_a_line(answer: bytes, key: str, says: str) -> None:
    async with Server(events=answers(answer), state=answers(answer)).up() as server:
        await faulty(server, says, key=key)


async def test_a_slow_reader_gets_the_newest_picture_not_the_next() -> None:
    all_said = asyncio.Event()

    async def feed(asked: Asked) -> None:
        for pid in range(1, 51):
            await asked.say((FEED if pid == 1 else b"") + frame("snapshot", picture(pid)))
        all_said.set()
        await asked.left()

    async with Server(events=feed).up() as server:
        client = RemoteClient(server.url)
        async with following(client) as changes:
            await anext(changes)
            await until(lambda: client.latest is not None and client.latest.pid == 50)
            assert (await anext(changes)).pid == 50


async def test_a_quiet_core_has_its_clock_moved_on() -> None:
    async with Server(events=answers(FEED, frame("snapshot", picture()), stay=True)).up() as server:
        client = RemoteClient(server.url)
        async with following(client) as changes:
            before, later = await anext(changes), await anext(changes)
    assert before == picture()
    assert later.at > before.at
    assert later == aged(before, later.at - before.at)
    assert later.models[0].idle_s == pytest.approx(1.0 + later.at - before.at)
    assert later.models[1].idle_s is None
    assert later.uptime_s == 0.0, "one that is not told stays so"


async def test_pauses_between_attempts_grow_to_a_bound_and_are_never_in_step(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def pass_over(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    def nobody(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    client = RemoteClient("http://x", transport=httpx.MockTransport(nobody))
    monkeypatch.setattr("llmtop.remote.asyncio.sleep", pass_over)
    asking = asyncio.ensure_future(anext(client.changes()))
    end = time.monotonic() + PATIENCE_S
    while len(pauses) < 40 and time.monotonic() < end:
        await sleep(0.001)
    asking.cancel()
    await asyncio.wait([asking])
    await client.aclose()
    longest = [0.5, 1.0, 2.0, *[5.0] * 37]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=False))
    assert len(set(pauses[3:40])) > 30
