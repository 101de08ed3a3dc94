"""The access log: a line for each answer, gathered and written a few times a second."""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop, TimerHandle
from logging import INFO, Formatter, LogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path

FLUSH_S = 0.5
MAX_BYTES = 5 * 2**20
LINES_MAX = 20_000
"""Lines kept between two writes; more are counted, not kept [1]."""


class AccessLog:
    """Appends to a rotated file that only its owner can read.

    Args:
        loop: The core's loop.
        path: The file.
    """

    def __init__(self, loop: AbstractEventLoop, path: Path) -> None:
        self._loop = loop
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
        self._file = RotatingFileHandler(path, maxBytes=MAX_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(Formatter("%(message)s"))
        self._lines: list[str] = []
        self._dropped = 0
        self._timer: TimerHandle | None = None

    def line(
        self, request: str, model: str, path: str, status: int, queue_ms: int, load_ms: int, total_ms: float
    ) -> None:
        """One answer. Waits and total in milliseconds."""
        if len(self._lines) >= LINES_MAX:
            self._dropped += 1
            return
        self._lines.append(
            f"{time.time():.3f} {request} {status} {model} {path} queue={queue_ms} load={load_ms} total={total_ms:.1f}"
        )
        if self._timer is None:
            self._timer = self._loop.call_later(FLUSH_S, self._flush)

    def _flush(self) -> None:
        self._timer = None
        lines, self._lines = self._lines, []
        if self._dropped:
            lines.append(f"{time.time():.3f} - {self._dropped} more lines were not written")
            self._dropped = 0
        if lines:
            self._file.emit(LogRecord("access", INFO, "", 0, "\n".join(lines), None, None))

    def close(self) -> None:
        """Write what is left."""
        if self._timer is not None:
            self._timer.cancel()
        self._flush()
        self._file.close()
