"""The pictures of the documentation are what the screen draws of the recorded run, to the byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from llmtop.record import read_recording

SCREENSHOTS = Path(__file__).resolve().parents[2] / "screenshots"


def test_the_pictures_are_drawn_from_the_recorded_run(tmp_path: Path) -> None:
    """Where this fails after a change of the screen: ``python screenshots/make.py``, and look at them."""
    subprocess.run(
        [sys.executable, str(SCREENSHOTS / "make.py"), "--into", str(tmp_path)], check=True, timeout=300,
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    drawn = {file.name: file.read_bytes() for file in tmp_path.glob("*.svg")}
    kept = {file.name: file.read_bytes() for file in SCREENSHOTS.glob("*.svg")}
    assert sorted(drawn) == sorted(kept)
    assert [name for name in drawn if drawn[name] != kept[name]] == []


def test_the_recorded_run_is_one_of_real_servers() -> None:
    seen = [line.snapshot for line in read_recording(SCREENSHOTS / "run.jsonl.gz") if line.snapshot is not None]
    assert len(seen) > 60
    assert seen[-1].server.startswith("llama-server b")
    assert seen[-1].swaps.count >= 5
    assert not seen[-1].faults
