"""Gives a command all options of ``config.options``: one table, so that flags, environment and help never differ."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from llmtop.config.rows import ROWS, Row


def with_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add every option to a command, which gets what was given as one dictionary ``flags``.

    Args:
        command: Takes its own parameters by keyword, and ``flags: dict[str, object]`` with None for what was not given.

    Returns:
        The command as Typer is to see it.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "flags"]
    own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
    added = [
        inspect.Parameter(row.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_kind(row)) for row in ROWS
    ]

    def wrapped(**given: Any) -> int:
        flags = {row.key: given.pop(row.key) for row in ROWS}
        return command(**given, flags=flags)

    wrapped.__name__ = command.__name__
    wrapped.__doc__ = command.__doc__
    wrapped.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    wrapped.__annotations__ = {p.name: p.annotation for p in (*own, *added)}
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
