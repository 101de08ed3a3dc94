"""Children's output on disk: one rotated file a model, written by a thread so that a slow disk holds nobody up."""

from __future__ import annotations

import contextlib
import hashlib
import os
import queue
import threading
from pathlib import Path
from urllib.parse import quote

ROTATE_BYTES = 5 * 2**20
"""Size at which a file is set aside [bytes]; one older file is kept."""

_MAX_WAITING = 256
_LONGEST_NAME = 150


def file_name(model: str) -> str:
    """A file name for a model's id: percent-encoded, and shortened with a hash where the system would refuse it."""
    name = quote(model, safe="")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(model.encode()).hexdigest()[:12]}"
    return f"{name}.log"


class LogWriter:
    """Appends to the models' files. A disk that falls behind loses lines; it never blocks.

    Args:
        folder: Made (0700) with the first line.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._queue: queue.Queue[tuple[str, bytes] | None] = queue.Queue(_MAX_WAITING)
        self._thread: threading.Thread | None = None

    def write(self, model: str, text: str) -> None:
        """Append ``text``; returns at once."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="llmtop-logs", daemon=True)
            self._thread.start()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait((model, text.encode("utf-8", "replace")))

    def close(self) -> None:
        """Write what is waiting and end the thread; may take as long as the disk does, two seconds at most."""
        if self._thread is not None:
            with contextlib.suppress(queue.Full):
                self._queue.put(None, timeout=1)
            self._thread.join(1)
            self._thread = None

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            model, data = item
            with contextlib.suppress(OSError):  # a full disk must not end the log for good
                self._append(self._folder / file_name(model), data)

    def _append(self, path: Path, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.write(fd, data)
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if size >= ROTATE_BYTES:
            path.replace(path.with_name(path.name + ".1"))
