"""The screen on a core that moves by itself: what the view benchmark runs in a terminal of its own.

``python tests/bench/moving.py quiet|lively|burst|flood``. The pictures come from ``llmtop_tui.scenes``.

* ``quiet``: six children up, nobody asks; one picture a second, in which only times change.
* ``lively``: one picture a second in which every number, bar, queue entry and event moves, and 20 log lines come.
* ``burst``: 1,000 log lines a second; a picture holds the last 120, as a core's does.
* ``flood``: a million lines as fast as the log panel takes them, every one of them in a picture; then still.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

import msgspec

from llmtop.snapshot import EventLine, LogLine, Model, Progress, Snapshot

if TYPE_CHECKING:
    from llmtop_tui.scene_client import SceneClient

LOG_SHOWN = 120
PICTURES_S = 0.1
FLOOD_LINES, FLOOD_STEP = 1_000_000, 20_000
OVER = "the flood is over"
GIB = 2**30
Picture = Callable[[Snapshot, int], Snapshot]


def line(seq: int, at: float, model: str) -> LogLine:
    """A line like a llama-server's, all of them different."""
    return LogLine(
        seq, at, model, f"slot print_timing: id {seq % 4} | task {seq} | eval time = {seq * 7 % 9973} ms / {seq} tokens"
    )


def last_lines(scene: Snapshot, end: int, count: int) -> tuple[LogLine, ...]:
    """The ``count`` lines before number ``end``, of all models in turn."""
    names = [model.id for model in scene.models]
    return tuple(line(seq, scene.at, names[seq % len(names)]) for seq in range(max(0, end - count), end))


def _up(model: Model, n: int) -> Model:
    """The model as a resident that nobody asks."""
    return msgspec.structs.replace(
        Model(model.id, "loaded", n + 1, 40_000 + n, 9_000 + n),
        footprint_bytes=(n + 2) * GIB,
        reserved_bytes=(n + 2) * GIB,
        slots=2,
        loads=1,
    )


def quiet(scene: Snapshot, second: int) -> Snapshot:
    """Second number ``second`` of a core of which nobody wants anything."""
    models = tuple(
        msgspec.structs.replace(_up(model, n), idle_s=60.0 * (n + 5) + second) for n, model in enumerate(scene.models)
    )
    over = tuple(swap for swap in scene.swaps.recent if swap.result)
    return msgspec.structs.replace(
        scene, models=models, running=len(models), queue=(), requests=(), next_swap="", at=scene.at + second,
        uptime_s=scene.uptime_s + second, swaps=msgspec.structs.replace(scene.swaps, recent=over),
    )  # fmt: skip


def lively(scene: Snapshot, second: int) -> Snapshot:
    """Second number ``second`` of a busy core."""
    models: list[Model] = []
    for n, model in enumerate(scene.models):
        wave = 0.5 + 0.5 * math.sin(second / 3 + n)
        up = _up(model, n)
        if n == second // 13 % len(scene.models):
            progress = Progress("text_model", second % 13 / 13, float(second % 13), 13.0)
            up = msgspec.structs.replace(up, state="loading", progress=progress, reason=f"loading {second % 13 * 8} %")
        else:
            up = msgspec.structs.replace(up, in_flight=1 + (second + n) % 4, waiting=(second * 7 + n) % 5)
        models.append(msgspec.structs.replace(up, footprint_bytes=int((n + 1 + wave) * GIB), idle_s=wave))
    used = sum(model.footprint_bytes or 0 for model in models)
    return msgspec.structs.replace(
        scene,
        models=tuple(models),
        running=len(models),
        at=scene.at + second,
        uptime_s=scene.uptime_s + second,
        memory=msgspec.structs.replace(scene.memory, used=used, wired=used, available=32 * GIB - used),
        queue=tuple(
            msgspec.structs.replace(e, waited_s=e.waited_s + second, eta_s=1.0 + second % 9) for e in scene.queue
        ),
        requests=tuple(msgspec.structs.replace(r, age_s=r.age_s + second) for r in scene.requests),
        requests_total=scene.requests_total + 9 * second,
        events=tuple(
            EventLine(n, scene.at + n, "ready", models[n % 6].id, f"ready after {n % 9}.1 s")
            for n in range(second, second + 8)
        ),
        log=last_lines(scene, 1_000 + 20 * second, LOG_SHOWN),
    )


def burst(scene: Snapshot, picture: int) -> Snapshot:
    """Picture number ``picture`` of a core whose children are talkative: 1,000 lines a second."""
    second = int(picture * PICTURES_S)
    said = 1_000 + round(1_000 * picture * PICTURES_S)
    return msgspec.structs.replace(quiet(scene, second), log=last_lines(scene, said, LOG_SHOWN))


def flood(scene: Snapshot, picture: int) -> Snapshot:
    """Picture number ``picture`` of a million lines, none left out; after the last the core stands still."""
    said = min(FLOOD_LINES, (picture + 1) * FLOOD_STEP)
    lines = last_lines(scene, said, FLOOD_STEP)
    if said == FLOOD_LINES:
        lines = (*lines, LogLine(said, scene.at, scene.models[0].id, OVER))
    return msgspec.structs.replace(quiet(scene, 0), log=lines)


MODES: dict[str, tuple[Picture, float]] = {
    "quiet": (quiet, 1.0),
    "lively": (lively, 1.0),
    "burst": (burst, PICTURES_S),
    "flood": (flood, 0.0),
}
"""Mode to its pictures and the time between them [s]."""


def moving_client(mode: str) -> SceneClient:
    """A core that shows the pictures of a mode, each when it is due."""
    from llmtop_tui.scene_client import SceneClient
    from llmtop_tui.scenes import SCENES

    picture, period = MODES[mode]
    scene = SCENES["full"]()

    class Moving(SceneClient):
        async def changes(self) -> AsyncIterator[Snapshot]:
            loop = asyncio.get_running_loop()
            began, number = loop.time(), 0
            while True:
                self._snapshot = picture(scene, number)
                yield self._snapshot
                if period:  # the view may have taken its time: it gets the newest picture, as from a core
                    number = max(number + 1, int((loop.time() - began) / period))
                    await asyncio.sleep(began + number * period - loop.time())
                else:
                    number += 1
                    await asyncio.sleep(0 if number * FLOOD_STEP < FLOOD_LINES else 1.0)

    return Moving(picture(scene, 0), embedded=False)


def main() -> None:
    """Run the screen until it is killed."""
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    if mode not in MODES:
        sys.exit(f"one of {', '.join(MODES)}")
    from llmtop_tui.app import LlmtopApp

    LlmtopApp(moving_client(mode)).run()


if __name__ == "__main__":
    main()
