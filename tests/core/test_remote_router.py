from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop import remote_router
from llmtop.children.binary import server_environment, wheel_binary
from llmtop.client import CoreClient
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.errors import StartError
from llmtop.remote_router import RouterClient, is_router
from llmtop.snapshot import Snapshot

pytestmark = pytest.mark.anyio
ARGS = ["llama-server", "--port", "4001", "--model", "/m/a.gguf"]


class Router:
    """A router's answers, by the same handler for both kinds of transport."""

    def __init__(self) -> None:
        self.models: list[dict[str, Any]] = [
            {"id": "a", "aliases": ["first"], "status": {"value": "loaded", "args": ARGS, "preset": ""}},
            {"id": "b", "status": {"value": "unloaded", "failed": True, "exit_code": 1}},
            {"id": "c", "status": {"value": "loading", "progress": {"current": "text_model", "value": 0.4}}},
        ]
        self.posted: list[tuple[str, bytes]] = []
        self.refusal: dict[str, Any] | None = None
        self.down = False

    def streamed(self, request: httpx.Request) -> httpx.Response:
        """The answer as it comes over a wire, unread."""
        answer = self(request)
        return httpx.Response(answer.status_code, stream=httpx.ByteStream(answer.content))

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.down:
            raise httpx.ConnectError("connection refused")
        path = request.url.path
        if request.method == "POST":
            self.posted.append((path, request.content))
            return httpx.Response(400, json=self.refusal) if self.refusal else httpx.Response(200, json={"success": 1})
        if path == "/models":
            return httpx.Response(200, json={"object": "list", "data": self.models})
        if path == "/props":
            return httpx.Response(200, json={"role": "router", "max_instances": 2, "build_info": "b9-abc"})
        return httpx.Response(404, json={"error": {"message": "File Not Found"}})


@pytest.fixture
def router() -> Router:
    return Router()


@pytest.fixture
def client(router: Router) -> RouterClient:
    return RouterClient("http://router", transport=httpx.MockTransport(router.streamed))


async def test_models_are_told_as_the_router_tells_them(client: RouterClient) -> None:
    core: CoreClient = client
    picture = await client.refresh()
    a, b, c = picture.models
    assert (a.state, a.port, a.aliases, picture.running, picture.models_max) == ("loaded", 4001, ("first",), 2, 2)
    assert b.state == "unloaded"
    assert b.failure is not None
    assert b.failure.message == "the child ended with exit code 1"
    assert c.progress is not None
    assert (c.state, c.progress.value, c.progress.phase) == ("loading", 0.4, "text_model")
    assert picture.server == "llama.cpp router b9-abc"
    assert core.latest is picture
    await client.aclose()


async def test_text_of_a_router_is_made_safe(client: RouterClient, router: Router) -> None:
    router.models = [{"id": "a\x1b]0;t\x07", "status": {"value": "loaded", "args": ["\x1b[31m"]}}]
    (model,) = (await client.refresh()).models
    assert (model.id + model.args[0]).isprintable()
    await client.aclose()


async def test_changes_between_two_looks_are_events(client: RouterClient, router: Router) -> None:
    assert (await client.refresh()).events == ()
    router.models[0]["status"] = {"value": "unloaded", "failed": True, "exit_code": 3}
    router.models[2]["status"] = {"value": "loaded"}
    events = (await client.refresh()).events
    assert [(event.kind, event.model) for event in events] == [("fail", "a"), ("ready", "c")]
    await client.aclose()


async def test_load_and_evict_are_the_routers_own_verbs(client: RouterClient, router: Router) -> None:
    assert (await client.model("load", "a")).success
    assert (await client.model("evict", "a", 7)).success
    assert [path for path, _ in router.posted] == ["/models/load", "/models/unload"]
    router.refusal = {"error": {"code": 400, "message": "model is not running"}}
    refused = (await client.model("evict", "b")).refusal
    assert refused is not None
    assert refused.message == "llama.cpp's router says: model is not running"
    await client.aclose()


async def test_what_a_router_cannot_do_is_refused_in_words_and_not_tried(client: RouterClient, router: Router) -> None:
    replies = [await client.model("pin", "a"), await client.model("unpin", "a"), await client.model("kill", "a")]
    replies += [await client.queue("hold"), await client.queue("step"), await client.queue("resume")]
    replies += [await client.cancel("1"), await client.acknowledge_oom()]
    for reply in replies:
        assert reply.refusal is not None
        assert reply.refusal.message.startswith("llama.cpp's router cannot ")
    assert router.posted == []
    assert await client.log("a") == ()
    await client.aclose()


async def test_a_router_that_cannot_be_reached_is_told_and_its_picture_kept(
    client: RouterClient, router: Router
) -> None:
    picture = await client.refresh()
    router.down = True
    with pytest.raises(StartError, match="cannot be reached"):
        await client.refresh()
    assert client.latest is picture
    router.down = False
    await client.refresh()
    await client.aclose()


def _is_router(answers: dict[str, httpx.Response]) -> bool:
    def answer(request: httpx.Request) -> httpx.Response:
        return answers.get(request.url.path, httpx.Response(404))

    return is_router("http://x", transport=httpx.MockTransport(answer))


def test_a_router_is_told_from_llmtop_and_from_strangers(router: Router) -> None:
    models = httpx.Response(200, json={"data": router.models})
    assert is_router("http://x", transport=httpx.MockTransport(router))
    assert not _is_router({"/api/state": httpx.Response(200, json={}), "/models": models})
    assert not _is_router({"/api/state": httpx.Response(401), "/models": models})
    assert not _is_router({"/models": httpx.Response(200, json={"data": [{"id": "gpt"}]})})
    assert not _is_router({})
    router.down = True
    assert not is_router("http://x", transport=httpx.MockTransport(router))


class RealRouter:
    """llama.cpp's own, on tiny models."""

    def __init__(self, binary: str, models: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self._argv = [binary, "--models-dir", str(models), "--port", str(port), "-c", "512", "--no-warmup"]
        self.url = f"http://127.0.0.1:{port}"
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self) -> None:
        environment = server_environment(self._argv[0], os.environ)
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(self._argv, env=environment, stdin=quiet, stdout=quiet, stderr=quiet)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


@pytest.fixture
def real_router(tmp_path: Path) -> Iterator[RealRouter]:
    binary = wheel_binary()
    if binary is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    for seed, name in enumerate(("ash", "elm")):
        write_tiny(tmp_path / f"{name}.gguf", seed=seed)
    router = RealRouter(binary, tmp_path)
    yield router
    router.end()


@pytest.mark.slow
async def test_a_real_router_is_followed_by_its_feed_loads_unloads_goes_and_comes_back(
    real_router: RealRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = RouterClient(real_router.url)

    async def until(state: str) -> Snapshot:
        async for picture in changes:
            if any(model.id == "ash" and model.state == state for model in picture.models):
                return picture
        raise AssertionError("a router's changes never end")

    async with asyncio.timeout(90), contextlib.aclosing(client.changes()) as changes:
        assert [model.id for model in (await until("unloaded")).models] == ["ash", "elm"]
        assert await asyncio.to_thread(is_router, real_router.url)
        monkeypatch.setattr(remote_router, "LOOK_S", 1000.0)  # from the next look on the feed alone tells
        assert (await client.model("load", "ash")).success
        loaded = await until("loaded")
        assert loaded.running == 1
        assert next(model.port for model in loaded.models if model.id == "ash")
        assert (await client.model("evict", "ash")).success
        events = (await until("unloaded")).events
        assert [event.kind for event in events if event.model == "ash"][-1] == "exit"
        assert (await client.model("load", "nobody")).refusal is not None
        await asyncio.to_thread(real_router.end)
        while not client.fault:  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.05)
        assert client.stale_s > 0
        real_router.start()
        await until("unloaded")
        assert client.fault == ""
    await client.aclose()
