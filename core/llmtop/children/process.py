"""One child process.

Started in a session of its own, signalled only while it cannot have been reaped, reaped on the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from llmtop.children.exits import watch_exit

_REAP_AGAIN_S = 0.002


def start_process(argv: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a child with three pipes, leader of a new session. Blocks until it runs; to be called off the loop.

    Raises:
        OSError: No such file, not executable, no descriptor or process left.
        ValueError: A NUL in an argument.
    """
    return subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        bufsize=0,
    )


def run_quietly(argv: Sequence[str], env: Mapping[str, str], timeout_s: float) -> None:
    """Run a command to its end, its output thrown away. Blocks.

    Raises:
        OSError: It cannot be started.
        subprocess.SubprocessError: It failed, or took longer than ``timeout_s`` [s].
    """
    subprocess.run(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=timeout_s,
        check=True,
    )


class ChildProcess:
    """A started child.

    Its exit is seen without reaping; until ``reap``, which runs on the loop as every signal does, its pid and group
    are its own.

    Args:
        popen: From ``start_process``; stdout and stderr are the caller's to read and close.
        on_exit: Called once on the loop after it has ended and was reaped.
    """

    def __init__(self, popen: subprocess.Popen[bytes], on_exit: Callable[[], None]) -> None:
        self.pid = popen.pid
        self.reaped = False
        self._popen = popen
        self._on_exit = on_exit
        self._loop = asyncio.get_running_loop()
        assert popen.stdin is not None
        os.set_blocking(popen.stdin.fileno(), False)
        self._unwatch = watch_exit(popen.pid, self._ended)

    def send(self, signum: int, *, group: bool) -> None:
        """Signal the process or its group; nothing if it was reaped."""
        if self.reaped:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self.pid, signum)
            else:
                os.kill(self.pid, signum)

    def write(self, line: bytes) -> bool:
        """Write a line to its stdin; False if it does not take it now."""
        stdin = self._popen.stdin
        if self.reaped or stdin is None or stdin.closed:
            return False
        try:
            return os.write(stdin.fileno(), line) == len(line)
        except OSError:
            return False

    def close(self) -> None:
        """End the watch; what still runs of the group gets SIGKILL."""
        self.send(signal.SIGKILL, group=True)
        self._unwatch()
        for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    @property
    def status(self) -> tuple[int | None, int | None]:
        """Exit status and signal number: one of them once it was reaped."""
        code = self._popen.returncode
        if code is None:
            return None, None
        return (code, None) if code >= 0 else (None, -code)

    def _ended(self) -> None:
        # A zombie leader still owns its group's number: what is left of the group can only be ours.
        self.send(signal.SIGKILL, group=True)
        if self._popen.poll() is None:  # kqueue tells a moment before the process can be reaped
            self._loop.call_later(_REAP_AGAIN_S, self._ended)
            return
        self.reaped = True
        self._unwatch()
        if self._popen.stdin is not None:
            with contextlib.suppress(OSError):
                self._popen.stdin.close()
        self._on_exit()


def group_exists(pgid: int) -> bool:
    """The group has a member, if only a zombie. Quick; once False the number may be taken by others."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group of zombies
        pass
    return True


def group_member(pgid: int) -> int | None:
    """The pid of a member that is no zombie, None if there is none. Looks at every process: off the loop."""
    return next((process.pid for process in psutil.process_iter() if _in_group(process, pgid)), None)


def _in_group(process: psutil.Process, pgid: int) -> bool:
    try:
        return os.getpgid(process.pid) == pgid and process.status() != psutil.STATUS_ZOMBIE
    except (OSError, psutil.Error):
        return False


_LETTERS = {
    "running": "R",
    "sleeping": "S",
    "disk-sleep": "D",
    "stopped": "T",
    "zombie": "Z",
    "idle": "I",
    "waking": "W",
}


def process_state(pid: int) -> str:
    """The state of a process as ps writes it in one letter, ``?`` if it cannot be told."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    try:
        return _LETTERS.get(psutil.Process(pid).status(), "?")
    except psutil.Error:
        return "?"


def listener_in_group(port: int, pgid: int) -> bool | None:
    """Whether the listening socket of ``port`` belongs to a process of the group.

    None if that cannot be told: its owner cannot be seen, or is younger than the group's leader (a container that the
    leader asked for). Slow: off the loop.
    """
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == pgid and _listens(process, port):
                return True
        except (OSError, psutil.Error):
            continue
    owner = listener(port)
    try:
        if owner is not None and psutil.Process(owner).create_time() < psutil.Process(pgid).create_time():
            return False
    except psutil.Error:
        pass
    return None


def listener(port: int) -> int | None:
    """The pid of who listens on a TCP port of this machine, None if nobody does or it cannot be seen.

    Slow: off the loop.
    """
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):  # macOS shows other users' sockets to root only
        return next((p.pid for p in psutil.process_iter() if _listens(p, port)), None)
    return next(
        (c.pid for c in connections if c.pid and c.status == psutil.CONN_LISTEN and _port(c.laddr) == port), None
    )


def _listens(process: psutil.Process, port: int) -> bool:
    try:
        return any(c.status == psutil.CONN_LISTEN and _port(c.laddr) == port for c in process.net_connections("tcp"))
    except (psutil.Error, OSError):
        return False


def _port(address: object) -> int:
    return int(getattr(address, "port", 0))  # an unbound socket has an empty tuple
