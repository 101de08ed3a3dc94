from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from llmtop.journal import Journal
from llmtop.journal_swaps import Seconds
from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev
from llmtop.scheduler.machine import Machine
from llmtop.snapshot import Failure, Stop, Swap

WALL = 1_700_000_000.0


class Play:
    """A machine and a journal that sees everything it does."""

    def __init__(self, *models: str, cap: int = 1, max_wait_s: float | None = 15.0) -> None:
        self.machine = Machine(ev.Limits(models_max=cap, max_wait_s=max_wait_s))
        self.journal = Journal()
        for model in models:
            self(0.0, ev.Configured(ev.Facts(model)))

    def __call__(self, at: float, *events: ev.Event) -> list[str]:
        lines: list[str] = []
        for event in events:
            actions = self.machine.handle(event, at)
            lines += [line.text for line in self.journal.observe(event, actions, at, WALL + at)]
        return lines


def phases(swap: Swap) -> dict[str, float]:
    """Those that occurred, rounded."""
    found = msgspec.structs.asdict(swap.phases)
    return {name: round(value, 6) for name, value in found.items() if value is not None}


@pytest.fixture
def swapped() -> Play:
    """B took A's slot: A loaded 0 to 8, B asked at 10 while A was busy until 13, A left 13 to 14, settled at 14.5."""
    play = Play("A", "B")
    play(0, ev.Arrived(1, "A"))
    play.journal.started(1, 0.5)
    play(8, ev.Ready(1))
    play(10, ev.Arrived(2, "B"))
    play(13, ev.Left(1, good=True))
    play.journal.stop_info(1, "exit line", 4_000)
    play(14, ev.Exited(1))
    play.journal.settled_info(1, 3_900, 0.5)
    play(14.5, ev.Settled(1))
    play.journal.started(2, 14.6)
    play(20.5, ev.Ready(2))
    return play


def test_swap_tells_where_its_time_went(swapped: Play) -> None:
    last = swapped.journal.swaps().last
    assert last is not None
    assert (last.model, last.evicted, last.result, last.at) == ("B", ("A",), "ok", WALL + 14.5)
    assert phases(last) == {"queued_s": 3.0, "stop_s": 1.0, "settle_s": 0.5, "spawn_s": 0.1, "load_s": 5.9}
    assert last.stops == (Stop("A", "exit line", 4_000, 3_900, 0.5),)
    assert last.reason == "request, cap"


def test_first_load_has_no_phases_but_its_own(swapped: Play) -> None:
    first = swapped.journal.swaps().recent[0]
    assert phases(first) == {"spawn_s": 0.5, "load_s": 7.5}
    assert first.evicted == ()


def test_lines_read_as_a_story(swapped: Play) -> None:
    assert [line.text for line in swapped.journal.events()] == [
        "load A (request)",
        "A ready in 8.0 s",
        "evict A for B (cap)",
        "A is gone after 1.0 s",
        "0.0 GiB of 0.0 GiB of A back in 0.5 s",
        "load B (request, waited 4.5 s)",
        "B ready in 6.0 s",
    ]


def test_drain_of_a_busy_model_is_a_phase_of_its_own() -> None:
    play = Play("A", "B", max_wait_s=5)
    play(0, ev.Arrived(1, "A"))
    play(1, ev.Ready(1))
    play(2, ev.Arrived(2, "B"))
    assert play(7, ev.Tick()) == ["drain A for B (max-wait)"]
    lines = play(10, ev.Left(1))
    assert len(lines) == 1
    assert lines[0].startswith("evict A for B")
    play(11, ev.Exited(1))
    play(11, ev.Settled(1))
    play(12, ev.Ready(2))
    last = play.journal.swaps().last
    assert last is not None
    assert (last.phases.queued_s, last.phases.drain_s, last.phases.stop_s) == (5.0, 3.0, 1.0)
    assert last.phases.settle_s == 0.0


def test_lifted_drain_is_no_phase() -> None:
    play = Play("A", "B", max_wait_s=5)
    play(0, ev.Arrived(1, "A"))
    play(1, ev.Ready(1))
    play(2, ev.Arrived(2, "B"))
    play(7, ev.Tick())
    assert play(8, ev.Left(2)) == ["A takes requests again"]
    play(20, ev.Left(1))
    play(30, ev.Arrived(3, "B"))
    play(31, ev.Exited(1))
    play(31, ev.Settled(1))
    last = play.journal.swaps().last
    assert last is not None
    assert last.phases.drain_s is None
    assert last.result == ""


def test_victim_of_a_need_that_went_away_does_not_count_for_the_next_load() -> None:
    play = Play("A", "B")
    play(0, ev.Arrived(1, "A"))
    play(1, ev.Ready(1))
    play(2, ev.Left(1))
    assert "evict A for B (cap)" in play(3, ev.Arrived(2, "B"))
    play(4, ev.Left(2))
    play(5, ev.Exited(1))
    play(5, ev.Settled(1))
    play(100, ev.Arrived(3, "B"))
    last = play.journal.swaps().last
    assert last is not None
    assert (last.model, last.evicted, last.stops) == ("B", (), ())


@pytest.mark.parametrize(
    ("end", "result"),
    [
        (lambda p: p(1, ev.Exited(1, Failure("bad_file", "not a GGUF file", exit_code=1))), "failed"),
        (lambda p: p(1, ev.LoadFailed(1, Failure("timeout", "no progress"))), "failed"),
        (lambda p: p(1, ev.Evict("A")), "cancelled"),
    ],
)
def test_swap_ends_as_its_load_does(end: Callable[[Play], list[str]], result: str) -> None:
    play = Play("A")
    play(0, ev.Arrived(1, "A"))
    assert play.journal.swaps().recent[0].result == ""
    end(play)
    assert play.journal.swaps().recent[0].result == result
    assert [swap.result for swap in play.journal.take_finished()] == [result]
    assert play.journal.take_finished() == ()


def test_failed_load_tells_exit_code_and_cause_once_for_all_its_waiters() -> None:
    play = Play("A")
    play(0, ev.Arrived(1, "A"), ev.Arrived(2, "A"))
    lines = play(1, ev.Exited(1, Failure("bad_file", "not a GGUF file", exit_code=1)))
    assert lines == ["A exit 1: not a GGUF file", "refused 2 requests for A: A failed to load: not a GGUF file"]


def test_refusals_in_a_row_are_counted_not_repeated() -> None:
    play = Play("A")
    play(0, ev.Checked("A", Failure("bad_file", "truncated")))
    told = [play(at / 10, ev.Arrived(at, "A")) for at in range(1, 100)]
    assert [len(lines) for lines in told].count(1) == 2
    assert play.journal.events()[-1].text.endswith("(49 more before)")


def test_unknown_names_of_clients_are_not_lines() -> None:
    assert Play("A")(0, ev.Arrived(1, "\x1b[31mnope")) == []


def test_routine_requests_are_not_lines(swapped: Play) -> None:
    seq = swapped.journal.seq
    assert swapped(30, ev.Arrived(9, "B"), ev.Left(9, good=True)) == []
    assert swapped.journal.seq == seq


def test_stale_news_is_not_told(swapped: Play) -> None:
    assert swapped(30, ev.Ready(1), ev.Exited(1), ev.Settled(1), ev.Ready(2), ev.Slept(77)) == []


def test_operator_is_named_and_what_changes_nothing_is_not_told() -> None:
    play = Play("A")
    assert play(0, ev.Pin("A"), ev.Pin("A"), ev.Hold(), ev.Resume()) == [
        "pin A by operator",
        "hold the queue by operator",
        "resume the queue by operator",
    ]
    assert play(1, ev.Load("A")) == ["load A asked by operator", "load A (operator)"]
    assert play(2, ev.Step()) == ["let one swap through by operator: refused, the queue is not held: hold it first"]


def test_limits_tell_what_changed() -> None:
    journal = Journal()
    journal.observe(ev.Limited(ev.Limits(models_max=2)), [], 0, WALL)
    lines = journal.observe(ev.Limited(ev.Limits(models_max=3)), [], 1, WALL)
    assert [line.text for line in lines] == ["models-max is now 3 (was 2)"]


def test_events_after_a_number_are_the_newer_ones_and_old_ones_are_dropped() -> None:
    journal = Journal(max_events=3)
    for number in range(1, 6):
        assert journal.note("note", "", f"n{number}", WALL).seq == number
    assert [line.text for line in journal.events()] == ["n3", "n4", "n5"]
    assert [line.seq for line in journal.events(4)] == [5]
    assert journal.events(5) == ()


def test_learned_seconds_are_the_median_of_the_last_few(swapped: Play) -> None:
    journal = swapped.journal
    assert (journal.load_s("A"), journal.load_s("B")) == (8.0, 6.0)
    assert (journal.stop_s("A"), journal.stop_s("B")) == (1.5, None)
    journal.restore([Swap(7, "B", "request", 1.0, result="ok")], {"B": Seconds(100.0, 3.0)})
    assert (journal.load_s("B"), journal.stop_s("B")) == (100.0, 3.0)


def test_restored_swaps_are_shown_and_not_counted() -> None:
    play = Play("A")
    play.journal.restore([Swap(7, "B", "request", 1.0, result="ok")], {})
    play(0, ev.Arrived(1, "A"))
    swaps = play.journal.swaps()
    assert (swaps.count, [swap.id for swap in swaps.recent]) == (1, [7, 8])


def test_swaps_are_bounded_and_the_newest_is_last() -> None:
    journal = Journal(max_swaps=3)
    for n in range(1, 8):
        journal.observe(None, [act.Spawn(n, "A", 0, "request", 0.0)], n, WALL)
        journal.observe(ev.Ready(n), [], n + 0.5, WALL)
    swaps = journal.swaps()
    assert (swaps.count, [swap.id for swap in swaps.recent]) == (7, [5, 6, 7])
    assert [swap.id for swap in journal.swaps(2).recent] == [6, 7]


def test_sick_child_that_is_loaded_anew_is_a_swap_with_its_own_stop() -> None:
    play = Play("A")
    play(0, ev.Arrived(1, "A"))
    play(1, ev.Ready(1))
    play(2, ev.Left(1, good=True))
    assert play(3, ev.Arrived(2, "A"), ev.Sick(1, Failure("sick", "poisoned")))[0] == "A is sick: poisoned"
    play(3.5, ev.Arrived(3, "A"))
    play(4, ev.Left(2))
    play(5, ev.Exited(1))
    play(6, ev.Settled(1))
    play(9, ev.Ready(2))
    last = play.journal.swaps().last
    assert last is not None
    assert (last.evicted, [stop.model for stop in last.stops], last.result) == ((), ["A"], "ok")
