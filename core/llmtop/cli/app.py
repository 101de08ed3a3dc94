"""Puts the command line together and runs it: one line for every error, exit codes 0, 1 (failed) and 2 (usage)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import typer

from llmtop.cli.context import Invocation, View, say
from llmtop.cli.teach import teach
from llmtop.errors import ConfigError, LlmtopError

GROUPS: dict[str, tuple[str, ...]] = {
    "run": ("serve", "check"),
    "demo": ("demo",),
    "attach": ("attach",),
    "web": ("web",),
    "fit": ("fit",),
    "doctor": ("doctor",),
    "simulate": ("simulate",),
    "talk": ("ps", "swaps", "logs", "load", "evict", "pin", "unpin", "kill", "queue"),
    "neighbours": ("import", "export"),
    "service": ("service",),
}
"""Modules of this package with a function ``register(app)``, and the commands each adds, in the order of ``--help``."""


NAMES_A_MODEL = frozenset({"logs", "load", "evict", "pin", "unpin", "kill"})
"""Commands where ``--`` means what it means elsewhere: a model may be called ``-x``."""
COMPLETES = "_LLMTOP_COMPLETE"
"""Set by a shell's completion function, which runs the program to ask what may follow."""


def build(command: str = "") -> typer.Typer:
    """The command line.

    Args:
        command: The first word of a call: when it is a command, only its group is imported and built.

    Returns:
        The whole of it, or as much as that call needs.
    """
    wanted = [name for name, commands in GROUPS.items() if command in commands]
    app = typer.Typer(
        name="llmtop",
        rich_markup_mode="rich",
        add_completion=not wanted or COMPLETES in os.environ,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name in wanted or GROUPS:
        importlib.import_module(f"llmtop.cli.{name}").register(app)
    teach(app)
    if wanted:
        app.registered_commands = [c for c in app.registered_commands if _name(c) == command]
        app.callback()(_no_options)
    return app


def _name(command: typer.models.CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))


def _first(words: Sequence[str]) -> str:
    """The word that may be a command: of the call, or of the line that a shell wants completed, once it is whole."""
    if COMPLETES in os.environ:
        line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
        typed = line.split()
        return typed[1] if len(typed) > 2 or (len(typed) == 2 and line[-1].isspace()) else ""
    return words[0] if words else ""


def _no_options() -> None:
    """Keep a group a group, whatever number of commands is in it."""


def main(argv: Sequence[str] | None = None, view: View | None = None) -> int:
    """Run the command line.

    Args:
        argv: Words after the program's name; the process's own if None.
        view: The terminal view; without one, plain ``llmtop`` serves.

    Returns:
        Exit code.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started it (>&-)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    words = list(sys.argv[1:] if argv is None else argv)
    cut = words.index("--") if "--" in words and _first(words) not in NAMES_A_MODEL else len(words)
    call = Invocation(view, tuple(words[cut + 1 :]))
    if COMPLETES in os.environ:
        from llmtop.cli.complete import whole_names

        with whole_names(os.environ):
            return _run(words[:cut], call)
    return _run(words[:cut], call)


def _run(words: list[str], call: Invocation) -> int:
    try:
        command = typer.main.get_command(build(_first(words)))
        result = command.main(args=words, prog_name="llmtop", standalone_mode=False, obj=call)
        if result == 130:  # Typer's word for Ctrl-C
            return 1
        return result if isinstance(result, int) else 0
    except ConfigError as error:
        return _fail(str(error), 2)
    except LlmtopError as error:
        return _fail(str(error), 1)
    except typer.Exit as leave:
        return int(leave.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}: mend that, and try again", 1)
    except Exception as error:
        return _unexpected(error)


def _unexpected(error: Exception) -> int:
    tell = getattr(error, "format_message", None)  # Typer's own errors, whichever package they come from
    if callable(tell):
        text, asked = str(tell()).rstrip("."), getattr(getattr(error, "ctx", None), "command_path", "llmtop")
        return _fail(f"{text}; {asked} --help shows what there is", int(getattr(error, "exit_code", 2)))
    if os.environ.get("LLMTOP_DEBUG"):
        raise error
    return _fail(f"{type(error).__name__}: {error} (a bug in llmtop: LLMTOP_DEBUG=1 shows where)", 1)


def _fail(text: str, code: int) -> int:
    say(" ".join(text.split()))
    return code
