"""A core in this process and the client of a view: snapshots out, commands in, an orderly end."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from llmtop.children.ports import free_port
from llmtop.config.resolve import resolve
from llmtop.core import Core
from llmtop.embed import EmbeddedClient
from llmtop.errors import StartError
from llmtop.snapshot import Snapshot
from llmtop.testing.models import server_command, write_model

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@contextmanager
def running(tmp_path: Path, models: dict[str, dict[str, Any]], **flags: object) -> Iterator[Core]:
    for name, knobs in models.items():
        write_model(tmp_path / "models", name, **{"load_ms": 50, "tok_rate": 200, **knobs})
    given: dict[str, object] = {
        "models_dir": str(tmp_path / "models"),
        "llama_server": str(server_command(tmp_path / "bin")),
        "port": str(free_port()),
        "state_dir": str(tmp_path / "state"),
        **flags,
    }
    core = Core(resolve(given, {"PATH": os.environ["PATH"]}, ()))
    core.start()
    try:
        yield core
    finally:
        core.stop()
        assert core.join(20)


async def until(client: EmbeddedClient, test: Any, what: str) -> Snapshot:
    async with asyncio.timeout(15):
        async for snapshot in client.changes():
            if test(snapshot):
                return snapshot
    raise AssertionError(what)


async def test_a_view_sees_each_state_and_its_verbs_work(tmp_path: Path) -> None:
    with running(tmp_path, {"A": {}, "B": {}}) as core:
        client = EmbeddedClient(core)
        assert client.embedded
        reply = await client.model("load", "A")
        assert (reply.success, reply.changed) == (True, True)
        seen = await until(client, lambda s: s.models[0].state == "loaded", "A loaded")
        assert seen.url == client.url
        assert (await client.model("pin", "A")).changed
        seen = await until(client, lambda s: s.models[0].pinned, "A pinned")
        assert seen.models[0].reason == "pinned until restart"
        assert any("model loaded" in line.text for line in await client.log("A"))
        stale = await client.model("evict", "A", instance=99)
        assert stale.refusal is not None
        assert stale.refusal.code == 409
        assert (await client.queue("step")).refusal is not None, "step is for a held queue"
        assert (await client.queue("hold")).changed
        assert (await client.cancel("12345")).refusal is not None
        assert (await client.model("kill", "A")).changed
        await until(client, lambda s: s.models[0].state == "unloaded", "A gone")
    assert (await client.model("load", "A")).refusal is not None, "a core that has ended says so"


async def test_a_core_ends_in_order_and_takes_its_children_along(tmp_path: Path) -> None:
    with running(tmp_path, {"A": {}}) as core:
        url = core.house.url
        async with httpx.AsyncClient(base_url=url, timeout=20, trust_env=False) as http:
            answer = await http.post("/v1/completions", json={"model": "A", "prompt": "x"})
            assert answer.status_code == 200
            pid = (await http.get("/api/state")).json()["models"][0]["pid"]
            assert psutil.pid_exists(pid)
            long = asyncio.create_task(
                http.post("/v1/completions", json={"model": "A", "prompt": "x", "max_tokens": 100})
            )
            await asyncio.sleep(0.2)
            core.stop()
            assert (await long).status_code == 200, "what is in flight gets its grace"
        assert await asyncio.to_thread(core.join, 20)
    assert not psutil.pid_exists(pid)
    _, alive = psutil.wait_procs(psutil.Process().children(recursive=True), timeout=3)  # the guardian ends last
    assert not alive


async def test_a_second_core_on_the_same_state_folder_does_not_start(tmp_path: Path) -> None:
    with (
        running(tmp_path, {"A": {}}),
        pytest.raises(StartError, match=f"pid {os.getpid()}"),
        running(tmp_path, {"A": {}}),
    ):
        raise AssertionError("it started")


async def test_a_slow_view_gets_the_newest_snapshot_not_all_of_them(tmp_path: Path) -> None:
    with running(tmp_path, {"A": {}}) as core:
        client = EmbeddedClient(core)
        changes = client.changes()
        first = await anext(changes)
        for verb in ("hold", "resume") * 5:
            await client.queue(verb)
            await asyncio.sleep(0.12)
        second = await anext(changes)
        assert second.at - first.at > 1.0
        await changes.aclose()  # type: ignore[attr-defined]
