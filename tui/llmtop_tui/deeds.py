"""What the keys do. Each method ``do_<id>`` carries out one action of the registry; none waits for the core."""

from __future__ import annotations

import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from llmtop.client import ModelVerb, Reply
from llmtop.snapshot import Model
from llmtop_tui import questions
from llmtop_tui.actions import Target
from llmtop_tui.messages import LogFetched
from llmtop_tui.view import HELD, holds_memory

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


SEEN_S = 2.0
"""By then a snapshot shows what a key did [s]."""
_QUEUE = "\0queue"


class Toggles:
    """What keys that turn something on and off did last.

    A key pressed again before a snapshot shows what it did must undo it, not do it once more.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, tuple[bool, float]] = {}

    def flip(self, name: str, shown: bool) -> bool:
        """The state to ask for now, where ``shown`` is on the screen."""
        wanted, at = self._wanted.get(name, (shown, 0.0))
        now = time.monotonic()
        target = not (wanted if now - at < SEEN_S else shown)
        self._wanted[name] = (target, now)
        return target

    def forget(self, name: str | None) -> None:
        """The core did not do it."""
        if name is not None:
            self._wanted.pop(name, None)


class CoreDeeds:
    """The verbs: each is a worker that sends a command and tells what the core answered."""

    def __init__(self, app: LlmtopApp) -> None:
        self.app = app
        self._toggles = Toggles()

    def _send(self, command: Awaitable[Reply], done: str = "", unchanged: str = "", toggle: str | None = None) -> None:
        self.app.run_worker(self._carry(command, done, unchanged, toggle), group="verbs", exit_on_error=False)

    async def _carry(self, command: Awaitable[Reply], done: str, unchanged: str, toggle: str | None) -> None:
        try:
            reply = await command
        except Exception as error:  # whatever a client's transport raises: the user is told, the view goes on
            self._toggles.forget(toggle)
            self.app.tell(f"the core did not answer: {error}", "error")
            return
        self.app.watch_core.pace.hurry()
        if not reply.success:
            self._toggles.forget(toggle)
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
        verb: ModelVerb = "pin" if self._toggles.flip(model.id, model.pinned) else "unpin"
        command = self.app.client.model(verb, model.id, model.instance)
        self._send(command, done=f"{verb}ned {model.id}, p undoes", toggle=model.id)

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
        if self._toggles.flip(_QUEUE, target.snapshot.hold):
            held = "queue held: . lets one swap through, d releases"
            self._send(self.app.client.queue("hold"), done=held, toggle=_QUEUE)
        else:
            self._send(self.app.client.queue("resume"), done="the queue goes on", toggle=_QUEUE)

    def step(self, target: Target) -> None:
        """One swap while held."""
        swap = target.snapshot.next_swap.removesuffix(HELD)
        done = f"one swap may pass: {swap}" if swap else "the next swap may pass"
        self._send(self.app.client.queue("step"), done=done, unchanged="nothing to let through")

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
