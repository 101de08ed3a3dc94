"""A run written to a file, and read back: JSON lines that hold what the views saw and what the scheduler did.

The first line is ``{"llmtop": version, "started": wall seconds}``. Each line after it has ``t``, seconds since the
start, and either ``snapshot`` (a whole ``Snapshot``), ``event`` and ``actions`` (one step of the scheduler), or
``dropped``, the number of lines that the disk was too slow for. It is read as it was written, and also once ``gzip``
has made it small.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import queue
import threading
import zlib
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import msgspec

from llmtop import __version__
from llmtop.children.text import safe_text
from llmtop.errors import ConfigError, StartError
from llmtop.scheduler.actions import Action
from llmtop.scheduler.events import Event
from llmtop.snapshot import Snapshot

SNAPSHOT_EVERY_S = 0.25
QUEUED = 20_000
"""Lines that may wait for the disk; what comes on top is left out, and counted."""
MAX_BYTES = 4 * 2**30
"""Size at which a recording ends [bytes]: a night of snapshots, and no full disk."""
LONGEST_LINE = 64 * 2**20
"""Longest line that is read [bytes]."""

GZIP = b"\x1f\x8b"
"""How a packed file starts."""

Json: TypeAlias = "str | float | bool | list[Json] | dict[str, Json] | None"


class Header(msgspec.Struct, frozen=True):
    """First line of a recording."""

    llmtop: str
    started: float


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """Any other line.

    Args:
        t: Seconds since the start [s].
        event: What the scheduler was told, with its ``type``.
        actions: What it asked for.
        dropped: Lines left out before this one [1].
        end: Why the recording ends here; empty where it just ends.
    """

    t: float
    snapshot: Snapshot | None = None
    event: dict[str, Any] | None = None
    actions: tuple[dict[str, Any], ...] = ()
    dropped: int = 0
    end: str = ""


class _Step(msgspec.Struct, frozen=True):
    """A line as it is written: the same as ``Line``, not yet plain data."""

    t: float
    event: Event | None
    actions: tuple[Action, ...]


class _Picture(msgspec.Struct, frozen=True):
    t: float
    snapshot: Snapshot


class Recorder:
    """Writes a recording with a thread of its own; its methods return at once and never fail.

    Args:
        path: The file; made with mode 0600, one that is there is written over.
        now: Monotonic time of the start [s].
        wall: Time of day of the start [s since the epoch].

    Attributes:
        problem: Why nothing more is written, in one line; empty while all is well.

    Raises:
        StartError: The file cannot be written.
    """

    def __init__(self, path: str | Path, now: float, wall: float, max_bytes: int = MAX_BYTES) -> None:
        self.problem = ""
        self._path, self._start, self._max_bytes = Path(path), now, max_bytes
        self._next_snapshot = now
        self._dropped = 0
        self._queue: queue.Queue[_Step | _Picture | None] = queue.Queue(QUEUED)
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StartError(f"cannot record to {path}: {error.strerror}") from error
        os.fchmod(handle, 0o600)
        self._file = os.fdopen(handle, "wb")
        self._file.write(msgspec.json.encode(Header(__version__, wall)) + b"\n")
        self._thread = threading.Thread(target=self._work, name="llmtop-record", daemon=True)
        self._thread.start()

    def step(self, event: Event | None, actions: Sequence[Action], now: float) -> None:
        """Record one step of the scheduler."""
        self._put(_Step(now - self._start, event, tuple(actions)))

    def snapshot(self, snapshot: Snapshot, now: float) -> None:
        """Record a snapshot; those that come too close to the one before are left out."""
        if now >= self._next_snapshot:
            self._next_snapshot = now + SNAPSHOT_EVERY_S
            self._put(_Picture(now - self._start, snapshot))

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and close the file; give up after ``timeout_s`` [s]."""
        if not self._thread.is_alive():
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        self._thread.join(timeout_s)

    def _put(self, line: _Step | _Picture) -> None:
        if self.problem:
            return
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _work(self) -> None:
        encoder = msgspec.json.Encoder()
        written, told = 0, 0
        with contextlib.suppress(OSError), self._file as file:
            while (line := self._queue.get()) is not None:
                if self.problem:
                    continue
                text = encoder.encode(line) + b"\n"
                if self._dropped > told:
                    text = encoder.encode(Line(line.t, dropped=self._dropped - told)) + b"\n" + text
                    told = self._dropped
                try:
                    if written + len(text) > self._max_bytes:
                        file.write(encoder.encode(Line(line.t, end="the recording has reached its full size")) + b"\n")
                        self.problem = f"the recording ended: {self._path} has reached {self._max_bytes} bytes"
                    else:
                        file.write(text)
                        written += len(text)
                    if self._queue.empty():
                        file.flush()
                except OSError as error:
                    self.problem = f"the recording ended: {error.strerror}"


def read_recording(path: str | Path) -> Iterator[Line]:
    """Read a recording, line by line. A last line that was cut off (a crash, a full disk) is left out.

    Args:
        path: A file that ``Recorder`` wrote. It is not trusted: all text in it is made safe to show.

    Raises:
        ConfigError: It cannot be read, or is no recording; file and line are in the message.
    """
    with opened(path) as file, contextlib.suppress(EOFError):  # packed, and cut off
        yield from _lines(str(path), file)


@contextlib.contextmanager
def opened(path: str | Path) -> Generator[BinaryIO | gzip.GzipFile]:
    """Open a file to read, unpacked where it is packed. A packed one that is cut off raises EOFError where it ends.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, then or later; the file is in the message.
    """
    try:
        with Path(path).open("rb") as file:
            packed = file.peek(2)[:2] == GZIP
            yield gzip.GzipFile(fileobj=file) if packed else file
    except (gzip.BadGzipFile, zlib.error) as error:
        raise ConfigError(f"{path}: is damaged: {error}") from error
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error


def _lines(path: str, file: BinaryIO | gzip.GzipFile) -> Iterator[Line]:
    number = 1
    try:
        msgspec.json.decode(file.readline(LONGEST_LINE), type=Header)
        while text := file.readline(LONGEST_LINE):
            number += 1
            if not text.endswith(b"\n"):
                return
            yield msgspec.convert(_safe(msgspec.json.decode(text)), Line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        what = "is no recording of llmtop" if number == 1 else "is damaged"
        raise ConfigError(f"{path}:{number}: {what}: {error}") from error


def _safe(value: Json) -> Json:
    """The same data with every text safe to show."""
    if isinstance(value, str):
        return value if value.isprintable() else safe_text(value, 4096)
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if isinstance(value, dict):
        return {key if key.isprintable() else safe_text(key): _safe(item) for key, item in value.items()}
    return value


def is_recording(first_line: bytes) -> bool:
    """The first line of a file is that of a recording."""
    try:
        msgspec.json.decode(first_line, type=Header)
    except (msgspec.DecodeError, msgspec.ValidationError):
        return False
    return True
