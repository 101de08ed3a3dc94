"""The two sets of signs: Unicode without emoji, and plain ASCII."""

from __future__ import annotations

import locale
import os
from dataclasses import dataclass, field

from llmtop.snapshot import Model


@dataclass(frozen=True)
class Glyphs:
    """Signs of one set; every one is one cell wide."""

    ascii: bool = False
    states: dict[str, str] = field(
        default_factory=lambda: {
            "UNLOADED": "○", "LOADING": "◐", "LOADED": "●", "SLEEPING": "◌", "STOPPING": "◑", "FAILED": "\u00d7",
        }
    )  # fmt: skip
    spin: str = "◐◓◑◒"
    rule: str = "─"
    bar: str = "│"
    tee: str = "┬"
    fill: str = "█"
    growing: str = "▒"
    free: str = "·"
    ellipsis: str = "…"
    up: str = "↑"
    down: str = "↓"
    blocks: str = " ▁▂▃▄▅▆▇█"
    dashes: str = "╌"


UNICODE = Glyphs()
ASCII = Glyphs(
    ascii=True,
    states={"UNLOADED": ".", "LOADING": ">", "LOADED": "*", "SLEEPING": "z", "STOPPING": "<", "FAILED": "!"},
    spin=">)>)",
    rule="-",
    bar="|",
    tee="+",
    fill="#",
    growing="+",
    free=".",
    ellipsis="~",
    up="^",
    down="v",
    blocks=" .:-=+*%#",
    dashes="-",
)

STATE_STYLES = {
    "UNLOADED": "muted",
    "LOADING": "primary",
    "LOADED": "good",
    "SLEEPING": "secondary",
    "STOPPING": "warn",
    "FAILED": "bad reverse",
}
"""State word to style name."""


def state_word(model: Model) -> str:
    """The word in the STATE column: FAILED is an unloaded model that says why."""
    return "FAILED" if model.state == "unloaded" and model.failure is not None else model.state.upper()


def utf8() -> bool:
    """The terminal's locale can show more than ASCII."""
    name = os.environ.get("LC_ALL") or os.environ.get("LC_CTYPE") or os.environ.get("LANG") or ""
    if not name:
        name = locale.getpreferredencoding(False)
    return "utf8" in name.lower().replace("-", "")
