"""``llmtop simulate``: what a load would have been with another cap, another wait, another budget."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import typer

from llmtop.children.text import safe_text
from llmtop.cli.context import invocation, out
from llmtop.cli.jsonform import versioned
from llmtop.cli.tables import seconds, size, table
from llmtop.config.units import parse_duration, parse_size
from llmtop.errors import ConfigError
from llmtop.scheduler.room import gib
from llmtop.simulate.advice import recommend
from llmtop.simulate.sweep import OPTIONS, Run, Setting, read_sweep, read_value, settings
from llmtop.simulate.sweep import simulate as run_one
from llmtop.simulate.timeline import LEGEND, timeline
from llmtop.simulate.trace import Told, Trace, read_trace
from llmtop.simulate.world import History, Known

FREE_REQUESTS = 40_000
"""Up to that many simulated requests in all, the caps are compared without being asked for [1]: it takes seconds."""
FREE_CAPS = 8

Words = Annotated[list[str], typer.Argument(metavar="TRACE", help="JSON lines, or a recording made with --record.")]
Max = Annotated[
    str | None, typer.Option("--models-max", metavar="N", help="Cap, 0 = none. [dim](4, or the recording's)[/dim]")
]
Wait = Annotated[str, typer.Option("--max-wait", metavar="S", help="Until a busy model is drained; off = never.")]
Budget = Annotated[str | None, typer.Option("--memory-budget", metavar="SIZE", help="Bytes for all. [dim](off)[/dim]")]
Sizes = Annotated[list[str] | None, typer.Option("--size", metavar="MODEL=SIZE", help="A model's size. Repeat it.")]
Loads = Annotated[
    list[str] | None, typer.Option("--load", metavar="MODEL=S", help="Seconds it loads; S alone: all others.")
]
Stops = Annotated[list[str] | None, typer.Option("--stop", metavar="MODEL=S", help="Seconds it stops. [dim](1)[/dim]")]
Settles = Annotated[
    list[str] | None, typer.Option("--settle", metavar="MODEL=S", help="Until its memory is back. [dim](0)[/dim]")
]
Sweep = Annotated[
    list[str] | None,
    typer.Option("--sweep", metavar="OPTION=VALUES", help="models-max=1..4 max-wait=5,15,60 memory-budget=24GiB,48GiB"),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Look into it")(simulate)


def simulate(
    context: typer.Context,
    words: Words,
    models_max: Max = None,
    max_wait: Wait = "15",
    memory_budget: Budget = None,
    size_of: Sizes = None,
    load: Loads = None,
    stop: Stops = None,
    settle: Settles = None,
    sweep: Sweep = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> int:
    """Run the scheduler over a trace on a virtual clock, and say what the cap should be.

    A trace has one request a line: {"t": 0.5, "model": "qwen3", "duration": 3.2}; also size, load_s, stop_s if known.
    Requests take their duration however many run at once; a model that nothing is said of loads for 10 s.

    --json prints one line: {"schema_version": 1, "requests", "left_out", "models": {…}, "runs": […], "recommendation":
    {"setting", "why", "outcome"} or null, "timeline": {"setting", "end_s", "rows", "legend"}}; bytes and seconds.
    """
    invocation(context).refuse_child_args("simulate")
    path, more = _split(words)
    trace = read_trace(path)
    models = _models(trace, size_of or [], load or [], stop or [], settle or [])
    base = Setting(
        _given("models-max", models_max, 4 if trace.models_max is None else trace.models_max),
        read_value("max-wait", max_wait),
        _given("memory-budget", memory_budget, trace.budget if _all_sized(models) else None),
    )
    asked = read_sweep([*(sweep or []), *more])
    chosen = settings(base, asked)
    _check_sizes(chosen, models, trace)
    first, history = run_one(chosen[0], models, trace.asks)
    runs = [first, *(run_one(setting, models, trace.asks)[0] for setting in chosen[1:])]
    compared = runs if "models-max" in asked else [*runs, *_other_caps(base, runs, models, trace)]
    advice = recommend(compared)
    show = advice[0].setting if asked and advice is not None else chosen[0]
    if show != chosen[0]:
        history = run_one(show, models, trace.asks)[1]
    if as_json:
        out(_json(trace, models, runs, advice, show, history))
    else:
        _print(trace, runs, advice, compared, show, history)
    return 0


def _split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The trace, and what more of a sweep stands among the arguments."""
    more = [word for word in words if word.partition("=")[0].removeprefix("--") in OPTIONS and "=" in word]
    files = [word for word in words if word not in more]
    if len(files) != 1:
        told = f"got {len(files)}: {' '.join(files)}" if files else "got none"
        raise ConfigError(f"simulate takes one trace, {told}")
    return files[0], more


def _given(option: str, text: str | None, otherwise: Any) -> Any:
    return otherwise if text is None else read_value(option, text)


def _pairs(option: str, words: Sequence[str], trace: Trace, read: Any) -> dict[str, Any]:
    """Read ``MODEL=VALUE``; a value alone (key "") is for all models that nothing else is said of."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.rpartition("=")
        if not equals and option == "--size":
            raise ConfigError(f"--size {word!r}: write MODEL=SIZE, as in --size qwen3=18GiB")
        if equals and name not in trace.models:
            raise ConfigError(f"{option} {word!r}: no model {name!r} in the trace; it has {_some(trace)}")
        try:
            value = read(text)
        except ValueError as error:
            raise ConfigError(f"{option} {word!r}: {text!r} {error}") from None
        if value is None:
            raise ConfigError(f"{option} {word!r}: a number of seconds, as in {option} qwen3=12")
        found[name] = value
    return found


def _some(trace: Trace) -> str:
    names = sorted(trace.models)
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def _models(
    trace: Trace, sizes: Sequence[str], loads: Sequence[str], stops: Sequence[str], settles: Sequence[str]
) -> dict[str, Known]:
    """What is known of each model: the flag holds, then the trace, then the flag for all, then the default."""
    usual = Known()
    size_by = _pairs("--size", sizes, trace, parse_size)
    timed = {
        "load_s": _pairs("--load", loads, trace, parse_duration),
        "stop_s": _pairs("--stop", stops, trace, parse_duration),
        "settle_s": _pairs("--settle", settles, trace, parse_duration),
    }

    def time(name: str, field: str, told: Told) -> float:
        by, said = timed[field], getattr(told, field)
        otherwise = by.get("", getattr(usual, field)) if said is None else said
        return float(by.get(name, otherwise))

    return {
        name: Known(
            size_by.get(name, told.size),
            time(name, "load_s", told),
            time(name, "stop_s", told),
            time(name, "settle_s", told),
        )
        for name, told in trace.models.items()
    }


def _all_sized(models: dict[str, Known]) -> bool:
    return all(known.size is not None for known in models.values())


def _check_sizes(chosen: Sequence[Setting], models: dict[str, Known], trace: Trace) -> None:
    """A budget needs sizes, and a model that fits in none of the budgets makes the question moot."""
    budgets = [setting.budget for setting in chosen]
    largest = None if None in budgets else max(budget or 0 for budget in budgets)
    if all(budget is None for budget in budgets):
        return
    for name, known in models.items():
        if known.size is None:
            raise ConfigError(f"with a memory budget every model needs a size: add --size {name}=SIZE")
        if largest is not None and known.size > largest:
            where = trace.models[name].where if trace.models[name].size == known.size else f"--size {name}"
            what = "the budget is" if len(set(budgets)) == 1 else "the largest budget is"
            raise ConfigError(f"{where}: {name} needs {gib(known.size)}, {what} {gib(largest)}: it never fits")


def _other_caps(base: Setting, runs: Sequence[Run], models: dict[str, Known], trace: Trace) -> list[Run]:
    """The same load with other caps, for the recommendation."""
    caps = range(1, min(len(models), FREE_CAPS) + 1)
    if len(trace.asks) * len(caps) > FREE_REQUESTS or len(runs) > 1:
        return []
    others = [msgspec.structs.replace(base, models_max=cap) for cap in caps if cap != base.models_max]
    return [run_one(setting, models, trace.asks)[0] for setting in others]


# --- what is printed

_HEADS = (
    "MODELS-MAX",
    "MAX-WAIT",
    "BUDGET",
    "SWAPS",
    "EVICTED",
    "WAIT MEAN",
    "P95",
    "MAX",
    "BUSY",
    "PEAK",
    "LASTS",
    "NOTE",
)


def _row(run: Run) -> tuple[str, ...]:
    s, o = run.setting, run.outcome
    note = [f"{count} refused: {kind}" for kind, count in sorted(o.refused.items())]
    note += [f"{o.unanswered} never answered"] if o.unanswered else []
    return (
        str(s.models_max or "no cap"),
        "off" if s.max_wait_s is None else f"{s.max_wait_s:g}s",
        "off" if s.budget is None else size(s.budget),
        str(o.swaps),
        str(o.evictions),
        seconds(o.wait_mean_s),
        seconds(o.wait_p95_s),
        seconds(o.wait_max_s),
        f"{o.busy_s / o.makespan_s:.0%}" if o.makespan_s else "-",
        size(o.peak_bytes or None),
        seconds(o.makespan_s),
        "; ".join(note),
    )


def _print(
    trace: Trace,
    runs: Sequence[Run],
    advice: tuple[Run, str] | None,
    compared: Sequence[Run],
    show: Setting,
    history: History,
) -> None:
    title = f"{len(trace.asks)} requests for {len(trace.models)} models"
    if trace.left_out:
        title += f"; {trace.left_out} more of the recording never ran and are left out"
    table(title, _HEADS, [_row(run) for run in runs], right=frozenset(range(11)), spare=(9, 6, 4, 10, 8))
    names = min(max(len(name) for name in trace.models), 30)
    wide = max(20, shutil.get_terminal_size((110, 24)).columns - names - 2)
    out(f"\nmodels-max {show.models_max or 'no cap'}, 0 to {seconds(history.end_s)}:  {LEGEND}")
    out("\n".join(f"{safe_text(name, names).ljust(names)}  {row}" for name, row in timeline(history, wide)))
    out("")
    if advice is None:
        out("no recommendation: no setting answers everybody; give it more memory or a larger cap")
    elif len(compared) < 2:
        out("no recommendation from one run: add --sweep models-max=1..4 to compare")
    else:
        out(advice[1])


def _json(
    trace: Trace,
    models: dict[str, Known],
    runs: Sequence[Run],
    advice: tuple[Run, str] | None,
    show: Setting,
    history: History,
) -> str:
    recommendation = (
        None if advice is None else {"setting": advice[0].setting, "why": advice[1], "outcome": advice[0].outcome}
    )
    made = {
        "requests": len(trace.asks),
        "left_out": trace.left_out,
        "models": models,
        "runs": runs,
        "recommendation": recommendation,
        "timeline": {"setting": show, "end_s": history.end_s, "rows": dict(timeline(history, 100)), "legend": LEGEND},
    }
    return versioned(msgspec.json.encode(made))
