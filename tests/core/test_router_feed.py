"""llama.cpp's router followed by its feed, over real sockets: what it says, and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
import pytest

from llmtop import remote_router
from llmtop.remote_router import RouterClient
from llmtop.snapshot import Snapshot
from llmtop.testing.scripted import FEED, Asked, Script, Server, answers, following, until, whole

pytestmark = pytest.mark.anyio


class Router:
    """llama.cpp's router as far as its states go; the head of its feed comes with the first event, as the real one's.

    Attributes:
        value: The state of its only model.
        told: Set when there is an event to send.
    """

    def __init__(self) -> None:
        self.value = "unloaded"
        self.told = asyncio.Event()

    def tell(self, value: str) -> None:
        self.value = value
        self.told.set()

    async def props(self, asked: Asked) -> None:
        await asked.say(whole("200 OK", b'{"role": "router", "max_instances": 2, "build_info": "b9"}'))

    async def models(self, asked: Asked) -> None:
        body = msgspec.json.encode({"data": [{"id": "a", "status": {"value": self.value}}]})
        await asked.say(whole("200 OK", body))

    async def sse(self, asked: Asked) -> None:
        await self.told.wait()
        await asked.say(FEED)
        while True:
            self.told.clear()
            await asked.say(b'data: {"model": "a", "event": "status_change", "data": {}}\n\n')
            await self.told.wait()

    def server(self, **other: Script) -> Server:
        return Server(**{"props": self.props, "models": self.models, "sse": self.sse, **other})


async def shown(changes: AsyncGenerator[Snapshot], state: str) -> Snapshot:
    async for seen in changes:
        if seen.models[0].state == state:
            return seen
    raise AssertionError("changes never end")


async def test_a_router_is_looked_at_when_its_feed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_router, "LOOK_S", 1000.0)
    router = Router()
    async with router.server().up() as server:
        client = RouterClient(server.url)
        async with following(client) as changes:
            await shown(changes, "unloaded")
            await until(lambda: server.times("/models/sse"))
            router.tell("loading")
            await shown(changes, "loading")
            router.tell("loaded")
            seen = await shown(changes, "loaded")
            assert [event.kind for event in seen.events] == ["load", "ready"]
        assert server.times("/models") == 3
        assert server.times("/models/sse") == 1


async def test_what_a_router_does_not_tell_is_seen_at_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_router, "LOOK_S", 0.1)
    router = Router()
    async with router.server().up() as server:
        client = RouterClient(server.url)
        async with following(client) as changes:
            await shown(changes, "unloaded")
            router.value = "loaded"
            await shown(changes, "loaded")


async def test_a_router_without_a_feed_is_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_router, "LOOK_S", 1000.0)
    router = Router()
    async with router.server(sse=answers(whole("404 Not Found"))).up() as server:
        client = RouterClient(server.url, poll_s=0.01)
        async with following(client) as changes:
            await shown(changes, "unloaded")
            router.value = "loaded"
            await shown(changes, "loaded")
        assert server.times("/models/sse") == 1


async def test_a_router_that_goes_away_is_stale_until_it_is_back_on_its_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_router, "LOOK_S", 1000.0)
    router = Router()
    server = router.server()
    async with contextlib.AsyncExitStack() as life:
        await life.enter_async_context(server.up())
        port = int(server.url.rsplit(":", 1)[1])
        client = RouterClient(server.url)
        async with following(client) as changes:
            before = await shown(changes, "unloaded")
            await until(lambda: server.times("/models/sse"))
            await life.aclose()
            await until(lambda: client.fault)
            assert client.stale_s > 0
            assert client.latest == before
            router.value = "loaded"
            async with server.up(port):
                seen = await shown(changes, "loaded")
    assert [event.kind for event in seen.events] == ["ready"]
