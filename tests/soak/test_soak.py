"""Short forms of the soak and of the deaths: what they say must hold, on every machine."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmtop.testing.soak_deaths import WAYS, Way, die

pytestmark = pytest.mark.slow

SHORT = [
    way
    for way in WAYS
    if way.name in ("kill -9", "the terminal is closed", "SIGTERM with the view", "the view breaks, then SIGTERM")
]
"""Each takes as long as requests in flight are given."""

SOAK = Path(__file__).parent / "soak.py"


def test_sixty_swaps_with_everything_going_wrong_lose_leak_and_leave_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(SOAK), "--swaps", "60", "--seed", "7", "--folder", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["wrong"] == []
    assert done.returncode == 0
    assert result["swaps"] >= 60
    assert sum(result["faults"].values()) > 10, "nothing went wrong, so nothing was shown"


@pytest.mark.parametrize("way", SHORT, ids=[way.name for way in SHORT])
def test_children_end_with_llmtop_and_in_order_where_that_is_possible(tmp_path: Path, way: Way) -> None:
    death = asyncio.run(die(tmp_path, way))
    assert death.wrong == []
    if way.name == "kill -9":
        obedient = {kind: ms for kind, ms in death.gone_ms.items() if kind != "deaf"}
        assert max(obedient.values()) < 1500, "SIGTERM within a second of the pipe's end"
        assert death.gone_ms["deaf"] < 4000
