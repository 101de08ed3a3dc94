# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The one dialog: what would happen, what it costs, and a default that changes nothing."""

from __future__ import annotations

import time
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from llmtop_tui.questions import Question

Answer = Literal["yes", "keep", "no"]
_KEYS: dict[str, Answer] = {"y": "yes", "k": "keep", "n": "no", "escape": "no", "q": "no", "ctrl+c": "no"}
_BUTTONS: dict[str | None, Answer] = {"yes": "yes", "keep": "keep", "no": "no"}
GUARD_S = 0.25
"""No key says yes so soon after the question came up: it was meant for something else [s]."""


class ConfirmScreen(ModalScreen[Answer]):
    """Asks a question. ``y`` does it, ``n``, esc and the focused default do not.

    A held key never answers: the key that opened the dialog counts for nothing in it, and in the first quarter of a
    second nothing but a no is heard.
    """

    AUTO_FOCUS = "#no"

    def __init__(self, question: Question, opened_by: str = "") -> None:
        super().__init__()
        self._question = question
        self._opened_by = opened_by
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        question = self._question
        with Vertical(id="dialog"):
            yield Static(Content(question.title), id="ask", markup=False)
            for line in question.lines:
                yield Static(Content(line), classes="fact", markup=False)
            with Horizontal(id="answers"):
                yield Button(Content(f"n {question.stay}"), id="no", compact=True)
                if question.keep:
                    yield Button(Content(f"k {question.keep}"), id="keep", compact=True)
                yield Button(Content(f"y {question.yes}"), id="yes", compact=True)

    def on_mount(self) -> None:
        self._since = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        """Answer by key; keys that do nothing here stop here."""
        key = event.key
        if key in ("tab", "shift+tab", "left", "right"):
            if key in ("left", "right"):
                event.stop()
                (self.focus_next if key == "right" else self.focus_previous)()
            return
        event.stop()
        event.prevent_default()
        answer = _KEYS.get(key)
        if key == "enter" and isinstance(self.focused, Button):
            answer = _BUTTONS.get(self.focused.id)
        early = time.monotonic() - self._since < GUARD_S
        if key != self._opened_by and not (early and answer != "no"):
            self._answer(answer)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self._answer(_BUTTONS.get(event.button.id))

    def _answer(self, answer: Answer | None) -> None:
        if answer is not None and (answer != "keep" or self._question.keep):
            self.dismiss(answer)
