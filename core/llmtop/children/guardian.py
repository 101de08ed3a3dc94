"""Ends the children of a llmtop that is gone, whatever ended it. A process of its own, in a session of its own.

It reads JSON lines from its standard input, whose other end only llmtop holds: ``{"op": "add", "pid", "start_time",
"exe", "pgid", "stop_timeout_s", "group"}`` and ``{"op": "del", "pid"}``. At the end of the file every child that is
left on the list and is still the same process gets SIGTERM, and its group SIGKILL when its stop timeout is over. Runs
as ``python -I guardian.py`` without the rest of llmtop, so it stands on the standard library (and psutil where there
is no /proc).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from dataclasses import asdict, dataclass

POLL_S = 0.05


@dataclass(frozen=True)
class Ward:
    """A child on the list.

    Args:
        pid: Process id, leader of its session.
        start_time: When it started, as ``start_time`` gives it [s].
        exe: Its executable; empty while that is not settled (a wrapper has yet to run it).
        pgid: Process group.
        stop_timeout_s: Seconds from SIGTERM to SIGKILL [s].
        group: SIGTERM goes to the whole group (servers started through ``cmd``).
    """

    pid: int
    start_time: float
    exe: str = ""
    pgid: int = 0
    stop_timeout_s: float = 10.0
    group: bool = False


def start_time(pid: int) -> float | None:
    """When a process started [s], None if it does not exist or is a zombie.

    Good for comparison only: Linux counts from the boot.
    """
    if os.path.exists("/proc/self/stat"):
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # After the last parenthesis of the name: state is field 3, starttime field 22 (proc_pid_stat(5)).
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else int(fields[19]) / os.sysconf("SC_CLK_TCK")
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except psutil.Error:
        return None


def executable(pid: int) -> str:
    """The file a process runs, empty if that cannot be told."""
    if os.path.exists("/proc/self/exe"):
        try:
            return os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        except OSError:
            return ""
    import psutil

    try:
        return str(psutil.Process(pid).exe())
    except psutil.Error:
        return ""


def same_process(pid: int, started: float, exe: str) -> bool:
    """The process ``pid`` is the one that was recorded: same start and, where both are known, same executable."""
    now = start_time(pid)
    if now is None or abs(now - started) > 0.02:  # two clock ticks: floats of one number, written and read
        return False
    runs = executable(pid)
    return not exe or not runs or runs == exe


def send(ward: Ward, signum: int, *, group: bool) -> None:
    """Signal a child or its group; one that is gone is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if group and ward.pgid > 1:
            os.killpg(ward.pgid, signum)
        else:
            os.kill(ward.pid, signum)


def encode(op: str, ward: Ward) -> bytes:
    """A line for the guardian."""
    return json.dumps({"op": op, **asdict(ward)}).encode() + b"\n"


def read_list(fd: int) -> dict[int, Ward]:
    """Follow the list until the other end is closed, and give what is left on it."""
    wards: dict[int, Ward] = {}
    rest = b""
    while data := os.read(fd, 65536):
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError):
                fields = json.loads(line)
                if fields.pop("op") == "add":
                    wards[fields["pid"]] = Ward(**fields)
                else:
                    wards.pop(fields["pid"], None)
    return wards


def end_all(wards: list[Ward]) -> None:
    """SIGTERM now, SIGKILL to the group of each when its time is over or its leader is gone.

    Return when all are gone.
    """
    wards = [ward for ward in wards if same_process(ward.pid, ward.start_time, ward.exe)]
    for ward in wards:
        send(ward, signal.SIGTERM, group=ward.group)
    begin = time.monotonic()
    while wards:
        time.sleep(POLL_S)
        left: list[Ward] = []
        for ward in wards:
            gone = not same_process(ward.pid, ward.start_time, "")
            if gone or time.monotonic() - begin >= ward.stop_timeout_s:
                send(ward, signal.SIGKILL, group=True)
            else:
                left.append(ward)
        wards = left


def main() -> None:
    """Wait for llmtop's end, then end its children."""
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    os.closerange(3, 4096)
    end_all(list(read_list(0).values()))


if __name__ == "__main__":
    main()
