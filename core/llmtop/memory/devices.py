"""The GPUs as ``llama-server --list-devices`` sees them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence

import msgspec

MIB = 2**20
TIMEOUT_S = 15.0
"""Starting a GPU runtime takes seconds on a cold machine [s]."""
LINE = re.compile(r"^\s+([A-Za-z]+)(\d*): (.*) \((\d+) MiB, (\d+) MiB free\)\s*$", re.MULTILINE)


class GpuLine(msgspec.Struct, frozen=True):
    """One device.

    Args:
        backend: ``MTL``, ``CUDA``, ``ROCm``, ``Vulkan`` …
        name: As the driver calls it.
        total: Its memory; for Metal what the GPU may wire in all [bytes].
        free: What a new process would see [bytes]; for Metal it knows of no other process.
    """

    backend: str
    name: str
    total: int
    free: int


class Devices(msgspec.Struct, frozen=True):
    """Answer to the question; ``why`` says why it is empty when it could not be asked."""

    gpus: tuple[GpuLine, ...] = ()
    why: str = "llama-server was not asked for its devices"

    def of(self, backends: Sequence[str]) -> tuple[GpuLine, ...]:
        """Those of these backends."""
        return tuple(gpu for gpu in self.gpus if gpu.backend in backends)


def parse_devices(text: str) -> Devices:
    """Read the list; ``(none)`` and unknown lines give no device."""
    gpus = tuple(
        GpuLine(backend, name.strip()[:80], int(total) * MIB, int(free) * MIB)
        for backend, _, name, total, free in LINE.findall(text)
    )
    return Devices(gpus, "" if gpus else "llama-server lists no device")


def ask_devices(server: str, env: Mapping[str, str] | None = None, *, timeout_s: float = TIMEOUT_S) -> Devices:
    """Run ``server --list-devices``. It blocks, so call it in a worker thread; it loads no model.

    Args:
        server: The llama-server.
        env: Its environment; None takes this process's.
        timeout_s: Given up on after this [s].
    """
    if not server:
        return Devices(why="no llama-server found")
    environment = dict(os.environ if env is None else env) | {"LC_ALL": "C"}
    try:
        done = subprocess.run(
            [server, "--list-devices"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Devices(why=f"llama-server --list-devices did not answer within {timeout_s:g} s")
    except OSError as error:
        return Devices(why=f"llama-server cannot be run: {error.strerror or error}")
    text = done.stdout[: 2**20].decode("utf-8", "replace")
    if done.returncode and "Available devices" not in text:
        return Devices(why=f"llama-server --list-devices exited with {done.returncode}")
    return parse_devices(text)
