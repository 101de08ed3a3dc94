"""The children on disk: what a llmtop that follows a killed one needs to find and end the survivors."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import msgspec

from llmtop.children.guardian import same_process, start_time

FILE = "children.json"

TERM_S = 2.0
"""From SIGTERM to SIGKILL for a survivor of an earlier run [s]."""


class Record(msgspec.Struct, frozen=True):
    """One child.

    Args:
        pid: Process id, leader of its session and group.
        start_time: When it started, see ``guardian.start_time`` [s].
        exe: Its executable, empty while not settled.
        port: Its loopback port.
        model: Its model's id.
        stop_timeout_s: Seconds it is given to stop [s].
    """

    pid: int
    start_time: float
    exe: str
    port: int
    model: str
    stop_timeout_s: float


class _Book(msgspec.Struct):
    boot: str
    children: list[Record]


def _boot() -> str:
    """Names this boot where start times are counted from it; empty elsewhere."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


class Records:
    """Keeps ``children.json`` equal to the children that run; written whole, 0600, and put in place by a rename."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._children: dict[int, Record] = {}

    def put(self, record: Record) -> None:
        """Note a child, or what has changed of it."""
        self._children[record.pid] = record
        self._write()

    def remove(self, pid: int) -> None:
        """Forget a child: it is gone."""
        if self._children.pop(pid, None) is not None:
            self._write()

    def _write(self) -> None:
        # A disk that refuses costs the trace of a child, not the child.
        with contextlib.suppress(OSError):
            write_private(self._path, msgspec.json.encode(_Book(_boot(), list(self._children.values()))))


def write_private(path: Path, data: bytes) -> None:
    """Replace a file in one step; only its owner may read it.

    Raises:
        OSError: No room, no leave.
    """
    new = path.with_name(path.name + ".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
    new.replace(path)


def recover(state_dir: Path) -> list[str]:
    """End the children that an earlier llmtop left behind; blocks up to some seconds if there are any.

    A process is touched only if pid, start time and executable are those of the record.

    Returns:
        A line for each survivor, for the user.
    """
    path = state_dir / FILE
    try:
        book = msgspec.json.decode(path.read_bytes(), type=_Book)
    except (OSError, msgspec.MsgspecError):
        return []
    survivors = [
        r for r in book.children if book.boot == _boot() and r.pid > 1 and same_process(r.pid, r.start_time, r.exe)
    ]
    for record in survivors:
        _signal(record, signal.SIGTERM)
    end = time.monotonic() + TERM_S
    while time.monotonic() < end and any(_alive(r) for r in survivors):
        time.sleep(0.01)
    killed = {record.pid for record in survivors if _alive(record)}
    for record in survivors:
        _kill_group(record)
    end = time.monotonic() + TERM_S
    while time.monotonic() < end and any(_alive(r) for r in survivors):
        time.sleep(0.01)
    left = [record for record in survivors if _alive(record)]
    with contextlib.suppress(OSError):
        write_private(path, msgspec.json.encode(_Book(_boot(), left)))
    return [_report(record, killed=record.pid in killed, alive=record in left) for record in survivors]


def _alive(record: Record) -> bool:
    return same_process(record.pid, record.start_time, record.exe)


def _signal(record: Record, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(record.pid, signum)


def _kill_group(record: Record) -> None:
    # The leader is ours or has just gone; a group of its number that another session made is not touched.
    now = start_time(record.pid)
    if now is not None and not _alive(record):
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(record.pid, signal.SIGKILL)


def _report(record: Record, *, killed: bool, alive: bool) -> str:
    who = f"{record.model} (pid {record.pid}, port {record.port}), left by an earlier llmtop"
    if alive:
        return f"{who}, survives SIGKILL: its memory stays taken"
    return f"{who}, {'killed' if killed else 'ended'}"
