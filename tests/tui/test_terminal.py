"""What reaches a real terminal, byte by byte."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
from llmtop_tui.app import LlmtopApp
from llmtop_tui.scene_client import SceneClient
from llmtop_tui.scenes import hostile
print(LlmtopApp(SceneClient(hostile())).run())
"""
KEYS = (b"?", b"\x1b", b"\r", b"\x1b", b"K", b"\x1b", b"l", b"1", b"p", b":", b"\x1b")
COLOUR = re.compile(rb"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|[34]8;[25];[\d;]+)(?:;\d+)*m")
RESTORED = (b"\x1b[?1049l", b"\x1b[?1003l", b"\x1b[?1006l", b"\x1b[?2004l", b"\x1b[?25h")


def _read(terminal: int, quiet_s: float, until: bytes = b"") -> bytes:
    """All output until ``until`` was seen, or nothing came for a while."""
    data, end = b"", time.monotonic() + 20
    while time.monotonic() < end and not (until and until in data):
        if not select.select([terminal], [], [], 20 if until else quiet_s)[0]:
            break
        try:
            data += os.read(terminal, 65536)
        except OSError:  # the other side is closed
            break
    return data


def _run(environment: dict[str, str]) -> bytes:
    """Everything the screen writes while it is walked through and left."""
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover
        variables = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLORTERM", "TEXTUAL_THEME")}
        variables |= {"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"} | environment
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM], variables)
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        data = _read(terminal, 1.0, until=b"QUEUE")
        for key in KEYS:
            data += _read(terminal, 0.3)
            os.write(terminal, key)
        data += _read(terminal, 0.5)
        os.write(terminal, b"q")
        data += _read(terminal, 0.5, until=b"Stop all")
        time.sleep(0.4)  # no yes is heard in the first quarter of a second
        os.write(terminal, b"y")
        return data + _read(terminal, 2.0, until=b"STOP_ALL")
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(terminal)


@pytest.mark.parametrize(
    ("environment", "truecolour", "colour"),
    [
        ({"COLORTERM": "truecolor"}, True, True),
        ({}, False, True),
        ({"NO_COLOR": "1", "COLORTERM": "truecolor"}, False, False),
    ],
)
def test_a_terminal_gets_no_foreign_escape_the_colours_it_knows_and_its_modes_back(
    environment: dict[str, str], truecolour: bool, colour: bool
) -> None:
    data = _run(environment)
    assert b"PWNED" in data
    assert b"\x1b]0;PWNED" not in data
    assert b"\x1b[31mred" not in data
    assert b"\xe2\x80\xae" not in data
    assert (b"38;2;" in data) is truecolour
    assert bool(COLOUR.search(data)) is colour, COLOUR.search(data)
    assert b"STOP_ALL" in data
    assert all(mode in data for mode in RESTORED)
