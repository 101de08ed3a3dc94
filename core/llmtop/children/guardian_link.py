"""llmtop's end of the guardian: starts it, tells it of each child, starts it anew should it be gone."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

from llmtop.children import guardian
from llmtop.children.guardian import Ward


class GuardianLink:
    """Keeps the guardian's list equal to the children that run. All methods return at once."""

    def __init__(self) -> None:
        self._wards: dict[int, Ward] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False

    def start(self) -> None:
        """Start the guardian; a second call does nothing while it lives.

        Raises:
            OSError: No process or descriptor left.
        """
        if self._closed or self.alive:
            return
        self._drop()
        self._process = subprocess.Popen(
            [sys.executable, "-I", str(Path(guardian.__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={"PATH": os.defpath},
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        for ward in self._wards.values():
            self._tell("add", ward)

    @property
    def pid(self) -> int | None:
        """The guardian's pid, None when none runs."""
        return self._process.pid if self._process is not None and self.alive else None

    @property
    def alive(self) -> bool:
        """It runs."""
        return self._process is not None and self._process.poll() is None

    def add(self, ward: Ward) -> None:
        """Put a child on the list, or change what is known of it."""
        self._wards[ward.pid] = ward
        self._say("add", ward)

    def remove(self, pid: int) -> None:
        """Take a child off the list: it is gone."""
        if ward := self._wards.pop(pid, None):
            self._say("del", ward)

    def check(self) -> None:
        """Start it anew if something ended it; to be called now and then."""
        if not self._closed and not self.alive:
            with contextlib.suppress(OSError):
                self.start()

    def close(self) -> None:
        """End the guardian in order: it ends what is still on its list, which is nothing after a stop in order."""
        self._closed = True
        self._drop()

    def _say(self, op: str, ward: Ward) -> None:
        if not self._closed and not self._tell(op, ward):
            with contextlib.suppress(OSError):
                self._drop(kill=True)
                self.start()

    def _tell(self, op: str, ward: Ward) -> bool:
        process = self._process
        if process is None or process.stdin is None:
            return False
        try:
            line = guardian.encode(op, ward)
            return os.write(process.stdin.fileno(), line) == len(line)
        except OSError:
            return False

    def _drop(self, *, kill: bool = False) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if kill:
            process.kill()
        if process.stdin is not None:
            process.stdin.close()
        # With an empty list it ends in a moment; else when the last child on it is gone. Nobody waits for that here.
        threading.Thread(target=process.wait, name="guardian-exit", daemon=True).start()
