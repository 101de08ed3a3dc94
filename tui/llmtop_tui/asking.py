"""From a key to its deed: is it allowed, does it make sense, must the user be asked, does the answer still hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from llmtop_tui.actions import Action, Target
from llmtop_tui.questions import Question
from llmtop_tui.screens.confirm import Answer, ConfirmScreen
from llmtop_tui.view_deeds import SIMPLE

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


class Leave(Enum):
    """How the user left the view."""

    STOP_ALL = "stop all"
    KEEP_SERVING = "keep serving"
    DETACH = "detach"


class Asking:
    """Starts actions; the core is told nothing before the user has agreed to what it costs."""

    def __init__(self, app: LlmtopApp) -> None:
        self._app = app

    def start(self, action: Action, key: str) -> None:
        """Begin an action; ``key`` opened it, empty for mouse and palette."""
        app = self._app
        if isinstance(app.screen, ConfirmScreen) or not app.has_action(action):
            return
        target = app.target
        if not action.applies(target.panel):
            return
        if not action.enabled(target):
            app.tell(action.refused, "warning")
            return
        question = action.confirm(target)
        if question is None:
            self._carry_out(action, target, "yes")
        else:
            screen = ConfirmScreen(self._worded(action, question), key)
            app.push_screen(screen, lambda answer: self._answered(action, target, answer))

    def _worded(self, action: Action, question: Question) -> Question:
        if action.id == "leave" and not self._app.detach_allowed:
            question = replace(question, keep="", lines=question.lines[:-1])
        lines = tuple(self._app.plain(line) for line in question.lines)
        names = (*question.names, *(self._app.plain(name) for name in question.names))  # as it is, or as it is shown
        return replace(question, title=self._app.plain(question.title), lines=lines, names=names)

    def _answered(self, action: Action, target: Target, answer: Answer | None) -> None:
        if answer is None or answer == "no":
            return
        asked = target.model
        if asked is not None and action.id in ("kill", "evict"):
            now = next((m for m in self._app.newest.models if m.id == asked.id), None)
            if now is None or (now.instance, now.pid) != (asked.instance, asked.pid):
                self._app.tell(f"{asked.id} changed while you were asked: nothing was done", "warning")
                return
        self._carry_out(action, target, answer)

    def _carry_out(self, action: Action, target: Target, answer: Answer) -> None:
        if action.id != "leave":
            carry_out(self._app, action.id, target)
        elif not target.embedded:
            self._app.exit(Leave.DETACH)
        else:
            self._app.exit(Leave.KEEP_SERVING if answer == "keep" else Leave.STOP_ALL)


def carry_out(app: LlmtopApp, action: str, target: Target) -> None:
    """Do what the registry's action says."""
    simple = SIMPLE.get(action)
    if simple is not None:
        simple(app)
        return
    for deeds in app.deeds:
        call: Callable[[Target], None] | None = getattr(deeds, action, None)
        if call is not None:
            call(target)
            return
    raise LookupError(f"nothing does {action}")
