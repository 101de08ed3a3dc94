"""The stop ladder with real processes: asked politely and once, killed in time, nothing left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import anyio
import psutil
import pytest

from llmtop.children import news
from llmtop.config.spec import ModelSpec
from llmtop.testing.models import read_events, server_command, write_model
from llmtop.testing.nursery import nursery, spec_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return server_command(tmp_path / "bin")


async def test_a_child_that_obeys_nothing_is_killed_at_its_stop_timeout(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, ignore_stdin=True, ignore_term=True)
    async with nursery(tmp_path / "state", server, stop_timeout_s=9.0) as home:
        one = home.spawn(spec_of(model, stop_timeout_s=0.4))
        await home.until(news.Ready, one)
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert home.of(news.Stopping, one)[0].kill_in_s == 0.4
        assert 0.38 < home.at(news.Exited, one) - home.at(news.Stopping, one) < 0.7
        assert (gone.signal, gone.sigkilled, gone.asked, gone.failure) == (9, True, True, None)
        assert len(home.of(news.Killed, one)) == 1


async def test_a_child_that_is_slow_to_leave_is_not_killed_before_its_time(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, stop_ms=300)
    async with nursery(tmp_path / "state", server, stop_timeout_s=0.6) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert (gone.exit_code, gone.sigkilled) == (0, False)


@pytest.mark.parametrize("obeys", [True, False])
async def test_a_loading_child_gets_sigterm_at_once_and_sigkill_half_a_second_later(
    tmp_path: Path, server: Path, obeys: bool
) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=60000, ignore_term=not obeys)
    async with nursery(tmp_path / "state", server, stop_timeout_s=8.0) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Loading, one)
        home.stop(one, loading=True)
        gone = await home.until(news.Exited, one)
        took = home.at(news.Exited, one) - home.at(news.Stopping, one)
        assert (took < 0.3) if obeys else (0.48 < took < 0.8)
        assert (gone.signal, gone.sigkilled, gone.failure) == (15 if obeys else 9, not obeys, None)
        assert not home.of(news.Ready, one)


async def test_a_stop_that_comes_before_the_process_exists_is_carried_out(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=60000)
    async with nursery(tmp_path / "state", server) as home:
        one, two = home.spawn(spec_of(model)), home.spawn(spec_of(model))
        home.stop(one, loading=True)
        home.supervisor.kill(two)
        assert (await home.until(news.Exited, one)).asked
        gone = await home.until(news.Exited, two)
        assert (gone.signal, gone.sigkilled) == (9, True)
        assert home.exits_are_last()


async def test_kill_works_in_every_state(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=200, sleep_idle_s=0.1, stop_ms=60000)
    async with nursery(tmp_path / "state", server) as home:
        for state in (news.Started, news.Loading, news.Ready, news.Slept, news.Stopping):
            one = home.spawn(spec_of(model))
            if state is news.Stopping:
                await home.until(news.Ready, one)
                home.stop(one)
            await home.until(state, one)
            home.supervisor.kill(one)
            home.supervisor.kill(one)
            gone = await home.until(news.Exited, one)
            assert gone.sigkilled
            assert len(home.of(news.Killed, one)) == 1


async def test_a_cmd_server_and_all_behind_its_wrapper_are_ended(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(ModelSpec(id="A", cmd=f"sh -c '{server} -m {model} --port ${{PORT}} & wait'"))
        await home.until(news.Ready, one)
        inner = read_events(model, "spawn")[0]["pid"]
        assert inner != home.of(news.Started, one)[0].pid
        assert home.of(news.Started, one)[0].api_key == ""
        home.stop(one)
        await home.until(news.Exited, one)
        assert not psutil.pid_exists(inner) or psutil.Process(inner).status() == psutil.STATUS_ZOMBIE


async def test_a_cmd_servers_own_stop_command_is_used(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10)
    asked = tmp_path / "asked"
    async with nursery(tmp_path / "state", server) as home:
        stop = f"sh -c 'echo ${{PORT}} ${{PID}} > {asked}; kill ${{PID}}'"
        one = home.spawn(ModelSpec(id="A", cmd=f"{server} -m {model} --port ${{PORT}}", stop_cmd=stop))
        await home.until(news.Ready, one)
        home.stop(one)
        assert (await home.until(news.Exited, one)).exit_code == 0
        started = home.of(news.Started, one)[0]
        assert asked.read_text().split() == [str(started.port), str(started.pid)]


async def test_a_stop_command_that_fails_gives_way_to_sigterm(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(ModelSpec(id="A", cmd=f"{server} -m {model} --port ${{PORT}}", stop_cmd="false"))
        await home.until(news.Ready, one)
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert (gone.exit_code, gone.sigkilled) == (0, False)


@pytest.mark.parametrize("holder", [True, "session"])
async def test_a_grandchild_that_holds_the_pipes_holds_nobody_up(tmp_path: Path, server: Path, holder: object) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, fork_holder=holder)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        pid = home.of(news.Started, one)[0].pid
        family = psutil.Process(pid).children()
        begin = time.perf_counter()
        os.kill(pid, 9)
        await home.until(news.Exited, one)
        assert home.at(news.Exited, one) - begin < 0.6
        left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert bool(left) == (holder == "session"), "its own group is emptied, another session's is not ours"
        for process in left:
            process.kill()


async def test_many_stops_leave_no_zombie_no_descriptor_and_no_thread(tmp_path: Path, server: Path) -> None:
    import threading

    model = write_model(tmp_path / "m", "A", load_ms=5)
    async with nursery(tmp_path / "state", server) as home:

        async def cycle() -> None:
            one = home.spawn(spec_of(model))
            await home.until(news.Ready, one)
            home.stop(one)
            await home.until(news.Exited, one)

        for _ in range(4):
            await cycle()
        await anyio.sleep(0.1)
        before = (len(os.listdir("/proc/self/fd")), threading.active_count())
        for _ in range(8):
            await cycle()
        now = before
        for _ in range(40):
            now = (len(os.listdir("/proc/self/fd")), threading.active_count())
            if now[0] < before[0] + 4 and now[1] <= before[1]:
                break
            await anyio.sleep(0.05)
        assert now[0] < before[0] + 4, "eight more children left less than one descriptor each"
        assert now[1] <= before[1]
        assert not [i for i in range(1, 13) if psutil.pid_exists(home.of(news.Started, i)[0].pid)], (
            "a zombie exists too"
        )


async def test_closing_stops_all_side_by_side(tmp_path: Path, server: Path) -> None:
    models = [write_model(tmp_path / "m", f"M{i}", load_ms=10, stop_ms=400) for i in range(4)]
    loading = write_model(tmp_path / "m", "L", load_ms=60000)
    async with nursery(tmp_path / "state", server) as home:
        children = [home.spawn(spec_of(model)) for model in models]
        for one in children:
            await home.until(news.Ready, one)
        last = home.spawn(spec_of(loading))
        await home.until(news.Started, last)
        begin = time.perf_counter()
        await home.supervisor.aclose()
        assert time.perf_counter() - begin < 1.5
        assert all(home.of(news.Exited, i)[0].exit_code == 0 for i in children)
        assert home.of(news.Exited, last)
        assert home.exits_are_last()
