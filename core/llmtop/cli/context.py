"""What a command knows beyond its own parameters: the view, the program's flags, the words after ``--``."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import typer

from llmtop.children.text import safe_text
from llmtop.errors import ConfigError

if TYPE_CHECKING:
    from llmtop.config.resolve import Configuration


LONGEST = 2000
"""Longest line to stderr that is printed whole [characters]: a failed load tells the child's last lines."""


class View(Protocol):
    """A terminal view, as the command line knows it. Every method returns an exit code."""

    def run(self, configuration: Configuration) -> int:
        """Run a core in this process and show it."""
        ...

    def attach(self, url: str, key: str, *, readonly: bool, record: str) -> int:
        """Show a core that runs elsewhere."""
        ...

    def web(self, url: str, key: str, *, readonly: bool, host: str, port: int) -> int:
        """Serve views of a core that runs elsewhere to browsers of this machine."""
        ...

    def replay(self, path: str) -> int:
        """Show a recorded run."""
        ...


@dataclass
class Invocation:
    """One call of the program.

    Args:
        view: The terminal view; None where only the core is installed.
        child_args: The words after ``--``, untouched.
        flags: What was given before the command's name; the command's own flags go over them.
    """

    view: View | None = None
    child_args: tuple[str, ...] = ()
    flags: dict[str, object] = field(default_factory=dict[str, object])

    def refuse_child_args(self, command: str) -> None:
        """Say that a command starts no children.

        Raises:
            ConfigError: There are words after ``--``.
        """
        if self.child_args:
            raise ConfigError(f"{command} hands nothing on to a llama-server: leave out what follows --")


def invocation(context: typer.Context) -> Invocation:
    """The call that this context belongs to."""
    found = context.find_root().obj
    assert isinstance(found, Invocation)
    return found


def say(line: str) -> None:
    """Print one line to stderr, as llmtop; no terminal acts on what is in it."""
    print(f"llmtop: {safe_text(line, LONGEST)}", file=sys.stderr, flush=True)  # noqa: T201


def out(text: str) -> None:
    """Print to stdout.

    Raises:
        typer.Exit: The reader has left (``| head``), which is no failure.
    """
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        raise typer.Exit(0) from None


def has_terminal() -> bool:
    """There is a person to show a screen to."""
    return sys.stdin.isatty() and sys.stdout.isatty()
