"""The driver of a view in a browser. ``TEXTUAL_DRIVER`` names it to the process of a tab."""

from __future__ import annotations

import os
import threading
from functools import partial
from typing import Any

from textual import events, messages
from textual.app import App
from textual.drivers.web_driver import WebDriver

LEAVE_S = 5.0
"""A view whose server is gone and that does not come to its end by then is ended hard [s]."""


class TabDriver(WebDriver):
    """Textual's driver for pages, which ends with the server that started it.

    Textual's own goes on without keys when its input ends; a killed server would leave it behind.
    """

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._write = partial(_write, self.fileno)

    def start_application_mode(self) -> None:
        """Begin with the keys in use, as the page does: it can tell of later changes only."""
        super().start_application_mode()
        self._app.call_later(self._app.post_message, events.AppFocus())

    def run_input_thread(self) -> None:
        """Read until the input ends, and end then."""
        super().run_input_thread()
        hard = threading.Timer(LEAVE_S, os._exit, (1,))
        hard.daemon = True
        hard.start()
        self._app.post_message(messages.ExitApp())


def _write(handle: int, data: bytes) -> int:
    """Write; what nobody reads any more is no fault of the view."""
    try:
        return os.write(handle, data)
    except BrokenPipeError:
        return len(data)
