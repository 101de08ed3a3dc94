"""What comes late or is cut short: news after the exit, a question to a child that is being forgotten."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from llmtop.children import news
from llmtop.children.probe import Probe, make_client
from llmtop.config.spec import ModelSpec
from llmtop.testing.models import server_command, write_model
from llmtop.testing.nursery import nursery, spec_of

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.parametrize(
        "anyio_backend",
        [("asyncio", {"use_uvloop": False}), ("asyncio", {"use_uvloop": True})],
        ids=["plain", "uvloop"],
    ),
]


async def test_a_stop_says_how_it_was_asked(tmp_path: Path) -> None:
    server = server_command(tmp_path / "bin")
    speaks = write_model(tmp_path / "m", "speaks", load_ms=10)
    mute = write_model(tmp_path / "m", "mute", load_ms=10, protocol=False)
    loading = write_model(tmp_path / "m", "loading", load_ms=60000)
    command = ModelSpec(id="other", cmd=f"{server} -m {mute} --port ${{PORT}}", stop_cmd="kill ${PID}")
    async with nursery(tmp_path / "state", server) as home:
        for spec, how in ((spec_of(speaks), "exit line"), (spec_of(mute), "SIGTERM"), (command, "stop-cmd")):
            one = home.spawn(spec)
            await home.until(news.Ready, one)
            home.stop(one)
            assert (await home.until(news.Stopping, one)).how == how
            assert not (await home.until(news.Exited, one)).sigkilled
        one = home.spawn(spec_of(loading))
        await home.until(news.Loading, one)
        home.stop(one, loading=True)
        assert (await home.until(news.Stopping, one)).how == "SIGTERM"


async def test_questions_cut_short_at_any_moment_leave_no_descriptor_open() -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(mute, "127.0.0.1", 0)
    client = make_client()
    try:
        port = server.sockets[0].getsockname()[1]
        probe = Probe(client, port=port, api_key="k", pgid=1, health="/health")
        before = psutil.Process().num_fds()
        for turns in range(60):
            task = asyncio.create_task(probe.healthy())
            for _ in range(turns % 30):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for _ in range(60):
            if psutil.Process().num_fds() <= before:
                break
            await asyncio.sleep(0.1)
        assert psutil.Process().num_fds() <= before
    finally:
        await client.aclose()
        server.close()
        await server.wait_closed()
