"""What ``ps``, ``queue`` and ``swaps`` print for people: rich tables on a terminal, plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from llmtop.children.text import safe_text
from llmtop.cli.context import out

Row = Sequence[str]
GAP = 2
"""Blanks between two columns [1]."""
FOLDED = 20
"""A last column of so many cells is readable still [1]."""


def size(value: int | None) -> str:
    """Bytes as people read them; a dash where nothing is known."""
    if value is None:
        return "-"
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.1f} {unit}" if unit != "B" and amount < 100 else f"{amount:.0f} {unit}"


def seconds(value: float | None) -> str:
    """A time as people read it; a dash for a phase that did not occur."""
    if value is None:
        return "-"
    if value < 100:
        return f"{value:.1f}s"
    return f"{value / 60:.0f}m" if value < 6000 else f"{value / 3600:.0f}h"


def table(
    title: str, heads: Row, rows: Sequence[Row], *, right: frozenset[int] = frozenset(), spare: Sequence[int] = ()
) -> None:
    """Print rows under their heads.

    Args:
        title: Line above; empty for none.
        heads: Column names.
        rows: Cells; they are text, never markup, and from anyone: no terminal acts on them.
        right: Columns set to the right.
        spare: Columns that a narrow terminal goes without, the first one first; elsewhere nothing is left out.
    """
    title, cells = safe_text(title), [[safe_text(cell) for cell in row] for row in (heads, *rows)]
    if sys.stdout.isatty():
        _rich(title, cells, right, spare)
        return
    widths = [max(map(width, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(_set(c, w, i in right) for i, (c, w) in enumerate(zip(row, widths, strict=True))) for row in cells
    ]
    out("\n".join(([title] if title else []) + [line.rstrip() for line in lines]))


def width(text: str) -> int:
    """Cells that a terminal takes for a text [1]."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _set(text: str, cells: int, right: bool) -> str:
    blanks = " " * (cells - width(text))
    return blanks + text if right else text + blanks


def _rich(title: str, cells: list[list[str]], right: frozenset[int], spare: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    shown = _fitting([max(map(width, column)) for column in zip(*cells, strict=True)], console.width, spare)
    made = Table(box=None, pad_edge=False, header_style="bold")
    for i in shown:
        made.add_column(Text(cells[0][i]), justify="right" if i in right else "left", overflow="fold")
    for row in cells[1:]:
        made.add_row(*(Text(row[i]) for i in shown))
    if title:
        console.print(Text(title, style="bold"))
    console.print(made)


def _fitting(widths: Sequence[int], room: int, spare: Sequence[int]) -> list[int]:
    """The columns that there is room for; the last one, with the words, can be folded."""
    shown, going = list(range(len(widths))), list(spare)
    need = [*widths[:-1], min(widths[-1], FOLDED)]
    while going and sum(need[i] + GAP for i in shown) > room + GAP:
        shown.remove(going.pop(0))
    return shown


def show_state(state: dict[str, Any], *, clear: bool = False) -> None:
    """Print models, queue and memory."""
    if clear and sys.stdout.isatty():
        sys.stdout.write("\x1b[H\x1b[2J")
    cap = state["models_max"] or "no cap"
    memory = state["memory"]
    title = f"llmtop {state['version']}  pid {state['pid']}  models-max {cap} ({state['models_max_source']})"
    if memory.get("budget") is not None:
        title += f"  reserved {size(memory['reserved'])} of {size(memory['budget'])}"
    if state.get("hold"):
        title += "  QUEUE HELD"
    heads = ("MODEL", "STATE", "PID", "PORT", "BUSY", "WAIT", "MEMORY", "IDLE", "NOTE")
    table(
        title, heads, [_model(model) for model in state["models"]], right=frozenset(range(2, 8)), spare=(3, 2, 7, 5, 6)
    )
    if state["queue"]:
        out("")
        show_queue(state)
    if state["oom"]["count"]:
        last: dict[str, Any] = state["oom"]["last"] or {}
        text = f"out of memory {state['oom']['count']}x, last: {last.get('model', '')} {last.get('text', '')}"
        out("\n" + safe_text(text).rstrip())


def _model(model: dict[str, Any]) -> Row:
    word = str(model["state"])
    if model["failure"] and word == "unloaded":
        word = "failed"
    marks = [mark for mark in ("pinned", "draining", "sick", "settling", "stuck") if model[mark]]
    if model.get("stale_config"):
        marks.append("stale config")
    note = model["reason"] or model.get("problem", "")
    progress = model["progress"]
    if word == "loading" and progress and progress.get("value") is not None:
        word = f"loading {progress['value']:.0%}"
    return (
        str(model["id"]),
        word,
        str(model["pid"] or "-"),
        str(model["port"] or "-"),
        str(model["in_flight"]),
        str(model["waiting"]),
        size(model["footprint_bytes"] if model["footprint_bytes"] is not None else model["reserved_bytes"] or None),
        seconds(model["idle_s"]),
        " ".join((*(f"[{mark}]" for mark in marks), str(note))).strip(),
    )


def show_queue(state: dict[str, Any]) -> None:
    """Print who waits, for how long and why."""
    rows = [
        (str(e["position"]), str(e["model"]), str(e["waiters"]), seconds(e["waited_s"]), str(e["reason"]))
        for e in state["queue"]
    ]
    if rows:
        table("", ("#", "WAITS FOR", "WAITERS", "FOR", "WHY"), rows, right=frozenset({0, 2, 3}))
    else:
        out("nobody waits" + (" (the queue is held)" if state.get("hold") else ""))


def show_swaps(answer: dict[str, Any]) -> None:
    """Print the swaps with their phases, newest last."""
    phases = ("queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s")
    rows = [
        (
            str(swap["id"]),
            str(swap["model"]),
            ", ".join(swap["evicted"]) or "-",
            *(seconds(swap["phases"][phase]) for phase in phases),
            str(swap["result"] or "under way"),
            str(swap["reason"]),
        )
        for swap in answer["swaps"]
    ]
    if not rows:
        out("no swaps yet")
        return
    heads = ("#", "MODEL", "EVICTED", *(phase.removesuffix("_s").upper() for phase in phases), "RESULT", "REASON")
    table("", heads, rows, right=frozenset({0, *range(3, 9)}), spare=(7, 3, 4, 6, 5, 0))
