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

SOAK = Path(__file__).parent / "soak.py"


@pytest.mark.parametrize("seed", [7])
def test_sixty_swaps_with_everything_going_wrong_lose_leak_and_leave_nothing(tmp_path: Path, seed: int) -> None:
    command = [sys.executable, str(SOAK), "--swaps", "60", "--seed", str(seed), "--folder", str(tmp_path), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.stdout, done.stderr[-2000:]
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["wrong"] == []
    assert done.returncode == 0
    assert result["swaps"] >= 60
    assert sum(result["faults"].values()) > 10, "nothing went wrong, so nothing was shown"


@pytest.mark.parametrize("way", WAYS, ids=[way.name for way in WAYS])
def test_no_child_outlives_llmtop(tmp_path: Path, way: Way) -> None:
    death = asyncio.run(die(tmp_path, way))
    assert death.wrong == []
    if way.name == "kill -9":
        obedient = {kind: ms for kind, ms in death.gone_ms.items() if kind != "deaf"}
        assert max(obedient.values()) < 1500, "SIGTERM within a second of the pipe's end"
        assert death.gone_ms["deaf"] < 4000
