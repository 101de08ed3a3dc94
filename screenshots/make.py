"""Draws the pictures of this folder: ``python screenshots/make.py [--into DIR] [PICTURE …]``.

What they show is a recorded run (``record.py`` made it): the real application, without a terminal, as it stood at a
moment of that run. One scene cannot be recorded on a machine without its hardware, and is made up: ``oom``.
The same recording always gives the same bytes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from llmtop.record import read_recording
from llmtop.snapshot import Snapshot
from llmtop_tui import watch
from llmtop_tui.app import LlmtopApp
from llmtop_tui.format import GIB
from llmtop_tui.pace import Cost
from llmtop_tui.scene_client import SceneClient
from llmtop_tui.scenes import SCENES
from llmtop_tui.themes import DARK, LIGHT

HERE = Path(__file__).resolve().parent
RUN = HERE / "run.jsonl.gz"

MADE_UP = ((600, 420, 14.1), (420, 215, 18.9), (215, 203, 23.4), (203, 60, 16.2), (60, 12, 21.6), (12, 0, 18.3))
"""Memory in use before the made-up scene: from and to seconds ago [s], and how much [GiB]."""

Moment = Callable[[Snapshot], bool]


def _states(snapshot: Snapshot) -> set[str]:
    return {model.state for model in snapshot.models}


def _rush(snapshot: Snapshot) -> bool:
    """One model loads, others serve, and somebody waits behind it."""
    loading = [m for m in snapshot.models if m.state == "loading" and m.progress and (m.progress.value or 0) > 0.3]
    return bool(loading) and len(snapshot.queue) > 1


def _drain(snapshot: Snapshot) -> bool:
    """A busy model is drained for the head of the queue, and a second entry waits behind."""
    return len(snapshot.queue) > 1 and any(m.draining and m.in_flight for m in snapshot.models)


def _held(snapshot: Snapshot) -> bool:
    """The queue is held, and it is said what a step would do."""
    return snapshot.hold and len(snapshot.queue) > 1 and "evicts" in snapshot.next_swap


def _busy(snapshot: Snapshot) -> bool:
    """A model serves several, and a kill would cost something."""
    return not snapshot.hold and not snapshot.queue and any(m.in_flight > 1 for m in snapshot.models)


@dataclass(frozen=True)
class Picture:
    """One file.

    Args:
        size: Cells of the terminal.
        moment: The first snapshot of the run for which this holds is shown; None is the last one.
        after: No earlier than this one, where the run comes to such a moment more than once.
        scene: A made-up scene instead.
        keys: What is pressed then; the cursor is on the model with the most requests.
        theme: Colours.
    """

    size: tuple[int, int]
    moment: Moment | None = None
    after: Moment | None = None
    scene: str = ""
    keys: Callable[[Snapshot], tuple[str, ...]] = lambda _: ()
    theme: str = DARK.name


def _drained(snapshot: Snapshot) -> tuple[str, ...]:
    """To the swap of the timeline that took longest to drain its victim."""
    newest_first = snapshot.swaps.recent[::-1]
    longest = max(range(len(newest_first)), key=lambda n: newest_first[n].phases.drain_s or 0.0)
    return ("T", *["j"] * longest)


PICTURES = {
    "busy-120x40": Picture((120, 40), _drain),
    "busy-80x24": Picture((80, 24), _rush),
    "held-200x60": Picture((200, 60), _held),
    "timeline-120x40": Picture((120, 40), keys=_drained),
    "kill-120x40": Picture((120, 40), _busy, after=_held, keys=lambda _: ("K",)),
    "oom-120x40": Picture((120, 40), scene="oom", theme=LIGHT.name),
}


def told(picture: Picture, run: Sequence[Snapshot]) -> list[Snapshot]:
    """What the screen had been told by then.

    Raises:
        LookupError: The run never comes to such a moment.
    """
    if picture.scene:
        return with_history(SCENES[picture.scene]())
    from_here = 0
    for wanted in (picture.after, picture.moment):
        if wanted is not None:
            from_here = next((n for n in range(from_here, len(run)) if wanted(run[n])), -1)
            if from_here < 0:
                raise LookupError(f"the recording has no such moment: {wanted.__doc__}")
    return list(run if picture.moment is None else run[: from_here + 1])


def with_history(scene: Snapshot) -> list[Snapshot]:
    """The scene, and before it what memory was in use: made up as it is."""
    replace = msgspec.structs.replace
    before = [
        replace(scene, at=scene.at - ago, memory=replace(scene.memory, used=int(size * GIB)))
        for start, end, size in MADE_UP
        for ago in range(start, end, -1)
    ]
    return [*before, scene]


async def draw(picture: Picture, run: Sequence[Snapshot]) -> str:
    """The picture as SVG."""
    seen = told(picture, run)
    client = SceneClient(seen[0], embedded=False)
    app = LlmtopApp(client)
    app.theme = picture.theme
    for snapshot in seen:  # the history of memory and the log are what the screen has gathered until then
        app.view.take(snapshot)
        app.main.log_panel.collect(snapshot)
    client.publish(seen[-1])
    app.newest = seen[-1]
    async with app.run_test(size=picture.size) as pilot:
        await pilot.pause()
        busiest = max(seen[-1].models, key=lambda model: model.in_flight)
        app.main.models.select(busiest.id)
        app.watch_core.tick()
        app.show_all()
        await pilot.press(*picture.keys(seen[-1]))
        await pilot.pause()
        return app.picture()


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of this folder.")
    parser.add_argument("pictures", nargs="*", metavar="PICTURE", help=f"of {', '.join(PICTURES)}; default: all")
    parser.add_argument("--into", type=Path, default=HERE, metavar="DIR", help="default: this folder")
    parser.add_argument("--run", type=Path, default=RUN, metavar="FILE", help=f"the recording; default: {RUN.name}")
    given = parser.parse_args()
    if unknown := [name for name in given.pictures if name not in PICTURES]:
        print(f"no picture {', '.join(unknown)}: there are {', '.join(PICTURES)}", file=sys.stderr)
        return 2
    os.environ.update(TZ="UTC", LC_ALL="C.UTF-8")  # no place on earth and no load of this machine shows
    os.environ.pop("NO_COLOR", None)
    os.environ.pop("TEXTUAL_THEME", None)
    time.tzset()
    watch.STALE_S = 1e9
    Cost.read = lambda self, now: ""
    run = [line.snapshot for line in read_recording(given.run) if line.snapshot is not None]
    for name in given.pictures or PICTURES:
        svg = asyncio.run(draw(PICTURES[name], run))
        (given.into / f"{name}.svg").write_text(svg, "utf-8")
        print(f"{name}.svg: {len(svg) // 1024} KiB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
