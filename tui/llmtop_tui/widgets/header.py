"""The first row: who serves where, in which mood, how full, how busy."""

from __future__ import annotations

from urllib.parse import urlsplit

from llmtop.snapshot import Snapshot
from llmtop_tui.format import age, clean, clock, cut_end
from llmtop_tui.view import Level, View, level_of
from llmtop_tui.widgets.line import Line, clip, join

CLOCK = 10
RATE_WINDOW_S = 600
"""Swaps of the last ten minutes make the rate."""


def badges(view: View) -> Line:
    """The state of the service as words; whatever is not plain serving is in reverse video."""
    snapshot = view.snapshot
    shown: list[tuple[str, str]] = []
    if snapshot.shutting_down:
        shown.append(("SHUTTING DOWN", "bad reverse bold"))
    elif view.stale_s is not None:
        shown.append((f"STALE {age(view.stale_s)}", "bad reverse bold"))
    elif view.replay:
        shown.append((f"REPLAY {view.replay}", "accent reverse bold"))
    elif snapshot.hold:
        shown.append(("HELD", "warn reverse bold"))
    elif view.kind:
        shown.append((view.kind, "secondary bold"))
    else:
        shown.append(("SERVING", "good bold"))
    if view.paused_s is not None:
        shown.append((f"PAUSED {int(view.paused_s) // 60:02}:{int(view.paused_s) % 60:02}", "accent reverse bold"))
    if snapshot.exposed:
        shown.append(("EXPOSED", "bad reverse bold"))
    if snapshot.faults:
        shown.append((f"FAULT {len(snapshot.faults)}", "bad reverse bold"))
    out: list[tuple[str, str]] = []
    for word, style in shown:
        if out:
            out.append((" ", ""))
        out.append((f" {word} " if "reverse" in style else word, style))
    return tuple(out)


def address(url: str, *, short: bool) -> str:
    """Host and port; the port alone where there is little room."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if port is None:
        return clean(parts.netloc or url)
    return f":{port}" if short else clean(f"{parts.hostname}:{port}")


def swap_rate(snapshot: Snapshot) -> float | None:
    """Swaps a minute over the last ten minutes, None when there were none."""
    recent = [swap for swap in snapshot.swaps.recent if 0 <= snapshot.at - swap.at <= RATE_WINDOW_S]
    span = min(RATE_WINDOW_S, snapshot.uptime_s)
    return len(recent) / max(1.0, span / 60) if recent else None


def _fact(label: str, value: str, style: str = "text") -> Line:
    return ((f"{label} ", "muted"), (value, style))


def render(view: View, width: int, level: Level | None = None) -> Line:
    """One row but the clock; facts that do not fit are dropped from the end."""
    snapshot, level = view.snapshot, level or level_of(width)
    short = level in ("slim", "narrow")
    name = "llmtop" if short else f"llmtop {clean(snapshot.version)}".rstrip()
    cap = str(snapshot.models_max) if snapshot.models_max else "no cap"
    full = snapshot.models_max and snapshot.running >= snapshot.models_max
    resident = f"{snapshot.running}/{cap}" + ("" if short else f" ({clean(snapshot.models_max_source)})")
    waiting = sum(entry.waiters for entry in snapshot.queue)
    rate = swap_rate(snapshot)
    swaps = str(snapshot.swaps.count) + (f" ({rate:.1f}/min)" if rate and not short else "")
    facts = [
        ((name, "accent bold"),),
        ((address(snapshot.url, short=short), "text"),),
        badges(view),
        ((cut_end(view.fault, max(0, width - 40), view.glyphs.ellipsis), "bad"),) if view.fault else (),
        _fact("resident", resident, "text bold" if full else "text"),
        _fact("Q" if short else "queue", str(waiting), "warn bold" if waiting else "text"),
        _fact("swaps", swaps),
        _fact("req", str(snapshot.requests_total)),
        _fact("err", str(snapshot.errors_total), "bad") if snapshot.errors_total else (),
        _fact("up", age(snapshot.uptime_s, 5)) if snapshot.uptime_s else (),  # 0 where it is not told
    ]
    if level == "wide":
        running = sum(model.in_flight for model in snapshot.models)
        facts += [
            _fact("in flight", str(running)),
            _fact("self", view.cost) if view.cost else (),
            _fact("every", f"{view.every_s:g}s") if view.every_s else (),
            ((clean(snapshot.server), "muted"),),
        ]
    if level == "slim":  # a mood is not to be missed, a name can be
        facts = [badges(view), *facts[1:2], *facts[4:]]
    left = join((fact for fact in facts if fact), "  ", width - 1)
    return clip(((" ", ""), *left), width)


def time_of_day(view: View) -> Line:
    """When the picture was made, ``CLOCK`` cells."""
    return ((f" {clock(view.snapshot.at)} ", "muted"),)
