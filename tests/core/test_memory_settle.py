from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from llmtop.memory.settle import Settle, Verdict, longest_wait, smallest_drop

GIB = 2**30
MIB = 2**20
Level = float | None | Callable[[float], float | None]


def rule(
    *,
    before: int | None = 36 * GIB,
    drop: int = 30 * GIB,
    footprint: int = 30 * GIB,
    room: int = 0,
    total: int = 64 * GIB,
) -> Settle:
    """A gate whose next model fits beside at most ``room`` stranded bytes."""
    return Settle(
        started=0.0, before=before, drop=drop, footprint=footprint, fits=lambda stranded: stranded <= room, total=total
    )


def run(gate: Settle, *, step: float = 0.25, level: Level) -> tuple[float, Verdict]:
    """Feed a curve (a function of time as ``level``) until the gate decides."""
    at = 0.0
    while at < 60:
        value = level(at) if callable(level) else level
        verdict = gate.feed(at, value)
        if verdict.outcome != "wait":
            return at, verdict
        at += step
    raise AssertionError("the gate never decided")


def test_linear_return_is_done_at_nine_tenths() -> None:
    at, verdict = run(rule(), level=lambda t: max(6.0, 36 - 15 * t) * GIB)
    assert (at, verdict.outcome, verdict.stranded) == (2.0, "done", 0)
    assert verdict.returned == 30 * GIB


def test_memory_still_on_its_way_is_waited_for() -> None:
    gate = rule(room=100 * GIB)
    assert [gate.feed(t / 4, (36 - 3.75 * t) * GIB).outcome for t in range(7)] == ["wait"] * 7
    assert gate.remaining == pytest.approx(7.5 * GIB)


def test_plateau_on_which_the_next_model_fits_ends_the_wait() -> None:
    at, verdict = run(rule(room=10 * GIB), level=14.0 * GIB)
    assert (at, verdict.outcome) == (1.0, "done")
    assert (verdict.returned, verdict.stranded) == (22 * GIB, 8 * GIB)


def test_plateau_on_which_it_does_not_fit_waits_to_the_bound() -> None:
    at, verdict = run(rule(room=7 * GIB), level=14.0 * GIB)
    assert (at, verdict.outcome, verdict.stranded) == (8.25, "timeout", 8 * GIB)


def test_nothing_ever_returns() -> None:
    at, verdict = run(rule(), level=36.0 * GIB)
    assert (at, verdict) == (8.25, Verdict("timeout", 0, 30 * GIB, "not all of it came back within 8 s"))


def test_rising_memory_never_counts_as_returned() -> None:
    at, verdict = run(rule(), level=lambda t: (36 + t) * GIB)
    assert (at, verdict.outcome, verdict.returned, verdict.stranded) == (8.25, "timeout", 0, 30 * GIB)


def test_gpu_count_decides_while_another_process_takes_memory() -> None:
    gate = rule()
    assert gate.feed(0.5, 38.0 * GIB, 26 * GIB).outcome == "wait"
    assert gate.feed(0.75, 30.0 * GIB, 30 * GIB).outcome == "wait", "the count itself has a say again"
    verdict = gate.feed(1.0, 38.0 * GIB, 27 * GIB)
    assert (verdict.outcome, verdict.returned, verdict.stranded) == ("done", 27 * GIB, 0)


def test_another_process_that_takes_the_memory_is_called_stranded_not_returned() -> None:
    at, verdict = run(rule(room=4 * GIB), level=lambda t: max(10.0, 36 - 26 * t) * GIB)
    assert (at, verdict.outcome) == (2.0, "done")
    assert (verdict.returned, verdict.stranded) == (26 * GIB, 4 * GIB)


def test_slow_fall_is_no_plateau() -> None:
    at, verdict = run(rule(room=30 * GIB), level=lambda t: max(6.0, 36 - 5 * t) * GIB)
    assert (at, verdict.outcome, verdict.stranded) == (5.5, "done", 0)


def test_small_ripple_is_a_plateau() -> None:
    at, _ = run(rule(room=10 * GIB), level=lambda t: 14.0 * GIB + 200 * MIB * math.sin(40 * t))
    assert at == 1.0


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -1.0])
def test_without_a_reading_two_seconds_are_given(bad: float | None) -> None:
    at, verdict = run(rule(), level=bad)
    assert (at, verdict) == (2.0, Verdict("done", 0, 0, "no reading for 2 s"))


def test_a_gap_in_the_readings_is_bridged() -> None:
    at, verdict = run(rule(), level=lambda t: math.nan if t < 1.5 else 6.0 * GIB)
    assert (at, verdict.outcome, verdict.stranded) == (1.5, "done", 0)


def test_sensor_lost_half_way_keeps_what_was_out() -> None:
    at, verdict = run(rule(), level=lambda t: 20.0 * GIB if t <= 0.5 else None)
    assert (at, verdict.outcome, verdict.returned, verdict.stranded) == (2.5, "done", 16 * GIB, 14 * GIB)


def test_unknown_level_before_the_stop_gives_two_seconds() -> None:
    at, verdict = run(rule(before=None), level=6.0 * GIB)
    assert (at, verdict.outcome, verdict.stranded) == (2.0, "done", 0)


@pytest.mark.parametrize(("drop", "outcome"), [(0, "done"), (1310 * MIB, "done"), (1311 * MIB, "wait")])
def test_drop_below_two_percent_of_the_memory_has_settled(drop: int, outcome: str) -> None:
    assert rule(drop=drop).feed(0.0, 36.0 * GIB).outcome == outcome


def test_drop_is_never_more_than_the_footprint() -> None:
    at, verdict = run(rule(footprint=10 * GIB), level=27.0 * GIB)
    assert (at, verdict.outcome) == (0.0, "done")


@pytest.mark.parametrize(("footprint", "seconds"), [(0, 5.0), (10**10, 6.0), (10**11, 15.0), (10**12, 30.0)])
def test_bound_is_five_seconds_and_ten_gigabytes_a_second_up_to_thirty(footprint: int, seconds: float) -> None:
    assert longest_wait(footprint) == seconds


def test_smallest_drop_is_half_a_gibibyte_or_two_percent() -> None:
    assert [smallest_drop(total) for total in (None, 8 * GIB, 100 * GIB)] == [512 * MIB, 512 * MIB, 2 * GIB]
