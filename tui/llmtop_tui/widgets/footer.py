"""The last row: the keys that matter most, as many as fit."""

from __future__ import annotations

from llmtop_tui.actions import Action, Target, key_name, shown
from llmtop_tui.widgets.line import Line, join, spread, width


def _entry(action: Action, target: Target, *, ascii: bool) -> Line:
    usable = action.enabled(target) and action.applies(target.panel)
    label = "Release" if action.id == "hold" and target.snapshot.hold else action.label
    if action.id == "pin" and target.model is not None and target.model.pinned:
        label = "Unpin"
    return (
        (key_name(action.keys[0], ascii=ascii), "accent bold" if usable else "muted"),
        (f" {label}", "text" if usable else "muted"),
    )


def _has_place(action: Action, target: Target) -> bool:
    """A step is worth a place only while the queue is held."""
    return action.id != "step" or target.snapshot.hold


def _rank(action: Action, target: Target) -> float:
    """Its place; while the queue is held, what ends that comes right after the help."""
    return 1.5 if target.snapshot.hold and action.id in ("hold", "step") else action.footer


def entries(target: Target, *, readonly: bool, ascii: bool) -> list[tuple[Action, Line]]:
    """Actions in the order of their rank; ``q`` is not among them, it has the right end."""
    have = shown(readonly=readonly, replay=target.replay, keys=target.keys)
    placed = [a for a in have if a.footer and a.id != "leave" and _has_place(a, target)]
    ranked = sorted(placed, key=lambda a: _rank(a, target))
    return [(action, _entry(action, target, ascii=ascii)) for action in ranked]


def _leave_key(target: Target) -> str:
    return key_name(target.keys.get("leave", ("q",))[0])


def render(target: Target, cells: int, *, readonly: bool = False, ascii: bool = False) -> Line:
    """One row; what does not fit is in ``?``."""
    leave: Line = ((_leave_key(target), "accent bold"), (" Quit ", "text"))
    left = join((line for _, line in entries(target, readonly=readonly, ascii=ascii)), "  ", cells - width(leave) - 3)
    return spread(((" ", ""), *left), leave, cells)


def action_at(target: Target, x: int, cells: int, *, readonly: bool = False, ascii: bool = False) -> str | None:
    """The action under a cell of the row."""
    at = 1
    for action, line in entries(target, readonly=readonly, ascii=ascii):
        end = at + width(line)
        if end > cells - 8:
            break
        if at <= x < end:
            return action.id
        at = end + 2
    return "leave" if x >= cells - 7 else None
