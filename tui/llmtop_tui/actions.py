"""The one list of what a key does: bindings, footer, help, palette and the documentation's key table come from here.

``python -m llmtop_tui.actions`` prints the table as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from llmtop.snapshot import EventLine, LogLine, Model, QueueEntry, Request, Snapshot, Swap
from llmtop_tui import questions
from llmtop_tui.questions import Question
from llmtop_tui.view import holds_memory

Item = Model | QueueEntry | Request | EventLine | Swap | LogLine | None
TABLES = ("models", "queue", "flight", "events", "log")


@dataclass(frozen=True)
class Target:
    """What an action would act on, as the screen stands.

    Args:
        snapshot: The newest one, also while the display is paused.
        model: The model under the models table's cursor.
        panel: The panel in use.
        item: The row under that panel's cursor.
        embedded: The core ends with this process.
        replay: The core is a recording.
        keys: Actions with other keys than the registry's.
    """

    snapshot: Snapshot
    model: Model | None = None
    panel: str = "models"
    item: Item = None
    embedded: bool = False
    replay: bool = False
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    @property
    def requests(self) -> tuple[Request, ...]:
        """What ``x`` would cancel: the request of the row, or all that wait in the queue's entry."""
        item = self.item
        if self.panel == "flight" and isinstance(item, Request):
            return tuple(r for r in self.snapshot.requests if r.id == item.id)
        if self.panel == "queue" and isinstance(item, QueueEntry):
            return tuple(r for r in self.snapshot.requests if r.model == item.model and r.phase != "running")
        return ()

    @property
    def oom_due(self) -> bool:
        """An out-of-memory line waits to be seen."""
        return self.snapshot.oom.last is not None and not self.snapshot.oom.acknowledged


def _always(_: Target) -> bool:
    return True


def _never_asks(_: Target) -> Question | None:
    return None


@dataclass(frozen=True)
class Action:
    """One thing the user can do.

    Args:
        id: Its name; users remap keys by it.
        keys: Keys that do it, the one to show first.
        label: One or two words for footer and palette.
        help: One sentence for the help page.
        group: Heading on the help page.
        danger: It changes what is served; ``--readonly`` has none of these.
        panels: Panels where it applies, all of them when empty.
        footer: Rank in the footer, 0 is not shown.
        confirm: What to ask first, None to ask nothing.
        enabled: Whether it can do anything now.
        refused: Said when it cannot.
        only: The kind of core that it is for, ``replay`` or ``live``; any when empty.
    """

    id: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    danger: bool = False
    panels: tuple[str, ...] = ()
    footer: int = 0
    confirm: Callable[[Target], Question | None] = field(default=_never_asks)
    enabled: Callable[[Target], bool] = field(default=_always)
    refused: str = ""
    only: Literal["", "replay", "live"] = ""

    def applies(self, panel: str) -> bool:
        """It means something in this panel."""
        return not self.panels or panel in self.panels


def _up(target: Target) -> bool:
    return target.model is not None and holds_memory(target.model)


def _has_process(target: Target) -> bool:
    return target.model is not None and (target.model.pid is not None or target.model.stuck)


def _has_model(target: Target) -> bool:
    return target.model is not None


def _ask_kill(target: Target) -> Question | None:
    return questions.kill(target.model, target.snapshot) if target.model else None


def _ask_evict(target: Target) -> Question | None:
    return questions.evict(target.model, target.snapshot) if target.model else None


def _ask_cancel(target: Target) -> Question | None:
    return questions.cancel(target.requests) if target.requests else None


def _ask_leave(target: Target) -> Question | None:
    up = any(m.state != "unloaded" or m.stuck for m in target.snapshot.models)
    return questions.leave(target.snapshot) if target.embedded and up else None


MOVE, VIEW, MODEL, QUEUE, PLAY, APP = (
    "Move", "Look", "Model under the cursor (>)", "Queue", "Pace and recordings", "llmtop",
)  # fmt: skip

GROUPS = (MODEL, QUEUE, VIEW, PLAY, MOVE, APP)
"""Headings of the help page, in its order."""

ACTIONS: tuple[Action, ...] = (
    Action("help", ("question_mark", "f1"), "Help", "This page.", APP, footer=1),
    Action("detail", ("enter",), "Detail", "All about the row: arguments, sizes, failure, swaps.", VIEW, panels=TABLES,
           footer=7),
    Action(
        "evict", ("e",), "Evict", "Drain, then unload. Asks if requests are in flight or waiting.", MODEL,
        danger=True, footer=2, confirm=_ask_evict, enabled=_up, refused="nothing to evict: the model is not running",
    ),
    Action(
        "pin", ("p",), "Pin", "Pin or unpin: a pinned model is never evicted.", MODEL,
        danger=True, footer=3, enabled=_has_model, refused="no model under the cursor",
    ),
    Action(
        "load", ("L",), "Load", "Load it through the queue; on a running model, pick another one.", MODEL,
        danger=True, footer=4, enabled=_has_model, refused="no model under the cursor",
    ),
    Action(
        "kill", ("K",), "Kill", "Force-kill its process group. Always asks; by name if it is pinned or busy.", MODEL,
        danger=True, footer=5, confirm=_ask_kill, enabled=_has_process,
        refused="nothing to kill: the model has no process",
    ),
    Action(
        "evict_all", ("E",), "Evict idle", "Evict every idle model that is not pinned. Always asks.", MODEL,
        danger=True, confirm=lambda t: questions.evict_all(t.snapshot),
        enabled=lambda t: bool(questions.idle_models(t.snapshot)),
        refused="nothing to evict: no idle model without a pin",
    ),
    Action(
        "cancel", ("x",), "Cancel",
        "Cancel the request of the row (queue, requests); elsewhere clear the out-of-memory line.", QUEUE,
        danger=True, footer=10, confirm=_ask_cancel, enabled=lambda t: bool(t.requests) or t.oom_due,
        refused="nothing to cancel here",
    ),
    Action("hold", ("d",), "Hold", "Hold the queue, or let it go on: residents are served, nothing is swapped.", QUEUE,
           danger=True, footer=8),
    Action(
        "step", ("full_stop",), "Step", "While held: let one swap through.", QUEUE,
        danger=True, footer=8, enabled=lambda t: t.snapshot.hold,
        refused="step works while the queue is held: press d first",
    ),
    Action("filter", ("slash",), "Filter", "Show only rows that contain a text or match a glob (* ?).", VIEW, footer=6),
    Action("next", ("n",), "Next match", "Next row that matches.", VIEW),
    Action("previous", ("N",), "Previous match", "Previous row that matches.", VIEW),
    Action("sort", ("s",), "Sort", "Sort the models by the next column.", VIEW, footer=11),
    Action("reverse", ("S",), "Reverse", "Reverse the order.", VIEW),
    Action("logs", ("l",), "Logs", "Log of this model; again for all.", VIEW, footer=9, enabled=_has_model,
           refused="no model under the cursor"),
    Action("follow", ("f",), "Follow", "Follow the end of the log; off when you scroll up.", VIEW, footer=14),
    Action("wrap", ("w",), "Wrap", "Wrap long log lines.", VIEW),
    Action("alarm", ("exclamation_mark",), "Show OOM", "Jump to the last out-of-memory line in its log.", VIEW),
    Action("timeline", ("T",), "Timeline", "The last swaps: where the time went, who went, when memory was back.", VIEW,
           footer=16),
    Action("open_log", ("o",), "Open log", "Open the log in $PAGER.", VIEW),
    Action("zoom", ("z",), "Zoom", "The panel in use over the whole screen, and back.", VIEW, footer=13),
    Action("pause", ("space",), "Pause", "Freeze the display; the core and its alarms go on. A recording stands still.",
           PLAY, footer=12),
    Action("refresh", ("r",), "Refresh", "Show the present now.", PLAY, only="live"),
    Action("faster", ("plus",), "Faster", "Refresh more often; a recording plays faster.", PLAY),
    Action("slower", ("minus",), "Slower", "Refresh less often, down to each 10 s; a recording plays slower.", PLAY),
    Action("next_swap", ("right_square_bracket",), "Next swap", "On to the next swap of a recording.", PLAY,
           only="replay", footer=2),
    Action("next_oom", ("left_square_bracket",), "Next OOM", "On to the next out-of-memory line of a recording.", PLAY,
           only="replay", footer=3),
    Action("copy", ("y",), "Copy", "Copy a curl command for the model, or the line of the log.", VIEW),
    Action("copy_json", ("Y",), "Copy JSON", "Copy the row as JSON.", VIEW),
    Action("screenshot", ("ctrl+s",), "Screenshot", "Save the screen as SVG in the folder that llmtop runs in.", VIEW),
    Action("mouse", ("m",), "Mouse", "Mouse off or on: off, the terminal selects text itself.", VIEW),
    Action("down", ("j", "down"), "Down", "Next row.", MOVE),
    Action("up", ("k", "up"), "Up", "Previous row: k never kills.", MOVE),
    Action("first", ("g", "home"), "First", "First row.", MOVE),
    Action("last", ("G", "end"), "Last", "Last row; in the log, follow.", MOVE),
    Action("page_down", ("pagedown",), "Page down", "A page further.", MOVE),
    Action("page_up", ("pageup",), "Page up", "A page back.", MOVE),
    Action("next_panel", ("tab",), "Next panel", "To the next panel.", MOVE),
    Action("previous_panel", ("shift+tab",), "Previous panel", "To the panel before.", MOVE),
    Action("panel_models", ("1",), "Models", "To the models.", MOVE),
    Action("panel_queue", ("2",), "Queue", "To the queue; again for the requests and back.", MOVE),
    Action("panel_memory", ("3",), "Memory", "To the memory history.", MOVE),
    Action("panel_events", ("4",), "Events", "To swaps and events.", MOVE),
    Action("panel_log", ("5",), "Log", "To the log.", MOVE),
    Action("escape", ("escape",), "Back", "Close, else clear the filter; never quits.", APP),
    Action("palette", ("colon", "ctrl+p"), "Palette", "Every action and every model by name.", APP, footer=15),
    Action(
        "leave", ("q", "ctrl+c", "ctrl+q"), "Quit", "Leave the view; asks if that would stop models.", APP, footer=1,
        confirm=_ask_leave,
    ),
)  # fmt: skip

BY_ID = {action.id: action for action in ACTIONS}

_KEY_NAMES = {
    "question_mark": "?", "exclamation_mark": "!", "slash": "/", "full_stop": ".", "colon": ":", "escape": "esc",
    "pagedown": "PgDn", "pageup": "PgUp", "up": "↑", "down": "↓", "f1": "F1", "plus": "+", "minus": "-",
    "right_square_bracket": "]", "left_square_bracket": "[",
}  # fmt: skip

NAMES_OF_KEYS = {shown: name for name, shown in _KEY_NAMES.items()}
"""Keys as people write them to their names."""


def key_name(key: str, *, ascii: bool = False) -> str:
    """A key as people write it."""
    if ascii and key in ("up", "down"):
        return key
    return _KEY_NAMES.get(key, key)


def is_there(action: Action, *, readonly: bool, replay: bool) -> bool:
    """A view has this action."""
    other = "live" if replay else "replay"
    return not ((readonly or replay) and action.danger) and action.only != other


def shown(
    *, readonly: bool, replay: bool = False, keys: Mapping[str, tuple[str, ...]] | None = None
) -> tuple[Action, ...]:
    """The actions that a view has, with the keys that the user has given them."""
    own = keys or {}
    have = (action for action in ACTIONS if is_there(action, readonly=readonly, replay=replay))
    return tuple(replace(action, keys=own.get(action.id, action.keys)) for action in have)


def markdown() -> str:
    """The key table of the documentation."""
    rows = ["| key | action | what it does |", "| --- | --- | --- |"]
    for action in ACTIONS:
        keys = " ".join(f"`{key_name(key)}`" for key in action.keys)
        rows.append(f"| {keys} | {action.label} | {action.help} |")
    return "\n".join(rows)


if __name__ == "__main__":
    import sys

    sys.stdout.write(markdown() + "\n")
