"""The sticky line: the last out-of-memory line until somebody has seen it, else a fault of llmtop itself."""

from __future__ import annotations

from llmtop.snapshot import Snapshot
from llmtop_tui.format import clock, cut_end, cut_middle
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line, spread, width


def due(snapshot: Snapshot) -> bool:
    """There is something to show."""
    return (snapshot.oom.last is not None and not snapshot.oom.acknowledged) or bool(snapshot.faults)


def render(view: View, cells: int) -> Line:
    """When, who, what, how often, and the two keys for it."""
    snapshot, ellipsis = view.snapshot, view.glyphs.ellipsis
    last = snapshot.oom.last
    if last is None or snapshot.oom.acknowledged:
        fault = snapshot.faults[-1] if snapshot.faults else ""
        text = cut_end(f"{fault}  (a bug of llmtop: please report it)", max(0, cells - 9), ellipsis)
        return ((" ! FAULT ", "bad reverse bold"), (" " + text, "bad"))
    keys: Line = (("!", "accent bold"), (" show  ", "muted"), ("x", "accent bold"), (" clear ", "muted"))
    lead: Line = (
        (" ! OOM ", "bad reverse bold"),
        (f" {clock(last.at)} ", "muted"),
        (cut_middle(last.model, 24 if cells >= 100 else 16, ellipsis) + " ", "text bold"),
        (f"x{max(last.count, 1)} ", "bad bold"),
    )
    room = cells - width(lead) - width(keys) - 3
    return spread((*lead, (cut_middle(last.text, max(0, room), ellipsis), "bad")), keys, cells)
