"""The house of a soak: a llmtop on models of every temper, simulated and, where one is installed, real ones."""

from __future__ import annotations

import json
import random
import shlex
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtop.children.binary import server_environment, wheel_binary
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing import fake_server
from llmtop.testing.models import write_model
from llmtop.testing.rig import Rig, rig

CAP = 2
STOP_TIMEOUT_S = 0.5

_OOM = [
    "E ggml_metal_synchronize: error: command buffer 0 failed with status 5",
    "E error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
]
SIMULATED: Mapping[str, Mapping[str, Any]] = {
    "sim-plain": {"load_ms": 40, "sizes": True},
    "sim-deaf": {"load_ms": 40, "ignore_stdin": True, "ignore_term": True},
    "sim-sick": {"load_ms": 40, "fail_after": 4, "fail_lines": _OOM},
    "sim-flaky": {"load_ms": 60},
    "sim-old": {"load_ms": 80, "protocol": False, "stop_ms": 120, "flood": 500},
}
"""Name to the knobs of the simulated child."""

TEMPERS: tuple[Mapping[str, Any], ...] = (
    {"load_ms": 60},
    {"load_ms": 400},
    {"load_ms": 60, "exit_at_load": 1},
    {"load_ms": 60, "load_lines": [*_OOM, *["at frame"] * 60], "exit_at_load": 1},
    {"load_ms": 60, "crash_after": 1},
    {"load_ms": 60, "crash_after": 0, "crash_signal": 6},
    {"load_ms": 60, "fork_holder": "session"},
    {"load_ms": 60, "close_keepalive": True, "binary": True},
)
"""What ``sim-flaky`` may become before its next load."""

REAL = ("real-ash", "real-elm", "real-oak")


@dataclass(frozen=True)
class House:
    """A llmtop and its models.

    Args:
        rig: The llmtop.
        names: All models.
        residents: The two models that are loaded whenever the house is measured.
    """

    rig: Rig
    names: tuple[str, ...]
    residents: tuple[str, str]

    def change_temper(self, rng: random.Random) -> None:
        """Let ``sim-flaky`` be another one from its next load on."""
        knobs = {"tokens": 4, "tok_rate": 200, **rng.choice(TEMPERS)}
        path = self.rig.models / "sim-flaky.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(knobs))
        new.replace(path)


def dispatcher(folder: Path, real: str | None) -> Path:
    """Write a ``llama-server`` that is the simulated one for ``sim-…`` models, the real one, if any, for the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    simulated = f'exec {shlex.quote(sys.executable)} -IS {shlex.quote(fake_server.__file__)} "$@"'
    lines = ["#!/bin/sh"]
    if real:
        lines += [f'case "$*" in */sim-*.gguf*) {simulated} ;; esac']
        lines += [f"export {k}={shlex.quote(v)}" for k, v in server_environment(real, {}).items()]
        lines += [f'exec {shlex.quote(real)} "$@"']
    else:
        lines += [simulated]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o755)
    return path


@asynccontextmanager
async def house(folder: Path, *options: str, simulated_only: bool = False) -> AsyncGenerator[House]:
    """Start a llmtop with all tempers of children; at the end it must go in order and leave nothing.

    Args:
        folder: Holds everything.
        options: More options for ``llmtop serve``.
        simulated_only: Leave the real llama-server out though it is installed.
    """
    real = None if simulated_only else wheel_binary()
    own = ["--models-max", str(CAP), "--stop-timeout", f"{STOP_TIMEOUT_S:g}", "--max-wait", "1"]
    own += ["--sleep-idle-seconds", "2", "--load-timeout", "20", *options]
    if real:
        (folder / "models").mkdir(parents=True, exist_ok=True)
        for seed, name in enumerate(REAL):
            write_tiny(folder / "models" / f"{name}.gguf", seed=seed)
        own += ["--", "-c", "512", "--no-warmup"]
    for name, knobs in SIMULATED.items():
        write_model(folder / "models", name, **{"tokens": 4, "tok_rate": 200, **knobs})
    names = (*SIMULATED, *(REAL if real else ()))
    async with rig(folder, None, *own, server=str(dispatcher(folder / "bin", real))) as one:
        yield House(one, names, ("sim-plain", REAL[0] if real else "sim-old"))
