"""A program in a pseudo-terminal of its own: what it writes, when, and what it costs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import signal
import struct
import termios
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.bench import servers
else:
    import servers

ROWS, COLUMNS = 40, 120


@dataclass(frozen=True)
class Cost:
    """What some seconds of a program took.

    Args:
        cpu: Share of one core [1].
        bytes_per_s: Bytes to the terminal.
        rss: Resident memory at the end [bytes].
    """

    cpu: float
    bytes_per_s: float
    rss: int


class Terminal:
    """Starts a program in a terminal of 120 by 40; everything it writes is read at once.

    Args:
        argv: The program.
        env: Its environment.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.began = time.perf_counter()
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
            os.execvpe(argv[0], list(argv), dict(env))
        self.total = 0
        self._recent = b""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the other side is closed
            while data := os.read(self._terminal, 65536):
                with self._news:
                    self.total += len(data)
                    self._recent = (self._recent + data)[-2_000_000:]
                    self._news.notify_all()

    def forget(self) -> None:
        """Look for what comes from now on."""
        with self._news:
            self._recent = b""

    def until(self, marker: bytes, timeout_s: float = 20.0) -> float | None:
        """Wait for something on the screen; gives when it came [s, perf_counter], None if it did not."""
        with self._news:
            return time.perf_counter() if self._news.wait_for(lambda: marker in self._recent, timeout_s) else None

    def latency_ms(self, key: bytes, marker: bytes, timeout_s: float = 5.0) -> float | None:
        """From a key to what it does [ms]."""
        self.forget()
        began = time.perf_counter()
        os.write(self._terminal, key)
        seen = self.until(marker, timeout_s)
        return None if seen is None else (seen - began) * 1e3

    def press(self, key: bytes) -> None:
        """Press a key."""
        os.write(self._terminal, key)

    def cost(self, seconds: float) -> Cost:
        """Let it run for a while."""
        size, cpu, began = self.total, servers.cpu_s(self.pid), time.perf_counter()
        time.sleep(seconds)
        took = time.perf_counter() - began
        rss = int(psutil.Process(self.pid).memory_info().rss)
        return Cost((servers.cpu_s(self.pid) - cpu) / took, (self.total - size) / took, rss)

    def close(self) -> None:
        """Kill it."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._reader.join(5)
        os.close(self._terminal)
