"""One run as text: a row a model, time from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.simulate.world import History

LEGEND = "l loading  # busy  = idle  x leaving  . gone"


def timeline(history: History, width: int) -> list[tuple[str, str]]:
    """Draw a run.

    Args:
        history: From ``World.run``.
        width: Characters for the time axis [1].

    Returns:
        Model and its row, the model that came first on top. A character is what held longest in its share of the time,
        but "gone" only where there was nothing else.
    """
    end = max(history.end_s, 1e-9)
    order = sorted(history.marks, key=lambda model: (_first(history.marks[model]), model))
    return [(model, _row(history.marks[model], end, width)) for model in order]


def _first(marks: Sequence[tuple[float, str]]) -> float:
    return marks[1][0] if len(marks) > 1 else float("inf")


def _row(marks: Sequence[tuple[float, str]], end: float, width: int) -> str:
    step = end / width
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    for n, (start, mark) in enumerate(marks):
        stop = marks[n + 1][0] if n + 1 < len(marks) else end
        for cell in range(min(width - 1, int(start / step)), min(width - 1, int(stop / step)) + 1):
            held = min(stop, (cell + 1) * step) - max(start, cell * step)
            if held > 0:
                shares[cell][mark] = shares[cell].get(mark, 0.0) + held
    return "".join(_mark(share) for share in shares)


def _mark(share: dict[str, float]) -> str:
    something = {mark: held for mark, held in share.items() if mark != "."} or {".": 1.0}
    return max(something, key=lambda mark: (something[mark], mark))
