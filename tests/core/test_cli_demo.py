"""The demo: set up, traffic, and the whole of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmtop.demo.stage import MODELS, stage
from llmtop.demo.traffic import Tally, Traffic, describe
from llmtop.errors import StartError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_stage_has_its_own_models_port_and_state_and_is_cleared_away(temporary: Path) -> None:
    env = {
        "PATH": os.environ["PATH"],
        "LLMTOP_PORT": "8080",
        "LLAMA_ARG_MODELS_MAX": "9",
        "LLMTOP_STATE_DIR": "/elsewhere",
    }
    with stage({}, env, simulated=True) as configuration:
        settings = configuration.settings
        assert list(configuration.catalog.models) == list(MODELS)
        assert (settings.models_max, settings.warnings) == (2, ())
        assert settings.port != 8080
        assert Path(settings.state_dir).parent.parent == temporary
        assert configuration.demo is not None
        assert not configuration.demo.real
        assert all(not spec.problem for spec in configuration.catalog.models.values())
    assert not list(temporary.iterdir())


def test_what_the_command_line_says_goes_over_the_demos_own(temporary: Path) -> None:
    with stage({"models_max": "3", "port": "9123"}, {"PATH": os.environ["PATH"]}, simulated=True) as configuration:
        assert (configuration.settings.models_max, configuration.settings.port) == (3, 9123)


def test_a_named_llama_server_that_is_not_there_is_no_reason_to_simulate(temporary: Path) -> None:
    with pytest.raises(StartError, match="nowhere"), stage({"llama_server": "/nowhere/x"}, {}, simulated=False):
        pass
    assert not list(temporary.iterdir())


def swap(number: int, load_s: float, queued_s: float = 0.0) -> dict[str, Any]:
    phases = {"queued_s": queued_s, "drain_s": None, "stop_s": 0.5, "settle_s": None, "spawn_s": None, "load_s": load_s}
    return {"id": number, "model": f"m{number}", "result": "ok", "evicted": ["x"], "phases": phases}


def test_the_summary_names_the_swap_that_took_longest_without_its_wait() -> None:
    tally = Tally(3, {"load_failed": 1}, {1: swap(1, 2.0), 2: swap(2, 1.0, queued_s=9.0)})
    assert tally.summary() == "3 answers, 1 error (1 load_failed), 2 swaps, slowest swap m1 in 2.50 s"
    assert Tally().summary() == "0 answers, 0 errors, 0 swaps"


def test_a_swap_is_told_with_what_had_to_go_and_where_the_time_went() -> None:
    assert describe(swap(1, 2.0)) == "m1 ok, evicted x (queued 0.00, stop 0.50, load 2.00)"


@pytest.mark.slow
def test_traffic_ends_when_its_time_is_up_and_when_it_is_told(free_of_llmtop: str) -> None:
    over: list[bool] = []
    timed = Traffic(free_of_llmtop, "", ("a",), seconds=0.05, over=lambda: over.append(True))
    timed.start()
    assert timed.join(20)
    assert over == [True]
    told = Traffic(free_of_llmtop, "", ("a",), over=lambda: over.append(False))
    told.start()
    told.stop()
    assert told.join(0)
    assert over == [True]
    assert told.tally.answers == 0


@pytest.fixture
def free_of_llmtop() -> str:
    return "http://127.0.0.1:1"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [["--simulated"], ["--simulated", "--no-traffic"]])
def test_the_demo_runs_without_a_terminal_ends_by_itself_and_leaves_nothing(tmp_path: Path, extra: list[str]) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    argv = [sys.executable, "-m", "llmtop", "demo", "--seconds", "6", *extra]
    done = subprocess.run(
        argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("llmtop: demo with simulated children, as asked, at http://127.0.0.1:")
    assert lines[-1].startswith("llmtop: demo over: ")
    answers = int(lines[-1].split()[3])
    assert (answers > 0) == ("--no-traffic" not in extra)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("llmtop")]
