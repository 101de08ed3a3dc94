"""The policy benchmark on short loads: what it says must hold, and its bounds must be bounds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HOURS = 0.2
BENCH = Path(__file__).parents[1] / "bench" / "policy.py"


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--hours", str(HOURS), "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {result["name"]: result for result in json.loads(done.stdout)}


def ours(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["outcomes"]["llmtop"]
    return found


def test_everybody_is_answered_and_no_wait_exceeds_what_the_rules_promise(results: dict[str, Any]) -> None:
    assert len(results) >= 6
    for name, result in results.items():
        assert ours(result)["answered"] == result["requests"], name
        assert ours(result)["wait_max_s"] <= result["limit_s"], name
        assert result["doubled_s"]["llmtop"] <= result["limit_s"], name


def test_rules_without_patience_starve_where_llmtop_does_not(results: dict[str, Any]) -> None:
    result = results["one hog"]
    assert result["outcomes"]["llama.cpp"]["wait_max_s"] > 3600 * HOURS / 2
    assert result["doubled_s"]["llama.cpp"] > 1.5 * result["outcomes"]["llama.cpp"]["wait_max_s"]
    assert result["doubled_s"]["llmtop"] < 60


def test_makespan_is_within_a_tenth_of_the_router_rules_where_those_do_not_starve(results: dict[str, Any]) -> None:
    for name, result in results.items():
        if not result["starves"]:
            assert ours(result)["makespan_s"] <= 1.1 * result["outcomes"]["llama.cpp"]["makespan_s"], name


def test_swaps_are_no_more_than_those_of_a_plain_queue(results: dict[str, Any]) -> None:
    for name, result in results.items():
        assert ours(result)["swaps"] <= 1.01 * result["outcomes"]["in order"]["swaps"], name


def test_nothing_beats_the_bounds(results: dict[str, Any]) -> None:
    for name, result in results.items():
        assert ours(result)["swaps"] >= result["bound"]["swaps"], name
        for policy, outcome in result["outcomes"].items():
            assert outcome["makespan_s"] >= result["bound"]["makespan_s"] - 1e-6, (name, policy)


def test_bytes_stay_within_the_budget_where_counting_models_goes_over_it(results: dict[str, Any]) -> None:
    assert results["big and small"]["overshoot"]["llmtop"] == 0
    assert results["big and small"]["overshoot"]["llama.cpp"] > 0
