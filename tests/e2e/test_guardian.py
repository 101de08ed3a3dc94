"""The guardian: llmtop is gone, whatever ended it, and so are its children. Real processes."""

# ruff: noqa: T201 (figures are printed)

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmtop.children.guardian import Ward, executable, start_time
from llmtop.children.guardian_link import GuardianLink
from llmtop.children.records import FILE, recover
from llmtop.testing.models import server_command, write_model

pytestmark = pytest.mark.slow

OWNER = """
    import asyncio, json, sys
    from pathlib import Path
    from llmtop.children import news
    from llmtop.testing.nursery import nursery, spec_of

    async def main(folder: Path, models: list[str]) -> None:
        async with nursery(folder / "state", folder / "bin/llama-server", stop_timeout_s=0.8) as home:
            ids = [home.spawn(spec_of(folder / "m" / f"{name}.gguf")) for name in models]
            for one in ids:
                await home.until(news.Started if "L" in models[one - 1] else news.Ready, one)
            await asyncio.sleep(0.1)
            pids = [home.of(news.Started, one)[0].pid for one in ids]
            print(json.dumps({"pids": pids, "guardian": home.guardian.pid}), flush=True)
            await asyncio.sleep(60)

    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
"""


def alive(pid: int) -> bool:
    return start_time(pid) is not None


def wait_until_gone(pids: list[int], timeout_s: float) -> float:
    begin = time.perf_counter()
    while any(alive(pid) for pid in pids):
        assert time.perf_counter() - begin < timeout_s, [psutil.Process(pid).cmdline() for pid in pids if alive(pid)]
        time.sleep(0.005)
    return time.perf_counter() - begin


def owner_of(folder: Path, **models: dict[str, Any]) -> tuple[subprocess.Popen[bytes], list[int], int]:
    for name, knobs in models.items():
        write_model(folder / "m", name, **knobs)
    server_command(folder / "bin")
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(OWNER), str(folder), *models], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process.stdout as said:
        told = json.loads(said.readline())
    return process, told["pids"], told["guardian"]


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        yield process
        process.kill()


def ward_of(pid: int, **fields: Any) -> Ward:
    started = start_time(pid)
    assert started is not None
    return Ward(
        **{"pid": pid, "start_time": started, "exe": executable(pid), "pgid": pid, "stop_timeout_s": 0.5, **fields}
    )


def test_kill_9_of_the_owner_ends_all_children(tmp_path: Path) -> None:
    knobs: dict[str, dict[str, Any]] = {
        "A": {"load_ms": 10},
        "B": {"load_ms": 10, "protocol": False},
        "L": {"load_ms": 60000},
        "D": {"load_ms": 10, "ignore_stdin": True, "ignore_term": True},
    }
    process, pids, guardian = owner_of(tmp_path, **knobs)
    process.kill()
    process.wait()
    obedient = wait_until_gone(pids[:3], 1.0)
    all_gone = wait_until_gone(pids, 3.0)
    wait_until_gone([guardian], 1.0)
    print(f"\nkill -9 of the owner: obedient children gone after {obedient * 1000:.0f} ms,", end=" ")
    print(f"a deaf one (stop timeout 800 ms) after {(obedient + all_gone) * 1000:.0f} ms")


def test_the_guardian_outlives_the_signals_that_end_its_owner(tmp_path: Path) -> None:
    process, pids, guardian = owner_of(tmp_path, A={"load_ms": 10, "protocol": False})
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(guardian, signum)
    time.sleep(0.2)
    assert alive(guardian)
    assert os.getsid(guardian) == guardian
    line = " ".join(psutil.Process(guardian).cmdline())
    assert "llama-server" not in line
    assert str(tmp_path) not in line
    assert {
        os.path.basename(os.readlink(f"/proc/{guardian}/fd/{fd}")).split(":")[0]
        for fd in os.listdir(f"/proc/{guardian}/fd")
    } == {"pipe", "null"}
    process.kill()
    process.wait()
    wait_until_gone(pids, 1.0)


def test_what_was_taken_off_the_list_is_left_alone(sleeper: subprocess.Popen[bytes]) -> None:
    link = GuardianLink()
    link.start()
    link.add(ward_of(sleeper.pid))
    link.remove(sleeper.pid)
    guardian = link.pid
    assert guardian is not None
    link.close()
    wait_until_gone([guardian], 2.0)
    time.sleep(0.1)
    assert sleeper.poll() is None


@pytest.mark.parametrize("other", [{"start_time": 1.0}, {"exe": "/usr/bin/other"}])
def test_another_process_of_that_number_is_left_alone(
    sleeper: subprocess.Popen[bytes], other: dict[str, object]
) -> None:
    link = GuardianLink()
    link.start()
    link.add(ward_of(sleeper.pid, **other))
    guardian = link.pid
    assert guardian is not None
    link.close()
    wait_until_gone([guardian], 2.0)
    assert sleeper.poll() is None


def test_a_guardian_that_was_killed_is_replaced_and_knows_the_list(sleeper: subprocess.Popen[bytes]) -> None:
    link = GuardianLink()
    link.start()
    link.add(ward_of(sleeper.pid))
    first = link.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until_gone([first], 2.0)
    link.check()
    second = link.pid
    assert second not in (None, first)
    link.close()
    assert sleeper.wait(3) == -signal.SIGTERM


def test_survivors_of_an_earlier_run_are_ended_and_told(tmp_path: Path) -> None:
    process, pids, guardian = owner_of(
        tmp_path, A={"load_ms": 10, "ignore_stdin": True}, D={"load_ms": 10, "ignore_stdin": True, "ignore_term": True}
    )
    os.kill(guardian, signal.SIGKILL)
    process.kill()
    process.wait()
    time.sleep(0.2)
    assert all(alive(pid) for pid in pids)
    begin = time.perf_counter()
    report = recover(tmp_path / "state")
    assert time.perf_counter() - begin < 4
    assert len(report) == 2
    assert all(any(f"pid {pid}," in line for line in report) for pid in pids)
    assert not any(alive(pid) for pid in pids)
    assert recover(tmp_path / "state") == []


def test_a_record_of_another_process_is_never_signalled(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    started = start_time(sleeper.pid)
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    same = {
        "pid": sleeper.pid,
        "start_time": started,
        "exe": executable(sleeper.pid),
        "port": 1,
        "model": "A",
        "stop_timeout_s": 1.0,
    }
    books = [
        {"boot": boot, "children": [same | {"start_time": 5.0}]},
        {"boot": boot, "children": [same | {"exe": "/usr/bin/other"}]},
        {"boot": "another", "children": [same]},
        {"boot": boot, "children": [same | {"pid": 1}]},
        {"boot": boot, "children": "junk"},
    ]
    for book in books:
        (tmp_path / FILE).write_text(json.dumps(book))
        assert recover(tmp_path) == []
        assert sleeper.poll() is None
    (tmp_path / FILE).write_text(json.dumps({"boot": boot, "children": [same]}))
    assert len(recover(tmp_path)) == 1
    assert sleeper.wait(1) == -signal.SIGTERM
