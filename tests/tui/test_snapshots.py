"""What the screen looks like: text and styles of every cell, compared with what was agreed.

``LLMTOP_UPDATE_SNAPSHOTS=1`` writes the files anew; look at them, and at the pictures, before they are kept.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from rich.style import Style

from llmtop_tui import watch
from llmtop_tui.pace import Cost
from llmtop_tui.scenes import SCENES

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent / "snapshots"
UPDATE = bool(os.environ.get("LLMTOP_UPDATE_SNAPSHOTS"))
SIZES = [(80, 24), (120, 40), (200, 60)]
NAMES = ["cold", "loading", "full", "oom", "held", "disconnected"]


@pytest.fixture(autouse=True)
def still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No clock, no place on earth and no load of this machine shows."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(watch, "STALE_S", 1e9)
    monkeypatch.setattr(Cost, "read", lambda self, now: "46 MB 1.8%")
    yield
    monkeypatch.undo()
    time.tzset()


def _style(style: Style | None) -> str:
    if style is None:
        return "-"
    marks = [name for name in ("bold", "dim", "italic", "underline", "reverse") if getattr(style, name)]
    colours = [f"{side}{c.name}" for side, c in (("", style.color), ("on ", style.bgcolor)) if c and not c.is_default]
    return " ".join((*marks, *colours)) or "-"


def picture(app: Any) -> str:
    """Rows of text, then rows of ``LENGTH`` and ``STYLE`` in turn, with a list of the styles."""
    letters: dict[str, str] = {}
    rows, runs = [], []
    for strip in app.screen._compositor.render_strips():
        segments = [segment for segment in strip if segment.text]
        rows.append("".join(segment.text for segment in segments).rstrip())
        row = ""
        for name, group in groupby(segments, key=lambda segment: _style(segment.style)):
            letter = letters.setdefault(name, chr(ord("a") + len(letters) % 26) * (1 + len(letters) // 26))
            row += f"{sum(segment.cell_length for segment in group)}{letter}"
        runs.append(row)
    styles = [f"{letter} {name}" for name, letter in letters.items()]
    return "\n".join((*rows, "-- styles", *runs, "-- of which", *styles)) + "\n"


async def _compare(name: str, open_screen: Any, scene: str, size: tuple[int, int], **options: Any) -> None:
    snapshot = SCENES["full" if scene == "disconnected" else scene]()
    async with open_screen(snapshot, size=size, embedded=False, **options) as (app, client, pilot):
        if scene == "disconnected":
            client.fault, client.stale_s = "http://127.0.0.1:8080 cannot be reached: connection refused", 4200.0
        app.watch_core.tick()
        await pilot.pause()
        seen = picture(app)
    file = HERE / f"{name}.txt"
    if UPDATE:
        HERE.mkdir(exist_ok=True)
        file.write_text(seen, "utf-8")
    assert seen.splitlines() == file.read_text("utf-8").splitlines()


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("scene", NAMES)
async def test_the_screen_looks_as_agreed(scene: str, size: tuple[int, int], open_screen: Any) -> None:
    await _compare(f"{scene}-{size[0]}x{size[1]}", open_screen, scene, size)


@pytest.mark.parametrize("scene", ["full", "oom"])
async def test_the_screen_without_colours_looks_as_agreed(
    scene: str, open_screen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    await _compare(f"{scene}-no-color", open_screen, scene, (120, 40))


@pytest.mark.parametrize("scene", ["full", "oom"])
async def test_the_ascii_screen_looks_as_agreed(scene: str, open_screen: Any) -> None:
    await _compare(f"{scene}-ascii", open_screen, scene, (120, 40), ascii_only=True)


def test_the_words_of_the_state_are_in_the_picture_of_a_core_out_of_reach() -> None:
    text = (HERE / "disconnected-120x40.txt").read_text("utf-8")
    assert "STALE 1h10" in text
    assert "connection refused" in text
