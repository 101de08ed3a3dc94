"""``llmtop fit``: what each model takes, and which fit together. Reads headers, starts nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from llmtop.cli.context import invocation, out
from llmtop.cli.flags import merged, with_options
from llmtop.cli.jsonform import encoded
from llmtop.cli.tables import size, table

if TYPE_CHECKING:
    from llmtop.config.resolve import Configuration
    from llmtop.memory.budget import Effective

MOST_SETS = 20


class Row(msgspec.Struct, frozen=True):
    """One model's line [bytes].

    Args:
        model: Its id.
        counts: What is reserved for it; None when nothing is known.
        by: ``declared``, ``measured``, ``estimate``, or ``unknown``.
        declared: From its preset.
        measured: On an earlier load.
        estimate: From its files; the parts follow.
        fits: It fits the budget alone.
        note: What was assumed, or why there is no estimate.
    """

    model: str
    counts: int | None
    by: str
    declared: int | None
    measured: int | None
    estimate: int | None
    weights: int | None
    kv: int | None
    compute: int | None
    projector: int | None
    rough: bool
    fits: bool
    note: str


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Look into it")(with_options(fit))


def fit(
    context: typer.Context,
    flags: dict[str, object],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Say how much memory each model takes and which fit the budget together. Starts nothing.

    --json prints {"schema_version": 1, "budget", "why", "models": [{"model", "counts", "by", "declared", "measured",
    "estimate", "weights", "kv", "compute", "projector", "rough", "fits", "note"}], "together": [[…], …]}, in bytes.
    """
    from llmtop.config.resolve import resolve

    call = invocation(context)
    configuration = resolve(merged(call.flags, flags), os.environ, call.child_args, need_server=False)
    from llmtop.memory.together import fitting_sets

    budget, vram = read_budget(configuration)
    rows = [_row(configuration, model, budget.bytes, vram) for model in configuration.catalog.models]
    sizes = {row.model: row.counts for row in rows if row.counts is not None}
    sets = fitting_sets(sizes, budget.bytes, configuration.settings.models_max)
    if as_json:
        out(encoded({"budget": budget.bytes, "why": budget.why, "models": rows, "together": sets[:MOST_SETS]}))
        return 0
    _print(configuration, rows, sets, sizes, budget)
    return 0


def read_budget(configuration: Configuration) -> tuple[Effective, bool]:
    """The budget as of now with no child running, and whether it is made of memory of GPUs' own."""
    from llmtop.memory.budget import Alone, Held, effective, look_alone
    from llmtop.memory.devices import Devices, ask_devices
    from llmtop.memory.probe import choose

    settings, server = configuration.settings, configuration.server
    sample = choose(configuration.env).sample({})
    ask = settings.budget == "auto" and server is not None
    devices = ask_devices(server.path) if ask and server is not None else Devices()
    alone = look_alone(sample, Alone(), Held())
    return effective(settings.budget, sample, devices, alone, Held()), sample.label == "VRAM"


def _row(configuration: Configuration, model: str, budget: int | None, vram: bool) -> Row:
    from llmtop.memory.estimate import Headers, estimate
    from llmtop.memory.learned import FILE, Learned

    spec = configuration.catalog.models[model]
    found, why = (None, spec.problem) if spec.problem else estimate(spec, Headers(), env=configuration.env, vram=vram)
    folder = Path(configuration.settings.state_dir)
    measured = None
    if (folder / FILE).exists():
        learned = Learned(folder)
        measured = learned.get(spec)
        learned.close()
    known = {"declared": spec.memory, "measured": measured}
    by, counts = max(((n, v) for n, v in known.items() if v is not None), key=lambda pair: pair[1], default=("", None))
    if counts is None and found is not None:
        by, counts = "estimate", found.total
    parts: dict[str, Any] = dict.fromkeys(("weights", "kv", "compute", "projector"))
    if found is not None:
        parts = {name: getattr(found, name) for name in parts}
    fits = counts is not None and (budget is None or counts <= budget)
    rough = found.rough if found is not None else False
    note = why or "; ".join(found.notes if found is not None else ())
    total = found.total if found is not None else None
    return Row(model, counts, by or "unknown", spec.memory, measured, total, **parts, rough=rough, fits=fits, note=note)


def _print(
    configuration: Configuration,
    rows: list[Row],
    sets: list[tuple[str, ...]],
    sizes: dict[str, int],
    budget: Effective,
) -> None:
    from llmtop.children.text import safe_text

    heads = ("MODEL", "COUNTS", "BY", "DECLARED", "MEASURED", "ESTIMATE", "WEIGHTS", "KV", "COMPUTE", "FITS", "NOTE")
    lines = [
        (
            row.model,
            size(row.counts),
            row.by,
            size(row.declared),
            size(row.measured),
            f"~{size(row.estimate)}" if row.rough else size(row.estimate),
            size(row.weights),
            size(row.kv),
            size(row.compute),
            ("yes" if row.fits else "no") if row.counts is not None else "?",
            row.note,
        )
        for row in rows
    ]
    table("", heads, lines, right=frozenset(range(1, 9)) - {2}, spare=(3, 4, 8, 7, 6, 5))
    cap = configuration.settings.models_max
    out(f"\nbudget: {size(budget.bytes) if budget.bytes is not None else 'none'} ({budget.why})")
    out(f"cap: {cap if cap else 'none'}; prompt cache beside it: {_cache(configuration.settings.cache_ram_mib)}")
    if not sets:
        out("no model of known size fits")
    for chosen in sets[:MOST_SETS]:
        names = " + ".join(safe_text(model) for model in chosen)
        out(f"together: {names} = {size(sum(sizes[model] for model in chosen))}")
    if len(sets) > MOST_SETS:
        out(f"and {len(sets) - MOST_SETS} more sets")


def _cache(mib: int) -> str:
    return {0: "off", -1: "without a limit"}.get(mib, f"{mib} MiB in all")
