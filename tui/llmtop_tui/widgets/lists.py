"""Rows of the queue, the requests in flight, the events and the log."""

from __future__ import annotations

from llmtop.snapshot import EventLine, LogLine, QueueEntry, Request, Swap
from llmtop_tui.format import DASH, age, clean, clock, cut_end, cut_middle, fit, gib, known, seconds, width_of
from llmtop_tui.view import View
from llmtop_tui.widgets import phases
from llmtop_tui.widgets.line import Line, clip
from llmtop_tui.widgets.line import width as line_width
from llmtop_tui.widgets.words import squeeze

QUEUE_MODEL = {"slim": 14, "narrow": 21, "normal": 26, "wide": 34}
EVENT_STYLES = {
    "load": "primary", "ready": "good", "evict": "warn", "stop": "warn", "exit": "muted", "fail": "bad",
    "oom": "bad bold", "sick": "bad", "pin": "accent", "unpin": "accent", "hold": "warn", "drain": "warn",
    "swap": "title",
}  # fmt: skip
_ALARMING = ("error", "failed", "insufficient memory", "out of memory")


def queue_head(width: int, level: str) -> Line:
    """Names of the queue's columns."""
    name = QUEUE_MODEL[level]
    waiters = "REQ" if level == "narrow" else "WAITERS"
    tail = "BLOCKED BY" if level == "slim" else f"{waiters}  WAITED  {'ETA':>5}  BLOCKED BY"
    return clip(((f"  #  {fit('MODEL', name, ellipsis='')} {tail}", "muted"),), width)


def queue_row(entry: QueueEntry, view: View, width: int, level: str) -> Line:
    """One entry: how many wait for the model, how long, for what, and for how long yet."""
    name = QUEUE_MODEL[level]
    ellipsis = view.glyphs.ellipsis
    spans = [
        (f" {entry.position:>2}  ", "muted"),
        (fit(cut_middle(entry.model, name, ellipsis), name, ellipsis=ellipsis) + " ", "text"),
    ]
    if level == "slim":
        return clip((*spans, (squeeze(entry.reason, view, max(0, width - name - 6)), "muted")), width)
    waiters = "op" if entry.operator and not entry.waiters else str(entry.waiters)
    count_width = 3 if level == "narrow" else 7
    eta = f"~{age(entry.eta_s)}" if known(entry.eta_s) is not None else DASH
    spans += [
        (f"{waiters[:7]:>{count_width}}  ", "text"),
        (f"{age(entry.waited_s):>6}  ", "warn" if entry.position == 1 else "text"),
        (f"{eta:>5}  ", "muted"),
        (
            squeeze(entry.reason, view, max(0, width - name - 23 - count_width)),
            "text" if entry.position == 1 else "muted",
        ),
    ]
    return clip(spans, width)


def request_head(width: int) -> Line:
    """Names of the columns of requests in flight."""
    return clip(((f" {'MODEL':<24} {'PHASE':<7} {'AGE':>5}  {'CLIENT':<15} PATH", "muted"),), width)


def request_row(request: Request, view: View, width: int) -> Line:
    """One request that is not over."""
    ellipsis = view.glyphs.ellipsis
    style = {"queued": "warn", "loading": "primary", "running": "good"}[request.phase]
    path = request.path + (" stream" if request.stream else "")
    return clip(
        (
            (f" {fit(cut_middle(request.model, 24, ellipsis), 24)} ", "text"),
            (f"{request.phase:<7} ", style),
            (f"{age(request.age_s):>5}  ", "text"),
            (fit(request.client, 15, ellipsis=ellipsis) + " ", "muted"),
            (cut_end(path, max(0, width - 57), ellipsis), "muted"),
        ),
        width,
    )


def swap_row(swap: Swap, view: View, width: int) -> Line:
    """One swap of the timeline."""
    returned = sum(known(stop.returned_bytes) or 0 for stop in swap.stops)
    freed = f", {gib(returned)} GiB back" if returned else ""
    evicted = f", evicted {', '.join(swap.evicted)}" if swap.evicted else ""
    result = {"ok": "good", "": "primary"}.get(swap.result, "bad")
    narrow = width < 76
    now = view.snapshot.at
    solid = not (view.mono or view.glyphs.ascii)
    took = phases.total(swap, now)
    lead: Line = (
        (f"{clock(phases.bounds(swap, now)[1])} ", "muted"),
        ("swap   ", EVENT_STYLES["swap"]),
        *phases.phase_bar(swap, 10 if narrow else 14, solid=solid, now=now),
        (f" {seconds(took):>5} ", "text bold"),
        (f"{cut_middle(swap.model, 16 if narrow else 28, view.glyphs.ellipsis)} ", "text"),
        (f"{clean(swap.result or 'now')[:9]}", result),
    )
    more = f"{evicted}{freed}; {phases.phases_text(swap, now)}"
    return clip((*lead, (cut_end(more, max(0, width - line_width(lead)), view.glyphs.ellipsis), "muted")), width)


def event_row(event: EventLine, view: View, width: int) -> Line:
    """One thing that happened."""
    said = event.text.removeprefix(f"{event.kind} ")
    if not said.startswith((event.model or "the ", "the ")):  # else the column has said it
        said = event.text
    named = bool(event.model) and event.model not in said
    about = f"{cut_middle(event.model, 16 if width < 76 else 28, view.glyphs.ellipsis)} " if named else ""
    return clip(
        (
            (f"{clock(event.at)} ", "muted"),
            (fit(event.kind, 6, ellipsis="") + " ", EVENT_STYLES.get(event.kind, "text")),
            (about, "text"),
            (
                squeeze(said, view, max(0, width - 16 - width_of(about)), past=True),
                "muted" if about else "text",
            ),
        ),
        width,
    )


def log_style(text: str) -> str:
    """Lines that speak of trouble stand out."""
    lowered = text[:400].lower()
    return "bad" if any(word in lowered for word in _ALARMING) else "text"


def log_rows(line: LogLine, view: View, width: int, *, wrap: bool) -> list[Line]:
    """One line of a child; with ``wrap`` as many rows as it takes, at most 20."""
    named = 16 if width >= 99 else 12
    lead: Line = (
        (f"{clock(line.at)} ", "muted"),
        (fit(cut_middle(line.model, named, view.glyphs.ellipsis), named) + " ", "secondary"),
    )
    room = max(1, width - 10 - named)
    style = log_style(line.text)
    if not wrap:
        return [clip((*lead, (cut_end(line.text, room, view.glyphs.ellipsis), style)), width)]
    text = clean(line.text[: 20 * room])
    pieces = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    rows: list[Line] = [clip((*lead, (pieces[0], style)), width)]
    return rows + [clip(((" " * (10 + named), ""), (piece, style)), width) for piece in pieces[1:]]
