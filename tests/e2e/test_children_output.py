"""Children that write what no child should write."""

# ruff: noqa: T201 (figures are printed)

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from llmtop.children import news
from llmtop.config.spec import ModelSpec
from llmtop.testing.models import server_command, write_model
from llmtop.testing.nursery import nursery, spec_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return server_command(tmp_path / "bin")


async def longest_standstill(seconds: float) -> float:
    """The longest that this loop worked without coming round [s]; processor time, as the machine may be busy."""
    worst, end = 0.0, time.perf_counter() + seconds
    while time.perf_counter() < end:
        begin = time.thread_time()
        await asyncio.sleep(0.001)
        worst = max(worst, time.thread_time() - begin)
    return worst


async def test_binary_and_a_megabyte_without_a_line_end_are_shown_safely(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=50, binary=True, long_line=2**20)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        lines = home.supervisor.log("A")
        assert any("\\x00" in line.text or "\\x01" in line.text for line in lines)
        assert all(line.text.isprintable() and len(line.text) <= 500 for line in lines)
        assert sum(line.text.startswith("xxxx") for line in lines) == 1
        home.stop(one)
        assert (await home.until(news.Exited, one)).exit_code == 0


async def test_ten_thousand_lines_a_second_are_counted_and_not_forwarded(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=50, flood=10000)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        before = len(home.of(news.Line, one))
        worst = await longest_standstill(1.5)
        batches = home.of(news.Line, one)[before:]
        assert len(batches) <= 17
        assert max(len(batch.lines) for batch in batches) <= 51
        assert any("more lines" in batch.lines[-1] for batch in batches)
        assert len(home.supervisor.log("A")) == 2000
        assert home.supervisor.log("A")[0].seq == 1
        assert len(home.supervisor.tail()) == 500
        assert worst < 0.05
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert gone.exit_code == 0
        print(f"\n10,000 lines/s: loop stood still for {worst * 1000:.1f} ms at most")


async def test_a_child_that_writes_without_end_does_not_take_the_loop(tmp_path: Path, server: Path) -> None:
    yes = tmp_path / "yes"
    yes.write_text("#!/bin/sh\nexec yes >&2\n")
    yes.chmod(0o755)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(ModelSpec(id="A", cmd=str(yes)))
        await home.until(news.Started, one)
        worst = await longest_standstill(1.0)
        home.stop(one)
        await home.until(news.Exited, one)
        print(f"\nyes: loop stood still for {worst * 1000:.1f} ms at most")
        assert worst < 0.05


async def test_a_child_that_closes_stdout_is_ready_by_its_health(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=50, close_stdout=True)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        home.stop(one)
        await home.until(news.Stopping, one)


async def test_lines_are_written_to_the_models_file(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "org%2Fname", load_ms=20, load_lines=["\x1b[31mfirst\x1b[0m", "second"])
    async with nursery(tmp_path / "state", server) as home:
        spec = spec_of(model)
        one = home.spawn(spec)
        await home.until(news.Ready, one)
        home.stop(one)
        await home.until(news.Exited, one)
    (file,) = (tmp_path / "state/logs").iterdir()
    assert file.name == "org%252Fname.log"
    assert file.stat().st_mode & 0o777 == 0o600
    assert {"first", "second"} <= set(file.read_text().splitlines())
