"""Which setting to take, and why."""

from __future__ import annotations

from collections.abc import Sequence

from llmtop.scheduler.room import gib
from llmtop.simulate.sweep import Run, Setting

AS_GOOD = 1.10
"""A mean wait within a tenth of the best is as good: less memory decides."""
AS_GOOD_S = 0.25
"""And so is one within a quarter of a second [s]."""


def recommend(runs: Sequence[Run]) -> tuple[Run, str] | None:
    """Choose the run that needs least among those whose waits are as good as the best.

    Args:
        runs: From one trace.

    Returns:
        The run and one line that says why; None when none of them answered everybody.
    """
    whole = [run for run in runs if run.outcome.complete]
    if not whole:
        return None
    best = min(run.outcome.wait_mean_s for run in whole)
    good = [run for run in whole if run.outcome.wait_mean_s <= max(best * AS_GOOD, best + AS_GOOD_S)]
    longest = min(run.outcome.wait_max_s for run in good)
    fair = [run for run in good if run.outcome.wait_max_s <= max(longest * AS_GOOD, longest + AS_GOOD_S)]
    chosen = min(fair, key=_needs)
    return chosen, f"recommended: {describe(chosen.setting, runs)}: {_why(chosen, runs)}"


def _needs(run: Run) -> tuple[int, int, int, int, float]:
    """What a setting costs: memory, slots, swaps; of equals the one nearest to the defaults."""
    s, o = run.setting, run.outcome
    usual = Setting()
    wait = s.max_wait_s if s.max_wait_s is not None else float("inf")
    return o.peak_bytes, s.models_max or 10**9, o.swaps, s.budget or 0, abs(wait - (usual.max_wait_s or 0.0))


def describe(setting: Setting, runs: Sequence[Run]) -> str:
    """A setting in the words of its options: the cap, and what differs between the runs."""
    words = [f"--models-max {setting.models_max}"]
    if len({run.setting.max_wait_s for run in runs}) > 1:
        words.append(f"--max-wait {'off' if setting.max_wait_s is None else f'{setting.max_wait_s:g}'}")
    if len({run.setting.budget for run in runs}) > 1:
        words.append(f"--memory-budget {'off' if setting.budget is None else gib(setting.budget).replace(' ', '')}")
    return " ".join(words)


def _why(chosen: Run, runs: Sequence[Run]) -> str:
    told = [f"mean wait {chosen.outcome.wait_mean_s:.1f} s, longest {chosen.outcome.wait_max_s:.1f} s"]
    told[0] += f", {chosen.outcome.swaps} swaps"
    smaller = [run for run in runs if _beside(run, chosen) and _less(run.setting, chosen.setting)]
    larger = [run for run in runs if _beside(run, chosen) and _less(chosen.setting, run.setting)]
    if smaller:
        told.append(_smaller(max(smaller, key=lambda run: run.setting.models_max), chosen))
    if larger:
        told.append(_larger(min(larger, key=lambda run: run.setting.models_max or 10**9), chosen))
    return "; ".join(told)


def _beside(run: Run, chosen: Run) -> bool:
    return (run.setting.max_wait_s, run.setting.budget) == (chosen.setting.max_wait_s, chosen.setting.budget)


def _less(one: Setting, other: Setting) -> bool:
    return (one.models_max or 10**9) < (other.models_max or 10**9)


def _smaller(run: Run, chosen: Run) -> str:
    o, c = run.outcome, chosen.outcome
    if not o.complete:
        return f"a cap of {run.setting.models_max} could not answer all"
    waits = f"a cap of {run.setting.models_max} waits {o.wait_mean_s:.1f} s on average"
    return f"{waits} and swaps {o.swaps} times (not {c.swaps})"


def _larger(run: Run, chosen: Run) -> str:
    o, c = run.outcome, chosen.outcome
    cap = f"a cap of {run.setting.models_max}" if run.setting.models_max else "no cap"
    if o.wait_mean_s >= c.wait_mean_s - AS_GOOD_S:
        return f"{cap} gains nothing"
    more = o.peak_bytes - c.peak_bytes
    return f"{cap} waits {o.wait_mean_s:.1f} s, too little less" + (f" for {gib(more)} more" if more > 0 else "")
