"""What one look at the machine's memory yields. A number that could not be had is missing, with a reason, never 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import msgspec

Label = Literal["WIRED", "VRAM", "MEM"]
Level = Literal["normal", "warn", "critical"]

ABSURD = 2**50
"""One PiB: above it a reading is taken for a sentinel or a wrapped counter, not for memory [bytes]."""


class Value(msgspec.Struct, frozen=True):
    """One number with its origin. Build it with ``measured`` or ``missing``.

    Args:
        bytes: The reading [bytes]; None when it is missing.
        source: Where it comes from (file, call, tool), or would come from.
        at: When it was read [s, monotonic].
        why: Why it is missing; empty when it is not.

    Raises:
        ValueError: A reading that is negative or absurd, or one that is missing without a reason.
    """

    bytes: int | None
    source: str
    at: float = 0.0
    why: str = ""

    def __post_init__(self) -> None:
        if self.bytes is None:
            if not self.why:
                raise ValueError(f"{self.source}: a missing value needs a reason")
        elif not 0 <= self.bytes <= ABSURD:
            raise ValueError(f"{self.source}: {self.bytes} is not a size of memory")

    @property
    def text(self) -> str:
        """The source, or why there is no number: what ``sources`` of the snapshot shows."""
        return self.source if self.bytes is not None else f"n/a: {self.why}"


def missing(source: str, at: float, why: str) -> Value:
    """A number that could not be had, and why."""
    return Value(None, source, at, why or "not available")


def measured(raw: object, source: str, at: float) -> Value:
    """Make a reading of whatever a tool, a file or a call gave; anything that is not a size in bytes becomes missing.

    Args:
        raw: The number [bytes]; a whole ``float`` counts, a ``bool`` or a text does not.
        source: Where it comes from.
        at: When it was read [s, monotonic].
    """
    if raw is None:
        return missing(source, at, "no such value")
    if isinstance(raw, bool) or not isinstance(raw, int | float):
        return missing(source, at, f"not a number ({type(raw).__name__})")
    if not math.isfinite(raw):
        return missing(source, at, f"not a finite number ({raw})")
    if raw < 0:
        return missing(source, at, "negative")
    if raw > ABSURD:
        return missing(source, at, "absurdly large")
    return Value(int(raw), source, at)


class Pressure(msgspec.Struct, frozen=True):
    """How hard the system looks for memory, in its own words.

    Args:
        level: ``normal``, ``warn`` or ``critical``; None when it is not known.
        detail: The reading itself (``some avg10=0.12``); why there is none, when level is None.
        source: Where it comes from.
    """

    level: Level | None = None
    detail: str = "not read"
    source: str = ""


class Device(msgspec.Struct, frozen=True):
    """One GPU with memory of its own.

    Args:
        name: As its driver calls it.
        total: All of it.
        used: Held by whichever process.
        note: What the driver said instead of an answer; empty when it answered.
    """

    name: str
    total: Value
    used: Value
    note: str = ""


class Sample(msgspec.Struct, frozen=True):
    """All numbers of one look. Sizes are ``Value``; maps go by pid, or by model id.

    Args:
        at: When it was taken [s, monotonic].
        total: Physical memory, or what the container may have of it.
        available: What a new process could get without swapping.
        used: What the gauge with ``label`` counts: on a GPU its memory, else the machine's.
        wired: Pages that cannot be moved or paged out (macOS).
        limit: What the GPU may wire in all (macOS), or the memory of all devices together.
        compressed: Held by the compressor (macOS), or in zswap.
        cached: File pages that would be given up on demand; part of ``available``.
        swap: Swap in use.
        gpu_in_use: What all GPU clients together have resident (macOS ``ioreg``).
        pressure: The system's own view.
        footprints: What each child holds of that which ``label`` counts.
        host: What each child holds of the machine's memory beside a GPU.
        models: Footprints to assume (file source only) [bytes].
        label: ``WIRED`` on macOS, ``VRAM`` with a GPU of its own memory, else ``MEM``.
        devices: GPUs with memory of their own.
        notes: What went wrong on the way, one line each.
    """

    at: float
    total: Value
    available: Value
    used: Value
    wired: Value
    limit: Value
    compressed: Value
    cached: Value
    swap: Value
    gpu_in_use: Value
    pressure: Pressure = Pressure()
    footprints: Mapping[int, Value] = {}
    host: Mapping[int, Value] = {}
    models: Mapping[str, int] = {}
    label: Label = "MEM"
    devices: tuple[Device, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def level(self) -> Value:
        """The count that a child's memory shows in, and whose fall tells that it is back."""
        return self.wired if self.label == "WIRED" else self.used

    @property
    def sources(self) -> dict[str, str]:
        """Origin of each number, or why it is missing, by field name."""
        named = {name: getattr(self, name) for name in VALUES}
        return {name: value.text for name, value in named.items()} | {
            "pressure": self.pressure.source if self.pressure.level else f"n/a: {self.pressure.detail}"
        }


VALUES = ("total", "available", "used", "wired", "limit", "compressed", "cached", "swap", "gpu_in_use")
"""Fields of ``Sample`` that are a ``Value``."""
