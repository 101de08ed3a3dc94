"""What no policy can beat on a trace, however much it knew beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from llmtop.simulate.world import Ask, Known


class Bound(msgspec.Struct, frozen=True):
    """Lower bounds: loads [1], and first arrival to end of the last request [s]."""

    swaps: int
    makespan_s: float


def lower_bound(asks: Sequence[Ask], models: Mapping[str, Known], slots: int, patience_s: float) -> Bound:
    """Bound every schedule that answers all requests with at most ``slots`` models at once.

    Swaps: if nobody waits longer than ``patience_s``, then within a span that ends ``patience_s`` after a request each
    model that was asked for since the span began must have been up. As soon as those are more than the slots, at least
    one load fell into the span; the first span begins with nothing loaded, so all of them did. Spans that do not
    overlap are counted; and every model must be loaded once.

    Makespan: no request ends before its arrival, or the earliest end of its model's first load, plus its own duration.
    And the loads and longest requests of all models, with the stops of all but the last ``slots``, have only that many
    slots. Loads begin with the first arrival at the earliest.

    Args:
        asks: The requests in order of time.
        models: Load and stop times.
        slots: Most models that can be up at once [1].
        patience_s: Longest wait that is allowed [s].
    """
    named = {ask.model for ask in asks}
    start = asks[0].t
    ends = max(max(ask.t, start + models[ask.model].load_s) + ask.duration for ask in asks)
    longest = {model: max(ask.duration for ask in asks if ask.model == model) for model in named}
    held = sum(models[model].load_s + longest[model] for model in named)
    stops = sorted(models[model].stop_s for model in named)
    work = (held + sum(stops[: max(0, len(named) - slots)])) / slots
    return Bound(max(len(named), _loads(asks, slots, patience_s)), max(ends - start, work))


def _loads(asks: Sequence[Ask], slots: int, patience_s: float) -> int:
    loads, since, inside = 0, float("-inf"), set[str]()
    for ask in asks:
        if ask.t < since:
            continue
        inside.add(ask.model)
        if len(inside) > slots:
            loads += 1 if loads else len(inside)
            since, inside = ask.t + patience_s, set[str]()
    return loads
