# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The one dialog: what would happen, what it costs, and a default that changes nothing."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable
from typing import Literal

from textual import events
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from llmtop_tui.questions import Question

Answer = Literal["yes", "keep", "no"]
_KEYS: dict[str, Answer] = {"y": "yes", "k": "keep", "n": "no", "escape": "no", "q": "no", "ctrl+c": "no"}
_BUTTONS: dict[str | None, Answer] = {"yes": "yes", "keep": "keep", "no": "no"}
GUARD_S = 0.25
"""No key says yes so soon after the question came up: it was meant for something else [s]."""


class NameInput(Input):
    """Where a name is typed; it hears nothing as long as the dialog hears no yes."""

    def __init__(self, deaf: Callable[[], bool]) -> None:
        super().__init__(id="name", select_on_focus=False)
        self.cursor_blink = False
        self._deaf = deaf

    def on_key(self, event: events.Key) -> None:
        if self._deaf() and _KEYS.get(event.key) != "no":
            event.stop()
            event.prevent_default()


class ConfirmScreen(ModalScreen[Answer]):
    """Asks a question. ``y`` does it, ``n``, esc and the focused default do not.

    Where a name has to be typed, letters go into it, esc is the no, and there is no yes before the name is there.

    A held key never answers: the key that opened the dialog counts for nothing in it, and in the first quarter of a
    second nothing but a no is heard.
    """

    AUTO_FOCUS = "#name, #no"

    def __init__(self, question: Question, opened_by: str = "") -> None:
        super().__init__()
        self._question = question
        self._opened_by = opened_by
        self._since = time.monotonic()

    def compose(self) -> ComposeResult:
        question = self._question
        typed = bool(question.names)
        with Vertical(id="dialog", classes="-typed" if typed else ""):
            yield Static(Content(question.title), id="ask", markup=False)
            for line in question.lines:
                yield Static(Content(line), classes="fact", markup=False)
            if typed:
                yield NameInput(self._early)
            with Horizontal(id="answers"):
                yield Button(Content(f"{'esc' if typed else 'n'} {question.stay}"), id="no", compact=True)
                if question.keep:
                    yield Button(Content(f"k {question.keep}"), id="keep", compact=True)
                label = f"{'enter' if typed else 'y'} {question.yes}"
                yield Button(Content(label), id="yes", compact=True, disabled=typed)

    def on_mount(self) -> None:
        self._since = time.monotonic()

    def on_key(self, event: events.Key) -> None:
        """Answer by key; keys that do nothing here stop here."""
        key = event.key
        if isinstance(self.focused, Input) and key not in ("escape", "ctrl+c", "tab", "shift+tab"):
            return  # its own
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
        if key != self._opened_by and not (self._early() and answer != "no"):
            self._answer(answer)

    def _early(self) -> bool:
        return time.monotonic() - self._since < GUARD_S

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self.query_one("#yes", Button).disabled = not self._named()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter: a name that is right does it, none at all is the default, a wrong one is there to be mended."""
        event.stop()
        self._answer("yes" if event.value else "no")

    def _named(self) -> bool:
        """The name is there, or none is wanted."""
        names = {_folded(name) for name in self._question.names}
        return not names or _folded(self.query_one(NameInput).value) in names

    def on_button_pressed(self, event: Button.Pressed) -> None:
        event.stop()
        self._answer(_BUTTONS.get(event.button.id))

    def _answer(self, answer: Answer | None) -> None:
        there = {"yes": self._named(), "keep": bool(self._question.keep), "no": True}
        if answer is not None and there[answer]:
            self.dismiss(answer)


def _folded(name: str) -> str:
    """The same for a name from a disk and from a keyboard, which may put an accent together differently."""
    return unicodedata.normalize("NFC", name).strip()
