"""Gives a command options from a table, so that flags, environment and help never differ: the core's, the screen's."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from llmtop.config.rows import ROWS, Row

SCREEN = (
    ("ascii", "LLMTOP_ASCII", "Draw with plain ASCII signs."),
    ("no-mouse", "LLMTOP_NO_MOUSE", "Leave the mouse to the terminal, to select text; m turns it on."),
)
"""What a user may want of the screen: an option, the variable that says the same, help."""


def with_screen(command: Callable[..., int]) -> Callable[..., int]:
    """Add the screen's options to a command that shows it: each sets its variable, which is what the view reads.

    Args:
        command: Gets nothing of them.

    Returns:
        The command as Typer is to see it.
    """
    keys = {name.replace("-", "_"): variable for name, variable, _ in SCREEN}

    def wrapped(**given: Any) -> int:
        for key, variable in keys.items():
            if given.pop(key):
                os.environ[variable] = "1"
        return command(**given)

    added = [
        inspect.Parameter(
            name.replace("-", "_"),
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, typer.Option(f"--{name}", help=f"{text} [dim]{variable}[/dim]")],
        )
        for name, variable, text in SCREEN
    ]
    return _as_seen(wrapped, command, [*_own(command), *added])


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add every option to a command, which gets what was given as one dictionary ``flags``.

    Args:
        command: Takes its own parameters by keyword, and ``flags: dict[str, object]`` with None for what was not given.

    Returns:
        The command as Typer is to see it.
    """
    added = [
        inspect.Parameter(row.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_kind(row)) for row in ROWS
    ]

    def wrapped(**given: Any) -> int:
        flags = {row.key: given.pop(row.key) for row in ROWS}
        return command(**given, flags=flags)

    return _as_seen(wrapped, command, [*(p for p in _own(command) if p.name != "flags"), *added])


def _own(command: Callable[..., int]) -> list[inspect.Parameter]:
    parameters = inspect.signature(command, eval_str=True).parameters.values()
    return [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]


def _as_seen(
    wrapped: Callable[..., int], command: Callable[..., int], parameters: list[inspect.Parameter]
) -> Callable[..., int]:
    """Give a command's wrapper its name, its help and these parameters."""
    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in parameters}
    return wrapped


def _kind(row: Row) -> Any:
    names = [f"--{row.name}/--no-{row.name}" if row.off_switch else f"--{row.name}", *row.short]
    option = typer.Option(
        *names,
        help=" ".join((row.help, *(f"[dim]{name}[/dim]" for name in row.env))),
        metavar="" if row.switch else row.metavar,
        rich_help_panel=row.panel,
    )
    if row.switch:
        return Annotated[bool | None, option]
    return Annotated[list[str] | None, option] if row.many else Annotated[str | None, option]


def merged(before: dict[str, object], flags: dict[str, object]) -> dict[str, object]:
    """Flags given before a command's name with the command's own over them."""
    return before | {name: value for name, value in flags.items() if value is not None and value != []}
