"""Many settings on one trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import msgspec

from llmtop.config.units import parse_count, parse_duration, parse_size
from llmtop.errors import ConfigError
from llmtop.scheduler.events import Limits
from llmtop.simulate.outcome import Outcome, measure
from llmtop.simulate.world import Ask, History, Known, World, llmtop

MAX_RUNS = 400


class Setting(msgspec.Struct, frozen=True):
    """One set of options: cap (0: none), seconds until a busy model is drained (None: never), bytes (None: any)."""

    models_max: int = 4
    max_wait_s: float | None = 15.0
    budget: int | None = None


class Run(msgspec.Struct, frozen=True):
    """A setting and what it came to."""

    setting: Setting
    outcome: Outcome


def simulate(setting: Setting, models: dict[str, Known], asks: Sequence[Ask]) -> tuple[Run, History]:
    """Run a trace with one setting. The queue is not bounded: everybody is answered if that can be."""
    limits = Limits(models_max=setting.models_max, max_wait_s=setting.max_wait_s, max_queue=0)
    history = World(llmtop(limits, models, setting.budget), models, asks).run()
    return Run(setting, measure(history)), history


def _budget(text: str) -> int | None:
    if text.strip().lower() in ("off", "0", "none"):
        return None
    return parse_size(text)


OPTIONS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "models-max": ("models_max", parse_count),
    "max-wait": ("max_wait_s", parse_duration),
    "memory-budget": ("budget", _budget),
}
"""Option to its field of ``Setting`` and how its values are read."""


def read_value(option: str, text: str) -> Any:
    """Read the value of an option.

    Raises:
        ConfigError: It is none.
    """
    try:
        return OPTIONS[option][1](text)
    except ValueError as error:
        raise ConfigError(f"{option}: {text!r} {error}") from None


def read_sweep(words: Sequence[str]) -> dict[str, list[Any]]:
    """Read ``models-max=1..4``, ``max-wait=5,15,60``: option to values, in the order given, each once.

    Raises:
        ConfigError: An unknown option, no value, a range that is none.
    """
    found: dict[str, list[Any]] = {}
    for word in (part for text in words for part in text.split()):
        option, equals, values = word.partition("=")
        option = option.removeprefix("--")
        if option not in OPTIONS or not equals or not values:
            raise ConfigError(f"--sweep {word!r}: write OPTION=VALUES with {', '.join(OPTIONS)}, as in models-max=1..4")
        read = [value for part in values.split(",") for value in _values(option, part)]
        found.setdefault(option, []).extend(read)
    return {option: list(dict.fromkeys(values)) for option, values in found.items()}


def _values(option: str, text: str) -> Iterator[Any]:
    first, dots, last = text.partition("..")
    if not dots:
        yield read_value(option, text)
        return
    if option != "models-max":
        raise ConfigError(
            f"--sweep {option}={text}: ranges are for models-max; list the values, as in {option}=5,15,60"
        )
    low, high = read_value(option, first), read_value(option, last)
    if low > high:
        raise ConfigError(f"--sweep {option}={text}: a range goes from the smaller to the larger")
    if high - low >= MAX_RUNS:
        raise ConfigError(f"--sweep {option}={text}: at most {MAX_RUNS} runs")
    yield from range(low, high + 1)


def settings(base: Setting, sweep: dict[str, list[Any]]) -> list[Setting]:
    """Every combination.

    Raises:
        ConfigError: There are more than ``MAX_RUNS``.
    """
    names = [OPTIONS[option][0] for option in sweep]
    count = 1
    for values in sweep.values():
        count *= len(values)
    if count > MAX_RUNS:
        raise ConfigError(f"--sweep: {count} combinations are too many, {MAX_RUNS} are the most: leave some values out")
    return [
        msgspec.structs.replace(base, **dict(zip(names, values, strict=True))) for values in product(*sweep.values())
    ]
