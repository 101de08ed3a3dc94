"""Pages of text: the help, and the details of a row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from llmtop.snapshot import EventLine, LogLine, Model, QueueEntry, Request, Swap
from llmtop_tui.actions import GROUPS, Item, key_name, shown
from llmtop_tui.format import age, clean, clock, count, gib, seconds
from llmtop_tui.glyphs import STATE_STYLES, state_word
from llmtop_tui.view import View
from llmtop_tui.widgets.line import Line
from llmtop_tui.widgets.lists import EVENT_STYLES
from llmtop_tui.widgets.models_table import note
from llmtop_tui.widgets.phases import PHASES, bounds, phase_bar, phases_text, stop_text, total

HEAD, PLAIN = "title", "text"
LABEL = 11
"""Cells of a fact's name."""


def _fact(label: str, value: str, style: str = PLAIN) -> Line:
    return ((f"{label:<{LABEL}}", "muted"), (clean(value), style))


def help_page(
    *, readonly: bool, ascii: bool, replay: bool = False, keys: Mapping[str, tuple[str, ...]] | None = None
) -> list[Line]:
    """All keys, by what they are for, and what the signs mean."""
    out: list[Line] = []
    actions = shown(readonly=readonly, replay=replay, keys=keys)
    for group in GROUPS:
        if not any(action.group == group for action in actions):
            continue
        out += [((group, HEAD),)]
        for action in actions:
            if action.group == group:
                names = " ".join(key_name(key, ascii=ascii) for key in action.keys)
                out.append(((f"  {names:<17}", "accent"), (f"{action.label:<15}", PLAIN), (action.help, "muted")))
        out.append(())
    legend = (
        "Gauge: a run of cells a child, keyed by its letter; - other use, | the limit; WARN from 80 %, CRIT from 95 %."
    )
    phases = ", ".join(f"{letter} {name.removesuffix('_s')}" for name, letter, _ in PHASES)
    return [
        *out,
        (("Signs", HEAD),),
        (("  " + legend, "muted"),),
        (("  Sizes: 3.1>5.1 grows to, ~4.0 estimated. EST is what the scheduler plans with.", "muted"),),
        ((f"  Swap bars: {phases} (m: waiting until the memory is back).", "muted"),),
    ]


def _swap_lines(swap: Swap, view: View) -> list[Line]:
    solid, now = not (view.mono or view.glyphs.ascii), view.snapshot.at
    head: list[tuple[str, str]] = [
        (f"{clock(swap.at)} ", "muted"),
        *phase_bar(swap, 24, solid=solid, now=now),
        (f" {seconds(total(swap, now))} ", "text bold"),
    ]
    head.append((clean(f"{swap.result or 'under way'}, {swap.reason}"), PLAIN))
    out: list[Line] = [tuple(head), ((f"  {phases_text(swap, now)}", "muted"),)]
    return out + [((clean(f"  stopped {stop_text(stop)}"), "muted"),) for stop in swap.stops]


def model_page(model: Model, view: View) -> list[Line]:
    """All that is known of a model and its child."""
    word = state_word(model)
    marks = [m for m in ("pinned", "draining", "sick", "settling", "stuck") if getattr(model, m)]
    measured, reserved, guess = (
        gib(model.footprint_bytes),
        gib(model.reserved_bytes or None),
        gib(model.estimate_bytes, "~"),
    )
    process = f"pid {model.pid or '-'}, port {model.port or '-'}, instance {model.instance or '-'}"
    served = f"{model.in_flight} in flight of {model.slots or '-'} slots, {model.waiting} waiting"
    out = [
        _fact("state", " ".join([word, *marks]), STATE_STYLES[word].replace(" reverse", " bold")),
        _fact("note", note(model) or "-"),
        _fact("process", f"{process}, {count(model.loads, 'load')} so far"),
        _fact("memory", f"{measured} GiB measured, {reserved} reserved, {guess} estimated"),
        _fact("requests", f"{served}, idle {age(model.idle_s, 5)}"),
    ]
    if model.aliases:
        out.append(_fact("aliases", ", ".join(model.aliases)))
    if model.args:
        out.append(_fact("argv", shlex.join(model.args)))
    if model.problem:
        out.append(_fact("problem", model.problem, "bad"))
    if model.stale_config:
        out.append(_fact("settings", "changed since it was started: they hold from its next load on", "warn"))
    if model.failure is not None:
        out += [(), (("Failure", HEAD),), *_failure(model)]
    requests = [r for r in view.snapshot.requests if r.model == model.id]
    if requests:
        out += [(), (("Requests", HEAD),)]
        out += [
            ((clean(f"{r.phase:<8} {age(r.age_s):>5}  {r.client}  {r.path}  {r.id}"), PLAIN),) for r in requests[:40]
        ]
    swaps = [s for s in view.snapshot.swaps.recent if s.model == model.id or model.id in s.evicted]
    if swaps:
        out += [(), (("Swaps", HEAD),)]
        for swap in reversed(swaps):
            out += _swap_lines(swap, view)
    return out


def _failure(model: Model) -> list[Line]:
    failure = model.failure
    if failure is None:
        return []
    end = (
        f"exit code {failure.exit_code}"
        if failure.exit_code is not None
        else f"signal {failure.signal}"
        if failure.signal
        else "alive"
    )
    out = [_fact("what", f"{failure.kind} at {clock(failure.at)}, {end}", "bad"), _fact("message", failure.message)]
    if failure.hint:
        out.append(_fact("do", failure.hint))
    return [*out, *(((f"  {clean(line)}", "muted"),) for line in failure.lines)]


AROUND_S = 30.0
"""Events this close to one are shown with it [s]."""


def event_page(event: EventLine, view: View) -> list[Line]:
    """An event whole, the swap that it belongs to, and what else happened about then."""
    out = [
        _fact("at", clock(event.at)),
        _fact("kind", event.kind, EVENT_STYLES.get(event.kind, PLAIN)),
        _fact("model", event.model or "-"),
        _fact("what", event.text),
    ]
    swaps = [swap for swap in view.snapshot.swaps.recent if _during(event, swap, view.snapshot.at)]
    if swaps:
        out += [(), (("During the swap", HEAD),)]
        for swap in swaps:
            out += _swap_lines(swap, view)
    others = [e for e in view.snapshot.events if e.seq != event.seq and abs(e.at - event.at) <= AROUND_S]
    if others:
        out += [(), ((f"Within {AROUND_S:.0f} s", HEAD),)]
        for other in others[-40:]:
            when = f"{other.at - event.at:+.1f}s"
            out.append(((f"{when:>8} ", "muted"), (clean(f"{other.kind} {other.model} {other.text}"), PLAIN)))
    return out


def _during(event: EventLine, swap: Swap, now: float) -> bool:
    start, end = bounds(swap, now)
    return event.model in (swap.model, *swap.evicted) and start - 0.5 <= event.at <= end + 0.5


def item_page(item: Item, view: View) -> tuple[str, list[Line]]:
    """Title and text of a row's page."""
    match item:
        case Model():
            return clean(item.id), model_page(item, view)
        case QueueEntry() | Request():
            model = view.model(item.model)
            return clean(item.model), model_page(model, view) if model else [((clean(item.model), PLAIN),)]
        case Swap():
            return clean(f"swap to {item.model}"), _swap_lines(item, view)
        case EventLine():
            return clean(f"{item.kind} {item.model}"), event_page(item, view)
        case LogLine():
            return clean(f"log of {item.model}"), [_fact("at", clock(item.at)), _fact("line", item.text)]
        case None:
            return "", []
