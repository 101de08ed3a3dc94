"""Notices when the core's loop stands still, and says who held the interpreter meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable

BEAT_S = 0.1
STALL_S = 0.25
"""A loop that has not turned for that long is reported [s]."""
QUIET_S = 10.0
"""Reports are at least that far apart [s]."""
FRAMES = 4


class Watchdog:
    """A thread that expects the loop to beat.

    Args:
        loop: The core's loop.
        report: Called on the loop with kind, model (empty) and text.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, report: Callable[[str, str, str], None]) -> None:
        self._loop = loop
        self._report = report
        self._last = time.monotonic()
        self._handle: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="llmtop watchdog", daemon=True)

    def start(self) -> None:
        """Begin. To be called on the loop."""
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End. To be called on the loop."""
        self._ended.set()
        if self._handle is not None:
            self._handle.cancel()

    def _beat(self) -> None:
        self._last = time.monotonic()
        self._handle = self._loop.call_later(BEAT_S, self._beat)

    def _watch(self) -> None:
        told = float("-inf")
        while not self._ended.wait(BEAT_S):
            now = time.monotonic()
            stood = now - self._last - BEAT_S
            if stood > STALL_S and now - told > QUIET_S:
                told = now
                text = f"the core stood still for {stood * 1000:.0f} ms; the view was in {view_stack()}"
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self._report, "stall", "", text)


def view_stack() -> str:
    """What the main thread does right now: innermost frames first, one line."""
    frame = sys._current_frames().get(  # pyright: ignore[reportPrivateUsage] - there is no public way
        threading.main_thread().ident or 0
    )
    if frame is None:
        return "nothing"
    stack = traceback.extract_stack(frame)[-FRAMES:]
    return " < ".join(f"{f.name} ({f.filename.rsplit('/', 1)[-1]}:{f.lineno})" for f in reversed(stack))
