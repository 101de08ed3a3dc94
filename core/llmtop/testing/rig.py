"""A whole ``llmtop serve`` on simulated models, watched from outside: its answers, its state, its processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from llmtop.children.ports import free_port
from llmtop.testing.models import read_events, server_command, write_model

START_S = 20.0
STOP_S = 20.0
ASKING = {"--help", "--version", "--list-devices"}


def quiet_environment(folder: Path, more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without the user's own llmtop, llama.cpp and model caches."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_", "LLMTOP"))}
    caches = dict.fromkeys(("LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE"), str(folder / "no-cache"))
    return env | caches | {"LLMTOP_STATE_DIR": str(folder / "state"), "PYTHONUNBUFFERED": "1"} | dict(more or {})


class Rig:
    """One running llmtop.

    Args:
        folder: Holds models, state and log.
        models: Name to the knobs of its simulated child (see ``fake_model.KNOBS``); None: the models are there already.
        server: A llama-server; the simulated one if empty.
    """

    def __init__(self, folder: Path, models: Mapping[str, Mapping[str, Any]] | None, server: str = "") -> None:
        self.folder = folder
        self.models = folder / "models"
        for name, knobs in (models or {}).items():
            write_model(self.models, name, **{"load_ms": 50, "tokens": 4, "tok_rate": 200, **knobs})
        self.server = server or str(server_command(folder / "bin"))
        self.port = 0
        self.process: subprocess.Popen[bytes]
        self.key = ""

    @property
    def log(self) -> str:
        """Everything it said."""
        return (self.folder / "llmtop.log").read_text(errors="replace")

    def launch(self, *options: str, env: Mapping[str, str] | None = None, port: int | None = None) -> None:
        """Start it, and do not wait."""
        self.port = port or free_port()
        argv = [sys.executable, "-m", "llmtop", "serve", "--models-dir", str(self.models), "--port", str(self.port)]
        argv += ["--llama-server", self.server, *options]
        with (self.folder / "llmtop.log").open("ab") as log:
            self.process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=quiet_environment(self.folder, env),
                cwd=self.folder,
            )

    async def healthy(self) -> None:
        """Wait until its front door is open.

        Raises:
            AssertionError: It ended, or took too long.
        """
        deadline = time.monotonic() + START_S
        async with self.client() as client:
            while time.monotonic() < deadline:
                assert self.process.poll() is None, f"llmtop exited with {self.process.returncode}: {self.log[-800:]}"
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get("/health")).status_code == 200:
                        return
                await asyncio.sleep(0.02)
        raise AssertionError(f"no /health within {START_S:g} s: {self.log[-800:]}")

    def client(self) -> httpx.AsyncClient:
        """A client of the front door."""
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        limits = httpx.Limits(max_connections=None)
        return httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{self.port}", timeout=60, headers=headers, limits=limits, trust_env=False
        )

    async def ask(self, client: httpx.AsyncClient, model: str, tokens: int = 4, **more: Any) -> httpx.Response:
        """A completion."""
        return await client.post("/v1/completions", json={"model": model, "prompt": "x", "max_tokens": tokens, **more})

    async def say(self, client: httpx.AsyncClient, path: str, **body: Any) -> httpx.Response:
        """A management verb."""
        return await client.post(path, json=body)

    async def state(self) -> dict[str, Any]:
        """``GET /api/state``."""
        async with self.client() as client:
            answer = await client.get("/api/state")
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

    async def model(self, name: str) -> dict[str, Any]:
        """A model's part of the state."""
        found: dict[str, Any] = next(m for m in (await self.state())["models"] if m["id"] == name)
        return found

    async def until(self, test: Callable[[], Awaitable[bool]], what: str, timeout_s: float = 15.0) -> float:
        """Wait for something; gives how long it took [s].

        Raises:
            AssertionError: It took too long.
        """
        start = time.monotonic()
        while time.monotonic() - start < timeout_s:
            if await test():
                return time.monotonic() - start
            await asyncio.sleep(0.02)
        raise AssertionError(f"not within {timeout_s:g} s: {what}; {await self.state()}")

    async def until_state(self, name: str, state: str, timeout_s: float = 15.0) -> float:
        """Wait for a model's state."""

        async def there() -> bool:
            return bool((await self.model(name))["state"] == state)

        return await self.until(there, f"{name} {state}", timeout_s)

    def events(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """What happened to a model's simulated children."""
        return read_events(self.models / f"{name}.gguf", kind)

    def children(self) -> list[psutil.Process]:
        """Live model servers below it."""
        found: list[psutil.Process] = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    line = process.cmdline()
                    serves = "--alias" in line or any(
                        "llama-server" in part or "fake_server" in part for part in line[:3]
                    )
                    if serves and not ASKING & set(line) and process.status() != psutil.STATUS_ZOMBIE:
                        found.append(process)
        return found

    def stop(self) -> int:
        """End it by SIGTERM, by SIGKILL if it takes too long; gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return self.process.wait()


@contextlib.asynccontextmanager
async def rig(
    folder: Path,
    models: Mapping[str, Mapping[str, Any]] | None,
    *options: str,
    env: Mapping[str, str] | None = None,
    key: str = "",
    server: str = "",
) -> AsyncGenerator[Rig]:
    """A llmtop that serves; at the end it must go in order and take its children along."""
    one = Rig(folder, models, server)
    one.key = key
    one.launch(*options, *(("--api-key", key) if key else ()), env=env)
    try:
        await one.healthy()
        yield one
    except BaseException:
        one.stop()
        raise
    children = one.children()
    code = await asyncio.to_thread(one.stop)
    left = [child.pid for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert code == 0, f"llmtop ended with {code}: {one.log[-800:]}"
    assert not left, f"llmtop left children behind: {left}"
