"""Changes of preset file and models folder, told once they have come to rest."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.config.discovery import Catalog
from llmtop.config.resolve import Configuration
from llmtop.config.spec import Settings
from llmtop.config.watch import changes, places

pytestmark = pytest.mark.anyio
SOON_S = 4.0
QUIET_S = 1.2


def configured(tmp_path: Path, watch: bool | None = None) -> Configuration:
    (tmp_path / "models").mkdir(exist_ok=True)
    preset = tmp_path / "p.ini"
    preset.write_text("[A]\n")
    settings = Settings(models_preset=str(preset), models_dir=str(tmp_path / "models"), watch=watch)
    return Configuration(settings, Catalog({}))


@contextlib.asynccontextmanager
async def watching(configuration: Configuration) -> AsyncIterator[asyncio.Queue[int]]:
    """What is told, as it comes."""
    told: asyncio.Queue[int] = asyncio.Queue()

    async def follow() -> None:
        count = 0
        async with contextlib.aclosing(changes(configuration)) as stream:
            async for _ in stream:
                count += 1
                told.put_nowait(count)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0.3)
    try:
        yield told
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def one(told: asyncio.Queue[int]) -> None:
    await asyncio.wait_for(told.get(), SOON_S)


async def none(told: asyncio.Queue[int]) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(told.get(), QUIET_S)


def test_the_preset_file_is_watched_unless_said_otherwise_and_the_folder_when_asked(tmp_path: Path) -> None:
    preset, folder = str(tmp_path / "p.ini"), str(tmp_path / "models")
    for watch, expected in ((None, (preset, "")), (True, (preset, folder)), (False, ("", ""))):
        found = places(configured(tmp_path, watch))
        assert (found.preset, found.folder) == expected


async def test_nothing_to_watch_ends_at_once(tmp_path: Path) -> None:
    assert [x async for x in changes(configured(tmp_path, watch=False))] == []


@pytest.mark.slow
async def test_a_burst_of_writes_is_one_change(tmp_path: Path) -> None:
    async with watching(configured(tmp_path)) as told:
        for n in range(5):
            (tmp_path / "p.ini").write_text(f"[A]\nc = {n}\n")
            await asyncio.sleep(0.05)
        await one(told)
        await none(told)


@pytest.mark.slow
async def test_a_file_that_an_editor_replaces_is_a_change(tmp_path: Path) -> None:
    async with watching(configured(tmp_path)) as told:
        for n in range(2):
            (tmp_path / "p.ini.new").write_text(f"[B{n}]\n")
            os.replace(tmp_path / "p.ini.new", tmp_path / "p.ini")
            await one(told)
        (tmp_path / "p.ini").unlink()
        await one(told)


@pytest.mark.slow
async def test_other_files_beside_it_and_a_write_of_the_same_moment_are_none(tmp_path: Path) -> None:
    async with watching(configured(tmp_path, watch=True)) as told:
        (tmp_path / "other.ini").write_text("x")
        (tmp_path / "models" / "A.events.jsonl").write_text("{}")
        await none(told)


@pytest.mark.slow
async def test_models_that_come_go_and_lie_in_new_folders_are_changes(tmp_path: Path) -> None:
    async with watching(configured(tmp_path, watch=True)) as told:
        (tmp_path / "models" / "B.gguf").write_bytes(b"GGUF")
        await one(told)
        (tmp_path / "models" / "deep").mkdir()
        await asyncio.sleep(1.0)
        (tmp_path / "models" / "deep" / "C.gguf").write_bytes(b"GGUF")
        await one(told)
        (tmp_path / "models" / "deep" / "C.gguf").write_bytes(b"GGUF" * 2)
        await one(told)
        (tmp_path / "models" / "B.gguf").unlink()
        await one(told)


@pytest.mark.slow
async def test_a_copy_under_way_is_told_when_it_is_whole_and_keeps_no_preset_waiting(tmp_path: Path) -> None:
    async with watching(configured(tmp_path, watch=True)) as told:
        with (tmp_path / "models" / "big.gguf").open("wb") as file:
            for n in range(16):
                file.write(bytes(1000))
                file.flush()
                await asyncio.sleep(0.15)
                if n == 2:
                    (tmp_path / "p.ini").write_text("[B]\n")
            assert told.qsize() == 1, "the preset alone"
        await one(told)
        await one(told)
        await none(told)


@pytest.mark.slow
async def test_a_folder_that_goes_and_comes_back_is_watched_again(tmp_path: Path) -> None:
    configuration = configured(tmp_path, watch=True)
    async with watching(configuration) as told:
        (tmp_path / "models" / "B.gguf").write_bytes(b"GGUF")
        await one(told)
        (tmp_path / "models").rename(tmp_path / "away")
        await one(told)
        (tmp_path / "away").rename(tmp_path / "models")
        await one(told)
        (tmp_path / "models" / "C.gguf").write_bytes(b"GGUF")
        await one(told)
