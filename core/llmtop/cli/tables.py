"""What ``ps``, ``queue`` and ``swaps`` print for people: rich tables on a terminal, plain columns elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from llmtop.cli.context import out

Row = Sequence[str]


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


def table(title: str, heads: Row, rows: Sequence[Row], *, right: frozenset[int] = frozenset()) -> None:
    """Print rows under their heads.

    Args:
        title: Line above; empty for none.
        heads: Column names.
        rows: Cells; they are text, never markup.
        right: Columns set to the right.
    """
    if sys.stdout.isatty():
        _rich(title, heads, rows, right)
        return
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    lines = [
        "  ".join(c.rjust(w) if i in right else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True)))
        for row in (heads, *rows)
    ]
    out("\n".join(([title] if title else []) + [line.rstrip() for line in lines]))


def _rich(title: str, heads: Row, rows: Sequence[Row], right: frozenset[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for i, head in enumerate(heads):
        made.add_column(head, justify="right" if i in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    console = Console()
    if title:
        console.print(Text(title, style="bold"))
    console.print(made)


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
    table(title, heads, [_model(model) for model in state["models"]], right=frozenset({2, 3, 4, 5, 6, 7}))
    if state["queue"]:
        out("")
        show_queue(state)
    if state["oom"]["count"]:
        last: dict[str, Any] = state["oom"]["last"] or {}
        out(f"\nout of memory {state['oom']['count']}x, last: {last.get('model', '')} {last.get('text', '')}".rstrip())


def _model(model: dict[str, Any]) -> Row:
    word = str(model["state"])
    if model["failure"] and word == "unloaded":
        word = "failed"
    marks = [mark for mark in ("pinned", "draining", "sick", "settling", "stuck") if model[mark]]
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
    table("", heads, rows, right=frozenset({0, *range(3, 9)}))
