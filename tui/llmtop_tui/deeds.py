"""What the keys do. Each method ``do_<id>`` carries out one action of the registry; none waits for the core."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec

from llmtop.client import ModelVerb, Reply
from llmtop.snapshot import EventLine, LogLine, Model
from llmtop_tui import questions
from llmtop_tui.actions import Target
from llmtop_tui.format import clean
from llmtop_tui.messages import LogFetched
from llmtop_tui.panels.log import LogPanel
from llmtop_tui.view import holds_memory
from llmtop_tui.widgets.line import Line
from llmtop_tui.widgets.models_table import SORTS
from llmtop_tui.widgets.pages import help_page, item_page

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


class CoreDeeds:
    """The verbs: each is a worker that sends a command and tells what the core answered."""

    def __init__(self, app: LlmtopApp) -> None:
        self.app = app

    def _send(self, command: Awaitable[Reply], done: str = "", unchanged: str = "") -> None:
        self.app.run_worker(self._carry(command, done, unchanged), group="verbs", exit_on_error=False)

    async def _carry(self, command: Awaitable[Reply], done: str, unchanged: str) -> None:
        try:
            reply = await command
        except Exception as error:  # whatever a client's transport raises: the user is told, the view goes on
            self.app.tell(f"the core did not answer: {error}", "error")
            return
        if reply.refusal is not None:
            self.app.tell(reply.refusal.message, "error")
        elif not reply.success:
            self.app.tell("not done", "error")
        elif reply.changed and done:
            self.app.tell(done)
        elif not reply.changed and unchanged:
            self.app.tell(unchanged)

    def _model(self, target: Target) -> Model:
        if target.model is None:
            raise LookupError("no model under the cursor")
        return target.model

    def evict(self, target: Target) -> None:
        """Drain, then unload."""
        model = self._model(target)
        self._send(
            self.app.client.model("evict", model.id, model.instance), unchanged=f"{model.id} is on its way out already"
        )

    def evict_all(self, target: Target) -> None:
        """Evict what is idle and not pinned."""
        asked = {(model.id, model.instance) for model in questions.idle_models(target.snapshot)}
        still = [model for model in questions.idle_models(self.app.newest) if (model.id, model.instance) in asked]
        for model in still:
            self._send(self.app.client.model("evict", model.id, model.instance))

    def pin(self, target: Target) -> None:
        """Pin or unpin."""
        model = self._model(target)
        verb: ModelVerb = "unpin" if model.pinned else "pin"
        self._send(self.app.client.model(verb, model.id, model.instance), done=f"{verb}ned {model.id}, p undoes")

    def load(self, target: Target) -> None:
        """Load; on a model that runs, pick another."""
        model = self._model(target)
        if holds_memory(model) and model.state != "stopping":
            self.app.open_load_picker()
        else:
            self.load_model(model.id)

    def load_model(self, name: str) -> None:
        """Put a load into the queue."""
        self._send(
            self.app.client.model("load", name),
            done=f"{name} will be loaded",
            unchanged=f"{name} is loaded or queued already",
        )

    def kill(self, target: Target) -> None:
        """SIGKILL to the process group."""
        model = self._model(target)
        self._send(
            self.app.client.model("kill", model.id, model.instance),
            done=f"killed {model.id}",
            unchanged=f"{model.id} has no process",
        )

    def cancel(self, target: Target) -> None:
        """Cancel requests, or take the out-of-memory line off."""
        if not target.requests:
            self._send(self.app.client.acknowledge_oom())
            return
        for request in target.requests:
            self._send(self.app.client.cancel(request.id), unchanged="that request is over already")

    def hold(self, target: Target) -> None:
        """Hold the queue or release it."""
        if target.snapshot.hold:
            self._send(self.app.client.queue("resume"), done="the queue goes on")
        else:
            self._send(self.app.client.queue("hold"), done="queue held: . lets one swap through, d releases")

    def step(self, target: Target) -> None:
        """One swap while held."""
        self._send(self.app.client.queue("step"), done="one swap may pass", unchanged="nothing to let through")

    def logs(self, target: Target) -> None:
        """Log of the model, or of all again."""
        model, log = self._model(target), self.app.main.log_panel
        if log.model == model.id:
            log.show_model(None)
        else:
            log.show_model(model.id)
            self._fetch(model.id)
        self.app.main.use(log)

    def _fetch(self, model: str, text: str = "") -> None:
        self.app.run_worker(self._fetch_log(model, text), group="log", exclusive=True, exit_on_error=False)

    async def _fetch_log(self, model: str, text: str) -> None:
        try:
            lines = await self.app.client.log(model)
        except Exception as error:  # as above
            self.app.tell(f"no log: {error}", "error")
            return
        self.app.post_message(LogFetched(model, lines))
        if text:
            self.app.call_later(self.app.main.log_panel.show_text, model, text)

    def alarm(self, target: Target) -> None:
        """Jump to the newest out-of-memory line or failure, in its log."""
        last = target.snapshot.oom.last
        failed = max(
            (m for m in target.snapshot.models if m.failure),
            key=lambda m: m.failure.at if m.failure else 0,
            default=None,
        )
        if last is not None:
            name, text = last.model, last.text
        elif failed is not None and failed.failure is not None:
            name, text = failed.id, failed.failure.message
        else:
            self.app.tell("nothing failed so far")
            return
        log = self.app.main.log_panel
        log.show_model(name)
        self.app.main.models.select(name)
        self.app.main.use(log)
        self._fetch(name, text)


class ViewDeeds:
    """What changes only the screen."""

    def __init__(self, app: LlmtopApp) -> None:
        self.app = app

    def help(self, _: Target) -> None:
        """The keys."""
        app = self.app
        app.open_page("KEYS", lambda: help_page(readonly=app.readonly, ascii=app.view.glyphs.ascii), indent=34)

    def detail(self, target: Target) -> None:
        """A page about the row; a model's page follows what happens to it."""
        item = target.item if target.panel != "models" else target.model
        if item is None:
            return

        def text() -> list[Line]:
            fresh = self.app.view.model(item.id) if isinstance(item, Model) else None
            return item_page(fresh or item, self.app.view)[1]

        self.app.open_page(item_page(item, self.app.view)[0], text)

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
        tool = shutil.which("pbcopy")
        if tool:  # Terminal.app knows no OSC 52
            self.app.run_worker(lambda: _pipe(tool, text), thread=True, exit_on_error=False)
        self.app.tell(done)

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


def _pipe(tool: str, text: str) -> None:
    subprocess.run([tool], input=text.encode(), check=False, timeout=5)


_FAR = 10**9

SIMPLE: dict[str, Callable[[LlmtopApp], object]] = {
    "filter": lambda app: app.main.open_filter(),
    "next": lambda app: app.main.active.move(1),
    "previous": lambda app: app.main.active.move(-1),
    "reverse": lambda app: app.main.models.sort_by(app.main.models.sort),
    "follow": lambda app: app.main.log_panel.set_follow(not app.main.log_panel.follow),
    "wrap": lambda app: app.main.log_panel.set_wrap(not app.main.log_panel.wrap),
    "zoom": lambda app: app.main.zoom(None if app.main.zoomed else app.main.active),
    "pause": lambda app: app.toggle_pause(),
    "down": lambda app: app.main.active.move(1),
    "up": lambda app: app.main.active.move(-1),
    "first": lambda app: app.main.active.move(-_FAR),
    "page_down": lambda app: app.main.active.move(app.main.active.page()),
    "page_up": lambda app: app.main.active.move(-app.main.active.page()),
    "next_panel": lambda app: app.main.use_next(1),
    "previous_panel": lambda app: app.main.use_next(-1),
    "panel_models": lambda app: app.main.use(app.main.models),
    "panel_queue": lambda app: app.main.use(app.main.queue),
    "panel_memory": lambda app: app.main.use(app.main.chart),
    "panel_events": lambda app: app.main.use(app.main.history),
    "panel_log": lambda app: app.main.use(app.main.log_panel),
    "palette": lambda app: app.open_palette(),
}
"""Actions that are one call to the screen."""


def carry_out(app: LlmtopApp, action: str, target: Target) -> None:
    """Do what the registry's action says."""
    simple = SIMPLE.get(action)
    if simple is not None:
        simple(app)
        return
    deeds = app.core_deeds if hasattr(app.core_deeds, action) else app.view_deeds
    call: Callable[[Target], None] = getattr(deeds, action)
    call(target)
