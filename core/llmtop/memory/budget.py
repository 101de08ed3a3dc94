"""How many bytes all models together may hold, and how that number came about."""

from __future__ import annotations

import msgspec

from llmtop.memory.devices import Devices
from llmtop.memory.sample import Sample

MIB = 2**20
GIB = 2**30
METAL_MARGIN = 512 * MIB
"""Left free below the GPU limit on macOS: a command buffer that goes beyond it fails for good."""
GPU_MARGIN = 0.03
"""Share of the devices' memory left to driver and fragments."""
METAL = ("MTL", "Metal")
OWN_MEMORY = ("CUDA", "ROCm", "HIP", "MUSA", "SYCL")
"""Backends of devices with memory of their own. Vulkan is not among them: it also lists processors."""


class Held(msgspec.Struct, frozen=True):
    """What llmtop's own children hold, the settling ones and stranded bytes included.

    Args:
        running: Children that are not settled yet [1].
        least: What was measured of them [bytes].
        most: What is reserved for them, or measured where that is more [bytes].
        stranded: What dead ones left behind [bytes].
    """

    running: int = 0
    least: int = 0
    most: int = 0
    stranded: int = 0


class Alone(msgspec.Struct, frozen=True):
    """What was last read with no child running [bytes]; None when that was never."""

    available: int | None = None
    others: int | None = None


class Effective(msgspec.Struct, frozen=True):
    """The budget.

    Args:
        bytes: What reservations may add up to, stranded bytes not yet taken off [bytes]; None is no budget.
        why: How it came about, in one line.
        steps: The same, step by step, for ``doctor``.
    """

    bytes: int | None
    why: str
    steps: tuple[str, ...] = ()


def gib(size: int) -> str:
    """A size for people: ``18.2 GiB``, ``640 MiB``."""
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"


def counted(sample: Sample) -> int | None:
    """What all processes hold of that which the budget is made of [bytes]: GPU memory in use, else wired or VRAM."""
    if sample.label == "WIRED" and sample.gpu_in_use.bytes is not None:
        return sample.gpu_in_use.bytes
    return sample.level.bytes


def look_alone(sample: Sample, alone: Alone, held: Held) -> Alone:
    """Renew what is known of the machine without children; unchanged while any runs."""
    if held.running:
        return alone
    count = counted(sample)
    available = sample.available.bytes
    return Alone(
        alone.available if available is None else available + held.stranded,
        alone.others if count is None else max(0, count - held.stranded),
    )


def others(sample: Sample, alone: Alone, held: Held) -> int:
    """What other processes hold [bytes].

    What children hold is known only between bounds (macOS counts no mapped weights for a process, a loading child
    does not hold yet what is reserved for it), so the last reading without children is kept as far as they allow.
    """
    count = counted(sample)
    if count is None:
        return alone.others or 0
    low = max(0, count - held.stranded - max(held.least, held.most))
    high = max(low, count - held.stranded - held.least)
    return min(high, max(low, alone.others or 0))


def effective(setting: str, sample: Sample | None, devices: Devices, alone: Alone, held: Held) -> Effective:
    """The budget as of now.

    Args:
        setting: ``auto``, ``off``, or bytes as a decimal string.
        sample: Newest sample; None when there is none.
        devices: What llama-server lists.
        alone: From ``look_alone``.
        held: What llmtop's children hold.
    """
    if setting == "off":
        return Effective(None, "off: bytes are not counted")
    if setting != "auto":
        return Effective(int(setting), f"{gib(int(setting))} as set with --memory-budget")
    if sample is None:
        return Effective(None, "auto: the memory has not been read yet")
    pool = _pool(sample, devices)
    if pool is not None:
        return _from_pool(pool, sample, alone, held)
    if alone.available is not None:
        step = f"{gib(alone.available)} available, as last read with no child running ({sample.available.source})"
        return Effective(alone.available, f"auto: {step}", (step,))
    why = sample.available.why or "children ran from the start"
    return Effective(None, f"auto: no number to start from ({why}): bytes are not counted")


class _Pool(msgspec.Struct, frozen=True):
    """What there is to share before others' part."""

    total: int
    margin: int
    source: str
    held_at_query: int | None = None


def _pool(sample: Sample, devices: Devices) -> _Pool | None:
    """The GPU limit (macOS) or the memory of all devices; None where models live in the machine's own memory."""
    if sample.label == "WIRED":
        metal = devices.of(METAL)
        if metal:
            return _Pool(sum(gpu.total for gpu in metal), METAL_MARGIN, "GPU limit by llama-server --list-devices")
        if sample.limit.bytes is None:
            return None
        return _Pool(sample.limit.bytes, METAL_MARGIN, f"GPU limit by {sample.limit.source}")
    own = devices.of(OWN_MEMORY)
    if sample.label == "VRAM" and sample.limit.bytes is not None:
        count = len(sample.devices)
        source = f"{sample.limit.source}, one pool of {count} devices" if count > 1 else sample.limit.source
        return _Pool(sample.limit.bytes, int(GPU_MARGIN * sample.limit.bytes), source)
    unified = sample.label == "MEM" and bool(sample.devices)
    listed = own or (devices.gpus if sample.label == "VRAM" else ())
    if not listed or unified:
        return None
    total = sum(gpu.total for gpu in listed)
    pool = f", one pool of {len(listed)} devices" if len(listed) > 1 else ""
    return _Pool(
        total,
        int(GPU_MARGIN * total),
        f"devices of llama-server --list-devices{pool}",
        max(0, total - sum(gpu.free for gpu in listed)),
    )


def _from_pool(pool: _Pool, sample: Sample, alone: Alone, held: Held) -> Effective:
    readable = counted(sample) is not None and pool.held_at_query is None
    foreign = others(sample, alone, held) if readable else pool.held_at_query or 0
    size = max(0, pool.total - pool.margin - foreign)
    how = (
        "as read now"
        if readable
        else "as llama-server saw it at the start"
        if pool.held_at_query is not None
        else "not readable"
    )
    steps = (
        f"{gib(pool.total)} {pool.source}",
        f"less {gib(pool.margin)} margin",
        f"less {gib(foreign)} that other processes hold ({how})",
    )
    return Effective(size, f"auto: {', '.join(steps)}", steps)
