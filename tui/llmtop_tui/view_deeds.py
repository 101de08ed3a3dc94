"""What the keys do to the screen alone."""

from __future__ import annotations

import io
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from textual.app import SuspendNotSupported

from llmtop.snapshot import EventLine, LogLine
from llmtop_tui.actions import Target
from llmtop_tui.format import clean
from llmtop_tui.outside import clipboard_command, page, pager, pipe
from llmtop_tui.panels.log import LogPanel
from llmtop_tui.widgets.line import Line
from llmtop_tui.widgets.models_table import SORTS
from llmtop_tui.widgets.pages import help_page

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


SCREENSHOT = "screen"
"""Name of its delivery; Textual's own would show the path as markup."""


class ViewDeeds:
    """What changes only the screen."""

    def __init__(self, app: LlmtopApp) -> None:
        self.app = app

    def help(self, _: Target) -> None:
        """The keys."""
        app = self.app

        def text() -> list[Line]:
            replay = app.player is not None
            return help_page(readonly=app.readonly, ascii=app.view.glyphs.ascii, replay=replay, keys=app.keys)

        app.open_page("KEYS", text, indent=34)

    def detail(self, target: Target) -> None:
        """A page about the row; a model's page follows what happens to it."""
        item = target.item if target.panel != "models" else target.model
        if item is not None:
            self.app.open_row(item)

    def timeline(self, _: Target) -> None:
        """The swaps of late."""
        self.app.open_timeline()

    def open_log(self, target: Target) -> None:
        """The log in the user's pager: what the log panel shows if it is in use, else that of the model."""
        log = self.app.main.log_panel
        name = log.model if target.panel == "log" else target.model.id if target.model is not None else None
        self.app.run_worker(self._page(name), group="log", exclusive=True, exit_on_error=False)

    async def _page(self, model: str | None) -> None:
        command = pager(os.environ)
        if command is None:
            self.app.tell("no pager found: set PAGER", "error")
            return
        shown = self.app.main.log_panel.items
        lines = tuple(line for line in shown if isinstance(line, LogLine))
        if model is not None:
            try:
                lines = await self.app.client.log(model) or tuple(line for line in lines if line.model == model)
            except Exception as error:  # whatever a client's transport raises
                self.app.tell(f"no log: {error}", "error")
                return
        if not lines:
            self.app.tell("no output yet", "warning")
            return
        try:
            with self.app.suspend():
                page(command, lines)
        except SuspendNotSupported:  # a browser
            self.app.tell("no pager can be shown here: z zooms the log panel", "warning")
        except OSError as error:
            self.app.tell(f"the pager cannot be shown: {error}", "error")
        self.app.set_mouse(self.app.mouse)  # the terminal comes back with the mouse on

    def mouse(self, _: Target) -> None:
        """Mouse off or on."""
        self.app.set_mouse(not self.app.mouse)
        self.app.tell("mouse on" if self.app.mouse else "mouse off: the terminal selects text, m turns it on")

    def copy(self, target: Target) -> None:
        """A line as it stands, else a command that asks the model something."""
        item = target.item
        if isinstance(item, LogLine | EventLine):
            self._copy(clean(item.text), "copied the line")
        elif target.model is not None:
            body = {"model": target.model.id, "messages": [{"role": "user", "content": "Hello"}]}
            url = shlex.quote(f"{target.snapshot.url.rstrip('/')}/v1/chat/completions")
            data = shlex.quote(msgspec.json.encode(body).decode())
            self._copy(
                f"curl {url} -H 'Content-Type: application/json' -d {data}",
                f"copied a curl command for {target.model.id}",
            )

    def copy_json(self, target: Target) -> None:
        """The row as the API tells it."""
        item = target.item if target.item is not None else target.model
        if item is not None:
            self._copy(msgspec.json.format(msgspec.json.encode(item)).decode(), "copied the row as JSON")

    def _copy(self, text: str, done: str) -> None:
        self.app.copy_to_clipboard(text)
        command = clipboard_command(os.environ)
        if command:  # Terminal.app knows no OSC 52
            self.app.run_worker(lambda: pipe(command, text), thread=True, exit_on_error=False)
        self.app.tell(done)

    def screenshot(self, _: Target) -> None:
        """The screen as a file; where the screen is in a browser, it goes there."""
        name = time.strftime("llmtop-%Y%m%d-%H%M%S.svg")
        self.app.deliver_text(
            io.StringIO(self.app.picture()), save_directory=Path.cwd(), save_filename=name, open_method="download",
            mime_type="image/svg+xml", name=SCREENSHOT,
        )  # fmt: skip

    def last(self, _: Target) -> None:
        """The last row; the log follows its end again."""
        panel = self.app.main.active
        if isinstance(panel, LogPanel):
            panel.set_follow(True)
        else:
            panel.move(_FAR)

    def escape(self, _: Target) -> None:
        """Undo the nearest thing that narrows the view."""
        main = self.app.main
        if main.active.pattern:
            main.active.set_filter("")
        elif main.zoomed:
            main.zoom(None)
        elif main.log_panel.model is not None:
            main.log_panel.show_model(None)

    def sort(self, _: Target) -> None:
        """The next column."""
        models = self.app.main.models
        models.sort_by(SORTS[(SORTS.index(models.sort) + 1) % len(SORTS)])


_FAR = 10**9

SIMPLE: dict[str, Callable[[LlmtopApp], object]] = {
    "filter": lambda app: app.main.open_filter(),
    "next": lambda app: app.main.active.move(1),
    "previous": lambda app: app.main.active.move(-1),
    "reverse": lambda app: app.main.models.sort_by(app.main.models.sort),
    "follow": lambda app: app.main.log_panel.set_follow(not app.main.log_panel.follow),
    "wrap": lambda app: app.main.log_panel.set_wrap(not app.main.log_panel.wrap),
    "zoom": lambda app: app.main.zoom(None if app.main.zoomed else app.main.active),
    "down": lambda app: app.main.active.move(1),
    "up": lambda app: app.main.active.move(-1),
    "first": lambda app: app.main.active.move(-_FAR),
    "page_down": lambda app: app.main.active.move(app.main.active.page()),
    "page_up": lambda app: app.main.active.move(-app.main.active.page()),
    "next_panel": lambda app: app.main.use_next(1),
    "previous_panel": lambda app: app.main.use_next(-1),
    "panel_models": lambda app: app.main.use(app.main.models),
    "panel_queue": lambda app: app.main.use_queue(),
    "panel_memory": lambda app: app.main.use(app.main.chart),
    "panel_events": lambda app: app.main.use(app.main.history),
    "panel_log": lambda app: app.main.use(app.main.log_panel),
    "palette": lambda app: app.open_palette(),
}
"""Actions that are one call to the screen."""
