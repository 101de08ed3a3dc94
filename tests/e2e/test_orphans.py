"""Llmtop is gone, by whatever death: so are its children, or they are found and ended at the next start."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from llmtop.children.guardian import start_time
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MODELS: dict[str, dict[str, Any]] = {
    "speaks": {},
    "mute": {"protocol": False},
    "deaf": {"ignore_stdin": True, "ignore_term": True},
    "loading": {"load_ms": 60000},
}


def alive(pid: int) -> bool:
    return start_time(pid) is not None


async def gone(pids: list[int], timeout_s: float) -> float:
    """Wait until none of them lives; gives how long that took [s]."""
    begin = time.monotonic()
    while left := [pid for pid in pids if alive(pid)]:
        assert time.monotonic() - begin < timeout_s, f"alive after {timeout_s:g} s: {left}"
        await asyncio.sleep(0.01)
    return time.monotonic() - begin


async def spawned(one: Rig, model: str) -> bool:
    return bool(one.events(model, "spawn"))


def guardian(one: Rig) -> int | None:
    """The pid of its guardian, None while it has none."""
    for child in psutil.Process(one.process.pid).children():
        with contextlib.suppress(psutil.Error):
            if "guardian.py" in " ".join(child.cmdline()):
                return child.pid
    return None


@asynccontextmanager
async def full_house(folder: Path, *options: str) -> AsyncIterator[tuple[Rig, dict[str, int]]]:
    """A llmtop with a child of each kind, a stream on its way; gives the pids. What it leaves is swept up."""
    one = Rig(folder, MODELS)
    one.launch("--models-max", "4", *options)
    try:
        await one.healthy()
        async with one.client() as c:
            for m in ("speaks", "mute", "deaf"):
                assert (await one.ask(c, m)).status_code == 200
            assert (await c.post("/api/models/loading/load", json={})).status_code == 200
            await one.until(lambda: spawned(one, "loading"), "the fourth child runs")
            tasks = [asyncio.create_task(one.ask(c, m, tokens=4000)) for m in ("speaks", "mute", "deaf")]
            await asyncio.sleep(0.3)
            yield one, {m: one.events(m, "spawn")[-1]["pid"] for m in MODELS}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        one.process.kill()
        one.process.wait()
        for m in MODELS:
            for spawn in one.events(m, "spawn"):
                if alive(spawn["pid"]) and "fake_server.py" in " ".join(psutil.Process(spawn["pid"]).cmdline()):
                    os.kill(spawn["pid"], signal.SIGKILL)


async def test_kill_9_takes_every_obedient_child_along_and_the_deaf_one_after_its_stop_timeout(tmp_path: Path) -> None:
    async with full_house(tmp_path, "--stop-timeout", "1.5") as (one, pids):
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        await gone([pids["speaks"], pids["mute"], pids["loading"]], 3)
        await gone([pids["deaf"]], 4)


async def test_what_could_not_be_ended_is_ended_at_the_next_start_and_the_start_is_as_any_other(tmp_path: Path) -> None:
    async with full_house(tmp_path, "--stop-timeout", "30") as (one, pids):
        os.kill(guardian(one) or 0, signal.SIGKILL)  # nobody is left who could
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        assert alive(pids["deaf"])
        one.launch("--models-max", "4")
        await one.healthy()
        await gone(list(pids.values()), 5)
        state = await one.state()
        assert any("left by an earlier llmtop" in e["text"] and str(pids["deaf"]) in e["text"] for e in state["events"])
        async with one.client() as c:
            assert (await one.ask(c, "deaf")).status_code == 200
        assert one.stop() == 0


async def test_the_guardian_is_started_anew_and_still_does_its_work(tmp_path: Path) -> None:
    async with full_house(tmp_path, "--stop-timeout", "1") as (one, pids):
        first = guardian(one)
        assert first
        os.kill(first, signal.SIGKILL)

        async def anew() -> bool:
            return guardian(one) not in (None, first)

        await one.until(anew, "a new guardian", 5)
        os.kill(one.process.pid, signal.SIGKILL)
        one.process.wait()
        await gone(list(pids.values()), 5)


async def test_sigterm_under_load_tells_everybody_and_leaves_nothing(tmp_path: Path) -> None:
    async with full_house(tmp_path, "--stop-timeout", "1") as (one, pids):
        async with one.client() as c:
            waiter = asyncio.create_task(one.ask(c, "loading"))
            await asyncio.sleep(0.2)
            one.process.send_signal(signal.SIGTERM)
            answer = await asyncio.wait_for(waiter, 10)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "shutting_down")
        async with one.client() as late:
            with pytest.raises(httpx.TransportError):
                await late.get("/health")
        assert await asyncio.to_thread(one.process.wait, 20) == 0
        assert not [pid for pid in pids.values() if alive(pid)], "it went before its children"
        assert "Traceback" not in one.log


async def test_a_second_sigterm_does_not_wait_for_requests_or_stop_timeouts(tmp_path: Path) -> None:
    async with full_house(tmp_path, "--stop-timeout", "30") as (one, pids):
        one.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        begin = time.monotonic()
        one.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(one.process.wait, 20) == 0
        assert time.monotonic() - begin < 4
        assert not [pid for pid in pids.values() if alive(pid)]


async def test_sighup_without_a_terminal_reads_the_configuration_again_and_costs_no_child(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    preset.write_text("[A]\n")
    async with rig(tmp_path, {"A": {}}, "--models-preset", str(preset)) as r, r.client() as c:
        await r.ask(c, "A")
        preset.write_text("[A]\nalias = other\n")
        r.process.send_signal(signal.SIGHUP)

        async def renamed() -> bool:
            return (await r.ask(c, "other")).status_code == 200

        await r.until(renamed, "the new alias is known", 5)
        preset.write_text("[A\nbroken")
        r.process.send_signal(signal.SIGHUP)
        await asyncio.sleep(0.5)
        assert (await r.ask(c, "A")).status_code == 200, "a broken preset changes nothing"
        assert len(r.events("A", "spawn")) == 1
