"""The control API's event streams, and the Unix socket that all of it is served on."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.config.spec import GIB
from llmtop.control.app import ControlServer
from llmtop.control.feeds import MEMORY_STEP, Pace, model_feed, state_feed
from llmtop.snapshot import Failure, Memory, Model
from llmtop.testing.control import FakeControl

pytestmark = pytest.mark.anyio

AT_ONCE = Pace(heartbeat_s=3600, snapshot_s=0)
SLOW = Pace(heartbeat_s=3600, snapshot_s=3600)


@pytest.fixture
def core() -> FakeControl:
    return FakeControl(Model("A", "loaded", instance=7), Model("B"))


@pytest.fixture
def closing() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def opened() -> AsyncIterator[Callable[[AsyncGenerator[bytes]], AsyncGenerator[bytes]]]:
    feeds: list[AsyncGenerator[bytes]] = []

    def keep(feed: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        feeds.append(feed)
        return feed

    yield keep
    for feed in feeds:
        await feed.aclose()


Opened = Callable[[AsyncGenerator[bytes]], AsyncGenerator[bytes]]


def parsed(frame: bytes) -> dict[str, Any]:
    """The fields of one server-sent event, its data as JSON; a comment has none."""
    assert frame.endswith(b"\n\n")
    lines = frame.decode().removesuffix("\n\n").split("\n")
    fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
    return {**fields, "data": json.loads(fields["data"])} if "data" in fields else fields


async def take(feed: AsyncIterator[bytes]) -> dict[str, Any]:
    return parsed(await asyncio.wait_for(anext(feed), 5))


async def until(true: Callable[[], bool]) -> None:
    """Give the loop time to get there."""
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come to that in 5 s")


async def silent(feed: AsyncGenerator[bytes], core: FakeControl) -> bool:
    """The feed has nothing to say now: whatever it would have sent comes before the end of its core."""
    core.end()
    with pytest.raises(StopAsyncIteration):
        await asyncio.wait_for(anext(feed), 5)
    return True


async def test_snapshot_comes_first_and_again_when_something_changes(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    feed = opened(state_feed(core, None, closing, AT_ONCE))
    first = await take(feed)
    assert (first["event"], first["data"]["hold"]) == ("snapshot", False)
    assert "id" not in first
    waiting = asyncio.create_task(take(feed))
    await asyncio.sleep(0)
    core.say(hold=True)
    assert (await waiting)["data"]["hold"] is True


async def test_the_clock_alone_is_no_change(core: FakeControl, closing: asyncio.Event, opened: Opened) -> None:
    feed = opened(state_feed(core, None, closing, AT_ONCE))
    await take(feed)
    core.row("A", idle_s=12.0)
    core.say(uptime_s=99.0)
    assert await silent(feed, core)


def memory(less: int) -> Memory:
    return Memory(total=64 * GIB, available=40 * GIB - less, used=24 * GIB + less)


async def test_memory_that_trembles_is_no_change(core: FakeControl, closing: asyncio.Event, opened: Opened) -> None:
    core.say(memory=memory(0))
    feed = opened(state_feed(core, None, closing, AT_ONCE))
    await take(feed)
    core.say(memory=memory(MEMORY_STEP - 1))
    assert await silent(feed, core)


async def test_memory_that_creeps_or_goes_is_told(core: FakeControl, closing: asyncio.Event, opened: Opened) -> None:
    core.say(memory=memory(0))
    feed = opened(state_feed(core, None, closing, AT_ONCE))
    await take(feed)
    for less in (MEMORY_STEP // 2, MEMORY_STEP):
        core.say(memory=memory(less))
        await asyncio.sleep(0)
    assert (await take(feed))["data"]["memory"]["used"] == 24 * GIB + MEMORY_STEP
    core.say(memory=Memory(total=64 * GIB, available=None, used=24 * GIB + MEMORY_STEP))
    assert (await take(feed))["data"]["memory"]["available"] is None


async def test_snapshots_keep_their_pace_while_the_journal_does_not_wait(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    feed = opened(state_feed(core, None, closing, SLOW))
    await take(feed)
    core.happen(1, "one")
    core.happen(2, "two")
    lines = [await take(feed), await take(feed)]
    assert [(x["event"], x["id"], x["data"]["seq"], x["data"]["text"]) for x in lines] == [
        ("journal", "1", 1, "one"),
        ("journal", "2", 2, "two"),
    ]
    assert await silent(feed, core)


async def test_a_change_inside_the_pace_is_sent_when_it_is_due(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    feed = opened(state_feed(core, None, closing, Pace(heartbeat_s=3600, snapshot_s=0.05)))
    await take(feed)
    waiting = asyncio.create_task(take(feed))
    await asyncio.sleep(0)
    core.say(hold=True)
    await asyncio.sleep(0)
    core.say(models_max=9)
    data = (await waiting)["data"]
    assert (data["hold"], data["models_max"]) == (True, 9)
    assert await silent(feed, core)


async def test_a_new_reader_is_told_what_happens_from_now_on(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    core.happen(1)
    feed = opened(state_feed(core, None, closing, SLOW))
    await take(feed)
    core.happen(2)
    assert (await take(feed))["id"] == "2"


async def test_a_reader_that_comes_back_gets_what_it_missed(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    for seq in (1, 2, 3):
        core.happen(seq)
    feed = opened(state_feed(core, 1, closing, SLOW))
    assert (await take(feed))["event"] == "snapshot"
    assert [(await take(feed))["id"] for _ in range(2)] == ["2", "3"]
    assert await silent(feed, core)


async def test_a_gap_in_the_journal_is_covered_by_a_snapshot(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    core.happen(1)
    feed = opened(state_feed(core, None, closing, SLOW))
    await take(feed)
    core.journal.clear()
    core.happen(40)
    kinds = [(await take(feed))["event"] for _ in range(2)]
    assert kinds == ["snapshot", "journal"]


async def test_a_number_from_an_earlier_core_starts_afresh(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    core.happen(1)
    feed = opened(state_feed(core, 5000, closing, SLOW))
    await take(feed)
    core.happen(2)
    assert (await take(feed))["id"] == "2"


@pytest.mark.parametrize("make", [lambda c, e, p: state_feed(c, None, e, p), model_feed])
async def test_silence_is_broken_by_a_comment(
    core: FakeControl, closing: asyncio.Event, opened: Opened, make: Any
) -> None:
    feed = opened(make(core, closing, Pace(heartbeat_s=0.02, snapshot_s=3600)))
    seen: list[dict[str, Any]] = []
    while not seen or seen[-1]:
        seen.append(await take(feed))
    assert len(seen) > 1
    assert await take(feed) == {}


async def test_a_slow_reader_gets_the_latest_only(core: FakeControl, closing: asyncio.Event, opened: Opened) -> None:
    feed = opened(state_feed(core, None, closing, AT_ONCE))
    await take(feed)
    for cap in range(1000):
        core.say(models_max=cap)
    assert (await take(feed))["data"]["models_max"] == 999
    assert await silent(feed, core)


@pytest.mark.parametrize("make", [lambda c, e, p: state_feed(c, None, e, p), model_feed])
async def test_a_stream_ends_with_the_server_and_leaves_no_subscription(
    core: FakeControl, closing: asyncio.Event, make: Any
) -> None:
    feed = make(core, closing, AT_ONCE)
    await take(feed)
    rest = asyncio.create_task(_drained(feed))
    await until(lambda: core.subscribers == 1)
    closing.set()
    await asyncio.wait_for(rest, 5)
    assert core.subscribers == 0


async def _drained(feed: AsyncGenerator[bytes]) -> int:
    return len([frame async for frame in feed])


async def test_model_feed_starts_with_all_and_then_tells_changes(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    feed = opened(model_feed(core, closing, AT_ONCE))
    first = [await take(feed), await take(feed)]
    assert [x["data"] for x in first] == [
        {"model": "A", "event": "model_status", "data": {"status": "loaded"}},
        {"model": "B", "event": "model_status", "data": {"status": "unloaded"}},
    ]
    assert "event" not in first[0]
    core.say(hold=True)
    core.row("B", state="loading")
    assert (await take(feed))["data"] == {"model": "B", "event": "model_status", "data": {"status": "loading"}}
    core.row("B", state="unloaded", failure=Failure("crash", "it crashed", exit_code=3))
    data = {"status": "unloaded", "failed": True, "exit_code": 3, "message": "it crashed"}
    assert (await take(feed))["data"]["data"] == data


async def test_model_feed_tells_that_the_list_has_changed(
    core: FakeControl, closing: asyncio.Event, opened: Opened
) -> None:
    feed = opened(model_feed(core, closing, AT_ONCE))
    await take(feed), await take(feed)
    core.say(models=(core.state.models[0], Model("N")))
    events = [(await take(feed))["data"] for _ in range(3)]
    assert [(e["model"], e["event"]) for e in events] == [
        ("B", "model_remove"),
        ("*", "models_reload"),
        ("N", "model_status"),
    ]


@pytest.fixture
async def served(core: FakeControl) -> AsyncIterator[Path]:
    server = ControlServer(core, Pace(heartbeat_s=3600, snapshot_s=0))
    path = Path(await server.start())
    yield path
    await server.aclose()
    await server.aclose()
    assert not path.parent.exists()


def client(path: Path) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.AsyncHTTPTransport(uds=str(path)), base_url="http://core", timeout=5)


async def test_the_socket_is_for_this_user_alone(served: Path) -> None:
    mode = os.stat(served).st_mode
    assert stat.S_ISSOCK(mode)
    assert (stat.S_IMODE(mode), stat.S_IMODE(os.stat(served.parent).st_mode)) == (0o600, 0o700)
    assert len(os.fsencode(served)) <= 100
    async with client(served) as api:
        answer = await api.get("/v1/models/A")
        assert answer.json()["id"] == "A"
        assert "server" not in answer.headers
        assert (await api.post("/api/models/A/kill", json={"instance": 1})).status_code == 409


async def test_a_deep_temporary_folder_does_not_make_the_path_too_long(
    core: FakeControl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    server = ControlServer(core)
    path = await server.start()
    assert len(path) <= 100
    async with client(Path(path)) as api:
        assert (await api.get("/api/state")).status_code == 200
    await server.aclose()
    assert list(deep.iterdir()) == []


async def test_a_reader_that_leaves_is_unsubscribed(served: Path, core: FakeControl) -> None:
    core.happen(1)
    async with client(served) as api, api.stream("GET", "/api/events", headers={"Last-Event-ID": "0"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        frames = answer.aiter_lines()
        seen = [await anext(frames) for _ in range(6)]
        assert seen[0] == "event: snapshot"
        assert seen[3:5] == ["event: journal", "id: 1"]
        assert core.subscribers == 1
    await until(lambda: core.subscribers == 0)


async def test_closing_ends_open_streams_in_order(core: FakeControl) -> None:
    server = ControlServer(core)
    path = Path(await server.start())
    async with client(path) as api, api.stream("GET", "/models/sse") as answer:
        frames = answer.aiter_lines()
        assert json.loads((await anext(frames)).removeprefix("data: "))["model"] == "A"
        closed = asyncio.create_task(server.aclose())
        rest = [line async for line in frames]  # a clean end: an aborted one would raise
        assert any('"B"' in line for line in rest)
        await asyncio.wait_for(closed, 5)
    assert core.subscribers == 0
