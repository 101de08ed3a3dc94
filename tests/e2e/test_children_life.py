"""A child's life with real processes: spawn, ready, sleep, stop, exit."""

# ruff: noqa: E501 (log lines)

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmtop.children import ladder, news
from llmtop.config.spec import ModelSpec
from llmtop.testing.models import read_events, server_command, write_model
from llmtop.testing.nursery import Nursery, nursery, spec_of

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


@pytest.fixture(params=["asyncio", "uvloop"])
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    return "asyncio", {"use_uvloop": request.param == "uvloop"}


OOM = "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
CB_FAILED = "E ggml_metal_synchronize: error: command buffer 0 failed with status 5"


@pytest.fixture
def server(tmp_path: Path) -> Path:
    return server_command(tmp_path / "bin")


def zombies() -> list[int]:
    return [p.pid for p in psutil.Process().children() if p.status() == psutil.STATUS_ZOMBIE]


async def ready(home: Nursery, spec: ModelSpec) -> int:
    instance = home.spawn(spec)
    await home.until(news.Ready, instance)
    return instance


async def test_child_is_started_loads_is_ready_and_leaves_in_order(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=100, sizes=True)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model), cache_ram_mib=123)
        await home.until(news.Ready, one)
        slots = await home.until(news.Slots, one)
        sized = await home.until(news.Sized, one)
        home.stop(one)
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert (slots.total, gone.exit_code, gone.signal, gone.failure, gone.asked, gone.sigkilled) == (
            4,
            0,
            None,
            None,
            True,
            False,
        )
        assert sized.total > 2**20
        assert home.told(one).count("Stopping") == 1
        assert home.exits_are_last()
        started = home.of(news.Started, one)[0]
        spawn = read_events(model, "spawn")[0]
        assert spawn["argv"][:6] == ["--host", "127.0.0.1", "--port", str(started.port), "--alias", "A"]
        assert spawn["argv"][-4:] == ["-lv", "4", "--cache-ram", "123"]
        assert spawn["env"]["LLAMA_API_KEY"] == started.api_key
        assert started.api_key not in " ".join(started.args)
        assert [e["event"] for e in read_events(model)][-2:] == ["exit_command", "exit"], "the exit line, no signal"
        assert not zombies()
        assert (tmp_path / "state/children.json").stat().st_mode & 0o777 == 0o600
        assert str(started.pid) not in (tmp_path / "state/children.json").read_text()


async def test_two_spawns_never_share_a_port_or_a_key(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server) as home:
        children = [await ready(home, spec_of(model)) for _ in range(3)]
        started = [home.of(news.Started, i)[0] for i in children]
        assert len({s.port for s in started}) == len({s.api_key for s in started}) == 3


async def test_child_without_the_protocol_is_ready_when_its_health_says_so(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=150, protocol=False)
    async with nursery(tmp_path / "state", server) as home:
        one = await ready(home, spec_of(model))
        home.stop(one)
        gone = await home.until(news.Exited, one)
        assert (gone.exit_code, gone.failure) == (0, None)
        events = [e["event"] for e in read_events(model)]
        assert events.count("term") == 1
        assert "request" not in events
        told_ready = next(e["t"] for e in read_events(model, "ready"))
        late = home.at(news.Ready, one) - (told_ready - time.time() + time.perf_counter())
        assert late < 0.2


async def test_a_stranger_on_the_port_is_not_taken_for_the_child(tmp_path: Path, server: Path) -> None:
    stranger = write_model(tmp_path / "m", "S", load_ms=0, protocol=False, health="ok")
    model = write_model(tmp_path / "m", "A", load_ms=0, protocol=False)
    async with nursery(tmp_path / "state", server, load_timeout_s=2.0) as home:
        await ready(home, ModelSpec(id="S", cmd=f"{server} -m {stranger} --port ${{PORT}}"))
        taken = home.of(news.Started, 1)[0].port
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            elsewhere = free.getsockname()[1]
        ports = home.supervisor._world.ports  # pyright: ignore[reportPrivateUsage]
        ports.pick = lambda: taken  # type: ignore[method-assign]
        two = home.spawn(ModelSpec(id="A", cmd=f"{server} -m {model} --port {elsewhere}"))
        three = home.spawn(spec_of(model))
        await home.until(news.LoadFailed, two)
        gone = await home.until(news.Exited, three)
        assert gone.failure is not None
        assert gone.failure.kind == "port"
        assert not home.of(news.Ready, two)
        assert not home.of(news.Ready, three)


async def test_sleep_and_wake_are_told(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, sleep_idle_s=0.1)
    async with nursery(tmp_path / "state", server) as home:
        one = await ready(home, spec_of(model))
        await home.until(news.Slept, one)
        home.supervisor.verify(one)
        await home.until(news.Woke, one)
        assert not home.of(news.Sick, one)


async def test_sleep_of_a_child_without_the_protocol_is_seen(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, protocol=False)
    async with nursery(tmp_path / "state", server) as home:
        one = await ready(home, spec_of(model, sleep_idle_s=1.0))
        await home.until(news.Slept, one)
        assert len(read_events(model, "sleep")) == 1
        assert not read_events(model, "wake"), "asking must not wake it"


@pytest.mark.parametrize("server_is", ["missing", "not executable", "a folder", "no program"])
async def test_what_cannot_start_is_an_exit_with_a_reason(tmp_path: Path, server_is: str) -> None:
    path = tmp_path / "llama-server"
    if server_is == "not executable":
        path.write_text("x")
    elif server_is == "a folder":
        path.mkdir()
    elif server_is == "no program":
        path.write_bytes(b"\x7fELF junk")
        path.chmod(0o755)
    model = write_model(tmp_path / "m", "A")
    async with nursery(tmp_path / "state", path) as home:
        one = home.spawn(spec_of(model))
        gone = await home.until(news.Exited, one)
        assert home.told(one) == ["Exited"]
        assert gone.failure is not None
        assert gone.failure.kind == "not_found"
        assert str(path) in gone.failure.message


async def test_a_cmd_that_cannot_start_is_an_exit_with_a_reason(tmp_path: Path, server: Path) -> None:
    async with nursery(tmp_path / "state", server) as home:
        for cmd, kind in (("/nowhere/server --port ${PORT}", "not_found"), ("'unclosed", "bad_argument")):
            one = home.spawn(ModelSpec(id="X", cmd=cmd))
            gone = await home.until(news.Exited, one)
            assert gone.failure is not None
            assert gone.failure.kind == kind, gone.failure


async def test_no_descriptor_left_is_an_exit_with_a_reason(tmp_path: Path, server: Path) -> None:
    import resource

    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server) as home:
        await ready(home, spec_of(model))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 1, hard))
        try:
            two = home.spawn(spec_of(model))
            gone = await home.until(news.Exited, two)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert gone.failure is not None
        assert "Too many open files" in gone.failure.message
        three = await ready(home, spec_of(model))
        assert home.told(three)[0] == "Started"


async def test_children_get_the_old_descriptor_limit_back(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server, nofile=321) as home:
        one = await ready(home, spec_of(model))
        pid = home.of(news.Started, one)[0].pid
        limits = Path(f"/proc/{pid}/limits").read_text()  # noqa: ASYNC240
        assert next(line for line in limits.splitlines() if line.startswith("Max open files")).split()[3] == "321"
        home.stop(one)
        assert (await home.until(news.Exited, one)).exit_code == 0


async def test_out_of_memory_while_loading_fails_the_load_at_once(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=500, load_lines=[CB_FAILED, OOM] * 5)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        failed = await home.until(news.LoadFailed, one)
        assert failed.failure.kind == "oom"
        assert "kIOGPUCommandBufferCallbackErrorOutOfMemory" in failed.failure.message
        home.stop(one, loading=True)
        gone = await home.until(news.Exited, one)
        assert gone.failure == failed.failure
        assert not home.of(news.Ready, one)
        assert home.of(news.OomSeen, one)


async def test_out_of_memory_right_before_ready_never_makes_it_ready(tmp_path: Path, server: Path) -> None:
    for _ in range(5):
        model = write_model(tmp_path / "m", "A", load_ms=0, load_lines=["fine"] * 20 + [CB_FAILED, OOM])
        async with nursery(tmp_path / "state", server) as home:
            one = home.spawn(spec_of(model))
            await home.until(news.LoadFailed, one)
            assert not home.of(news.Ready, one)


async def test_out_of_memory_in_service_makes_it_sick(tmp_path: Path, server: Path) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=10, fail_after=0, fail_lines=[CB_FAILED, OOM])
    async with nursery(tmp_path / "state", server) as home:
        one = await ready(home, spec_of(model))
        home.supervisor.verify(one)
        sick = await home.until(news.Sick, one)
        assert (sick.failure.kind, "OutOfMemory" in sick.failure.message) == ("oom", True)
        assert home.told(one).count("Sick") == 1
        seen = await home.until(news.OomSeen, one)
        assert seen.count == 1


async def test_a_child_that_only_fails_is_found_sick_by_one_request(tmp_path: Path, server: Path) -> None:
    bad = write_model(tmp_path / "m", "bad", load_ms=10, fail_after=0)
    for name, status in (("good", 200), ("no", 501), ("full", 503)):
        write_model(
            tmp_path / "m", name, load_ms=10, **({} if status == 200 else {"fail_after": 0, "fail_status": status})
        )
    async with nursery(tmp_path / "state", server) as home:
        well = [await ready(home, spec_of(bad.with_name(f"{name}.gguf"))) for name in ("good", "no", "full")]
        sick = await ready(home, spec_of(bad))
        for instance in (*well, sick):
            home.supervisor.verify(instance)
        failure = (await home.until(news.Sick, sick)).failure
        assert "Compute error" in failure.message
        assert not any(home.of(news.Sick, i) for i in well)


@pytest.mark.parametrize(
    ("knobs", "kind", "words"),
    [
        ({"exit_at_load": 1, "load_lines": ["E llama_model_load: error loading model: unable to allocate CPU buffer"]}, "oom", "unable to allocate CPU buffer"),
        ({"exit_at_load": 1, "load_lines": ["E x: unknown model architecture: 'new'", "E srv  llama_server: exiting due to model loading error"]}, "bad_file", "'new'"),
        ({"exit_at_load": 1, "load_lines": ["error: invalid argument: --x"]}, "bad_argument", "--x"),
        ({"exit_at_load": 1, "load_lines": ["E srv  start: couldn't bind HTTP server socket, hostname: h, port: 1"]}, "port", "bind"),
        ({"exit_at_load": 7}, "crash", "status 7"),
    ],
)  # fmt: skip
async def test_a_load_that_fails_tells_its_cause(
    tmp_path: Path, server: Path, knobs: dict[str, Any], kind: str, words: str
) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=30, **knobs)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        gone = await home.until(news.Exited, one)
        assert gone.failure is not None
        assert (gone.failure.kind, gone.asked) == (kind, False)
        assert words in gone.failure.message
        assert gone.failure.exit_code == knobs["exit_at_load"]


async def test_a_child_that_becomes_a_router_is_a_bad_argument(tmp_path: Path, server: Path) -> None:
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(ModelSpec(id="A"))
        failed = await home.until(news.LoadFailed, one)
        assert failed.failure.kind == "bad_argument"
        home.stop(one, loading=True)
        await home.until(news.Exited, one)


async def test_no_progress_and_no_output_is_a_timeout_and_progress_is_not(tmp_path: Path, server: Path) -> None:
    stuck = write_model(tmp_path / "m", "stuck", load_ms=60000)
    slow = write_model(tmp_path / "m", "slow", load_ms=4500)
    async with nursery(tmp_path / "state", server, load_timeout_s=1.5) as home:
        one, two = home.spawn(spec_of(stuck)), home.spawn(spec_of(slow))
        failed = await home.until(news.LoadFailed, one)
        assert failed.failure.kind == "timeout"
        await home.until(news.Ready, two)
        assert not home.of(news.LoadFailed, two)


@pytest.mark.parametrize("moment", ["loading", "ready", "stopping"])
async def test_sigkill_from_outside_is_told_as_such(tmp_path: Path, server: Path, moment: str) -> None:
    model = write_model(tmp_path / "m", "A", load_ms=60000 if moment == "loading" else 10, stop_ms=60000)
    async with nursery(tmp_path / "state", server) as home:
        one = home.spawn(spec_of(model))
        await home.until(news.Loading if moment == "loading" else news.Ready, one)
        if moment == "stopping":
            home.stop(one)
        pid = home.of(news.Started, one)[0].pid
        begin = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        gone = await home.until(news.Exited, one)
        assert home.at(news.Exited, one) - begin < 0.2
        assert (gone.exit_code, gone.signal, gone.sigkilled) == (None, 9, False)
        if moment == "stopping":
            assert gone.failure is None
        else:
            assert gone.failure is not None
            assert gone.failure.kind == "killed"


async def test_death_at_any_moment_ends_in_one_exit(tmp_path: Path, server: Path) -> None:
    """SIGKILL 0 to 120 ms after the spawn: before the exec is done, while the interpreter starts, loading, ready."""
    model = write_model(tmp_path / "m", "A", load_ms=40)
    async with nursery(tmp_path / "state", server) as home:
        for step in range(12):
            one = home.spawn(spec_of(model))
            started = await home.until(news.Started, one)
            import anyio

            await anyio.sleep(step * 0.01)
            os.kill(started.pid, signal.SIGKILL)
            gone = await home.until(news.Exited, one)
            assert gone.signal == 9
        assert home.exits_are_last()
        assert not zombies()


async def test_a_child_that_survives_sigkill_is_told_as_stuck(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not let a test have one, so SIGKILL is not sent."""
    monkeypatch.setattr(ladder, "STUCK_AFTER_S", 0.2)
    model = write_model(tmp_path / "m", "A", load_ms=10, ignore_stdin=True)
    async with nursery(tmp_path / "state", server) as home:
        one = await ready(home, spec_of(model))
        process = home.supervisor._children[one]._process  # pyright: ignore[reportPrivateUsage]
        assert process is not None
        real = process.send
        monkeypatch.setattr(process, "send", lambda signum, *, group: None)
        home.supervisor.kill(one)
        stuck = await home.until(news.Stuck, one)
        assert stuck.process_state in ("S", "R")
        monkeypatch.setattr(process, "send", real)
        os.kill(process.pid, signal.SIGKILL)
        gone = await home.until(news.Exited, one)
        assert gone.sigkilled
        assert [told for told in home.told(one) if told != "Line"][-3:] == ["Killed", "Stuck", "Exited"]


async def test_exit_is_seen_where_there_is_no_pidfd(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(pid: int, flags: int = 0) -> int:
        raise OSError(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", none)
    model = write_model(tmp_path / "m", "A", load_ms=10)
    async with nursery(tmp_path / "state", server) as home:
        for moment in (news.Started, news.Ready):
            one = home.spawn(spec_of(model))
            started = home.of(news.Started, one) or [await home.until(news.Started, one)]
            await home.until(moment, one)
            os.kill(started[0].pid, signal.SIGKILL)
            assert (await home.until(news.Exited, one)).signal == 9
        one = home.spawn(spec_of(model))
        await home.until(news.Ready, one)
        home.stop(one)
        assert (await home.until(news.Exited, one)).exit_code == 0


async def test_the_key_is_asked_where_the_sockets_owner_cannot_be_seen(
    tmp_path: Path, server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmtop.children import probe

    monkeypatch.setattr(probe, "listener_in_group", lambda port, pgid: None)
    model = write_model(tmp_path / "m", "A", load_ms=10, protocol=False)
    async with nursery(tmp_path / "state", server) as home:
        await ready(home, spec_of(model))
        port = home.of(news.Started, 1)[0].port
        client = home.supervisor._world.client()  # pyright: ignore[reportPrivateUsage]
        stranger = probe.Probe(client, port=port, api_key="another key", pgid=1, health="/health")
        assert await stranger.healthy()
        assert not await stranger.ours()
