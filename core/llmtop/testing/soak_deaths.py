"""Ways for a llmtop to die under load, and how long its children outlive it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import select
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx

from llmtop.children.guardian import start_time
from llmtop.children.ports import free_port
from llmtop.core import GRACE_S
from llmtop.testing import fake_server
from llmtop.testing.models import server_command, write_model
from llmtop.testing.rig import quiet_environment

STOP_TIMEOUT_S = 1.0
START_S = 30.0
GONE_S = 20.0

KINDS: Mapping[str, Mapping[str, Any]] = {
    "protocol": {"load_ms": 20},
    "early build": {"load_ms": 20, "protocol": False},
    "cmd": {"load_ms": 20, "protocol": False},
    "cmd, wrapped": {"load_ms": 20, "protocol": False},
    "deaf": {"load_ms": 20, "ignore_stdin": True, "ignore_term": True},
}
"""Kinds of children to the knobs of the simulated one. The deaf one lives until its stop timeout."""

_BROKEN_VIEW = """
from pathlib import Path
import llmtop_tui.embed
from llmtop_tui.app import LlmtopApp

class Broken(LlmtopApp):
    CSS_PATH = Path(llmtop_tui.__file__).parent / "app.tcss"
    async def on_mount(self):
        self.set_timer(1.5, self.fall)
    def fall(self):
        raise RuntimeError("a widget broke on purpose")

llmtop_tui.embed.LlmtopApp = Broken
from llmtop_tui.__main__ import main
raise SystemExit(main())
"""


class Process:
    """A llmtop, with a terminal or without, that this process can wait for."""

    def __init__(self, argv: list[str], folder: Path, *, terminal: bool) -> None:
        self._terminal = -1
        self._reader: threading.Thread | None = None
        self._hung_up = False
        self.status: int | None = None
        env = quiet_environment(folder, {"TERM": "xterm-256color"})
        self.log = folder / "llmtop.log"
        if terminal:
            self.pid, self._terminal = pty.fork()
            if self.pid == 0:
                os.execvpe(argv[0], argv, env)
            self._reader = threading.Thread(target=self._drain)
            self._reader.start()
        else:
            out = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            null = os.open(os.devnull, os.O_RDONLY)
            actions = [(os.POSIX_SPAWN_DUP2, null, 0), (os.POSIX_SPAWN_DUP2, out, 1), (os.POSIX_SPAWN_DUP2, out, 2)]
            self.pid = os.posix_spawn(argv[0], argv, env, file_actions=actions)
            os.close(out)
            os.close(null)

    def _drain(self) -> None:
        """Read what it draws, or it would wait for its terminal."""
        with self.log.open("ab") as log, contextlib.suppress(OSError):
            while not self._hung_up:
                if select.select([self._terminal], [], [], 0.02)[0]:
                    log.write(os.read(self._terminal, 65536))
                    log.flush()

    def hang_up(self) -> None:
        """Close its terminal, as the end of a remote session does. A read under way would keep it open."""
        if self._reader is not None:
            self._hung_up = True
            self._reader.join()
            self._reader = None
            os.close(self._terminal)

    def poll(self) -> int | None:
        """Its exit code, or its signal as a negative number; None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
        return self.status

    def end(self) -> None:
        """Whatever it takes."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            while self.poll() is None:
                time.sleep(0.01)
        self.hang_up()


@dataclass(frozen=True)
class Way:
    """A way to die.

    Args:
        name: In words.
        blow: Deals it.
        terminal: Llmtop has a terminal.
        code: Exit code or negative signal number to expect; None: it must live on.
        view: ``shown``: it runs with the view; ``broken``: that breaks, the blow comes after it; empty: ``serve``.
    """

    name: str
    blow: Callable[[Process], None]
    terminal: bool = False
    code: int | None = 0
    view: Literal["", "shown", "broken"] = ""


def _signal(signum: int) -> Callable[[Process], None]:
    return lambda process: os.kill(process.pid, signum)


WAYS = (
    Way("kill -9", _signal(signal.SIGKILL), code=-signal.SIGKILL),
    Way("SIGTERM", _signal(signal.SIGTERM)),
    Way("SIGHUP without a terminal", _signal(signal.SIGHUP), code=None),
    Way("SIGHUP with a terminal", _signal(signal.SIGHUP), terminal=True),
    Way("the terminal is closed", lambda process: process.hang_up(), terminal=True),
    Way("the same with the view", lambda process: process.hang_up(), terminal=True, view="shown"),
    Way("SIGTERM with the view", _signal(signal.SIGTERM), terminal=True, view="shown"),
    Way("the view breaks, then SIGTERM", _signal(signal.SIGTERM), terminal=True, view="broken"),
)


@dataclass
class Death:
    """How one went.

    Args:
        ended_ms: From the blow until llmtop was gone [ms]; None where it lives on, as it must.
        gone_ms: Kind of child to how long after the blow it was gone [ms].
        wrong: What must not be.
    """

    ended_ms: float | None = None
    gone_ms: dict[str, float] = field(default_factory=dict[str, float])
    wrong: list[str] = field(default_factory=list[str])


def _write(folder: Path, kinds: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write models and preset; gives llmtop's options."""
    models, preset = folder / "models", folder / "preset.ini"
    models.mkdir(parents=True, exist_ok=True)
    sections: list[str] = []
    for kind, knobs in kinds.items():
        path = write_model(models if "cmd" not in kind else folder / "cmd", kind, **{"tok_rate": 100, **knobs})
        if "cmd" in kind:
            argv = [sys.executable, "-IS", fake_server.__file__, "-m", str(path), "--alias", kind, "--port"]
            line = shlex.join(argv) + " ${PORT}"
            if "wrapped" in kind:
                line = f"sh -c {shlex.quote(line + ' & wait')}"
            sections.append(f"[{kind}]\ncmd = {line}\n")
    preset.write_text("".join(sections))
    options = ["--models-dir", str(models), "--models-preset", str(preset), "--models-max", "0"]
    options += ["--memory-budget", "off", "--stop-timeout", f"{STOP_TIMEOUT_S:g}"]
    return [*options, "--llama-server", str(server_command(folder / "bin"))]


async def die(folder: Path, way: Way, kinds: Mapping[str, Mapping[str, Any]] = KINDS) -> Death:
    """Let a llmtop with one child of each kind, all of them busy, die in a way, and time the deaths of its children."""
    port = free_port()
    options = [*_write(folder, kinds), "--port", str(port)]
    program = ["-m", "llmtop_tui"] if way.view else ["-m", "llmtop", "serve"]
    if way.view == "broken":
        broken = folder / "broken_view.py"
        broken.write_text(_BROKEN_VIEW)
        program = [str(broken)]
    death = Death()
    pids: dict[str, int] = {}
    process = Process([sys.executable, *program, *options], folder, terminal=way.terminal)
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
            await _healthy(client, process)
            answers = await asyncio.gather(*[_ask(client, kind, 1) for kind in kinds])
            death.wrong += [f"{k} was not served" for k, good in zip(kinds, answers, strict=True) if not good]
            state = (await client.get("/api/state")).json()
            pids = {m["id"]: m["pid"] for m in state["models"] if m["pid"]}
            if way.view == "broken":
                await _view_broke(process)
                answers = await asyncio.gather(*[_ask(client, kind, 1) for kind in kinds])
                death.wrong += [] if all(answers) else ["not every child is served after the view broke"]
            load = [asyncio.create_task(_ask(client, kind, 5000)) for kind in kinds for _ in range(2)]
            await asyncio.sleep(0.3)
            begin = time.perf_counter()
            way.blow(process)
            if way.code is None:
                await _lives_on(client, process, pids, kinds, death)
            else:
                await _all_gone(process, pids, begin, death)
                if way.code == 0 and death.gone_ms and min(death.gone_ms.values()) < GRACE_S * 900:
                    death.wrong.append(f"requests in flight were not given their time: {death.gone_ms}")
                if process.status != way.code:
                    death.wrong.append(f"ended with {process.status}, not {way.code}: {_tail(process)}")
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    finally:
        process.end()
        for pid in pids.values():
            with contextlib.suppress(OSError):
                if start_time(pid) is not None:
                    os.killpg(pid, signal.SIGKILL)
    return death


async def _healthy(client: httpx.AsyncClient, process: Process) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end:
        assert process.poll() is None, f"it exited with {process.status}: {_tail(process)}"
        with contextlib.suppress(httpx.HTTPError):
            if (await client.get("/health")).status_code == 200:
                return
        await asyncio.sleep(0.02)
    raise AssertionError(f"no /health within {START_S:g} s: {_tail(process)}")


async def _ask(client: httpx.AsyncClient, model: str, tokens: int) -> bool:
    try:
        answer = await client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": tokens})
    except httpx.HTTPError:
        return False
    return answer.status_code == 200


async def _view_broke(process: Process) -> None:
    end = time.monotonic() + START_S
    while "still serving at" not in _tail(process, 100_000):
        assert time.monotonic() < end, f"it does not say that it goes on: {_tail(process)!r}"
        await asyncio.sleep(0.05)


async def _lives_on(
    client: httpx.AsyncClient, process: Process, pids: dict[str, int], kinds: Mapping[str, Any], death: Death
) -> None:
    await asyncio.sleep(1)
    if process.poll() is not None or not all([await _ask(client, kind, 1) for kind in kinds]):
        death.wrong.append(f"it does not serve on: {_tail(process)}")
    death.wrong += [f"{kind} is gone" for kind, pid in pids.items() if start_time(pid) is None]


async def _all_gone(process: Process, pids: dict[str, int], begin: float, death: Death) -> None:
    left = dict(pids)
    while left or death.ended_ms is None:
        now = (time.perf_counter() - begin) * 1000
        if death.ended_ms is None and process.poll() is not None:
            death.ended_ms = now
        for kind, pid in list(left.items()):
            if not _group_lives(pid):
                death.gone_ms[kind] = now
                del left[kind]
        if now > GONE_S * 1000:
            death.wrong += [f"{kind} lives on" for kind in left]
            death.wrong += [f"llmtop lives on: {_tail(process)}"] if death.ended_ms is None else []
            return
        await asyncio.sleep(0.002)


def _group_lives(pgid: int) -> bool:
    """A member of the group lives, be its leader gone; a zombie that waits for init does not."""
    if start_time(pgid) is not None:
        return True
    try:
        os.killpg(pgid, 0)
    except OSError:
        return False
    return any(start_time(pid) is not None for pid in _members(pgid))


def _members(pgid: int) -> Iterator[int]:
    import psutil

    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == pgid:
                yield pid


def _tail(process: Process, size: int = 600) -> str:
    return process.log.read_text(errors="replace")[-size:] if process.log.exists() else ""
