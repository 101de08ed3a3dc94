"""Draws the pictures of this folder: ``python screenshots/make.py [SCENE …]``.

Each scene of ``llmtop_tui.scenes`` is shown by the real application, without a terminal, at 120x40 and 80x24.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from pathlib import Path

from llmtop.client import CoreClient
from llmtop_tui.app import LlmtopApp
from llmtop_tui.scenes import SCENES, SceneClient

HERE = Path(__file__).resolve().parent
SIZES = ((120, 40), (80, 24))
SHOWN = ("full", "loading", "oom", "held")
"""The scenes that are worth a picture in the documentation."""
FONT_FACE = re.compile(r"@font-face\s*{[^}]*}\s*")


def drawing(app: LlmtopApp) -> str:
    """The screen as SVG, without the fonts that it would fetch from elsewhere."""
    return FONT_FACE.sub("", app.export_screenshot(title="llmtop"))


async def draw(name: str, client: CoreClient) -> None:
    """Save what the application shows of a core, at each size."""
    for width, height in SIZES:
        app = LlmtopApp(client)
        async with app.run_test(size=(width, height)) as pilot:
            await pilot.pause()
            save(f"{name}-{width}x{height}", drawing(app))


def save(name: str, svg: str) -> None:
    file = HERE / f"{name}.svg"
    file.write_text(svg, "utf-8")
    print(f"{file.name}: {len(svg) // 1024} KiB")


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw the pictures of this folder.")
    parser.add_argument(
        "scenes", nargs="*", metavar="SCENE", help=f"of {', '.join(SCENES)}; default: {' '.join(SHOWN)}"
    )
    wanted: list[str] = parser.parse_args().scenes or list(SHOWN)
    if unknown := [name for name in wanted if name not in SCENES]:
        print(f"no scene {', '.join(unknown)}: there are {', '.join(SCENES)}", file=sys.stderr)
        return 2
    for name in wanted:
        asyncio.run(draw(name, SceneClient(SCENES[name](), embedded=False)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
