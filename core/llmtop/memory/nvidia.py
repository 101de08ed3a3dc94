"""NVIDIA GPUs through NVML, where the package ``nvidia-ml-py`` is installed. It opens no context on a GPU."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from llmtop.memory.linux import GpuReading
from llmtop.memory.sample import Device, Value, measured, missing

LIBRARY_NOT_FOUND = 12
NOT_SUPPORTED = 3
"""NVML return codes. Source: ``nvmlReturn_t`` in nvml.h."""
UNIFIED = "unified memory"
RETRY_S = 30.0
"""A library that could not be started is tried again after this [s]."""


class Nvml:
    """Asks NVML. A machine without its library simply has no such GPU; one whose driver fails says so.

    Args:
        load: Imports the module ``pynvml``.
        proc: The proc file system: tells whether the driver is there when the package is not.
        clock: Monotonic time [s].
    """

    def __init__(
        self,
        load: Callable[[], Any] = lambda: importlib.import_module("pynvml"),
        *,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load, self._proc, self._clock = load, proc, clock
        self._library: Any = None
        self._gone: str = ""
        self._retry_at = 0.0

    def read(self, pids: Sequence[int]) -> GpuReading:
        """Ask all GPUs; one that does not answer is left out with a note."""
        at = self._clock()
        library = self._start(at)
        if library is None:
            return self._mute(at)
        try:
            count = int(library.nvmlDeviceGetCount())
        except library.NVMLError as error:
            self._library, self._gone, self._retry_at = None, f"NVML cannot be asked: {error}", at + RETRY_S
            return self._mute(at)
        devices: list[Device] = []
        notes: list[str] = []
        held: dict[int, int] = {}
        unknown: dict[int, str] = {}
        for index in range(count):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                devices.append(self._device(library, handle, index, at))
            except library.NVMLError as error:
                notes.append(f"GPU{index} does not answer: {error}")
                continue
            self._processes(library, handle, held, unknown)
        processes = {pid: self._held(pid, held, unknown, at) for pid in pids}
        unified = bool(devices) and all(d.note == UNIFIED for d in devices)
        notes += [f"{d.name}: {d.note}" for d in devices if d.note]
        return GpuReading(tuple(devices), processes, tuple(notes), unified)

    def _mute(self, at: float) -> GpuReading:
        """A GPU that cannot be asked is not the same as none: it is there, with no numbers, and why."""
        if not self._gone:
            return GpuReading()
        gap = missing("NVML", at, self._gone)
        return GpuReading((Device("NVIDIA", gap, gap, self._gone),), notes=(self._gone,))

    def _start(self, at: float) -> Any:
        if self._library is not None or at < self._retry_at:
            return self._library
        self._retry_at, self._gone = at + RETRY_S, ""
        try:
            library = self._load()
        except ImportError:
            if (self._proc / "driver/nvidia/version").exists():
                self._gone = "an NVIDIA driver is here but the package nvidia-ml-py is not: install it to see VRAM"
            return None
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            if getattr(error, "value", None) != LIBRARY_NOT_FOUND:
                self._gone = f"NVML cannot be asked: {error}"
            return None
        self._library = library
        return library

    def _device(self, library: Any, handle: Any, index: int, at: float) -> Device:
        name = library.nvmlDeviceGetName(handle)
        label = f"GPU{index} {name.decode('utf-8', 'replace') if isinstance(name, bytes) else name}"
        try:
            memory = library.nvmlDeviceGetMemoryInfo(handle)
        except library.NVMLError as error:
            if getattr(error, "value", None) != NOT_SUPPORTED:
                raise
            gap = missing("NVML", at, "not supported: the GPU shares the machine's memory")
            return Device(label, gap, gap, UNIFIED)
        return Device(label, measured(memory.total, "NVML", at), measured(memory.used, "NVML", at))

    def _processes(self, library: Any, handle: Any, held: dict[int, int], unknown: dict[int, str]) -> None:
        """Add what each process holds on one device; a process in both lists counts once."""
        here: dict[int, int] = {}
        for ask in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                found = ask(handle)
            except library.NVMLError as error:
                unknown[-1] = str(error)
                continue
            for process in found:
                size = measured(process.usedGpuMemory, "NVML", 0.0).bytes
                if size is None:
                    unknown[process.pid] = "the driver tells no size for it"
                else:
                    here[process.pid] = max(size, here.get(process.pid, 0))
        for pid, size in here.items():
            held[pid] = held.get(pid, 0) + size

    @staticmethod
    def _held(pid: int, held: dict[int, int], unknown: dict[int, str], at: float) -> Value:
        if pid in held and pid not in unknown:
            return measured(held[pid], "NVML per process", at)
        why = (
            unknown.get(pid)
            or unknown.get(-1)
            or "NVML does not list it (no GPU memory yet, or pids of another namespace)"
        )
        return missing("NVML per process", at, why)
