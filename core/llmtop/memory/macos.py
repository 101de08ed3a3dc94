"""Memory on macOS: the kernel's page counts, the GPU's share, each child's footprint. Nothing here needs root."""

from __future__ import annotations

import platform
import re
import struct
import time
from collections.abc import Callable, Mapping

import msgspec

from llmtop.memory.darwin import Darwin
from llmtop.memory.sample import Level, Pressure, Sample, Value, measured, missing

MIB = 2**20
IOREG_INTERVAL_S = 1.0
"""One ioreg call costs tens of milliseconds: it is asked at most this often [s]."""
FOOTPRINT_WORD = 9
"""``ri_phys_footprint`` is the tenth word of ``rusage_info``. Source: xnu bsd/sys/resource.h."""
OFFSETS = {
    "free": 0, "active": 4, "inactive": 8, "wired": 12,
    "purgeable": 88, "speculative": 92, "compressor": 128, "external": 136,
}  # fmt: skip
"""Byte offsets of page counts in ``vm_statistics64``. Source: xnu osfmk/mach/vm_statistics.h."""
VM_STAT_LINES = {
    "Pages free": "free", "Pages active": "active", "Pages inactive": "inactive", "Pages wired down": "wired",
    "Pages purgeable": "purgeable", "Pages speculative": "speculative", "Pages occupied by compressor": "compressor",
    "File-backed pages": "external",
}  # fmt: skip
LEVELS: Mapping[int, Level] = {1: "normal", 2: "warn", 4: "critical"}
USED_PARTS = ("active", "inactive", "speculative", "wired", "compressor")
CACHED_PARTS = ("purgeable", "external")
"""Memory Used of Activity Monitor is the first less the second; the second are the files it calls cached."""
FRACTIONS_26 = ((8, 0.6667), (16, 0.74), (32, 0.78), (64, 0.81), (128, 0.84), (256, 0.87))
FRACTIONS_15 = ((0, 2 / 3), (36, 0.75))
"""Share of the memory that the GPU may wire, by GiB from which on it holds; macOS 26 and later, and before.

Source: recommendedMaxWorkingSetSize in public load logs of machines with 8 to 256 GiB.
"""


class MacProbe:
    """Asks the kernel.

    Args:
        layer: The calls; None opens libSystem.
        release: Kernel version (``25.1.0``).
        clock: Monotonic time [s].
    """

    name = "macos"
    min_interval_s = 0.5  # the kernel answers callers that are not Apple's from a copy when asked more often

    def __init__(
        self,
        layer: Darwin | None = None,
        *,
        release: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._layer = layer or Darwin()
        self._darwin = _major(platform.release() if release is None else release)
        self._clock = clock
        self._gpu: Value = missing("ioreg", 0.0, "not read yet")
        self._gpu_due = float("-inf")

    def sample(self, children: Mapping[int, str]) -> Sample:
        """Look once at everything; the GPU's figure is at most a second old."""
        at = self._clock()
        notes: list[str] = []
        total = self._number("hw.memsize", at)
        counts, source = self._pages(notes)
        size = self._page_size(counts)

        def pages(name: str) -> Value:
            if name not in counts or not size:
                return missing(source, at, f"no count of {name} pages" if size else "page size not known")
            return measured(counts[name] * size, f"{source} {name}", at)

        used = _combine(counts, size, source, at)
        cached = _sum_pages(counts, CACHED_PARTS, size, source, at)
        available = (
            measured(total.bytes - used.bytes, f"hw.memsize less {used.source}", at)
            if total.bytes is not None and used.bytes is not None
            else missing(source, at, total.why or used.why)
        )
        return Sample(
            at=at,
            total=total,
            available=available,
            used=used,
            wired=pages("wired"),
            limit=self._limit(total, at),
            compressed=pages("compressor"),
            cached=cached,
            swap=self._swap(at),
            gpu_in_use=self._gpu_in_use(at),
            pressure=self._pressure(),
            footprints={pid: self._footprint(pid, at) for pid in children},
            label="WIRED",
            notes=tuple(notes),
        )

    def _pages(self, notes: list[str]) -> tuple[dict[str, int], str]:
        """Page counts by name, and where they are from: the call, else the tool."""
        try:
            raw = self._layer.vm_statistics()
            return {
                n: struct.unpack_from("=I", raw, o)[0] for n, o in OFFSETS.items() if o + 4 <= len(raw)
            }, "host_statistics64"
        except OSError as error:
            notes.append(str(error))
        try:
            counts = parse_vm_stat(self._layer.vm_stat())
        except OSError as error:
            notes.append(str(error))
            counts = {}
        return counts, "vm_stat"

    def _page_size(self, counts: Mapping[str, int]) -> int:
        """Bytes of a page: 16384 on Apple Silicon, 4096 on Intel, so it is always asked for."""
        if "page_size" in counts:
            return counts["page_size"]
        for name in ("hw.pagesize", "vm.pagesize"):
            size = self._number(name, 0.0).bytes
            if size:
                return size
        return 0

    def _number(self, name: str, at: float) -> Value:
        try:
            raw = self._layer.sysctl(name)
        except OSError as error:
            return missing(f"sysctl {name}", at, str(error))
        formats = {4: "=i", 8: "=q"}
        if len(raw) not in formats:
            return missing(f"sysctl {name}", at, f"{len(raw)} bytes are not a number")
        return measured(struct.unpack(formats[len(raw)], raw)[0], f"sysctl {name}", at)

    def _swap(self, at: float) -> Value:
        """``vm.swapusage`` is ``xsw_usage``: total, available and used in words of 64 bits."""
        try:
            raw = self._layer.sysctl("vm.swapusage")
        except OSError as error:
            return missing("sysctl vm.swapusage", at, str(error))
        if len(raw) < 24:
            return missing("sysctl vm.swapusage", at, "shorter than expected")
        return measured(struct.unpack_from("=3Q", raw)[2], "sysctl vm.swapusage", at)

    def _limit(self, total: Value, at: float) -> Value:
        """The override where one is set, else the usual share of this machine."""
        override = self._number("iogpu.wired_limit_mb", at)
        if override.bytes:
            return measured(override.bytes * MIB, "sysctl iogpu.wired_limit_mb", at)
        if total.bytes is None:
            return missing("share of hw.memsize", at, total.why)
        share = gpu_fraction(total.bytes, self._darwin)
        return measured(
            total.bytes * share, f"usual share of hw.memsize ({share:.3g}, Darwin {self._darwin or 'unknown'})", at
        )

    def _pressure(self) -> Pressure:
        value = self._number("kern.memorystatus_vm_pressure_level", 0.0)
        level = LEVELS.get(value.bytes or 0)
        detail = f"level {value.bytes}" if value.bytes is not None else value.why
        return Pressure(level, detail, value.source)

    def _footprint(self, pid: int, at: float) -> Value:
        try:
            words = self._layer.rusage(pid)
        except OSError as error:
            return missing("phys_footprint", at, str(error))
        return measured(words[FOOTPRINT_WORD], "phys_footprint", at)

    def _gpu_in_use(self, at: float) -> Value:
        if at < self._gpu_due:
            return self._gpu
        self._gpu_due = at + IOREG_INTERVAL_S
        try:
            self._gpu = parse_ioreg(self._layer.ioreg(), at)
        except OSError as error:
            self._gpu = missing("ioreg In use system memory", at, str(error))
        return self._gpu


class _Plain(msgspec.Struct, frozen=True):
    """Sum of page counts, or the name of one that is missing."""

    pages: int
    gap: str


def gpu_fraction(total: int, darwin: int) -> float:
    """Share of the memory that the GPU may wire where nothing tells it.

    Args:
        total: Physical memory [bytes].
        darwin: Major version of the kernel (25 is macOS 26); 0 when it is not known, which takes the lower of the two.
    """
    gib = total / 2**30

    def row(table: tuple[tuple[int, float], ...]) -> float:
        fitting = [share for floor, share in table if floor <= gib + 0.5]
        return fitting[-1] if fitting else 2 / 3

    old, new = row(FRACTIONS_15), row(FRACTIONS_26)
    return min(old, new) if darwin == 0 else new if darwin >= 25 else old


def parse_vm_stat(text: str) -> dict[str, int]:
    """Page counts of ``vm_stat`` by our names, and ``page_size`` [bytes] from its head. What it lacks is left out."""
    size = re.search(r"page size of (\d+) bytes", text)
    found = {"page_size": int(size[1])} if size else {}
    for label, number in re.findall(r'^"?([A-Za-z -]+?)"?:\s+(\d+)\.?\s*$', text, re.MULTILINE):
        if label in VM_STAT_LINES:
            found[VM_STAT_LINES[label]] = int(number)
    return found


def parse_ioreg(text: str, at: float) -> Value:
    """GPU memory in use by all clients, over all accelerators; the driver's own share has a key of its own."""
    source = "ioreg In use system memory"
    found = re.findall(r'"In use system memory"\s*=\s*(\d+)', text)
    return measured(sum(map(int, found)), source, at) if found else missing(source, at, "this macOS does not tell it")


def _combine(counts: Mapping[str, int], size: int, source: str, at: float) -> Value:
    """Memory in use as Activity Monitor counts it."""
    held, given = _add(counts, USED_PARTS), _add(counts, CACHED_PARTS)
    gap = held.gap or given.gap or ("" if size else "page size")
    if gap:
        return missing(source, at, f"no {gap}")
    return measured((held.pages - given.pages) * size, f"{source}: used as Activity Monitor counts", at)


def _sum_pages(counts: Mapping[str, int], names: tuple[str, ...], size: int, source: str, at: float) -> Value:
    total = _add(counts, names)
    gap = total.gap or ("" if size else "page size")
    return (
        missing(source, at, f"no {gap}") if gap else measured(total.pages * size, f"{source} {' + '.join(names)}", at)
    )


def _add(counts: Mapping[str, int], names: tuple[str, ...]) -> _Plain:
    gap = next((f"count of {name} pages" for name in names if name not in counts), "")
    return _Plain(sum(counts.get(name, 0) for name in names), gap)


def _major(release: str) -> int:
    head = release.partition(".")[0]
    return int(head) if head.isascii() and head.isdigit() else 0
