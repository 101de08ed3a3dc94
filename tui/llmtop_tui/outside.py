"""What leaves the screen: the clipboard, a pager, the terminal's mouse."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from llmtop.snapshot import LogLine
from llmtop_tui.format import clean, clock

CLIPBOARDS = (("pbcopy",), ("wl-copy",), ("xclip", "-selection", "clipboard"))
"""Programs that take a text for the clipboard; OSC 52 is sent besides, for terminals elsewhere."""

MOUSE_OFF = "\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l"
MOUSE_ON = "\x1b[?1000h\x1b[?1003h\x1b[?1015h\x1b[?1006h"


def clipboard_command(env: Mapping[str, str]) -> list[str] | None:
    """The program that takes a text here; those for a display only where there is one."""
    needs = {"wl-copy": "WAYLAND_DISPLAY", "xclip": "DISPLAY"}
    for name, *arguments in CLIPBOARDS:
        path = shutil.which(name)
        if path and (name not in needs or env.get(needs[name])):
            return [path, *arguments]
    return None


def pipe(command: list[str], text: str) -> None:
    """Hand a text to a program."""
    subprocess.run(
        command, input=text.encode(), check=False, timeout=5, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def pager(env: Mapping[str, str]) -> list[str] | None:
    """The user's pager, else ``less``, else ``more``; None where there is none."""
    try:
        named = shlex.split(env.get("PAGER", ""))
    except ValueError:
        named = []
    for command in (named, ["less"], ["more"]):
        if command and (path := shutil.which(command[0])):
            return [path, *command[1:]]
    return None


def page(command: list[str], lines: Iterable[LogLine]) -> None:
    """Show lines in a pager until the user leaves it. Their file is for the user alone, and goes then."""
    handle, name = tempfile.mkstemp(prefix="llmtop-", suffix=".log")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(f"{clock(line.at)} {clean(line.model)} {clean(line.text)}\n" for line in lines)
        subprocess.run([*command, name], check=False)
    finally:
        Path(name).unlink(missing_ok=True)
