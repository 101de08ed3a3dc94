"""Draws the pictures of this folder: ``python screenshots/make.py [--live] [SCENE …]``.

Each scene of ``llmtop_tui.scenes``, or with ``--live`` a real core at work, is shown by the real application, without a
terminal, at 120x40 and 80x24.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from llmtop.client import CoreClient
from llmtop_tui.app import LlmtopApp
from llmtop_tui.scene_client import SceneClient
from llmtop_tui.scenes import SCENES

HERE = Path(__file__).resolve().parent
SIZES = ((120, 40), (80, 24))
SHOWN = ("full", "loading", "oom", "held")
"""The scenes that are worth a picture in the documentation."""
PAGES = {"timeline": ("full", "T")}
"""Pages over a scene: the scene, and the key that opens the page."""
SETTLE_S = 0.3
"""Until the application has drawn what its client gave it [s]."""
FONT_FACE = re.compile(r"@font-face\s*{[^}]*}\s*")


def drawing(app: LlmtopApp) -> str:
    """The screen as SVG, without the fonts that it would fetch from elsewhere."""
    return FONT_FACE.sub("", app.export_screenshot(title="llmtop"))


async def draw(name: str, client: CoreClient, width: int, height: int, key: str = "") -> None:
    """Save what the application shows of a core, with ``key`` after that key."""
    app = LlmtopApp(client)
    async with app.run_test(size=(width, height)) as pilot:
        await pilot.pause(SETTLE_S)
        if key:
            await pilot.press(key)
            await pilot.pause(SETTLE_S)
        save(f"{name}-{width}x{height}", drawing(app))


async def draw_live() -> None:
    """Save what a real core shows; the same story is played once for each size."""
    from live import at_work, running_core

    for width, height in SIZES:
        with running_core() as url:
            async with at_work(url) as client:
                await draw("live", client, width, height)


def save(name: str, svg: str) -> None:
    file = HERE / f"{name}.svg"
    file.write_text(svg, "utf-8")
    print(f"{file.name}: {len(svg) // 1024} KiB")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of this folder.")
    parser.add_argument(
        "scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; default: {' '.join(SHOWN)}"
    )
    parser.add_argument("--live", action="store_true", help="a real core instead of scenes")
    told = parser.parse_args()
    if told.live:
        asyncio.run(draw_live())
        return 0
    wanted: list[str] = told.scenes or [*SHOWN, *PAGES]
    if unknown := [name for name in wanted if name not in SCENES and name not in PAGES]:
        print(f"no scene {', '.join(unknown)}: there are {', '.join((*SCENES, *PAGES))}", file=sys.stderr)
        return 2
    for name in wanted:
        scene, key = PAGES.get(name, (name, ""))
        for width, height in SIZES:
            asyncio.run(draw(name, SceneClient(SCENES[scene](), embedded=False), width, height, key))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
