from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmtop.cli import app
from llmtop.errors import ConfigError
from llmtop.record import Recorder
from llmtop.scheduler.events import Arrived, Event, Exited, Left, Limits, Ready, Settled
from llmtop.simulate.advice import recommend
from llmtop.simulate.outcome import Outcome
from llmtop.simulate.sweep import Run, Setting, read_sweep, settings
from llmtop.simulate.trace import read_trace
from llmtop.simulate.world import Ask, Known, World, llmtop
from llmtop.snapshot import Memory, Snapshot

GIB = 2**30
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Run ``llmtop simulate``: exit code, output, errors."""
    monkeypatch.setitem(app.GROUPS, "simulate", ("simulate",))
    monkeypatch.setenv("COLUMNS", "120")

    def run(*words: object) -> tuple[int, str, str]:
        code = app.main(["simulate", *map(str, words)])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Three models of 10 GiB that take turns: with one slot nearly every request is a swap, with three none is."""
    path = tmp_path / "trace.jsonl"
    rows = [{"t": 20.0 * n, "model": "ABC"[n % 3], "duration": 2, "size": "10GiB"} for n in range(60)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    return path


GOOD = '{"t": 0, "model": "A", "duration": 1}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"t": -1, "model": "A", "duration": 1}', "t must not be negative"),
        ('{"t": 1, "model": "A", "duration": -3}', "duration must not be negative"),
        ('{"t": 1, "model": "A", "duration": 1, "prio": 2}', "unknown field `prio`"),
        ('{"t": 1, "model": "A"}', "missing required field `duration`"),
        ('{"t": "soon", "model": "A", "duration": 1}', "t: expected `float`"),
        ('{"t": 1, "model": "A", "duration": 1, "size": "huge"}', "is not a size"),
        ('{"t": 1, "model": "A", "duration": 1, "size": 0}', "more than 0 bytes"),
        ("hello", "is not JSON"),
        ('{"t": 1, "model": "A", "duration": 1', "is not JSON"),
        ("\x80", "is not JSON"),
        ("[1, 2]", "expected `object`"),
        ("[1, 2]", "a trace has lines like"),
        ('{"t": 1e308, "model": "A", "duration": 1}', "t: expected `float` <= "),
        ('{"t": 1, "model": "A", "duration": 1e308}', "duration: expected `float` <= "),
    ],
)
def test_bad_line_is_told_with_file_and_line(call: Call, tmp_path: Path, line: str, says: str) -> None:
    code, out, err = call(written(tmp_path, GOOD, line))
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "bad.jsonl:2: " in err
    assert says in err


def test_size_that_never_fits_is_told_with_its_line(call: Call, tmp_path: Path) -> None:
    path = written(tmp_path, GOOD, '{"t": 1, "model": "A", "duration": 1, "size": "30GiB"}')
    code, _, err = call(path, "--memory-budget", "24GiB")
    assert code == 2
    assert err.endswith("bad.jsonl:2: A needs 30.0 GiB, the budget is 24.0 GiB: it never fits\n")
    assert call(path, "--sweep", "memory-budget=24GiB,32GiB")[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--sweep", "speed=1"), "models-max"),
        (("--sweep", "models-max=4..1"), "from the smaller to the larger"),
        (("--sweep", "models-max=0..100000"), "at most"),
        (("--sweep", "max-wait=soon"), "is not a time"),
        (("--size", "A"), "MODEL=SIZE"),
        (("--size", "Z=1GiB"), "no model 'Z' in the trace; it has A, B, C"),
        (("--load", "A=fast"), "is not a time"),
        (("--models-max", "-2"), "must be 0 or more"),
        (("--memory-budget", "much"), "is not a size"),
        (("other.jsonl",), "takes one trace"),
    ],
)
def test_wrong_option_is_one_line_and_a_usage_error(call: Call, trace: Path, words: tuple[str, ...], says: str) -> None:
    code, _, err = call(trace, *words)
    assert code == 2
    assert err.count("\n") == 1
    assert says in err


@pytest.mark.parametrize("content", ["", "\n\n"])
def test_trace_without_requests_is_refused(call: Call, tmp_path: Path, content: str) -> None:
    path = tmp_path / "empty"
    path.write_text(content)
    assert call(path)[0] == 2


def test_file_that_is_not_there_is_one_line(call: Call, tmp_path: Path) -> None:
    code, _, err = call(tmp_path / "nope")
    assert (code, err.count("\n")) == (2, 1)


def test_budget_without_sizes_asks_for_them(call: Call, tmp_path: Path) -> None:
    code, _, err = call(written(tmp_path, GOOD), "--memory-budget", "8GiB")
    assert code == 2
    assert "add --size A=SIZE" in err


def test_one_run_prints_a_table_a_timeline_and_a_recommendation(call: Call, trace: Path) -> None:
    code, out, _ = call(trace, "--models-max", 1, "--load", "12", "--load", "B=4", "--stop", "A=2")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "60 requests for 3 models"
    assert lines[2].split()[:5] == ["1", "15s", "off", "60", "59"]
    assert [line[0] for line in lines if line[:1].isalpha() and line[1:3] == "  "] == ["A", "B", "C"]
    assert lines[-1].startswith("recommended: --models-max 3: mean wait 0.5 s, longest 12.0 s, 3 swaps; ")
    assert "2 waits" in lines[-1]


def test_sweep_runs_every_combination(call: Call, trace: Path) -> None:
    code, out, _ = call(trace, "--sweep", "models-max=1..3", "max-wait=5,off", "--json")
    assert code == 0
    made = json.loads(out)
    assert [(r["setting"]["models_max"], r["setting"]["max_wait_s"]) for r in made["runs"]] == [
        (cap, wait) for cap in (1, 2, 3) for wait in (5.0, None)
    ]
    assert made["recommendation"]["setting"]["models_max"] == 3
    assert made["timeline"]["setting"] == made["recommendation"]["setting"]
    assert set(made["timeline"]["rows"]) == {"A", "B", "C"}


def test_nobody_is_refused_because_many_wait(call: Call, tmp_path: Path) -> None:
    _, out, _ = call(written(tmp_path, *[GOOD] * 700), "--json")
    assert json.loads(out)["runs"][0]["outcome"]["answered"] == 700


def test_same_call_gives_the_same_answer(call: Call, trace: Path) -> None:
    assert call(trace, "--json") == call(trace, "--json")


def test_names_of_a_trace_are_made_safe_to_show(call: Call, tmp_path: Path) -> None:
    _, out, _ = call(written(tmp_path, '{"t": 0, "model": "\\u001b[31mred\\u202e", "duration": 1}'))
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_times_are_counted_from_the_first_request(tmp_path: Path) -> None:
    path = written(
        tmp_path, '{"t": 1700000009, "model": "B", "duration": 1}', '{"t": 1700000000, "model": "A", "duration": 1}'
    )
    assert read_trace(str(path)).asks == [Ask(0, "A", 1), Ask(9, "B", 1)]


def record(path: Path) -> None:
    """A run of the world, recorded as the engine would."""
    models = {name: Known(10 * GIB, load_s=7, stop_s=2, settle_s=0.5) for name in "AB"}
    machine = llmtop(Limits(1), models, budget=12 * GIB)
    recorder = Recorder(path, 0.0, 1_700_000_000.0)
    handle = machine.handle

    def handled(event: Event, now: float) -> Any:
        actions = handle(event, now)
        recorder.step(event, actions, now)
        return actions

    machine.handle = handled  # type: ignore[method-assign]
    asks = [Ask(3.0, "A", 4.0), Ask(5.0, "B", 1.5), Ask(40.0, "A", 2.5)]
    World(machine, models, asks).run()
    recorder.snapshot(Snapshot("0", 1, 0.0, "u", models_max=1, memory=Memory(budget=12 * GIB)), 60.0)
    recorder.close()


def test_recording_is_a_trace_with_its_own_sizes_and_times(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    trace = read_trace(str(path))
    assert trace.asks == [Ask(0.0, "A", 4.0), Ask(2.0, "B", 1.5), Ask(37.0, "A", 2.5)]
    assert (trace.models_max, trace.budget, trace.left_out) == (1, 12 * GIB, 0)
    told = trace.models["A"]
    assert (told.size, told.load_s, told.stop_s, told.settle_s) == (10 * GIB, 7.0, 2.0, 0.5)
    assert trace.models["B"].stop_s == 2.0


@pytest.mark.parametrize("cut", [0, 8])
def test_packed_recording_is_read_as_far_as_it_goes(cut: int, tmp_path: Path) -> None:
    path, small = tmp_path / "run.jsonl", tmp_path / "run.jsonl.gz"
    record(path)
    packed = gzip.compress(path.read_bytes())
    small.write_bytes(packed[: len(packed) - cut])
    whole, trace = read_trace(str(path)), read_trace(str(small))
    assert (trace.asks, trace.budget) == (whole.asks, whole.budget)


def test_packed_trace_is_read_and_one_cut_off_is_told(call: Call, trace: Path, tmp_path: Path) -> None:
    small = tmp_path / "trace.gz"
    packed = gzip.compress(trace.read_bytes())
    small.write_bytes(packed)
    assert read_trace(str(small)).asks == read_trace(str(trace)).asks
    small.write_bytes(packed[:-12])
    code, _, err = call(small)
    assert code == 2
    assert "trace.gz: is cut off" in err


def test_recording_simulates_to_what_it_recorded(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    record(path)
    code, out, _ = call(path, "--json")
    assert code == 0
    run = json.loads(out)["runs"][0]
    assert run["setting"] == {"models_max": 1, "max_wait_s": 15.0, "budget": 12 * GIB}
    assert (run["outcome"]["swaps"], run["outcome"]["requests"]) == (3, 3)


def test_damaged_recording_is_told_with_file_and_line(call: Call, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"llmtop": "0", "started": 0}\n{"t": 0, "event": {"type": "Arrived"}}\n')
    code, _, err = call(path)
    assert (code, err.count("\n")) == (2, 1)
    assert "run.jsonl:2: the recording is damaged" in err


def test_request_that_was_cut_lasted_until_then(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    machine = llmtop(Limits(1), {"A": Known()})
    recorder = Recorder(path, 0.0, 0.0)
    steps: list[tuple[Event, float]] = [(Arrived(1, "A"), 0), (Ready(1), 3), (Arrived(2, "A"), 4), (Left(2), 9)]
    for event, at in (*steps, (Exited(1), 11), (Settled(1), 20)):
        recorder.step(event, machine.handle(event, at), at)
    recorder.close()
    assert read_trace(str(path)).asks == [Ask(0.0, "A", 8.0), Ask(4.0, "A", 5.0)]


def test_sweep_words_may_stand_apart_or_together() -> None:
    read = read_sweep(["models-max=1..3,0 max-wait=5", "--max-wait=60,5"])
    assert read == {"models-max": [1, 2, 3, 0], "max-wait": [5.0, 60.0]}
    assert len(settings(Setting(), read)) == 8
    with pytest.raises(ConfigError, match="too many"):
        settings(Setting(), {"models-max": list(range(100)), "max-wait": list(range(5))})


def came_to(cap: int, mean: float, longest: float, peak: int = 0, answered: int = 10) -> Run:
    return Run(
        Setting(cap),
        Outcome(10, answered, {}, 10 - answered, 5, 0, mean, mean, longest, 1.0, 9.0, peak, cap),
    )


def test_less_memory_is_recommended_where_waits_are_as_good() -> None:
    runs = [came_to(1, 9.0, 30, 10), came_to(2, 1.05, 6, 20), came_to(3, 1.0, 6, 30)]
    advice = recommend(runs)
    assert advice is not None
    assert advice[0] is runs[1]
    assert advice[1].startswith("recommended: --models-max 2")


def test_setting_that_leaves_somebody_without_an_answer_is_never_recommended() -> None:
    assert recommend([came_to(1, 0.0, 0.0, answered=9)]) is None
    advice = recommend([came_to(1, 0.0, 0.0, answered=9), came_to(2, 50.0, 90.0)])
    assert advice is not None
    assert advice[0].setting.models_max == 2


def test_long_waits_of_a_few_count_against_a_setting() -> None:
    advice = recommend([came_to(1, 1.0, 900.0, 10), came_to(2, 1.0, 20.0, 20)])
    assert advice is not None
    assert advice[0].setting.models_max == 2
