"""One llmtop a state folder, and who holds what another one wants."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import msgspec
import psutil

from llmtop.children.process import listener
from llmtop.children.text import safe_text
from llmtop.errors import StartError

FILE = "owner.json"


class Owner(msgspec.Struct, frozen=True):
    """Who runs on a state folder.

    Args:
        pid: Its process.
        url: Its front door, empty before that is open.
    """

    pid: int
    url: str = ""


class Claim:
    """The hold on a state folder; it ends with the process at the latest."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def announce(self, url: str) -> None:
        """Say where the front door is, for commands that look for a running llmtop here."""
        data = msgspec.json.encode(Owner(os.getpid(), url)) + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, data, 0)

    def release(self) -> None:
        """Give the folder free. A second call does nothing."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1


def claim(state_dir: Path, url: str = "") -> Claim:
    """Take the state folder, made 0700 if it is missing.

    Args:
        state_dir: The folder.
        url: Where the front door is or will be.

    Raises:
        StartError: Another llmtop has it, or it cannot be written.
    """
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if state_dir.stat().st_uid == os.getuid():
            state_dir.chmod(0o700)
        fd = os.open(state_dir / FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as e:
        raise StartError(f"state folder {state_dir}: {e.strerror}; name another: --state-dir DIR") from e
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as e:
        os.close(fd)
        raise StartError(_held(state_dir)) from e
    hold = Claim(fd)
    hold.announce(url)
    return hold


def read_owner(state_dir: Path) -> Owner | None:
    """Who runs on a state folder now, None if nobody does."""
    try:
        fd = os.open(state_dir / FILE, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:  # held: what is in it is true
        return _read(fd)
    else:
        return None
    finally:
        os.close(fd)


def _read(fd: int) -> Owner | None:
    with contextlib.suppress(msgspec.MsgspecError, OSError):
        return msgspec.json.decode(os.pread(fd, 4096, 0), type=Owner)
    return None


def _held(state_dir: Path) -> str:
    owner = read_owner(state_dir)
    if owner is None:
        return f"llmtop already runs here (state folder {state_dir}); name another: --state-dir DIR"
    if not owner.url:
        return f"llmtop already runs here: pid {owner.pid} (state folder {state_dir})"
    return f"llmtop already runs here: pid {owner.pid} at {owner.url}; try `llmtop attach {owner.url}`"


def port_owner(port: int) -> str:
    """Who listens on a port, in words; an unseen one too. May take a while."""
    pid = listener(port)
    if pid is None:
        return "another program (of another user, perhaps)"
    try:
        process = psutil.Process(pid)
        name = "llmtop" if any("llmtop" in part for part in process.cmdline()[:3]) else process.name()
    except psutil.Error:
        name = "a program"
    return f"{safe_text(name, 60)}, pid {pid}"


def taken_port(host: str, port: int) -> StartError:
    """The error for a front door whose port is taken: names the holder, and ``llmtop attach`` where that is one."""
    who = port_owner(port)
    todo = (
        f"try `llmtop attach http://{host}:{port}`"
        if who.startswith("llmtop,")
        else "stop it, or choose another: --port N"
    )
    return StartError(f"port {port} on {host} is taken by {who}; {todo}")
