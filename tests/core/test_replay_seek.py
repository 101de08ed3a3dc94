from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmtop.record import Recorder
from llmtop.replay import ReplayClient
from llmtop.snapshot import LogLine, Oom, Snapshot, Swaps

pytestmark = pytest.mark.anyio

SWAPS = (0, 0, 1, 1, 2, 2, 2, 2)
OOMS = (0, 0, 0, 0, 0, 0, 3, 3)
STEP_S = 100.0


@pytest.fixture
def long_run(tmp_path: Path) -> Path:
    """Eight pictures, 100 s apart: a swap in the third and the fifth, out-of-memory lines in the seventh."""
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, 0.0, 0.0)
    for n, (swaps, ooms) in enumerate(zip(SWAPS, OOMS, strict=True)):
        log = (LogLine(n, 0.0, "A", f"line {n}"),)
        picture = Snapshot("0", 1, float(n), "x", swaps=Swaps(swaps), oom=Oom(ooms), log=log)
        recorder.snapshot(picture, n * STEP_S)
    recorder.close()
    return path


@pytest.mark.parametrize(("kinds", "at_s"), [(["swap"], 200.0), (["swap", "swap"], 400.0), (["oom"], 600.0)])
async def test_a_paused_replay_moves_on_to_the_next_of_its_kind(long_run: Path, kinds: list[str], at_s: float) -> None:
    client = ReplayClient(long_run)
    client.paused = True
    playing = client.changes()
    await anext(playing)
    for kind in kinds:
        assert await client.seek_next("swap" if kind == "swap" else "oom")
    async with asyncio.timeout(10):
        async for snapshot in playing:
            if client.position_s == at_s:
                assert snapshot.at == at_s / STEP_S
                break
    assert client.paused


async def test_what_is_skipped_is_still_in_the_log(long_run: Path) -> None:
    client = ReplayClient(long_run)
    client.paused = True
    playing = client.changes()
    await anext(playing)
    assert await client.seek_next("oom")
    async with asyncio.timeout(10):
        async for _ in playing:
            if client.position_s == 600.0:
                break
    assert [line.text for line in await client.log("A")] == [f"line {n}" for n in range(7)]


async def test_nothing_moves_where_there_is_no_next(long_run: Path) -> None:
    client = ReplayClient(long_run)
    client.paused = True
    playing = client.changes()
    await anext(playing)
    assert await client.seek_next("oom")
    assert not await client.seek_next("oom")
    async with asyncio.timeout(10):
        async for _ in playing:
            if client.position_s == 600.0:
                break
    assert not await client.seek_next("swap")
    assert client.position_s == 600.0
