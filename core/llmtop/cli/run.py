"""The commands that start something, or look at what would be started: ``llmtop`` itself, ``serve``, ``check``."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from llmtop.cli.context import has_terminal, invocation, out, say
from llmtop.cli.flags import merged, with_options, with_screen
from llmtop.errors import ConfigError

CODES = """
[bold]Exit codes[/bold]  0 done; 1 it failed, or check found a fault; 2 wrong use, or a configuration that cannot start
"""


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.callback(invoke_without_command=True, epilog=CODES)(with_options(with_screen(root)))
    app.command(rich_help_panel="Run")(with_options(serve))
    app.command(rich_help_panel="Look into it")(with_options(check))


def root(
    context: typer.Context,
    flags: dict[str, object],
    version: Annotated[bool, typer.Option("--version", help="Say the version and leave.")] = False,
    replay: Annotated[str | None, typer.Option("--replay", metavar="FILE", help="Show a recorded run.")] = None,
) -> int:
    """Run several local models behind one address, swapping them strictly one after the other, and show all of it live.

    Arguments after -- go to every llama-server. Every option can be set in the environment as well: --models-max as
    LLMTOP_MODELS_MAX, and so on; where llama.cpp has a variable for it, that one counts too.
    """
    call = invocation(context)
    call.flags = flags
    if version:
        from llmtop import __version__

        out(f"llmtop {__version__}")
        raise typer.Exit(0)
    if context.invoked_subcommand is not None:
        return 0
    if replay is not None:
        if call.view is None or not has_terminal():
            raise ConfigError("--replay needs a terminal")
        call.refuse_child_args("--replay")
        return call.view.replay(replay)
    if call.view is not None and has_terminal():
        from llmtop.cli.offer import run_or_attach
        from llmtop.config.resolve import resolve

        return run_or_attach(call.view, resolve(flags, os.environ, call.child_args))
    say("no terminal here: serving without the view, as llmtop serve does")
    return _serve(flags, call.child_args)


def serve(context: typer.Context, flags: dict[str, object]) -> int:
    """Run without the view: for launchd, systemd, boxes without a terminal. llmtop attach shows it from elsewhere."""
    call = invocation(context)
    return _serve(merged(call.flags, flags), call.child_args)


def _serve(flags: dict[str, object], child_args: tuple[str, ...]) -> int:
    from llmtop.config.resolve import resolve

    configuration = resolve(flags, os.environ, child_args)
    from llmtop.core import (
        serve as run_core,
    )  # after the configuration: a fault in it is told without the core's imports

    return run_core(configuration)


def check(
    context: typer.Context,
    flags: dict[str, object],
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, for programs.")] = False,
) -> int:
    """Read the whole configuration and say all that is wrong with it. Starts nothing; exit code 1 if something is.

    A fault is a line FILE:LINE: what is wrong; what to do.

    --json prints {"schema_version": 1, "faults": […], "warnings": […], "models": [{"id", "aliases", "source",
    "problem", "args", "origins"}], "models_max", "models_max_source", "budget", "server"}.
    """
    from llmtop.cli.report import machine_report, report
    from llmtop.config.examine import examine

    call = invocation(context)
    configuration, faults = examine(merged(call.flags, flags), os.environ, call.child_args)
    if as_json:
        from llmtop.cli.jsonform import encoded

        out(encoded(machine_report(configuration, faults)))
    else:
        out(report(configuration, faults))
    return 1 if faults else 0
