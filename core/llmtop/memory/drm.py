"""AMD and Intel GPUs through the kernel's own files: sysfs for the devices, ``fdinfo`` for processes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from llmtop.memory.linux import KIB, GpuReading, read_number, read_text
from llmtop.memory.sample import Device, Value, measured, missing

UNITS = {"": 1, "KiB": KIB, "MiB": KIB**2, "GiB": KIB**3}
VRAM_KEYS = ("drm-resident-vram", "drm-resident-vram0", "drm-memory-vram")
GTT_KEYS = ("drm-resident-gtt", "drm-memory-gtt")
"""Keys of ``fdinfo``, best first; the last of each are older amdgpu's. Source: kernel, gpu/drm-usage-stats."""


class Drm:
    """Reads amdgpu's counts and every DRM driver's per-process figures. World-readable files, no library.

    Args:
        sys: The sys file system.
        proc: The proc file system.
        clock: Monotonic time [s].
    """

    def __init__(
        self, sys: Path = Path("/sys"), proc: Path = Path("/proc"), *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._sys, self._proc, self._clock = sys, proc, clock
        self._without_total: set[str] = set()

    def read(self, pids: Sequence[int]) -> GpuReading:
        """Read the devices and what these processes hold on them."""
        at = self._clock()
        cards = [card for card in self._cards() if (card / "mem_info_vram_total").exists()]
        shared = any(is_apu(card) for card in cards)
        devices = [_device(card, at) for card in cards]
        clients = {pid: list(self._clients(pid)) for pid in pids}
        if not cards:
            devices = self._intel(clients, at)
        keys = (VRAM_KEYS, GTT_KEYS) if shared else (VRAM_KEYS,)
        processes = {pid: _held(found, keys, at) for pid, found in clients.items()}
        notes = tuple(f"{d.name}: {d.note}" for d in devices if d.note)
        return GpuReading(tuple(devices), processes, notes)

    def _cards(self) -> list[Path]:
        """Each GPU once: connectors (``card0-DP-1``) and render nodes point at the same device."""
        found = {
            card.resolve() for card in sorted(self._sys.glob("class/drm/card*/device")) if "-" not in card.parent.name
        }
        return sorted(found)

    def _clients(self, pid: int) -> Iterator[dict[str, str]]:
        """One record for each DRM client of a process; descriptors that share a client are told once."""
        seen: set[tuple[str, str]] = set()
        try:
            files = list((self._proc / str(pid) / "fdinfo").iterdir())
        except OSError:
            return
        for file in files:
            text, _ = read_text(file)
            if "drm-client-id" not in text:
                continue
            record = dict(re.findall(r"^(drm-[\w-]+):\s+(.+)$", text, re.MULTILINE))
            key = (record.get("drm-pdev", ""), record.get("drm-client-id", ""))
            if key not in seen:
                seen.add(key)
                yield record

    def _intel(self, clients: dict[int, list[dict[str, str]]], at: float) -> list[Device]:
        """Discrete Intel GPUs, known once a child holds VRAM there: no file tells a total or what others hold."""
        held: dict[str, int] = {}
        for record in (r for found in clients.values() for r in found):
            size = _size(record, ("drm-resident-vram0",))
            if size:
                device = record.get("drm-pdev", "")
                self._without_total.add(device)
                held[device] = held.get(device, 0) + size
        gap = missing("drm fdinfo", at, "the driver tells no total")
        source = "drm fdinfo, llmtop's children only"
        note = "the driver tells no total, and of used only what llmtop's children hold"
        return [
            Device(name, gap, measured(held.get(name, 0), source, at), note) for name in sorted(self._without_total)
        ]


def is_apu(card: Path) -> bool:
    """The GPU sits in the CPU and lives off the machine's memory, most of it through GTT.

    Source: byte 2 of amdgpu's ``gpu_metrics`` is its format, 1 for cards, 2 and 3 for APUs (kgd_pp_interface.h).
    """
    try:
        head = (card / "gpu_metrics").read_bytes()[:4]
    except OSError:
        return False
    return len(head) == 4 and head[2] in (2, 3)


def _device(card: Path, at: float) -> Device:
    kinds = ("vram", "gtt") if is_apu(card) else ("vram",)
    source = "amdgpu " + " + ".join(f"mem_info_{kind}" for kind in kinds)

    def together(what: str) -> Value:
        parts = [read_number(card / f"mem_info_{kind}_{what}") for kind in kinds]
        numbers = [part for part in parts if part is not None]
        if len(numbers) < len(parts):
            return missing(source, at, f"{card.name}: mem_info_*_{what} cannot be read")
        return measured(sum(numbers), source, at)

    return Device(f"AMD {card.name}", together("total"), together("used"))


def _held(clients: list[dict[str, str]], kinds: tuple[tuple[str, ...], ...], at: float) -> Value:
    if not clients:
        return missing("drm fdinfo", at, "no GPU client in this process, or not ours to read")
    sizes = [_size(record, keys) for record in clients for keys in kinds]
    known = [size for size in sizes if size is not None]
    return measured(sum(known), "drm fdinfo", at) if known else missing("drm fdinfo", at, "the driver tells no sizes")


def _size(record: dict[str, str], keys: tuple[str, ...]) -> int | None:
    """The first of these keys, with its unit made bytes."""
    for key in keys:
        match = re.fullmatch(r"(\d+)(?: (KiB|MiB|GiB))?", record.get(key, "").strip())
        if match:
            return int(match[1]) * UNITS[match[2] or ""]
    return None
