"""Where a swap's time went: its phases as figures, as bars, in words."""

from __future__ import annotations

from dataclasses import dataclass

from llmtop.snapshot import Stop, Swap
from llmtop_tui.format import gib, known, seconds
from llmtop_tui.widgets.line import Line

PHASES = (
    ("queued_s", "q", "muted"),
    ("drain_s", "d", "warn"),
    ("stop_s", "s", "bad"),
    ("settle_s", "m", "secondary"),
    ("spawn_s", "p", "accent"),
    ("load_s", "l", "primary"),
)
"""Field of ``Phases``, its letter in the bar, its style; in the order of time."""

BEFORE = ("queued_s", "drain_s", "stop_s", "settle_s")
"""Phases that are over when the child is spawned, which is the moment that a swap is dated by."""

_NAMES = {"settle_s": "memory back"}


@dataclass(frozen=True)
class Span:
    """One phase of a swap. Times are seconds since the epoch [s]."""

    name: str
    letter: str
    style: str
    start: float
    end: float


def spans(swap: Swap, now: float | None = None) -> tuple[Span, ...]:
    """The phases that occurred, one after the other.

    Args:
        swap: The swap.
        now: While it is under way the load lasts until this moment [s since the epoch]; None leaves it as told.
    """
    lengths = {name: known(getattr(swap.phases, name)) or 0.0 for name, _, _ in PHASES}
    at = swap.at - sum(lengths[name] for name in BEFORE)
    if now is not None and not swap.result:
        lengths["load_s"] = max(lengths["load_s"], now - swap.at - lengths["spawn_s"])
    out: list[Span] = []
    for name, letter, style in PHASES:
        if lengths[name] > 0:
            out.append(Span(name.removesuffix("_s"), letter, style, at, at + lengths[name]))
            at += lengths[name]
    return tuple(out)


def bounds(swap: Swap, now: float | None = None) -> tuple[float, float]:
    """Start of the wait and end of the load [s since the epoch]."""
    parts = spans(swap, now)
    return (parts[0].start, parts[-1].end) if parts else (swap.at, swap.at)


def total(swap: Swap, now: float | None = None) -> float:
    """Seconds from the start of the wait to ready."""
    start, end = bounds(swap, now)
    return end - start


def bar(parts: tuple[Span, ...], cells: int, *, solid: bool) -> Line:
    """A run of cells a phase, in proportion; what occurred has one cell at least.

    Args:
        parts: From ``spans``.
        cells: Width of the whole.
        solid: Blocks of colour that start with the phase's letter, for a screen with colours; else letters alone.
    """
    if not parts or cells < len(parts):
        return ((" " * max(0, cells), ""),)
    whole = sum(part.end - part.start for part in parts)
    spare = cells - len(parts)
    out: list[tuple[str, str]] = []
    drawn, passed = 0, 0.0
    for part in parts:
        passed += part.end - part.start
        end = round(passed / whole * spare)
        size = 1 + end - drawn
        text = part.letter + (" " * (size - 1) if solid else part.letter * (size - 1))
        out.append((text, f"on-{part.style}" if solid else part.style))
        drawn = end
    return tuple(out)


def phase_bar(swap: Swap, cells: int, *, solid: bool = False, now: float | None = None) -> Line:
    """The bar of one swap, over all its cells."""
    return bar(spans(swap, now), cells, solid=solid)


def phases_text(swap: Swap, now: float | None = None) -> str:
    """The phases in words: ``queued 0.4s, drain 1.0s, load 3.1s``."""
    told = [(part.name, part.end - part.start) for part in spans(swap, now)]
    return ", ".join(f"{name} {seconds(value)}" for name, value in told if value >= 0.05)


def stop_text(stop: Stop) -> str:
    """Who went, how, and what came back of its memory."""
    size = f"{gib(stop.footprint_bytes)} GiB"
    back = "its memory was not measured"
    if stop.returned_bytes is not None:
        back = f"{gib(stop.returned_bytes)} of {size} back"
    elif stop.footprint_bytes is not None:
        back = f"it had {size}"
    waited = f", memory back after {seconds(stop.settle_s)}" if known(stop.settle_s) else ""
    return f"{stop.model} by {stop.signal or 'no signal'}: {back}{waited}"


def legend(*, solid: bool) -> Line:
    """Letters and colours of the phases."""
    out: list[tuple[str, str]] = []
    for name, letter, style in PHASES:
        out += [(f" {letter} " if solid else letter, f"on-{style}" if solid else f"{style} bold")]
        out.append((f" {_NAMES.get(name, name.removesuffix('_s'))}  ", "muted"))
    return tuple(out)
