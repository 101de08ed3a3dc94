"""Memory on Linux: ``/proc``, the cgroup's limits, pressure stall information, and the GPUs' own readings."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from llmtop.memory.sample import Device, Label, Level, Pressure, Sample, Value, measured, missing

KIB = 1024
PSS_SHARE = 50
"""A process's set size is read again after so many times what reading it took: at most 2 % of the time goes there."""
WARN_PERCENT, CRITICAL_PERCENT = 10.0, 40.0
"""Share of the last ten seconds in which some task stood still for want of memory, from where it is called so [%]."""


class GpuReading(msgspec.Struct, frozen=True):
    """What a GPU library or driver told.

    Args:
        devices: GPUs found; empty when there is none to ask.
        processes: Memory of each child on all devices together.
        notes: Why something is missing, one line each ("could not ask" is not "no GPU").
        unified: The devices share the machine's memory and have no total of their own.
    """

    devices: tuple[Device, ...] = ()
    processes: Mapping[int, Value] = {}
    notes: tuple[str, ...] = ()
    unified: bool = False


class Gpu(Protocol):
    """One way to ask GPUs; holds no context on them."""

    def read(self, pids: Sequence[int]) -> GpuReading:
        """Ask all devices, and what each of these processes holds on them."""
        ...


class LinuxProbe:
    """Reads ``/proc`` and cgroup v2; a device with memory of its own turns the gauge to VRAM.

    Args:
        proc: The proc file system.
        cgroups: The unified cgroup file system.
        gpus: Ways to ask for GPU memory, in order.
        clock: Monotonic time [s].
    """

    min_interval_s = 0.0
    name = "linux"

    def __init__(
        self,
        *,
        proc: Path = Path("/proc"),
        cgroups: Path = Path("/sys/fs/cgroup"),
        gpus: Sequence[Gpu] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._proc, self._cgroups, self._gpus, self._clock = proc, cgroups, gpus, clock
        self._kept: dict[int, tuple[float, Value]] = {}

    def sample(self, children: Mapping[int, str]) -> Sample:
        """Look once at everything."""
        at = self._clock()
        info, why = self._meminfo()

        def field(key: str) -> Value:
            return (
                measured(info[key], f"/proc/meminfo {key}", at)
                if key in info
                else missing("/proc/meminfo", at, why or f"no line {key}")
            )

        total, available, cgroup_pressure = self._within_cgroup(field("MemTotal"), field("MemAvailable"), at)
        host = {pid: self._resident(pid, at) for pid in children}
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in children}
        gpu = self._gpu(tuple(children))
        own_memory = bool(gpu.devices) and not gpu.unified
        label: Label = "VRAM" if own_memory else "MEM"
        return Sample(
            at=at,
            total=total,
            available=available,
            used=_sum([d.used for d in gpu.devices], at)
            if own_memory
            else _less(total, available, "MemTotal less MemAvailable", at),
            wired=missing("/proc/meminfo", at, "Linux has no count of wired memory"),
            limit=_sum([d.total for d in gpu.devices], at)
            if own_memory
            else missing("GPU", at, "no GPU with memory of its own"),
            compressed=field("Zswapped"),
            cached=_cached(info, at, why),
            swap=_less(field("SwapTotal"), field("SwapFree"), "/proc/meminfo SwapTotal less SwapFree", at),
            gpu_in_use=_sum(list(gpu.processes.values()), at) if gpu.unified else missing("GPU", at, "macOS only"),
            pressure=self._pressure(cgroup_pressure),
            footprints={
                pid: gpu.processes.get(pid, missing("GPU", at, "no GPU memory of this process")) for pid in children
            }
            if own_memory
            else {pid: _more(host[pid], gpu.processes.get(pid), at) for pid in children},
            host=host,
            label=label,
            devices=gpu.devices,
            notes=gpu.notes,
        )

    def _gpu(self, pids: Sequence[int]) -> GpuReading:
        notes: list[str] = []
        for gpu in self._gpus:
            reading = gpu.read(pids)
            notes += reading.notes
            if reading.devices:
                return msgspec.structs.replace(reading, notes=tuple(notes))
        return GpuReading(notes=tuple(notes))

    def _meminfo(self) -> tuple[dict[str, int], str]:
        """Lines of ``/proc/meminfo`` [bytes], and why there are none."""
        text, why = read_text(self._proc / "meminfo")
        found = re.findall(r"^([\w()]+):\s+(\d+) kB$", text, re.MULTILINE)
        return {key: int(number) * KIB for key, number in found}, why

    def _within_cgroup(self, total: Value, available: Value, at: float) -> tuple[Value, Value, Path | None]:
        """Total and available within this process's cgroup and all above it, and the pressure file of its own."""
        own = self._own_cgroup()
        if own is None:
            return total, available, None
        for folder in (own, *own.parents):
            limit = read_number(folder / "memory.max")
            if limit is not None and total.bytes is not None and limit < total.bytes:
                total = measured(limit, "cgroup memory.max", at)
            current = read_number(folder / "memory.current")
            if limit is not None and current is not None:
                left = max(0, limit - current + _stat(folder / "memory.stat", "inactive_file"))
                if available.bytes is not None and left < available.bytes:
                    available = measured(left, "cgroup memory.max less memory.current", at)
            if folder == self._cgroups:
                break
        pressure = own / "memory.pressure"
        return total, available, pressure if own != self._cgroups and pressure.is_file() else None

    def _own_cgroup(self) -> Path | None:
        text, _ = read_text(self._proc / "self" / "cgroup")
        line = re.search(r"^0::(/.*)$", text, re.MULTILINE)
        folder = self._cgroups / line[1].lstrip("/") if line else None
        return folder if folder is not None and ".." not in folder.parts and folder.is_dir() else None

    def _pressure(self, cgroup: Path | None) -> Pressure:
        path = cgroup or self._proc / "pressure" / "memory"
        text, why = read_text(path)
        line = re.search(r"^some avg10=(\d+\.\d+) .*$", text, re.MULTILINE)
        if line is None:
            return Pressure(None, why or "the kernel does not tell (no pressure stall information)", str(path))
        percent = float(line[1])
        level: Level = "critical" if percent >= CRITICAL_PERCENT else "warn" if percent >= WARN_PERCENT else "normal"
        return Pressure(level, f"some avg10={percent:.2f} %", str(path))

    def _resident(self, pid: int, at: float) -> Value:
        """The same as read not long ago where reading is dear: the kernel walks all pages of a process for it."""
        due, kept = self._kept.get(pid, (at, None))
        if kept is not None and at < due:
            return kept
        start = self._clock()
        value = self._pss(pid, at)
        self._kept[pid] = (at + PSS_SHARE * (self._clock() - start), value)
        return value

    def _pss(self, pid: int, at: float) -> Value:
        """Proportional set size: pages that two children share are counted once between them."""
        path = self._proc / str(pid) / "smaps_rollup"
        text, why = read_text(path)
        line = re.search(r"^Pss:\s+(\d+) kB$", text, re.MULTILINE)
        if line:
            return measured(int(line[1]) * KIB, "smaps_rollup Pss", at)
        return missing("smaps_rollup Pss", at, why or "no line Pss")


def read_text(path: Path) -> tuple[str, str]:
    """A small text file of the kernel's, and why it could not be read; undecodable bytes are replaced."""
    try:
        return path.read_text("utf-8", "replace"), ""
    except OSError as error:
        return "", f"{path}: {error.strerror or error}"


def read_number(path: Path) -> int | None:
    """A file that holds one whole number; None for anything else (``max``, no file)."""
    text = read_text(path)[0].strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _stat(path: Path, key: str) -> int:
    line = re.search(rf"^{key} (\d+)$", read_text(path)[0], re.MULTILINE)
    return int(line[1]) if line else 0


def _sum(values: Sequence[Value], at: float) -> Value:
    """All together; missing as soon as one is, for a part must not pass for the whole."""
    gap = next((v for v in values if v.bytes is None), None)
    if gap is not None:
        return missing(gap.source, at, gap.why)
    if not values:
        return missing("GPU", at, "nothing to add up")
    return measured(sum(v.bytes or 0 for v in values), values[0].source, at)


def _less(whole: Value, part: Value, source: str, at: float) -> Value:
    if whole.bytes is None or part.bytes is None:
        return missing(source, at, whole.why or part.why)
    return measured(whole.bytes - part.bytes, source, at)


def _more(host: Value, gpu: Value | None, at: float) -> Value:
    """Host pages and GPU pages of one process where both are the machine's memory."""
    if gpu is None or gpu.bytes is None or host.bytes is None:
        return host
    return measured(host.bytes + gpu.bytes, f"{host.source} and {gpu.source}", at)


def _cached(info: Mapping[str, int], at: float, why: str) -> Value:
    """File pages that would be given up: the cache without shared memory, with reclaimable slabs."""
    if "Cached" not in info:
        return missing("/proc/meminfo Cached", at, why or "no line Cached")
    return measured(
        info["Cached"] - info.get("Shmem", 0) + info.get("SReclaimable", 0),
        "/proc/meminfo Cached, SReclaimable less Shmem",
        at,
    )
