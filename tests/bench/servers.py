"""What the benchmarks compare: a llama-server alone, llama.cpp's own router, and llmtop, each on a port of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from llmtop.children.binary import find_llama_server, server_environment
from llmtop.children.ports import free_port
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.errors import StartError
from llmtop.testing.rig import quiet_environment

START_S, STOP_S = 60.0, 20.0
POLL_S = 0.001
CHILD_ARGS = ("-c", "4096", "-np", "4", "--no-warmup")


def real_server() -> str:
    """The llama-server to measure with; ends the program with one line where there is none."""
    try:
        return find_llama_server()
    except StartError as error:
        sys.exit(str(error))


def tiny_models(folder: Path, names: Sequence[str], pad_mib: int = 0) -> Path:
    """A folder of tiny models, all different."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(names):
        write_tiny(folder / f"{name}.gguf", seed=seed, pad_mib=pad_mib)
    return folder


@dataclass(frozen=True)
class Server:
    """A running server.

    Args:
        spawned_at: When it was started [s, monotonic].
        ready_s: How long it took to answer ``/health`` [s].
    """

    name: str
    port: int
    process: subprocess.Popen[bytes]
    spawned_at: float
    ready_s: float

    def ask(self, path: str, body: Mapping[str, Any] | None = None, method: str = "") -> tuple[int, bytes]:
        """One request on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"} if body is not None else {}
            connection.request(method or ("GET" if body is None else "POST"), path, content, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def asked(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The same; what it answered as JSON.

        Raises:
            RuntimeError: It did not answer 200.
        """
        status, answer = self.ask(path, body)
        if status != 200:
            raise RuntimeError(f"{self.name} answered {status} to {path}: {answer[:300]!r}")
        return json.loads(answer)

    def tree(self) -> list[psutil.Process]:
        """Its process and all below it."""
        with contextlib.suppress(psutil.Error):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def stop(self) -> None:
        """End it, and what it started."""
        family = self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
        for process in family:
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.process.wait()


def start(name: str, argv: Sequence[str], env: Mapping[str, str], port: int, log: Path) -> Server:
    """Start a server and wait until it is ready.

    Raises:
        RuntimeError: It ended, or took too long.
    """
    with log.open("ab") as sink:
        began = time.monotonic()
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env=dict(env),
            cwd=log.parent,
            start_new_session=True,  # as under systemd or in a pane: Linux shares the processor out by session
        )
    while time.monotonic() - began < START_S:
        if process.poll() is not None:
            raise RuntimeError(f"{name} ended with {process.returncode}: {log.read_text(errors='replace')[-600:]}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            server = Server(name, port, process, began, time.monotonic() - began)
            if server.ask("/health")[0] == 200:
                return Server(name, port, process, began, time.monotonic() - began)
        time.sleep(POLL_S)
    process.kill()
    process.wait()
    raise RuntimeError(f"{name} was not ready in {START_S:g} s: {log.read_text(errors='replace')[-600:]}")


def child_env(folder: Path) -> dict[str, str]:
    """The environment of a llama-server."""
    return server_environment(real_server(), quiet_environment(folder))


def start_child(folder: Path, model: Path, args: Sequence[str] = CHILD_ARGS, log: str = "child.log") -> Server:
    """A llama-server alone."""
    port = free_port()
    argv = [real_server(), "--host", "127.0.0.1", "--port", str(port), "-m", str(model), *args]
    return start("child alone", argv, child_env(folder), port, folder / log)


def start_router(folder: Path, models: Path, cap: int, args: Sequence[str] = CHILD_ARGS) -> Server:
    """Llama.cpp's own router."""
    port = free_port()
    argv = [real_server(), "--host", "127.0.0.1", "--port", str(port), "--models-dir", str(models)]
    argv += ["--models-max", str(cap), *args]
    return start("llama.cpp router", argv, child_env(folder), port, folder / "router.log")


def start_llmtop(
    folder: Path,
    models: Path,
    cap: int,
    args: Sequence[str] = CHILD_ARGS,
    server: str = "",
    options: Sequence[str] = (),
) -> Server:
    """Llmtop, with ``server`` as its llama-server and a state folder of its own."""
    port = free_port()
    state = folder / f"state-{port}"
    argv = [sys.executable, "-m", "llmtop", "serve", "--models-dir", str(models), "--models-max", str(cap)]
    argv += ["--port", str(port), "--llama-server", server or real_server(), *options, "--", *args]
    env = child_env(folder) | {"LLMTOP_STATE_DIR": str(state)}
    return start("llmtop", argv, env, port, folder / "llmtop.log")


@contextlib.contextmanager
def running(*starters: Callable[[], Server]) -> Generator[tuple[Server, ...]]:
    """Start servers one after the other, and stop them all at the end."""
    with contextlib.ExitStack() as stack:
        started: list[Server] = []
        for starter in starters:
            started.append(starter())
            stack.callback(started[-1].stop)
        yield tuple(started)


@dataclass(frozen=True)
class Spawn:
    """A line of the wrapper's notes: a server that is about to be executed.

    Args:
        at_ns: When [ns since the epoch].
        model: Its ``--alias``; empty where it was only asked for its options.
    """

    at_ns: int
    pid: int
    model: str


def noting_wrapper(folder: Path) -> tuple[Path, Path]:
    """A llama-server that notes the time and its pid before it becomes the real one; gives script and notes."""
    script, notes = folder / "noting-llama-server", folder / "spawns"
    notes.touch()
    line = f'echo "$(date +%s%N) $$ $*" >> {shlex.quote(str(notes))}'
    script.write_text(f'#!/bin/sh\n{line}\nexec {shlex.quote(real_server())} "$@"\n')
    script.chmod(0o755)
    return script, notes


def parse_spawns(text: str) -> list[Spawn]:
    """The notes; a line that is not whole yet is left out."""
    spawns: list[Spawn] = []
    for line in text.splitlines(keepends=True):
        words = line.split()
        if line.endswith("\n") and len(words) >= 2 and words[0].isdigit() and words[1].isdigit():
            model = words[words.index("--alias") + 1] if "--alias" in words[:-1] else ""
            spawns.append(Spawn(int(words[0]), int(words[1]), model))
    return spawns


def cpu_s(pid: int) -> float:
    """Processor time that a process has used, all its threads [s]; by its own clock on Linux, which is exact."""
    if sys.platform == "linux":
        clock = (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of include/linux/posix-timers.h
        with contextlib.suppress(OSError):
            return time.clock_gettime(clock)
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


def scratch(prefix: str) -> contextlib.AbstractContextManager[str]:
    """A temporary folder."""
    return tempfile.TemporaryDirectory(prefix=f"llmtop-bench-{prefix}-", ignore_cleanup_errors=True)


def median_of(values: Sequence[float]) -> float:
    """The median, 0 of nothing."""
    return median(values) if values else 0.0


def pss_bytes(pid: int) -> int:
    """Proportional set size [bytes]; 0 once it is gone (``/proc``, so Linux only)."""
    with contextlib.suppress(OSError, ValueError, IndexError), open(f"/proc/{pid}/smaps_rollup") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("Pss:")), 0)
    return 0


def own_environment() -> dict[str, str]:
    """This process's environment, without what would make a view plain."""
    return {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TEXTUAL_THEME")}
