"""``llmtop attach``: the view of a core that runs elsewhere."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from llmtop.cli.caller import Caller, Target
from llmtop.cli.context import has_terminal, invocation
from llmtop.cli.flags import with_screen
from llmtop.cli.talk import Key, State, target
from llmtop.errors import ConfigError

Where = Annotated[str | None, typer.Argument(metavar="[URL]", help="http://HOST:PORT; else it is looked for.")]
AlsoWhere = Annotated[str | None, typer.Option("--url", metavar="URL", help="The same. [dim]LLMTOP_URL[/dim]")]
Readonly = Annotated[bool, typer.Option("--readonly", help="No keys that change anything.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Run")(with_screen(attach))


def attach(
    context: typer.Context,
    url: Where = None,
    also_url: AlsoWhere = None,
    key: Key = None,
    state: State = None,
    readonly: Readonly = False,
    record: Annotated[
        str, typer.Option("--record", metavar="FILE", help="Write what is shown to a file for --replay.")
    ] = "",
) -> int:
    """Show the screen of a llmtop that runs elsewhere. Leaving the screen leaves it running."""
    call = invocation(context)
    where = target(context, url or also_url, key, state)
    shown = has_terminal() or "TEXTUAL_DRIVER" in os.environ  # a driver has a screen of its own: a browser's
    if call.view is None or not shown:
        raise ConfigError("attach needs a terminal: llmtop ps --watch does without")
    look_first(where)
    return call.view.attach(where.url, where.key, readonly=readonly, record=record)


def look_first(where: Target) -> None:
    """Tell a wrong address or key before a screen is taken.

    Raises:
        StartError: Nothing answers there, it wants its key, or it is no llmtop.
    """
    from llmtop.remote_router import is_router

    if not is_router(where.url, where.key):
        Caller(where).pid()
