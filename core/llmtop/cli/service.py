"""``llmtop service``: llmtop started by the system, and ended by it in order."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmtop.cli.context import invocation, out, say
from llmtop.cli.flags import merged, with_options
from llmtop.errors import StartError

if TYPE_CHECKING:
    from llmtop.neighbours.units import Service

VERBS = ("install", "uninstall", "status")
TMUX = """
[bold]In a terminal that stays[/bold], the screen included, instead of a service:

  tmux new-session -d -s llmtop 'llmtop --models-dir ~/models'
  tmux attach -t llmtop        (leave it with Ctrl-B d; it goes on)
"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Neighbours", epilog=TMUX)(with_options(service))


def _verbs(incomplete: str) -> list[str]:
    return [verb for verb in VERBS if verb.startswith(incomplete)]


def service(
    context: typer.Context,
    flags: dict[str, object],
    verb: Annotated[str, typer.Argument(metavar=f"[{'|'.join(VERBS)}]", help="What to do.", autocompletion=_verbs)],
    only_print: Annotated[bool, typer.Option("--print", help="Print the file, and do nothing.")] = False,
) -> int:
    """Run llmtop serve with these options when you log in: a launchd agent (macOS) or a systemd user unit (Linux).

    It is stopped in order: requests in flight get their grace, children are ended one and all. Its output is in the
    journal (journalctl --user -u llmtop), on macOS in logs/service.log of the state folder. llmtop attach shows it.
    """
    from llmtop.neighbours.units import commands, place

    if verb not in VERBS:
        raise typer.BadParameter(f"{verb!r} is none of {', '.join(VERBS)}")
    call = invocation(context)
    path = place(sys.platform, os.environ)
    todo = commands(verb, sys.platform, path, os.getuid())
    if verb == "install":
        made = _service(merged(call.flags, flags), call.child_args)
        text = _file(made)
        if only_print:
            out(text)
            return 0
        _write(path, text, Path(made.log))
        if sys.platform == "darwin":
            _replace(path, made.stop_s)
        return _all(todo, f"installed: {path}")
    if only_print:
        out("\n".join(" ".join(words) for words in todo))
        return 0
    if verb == "status":
        say(f"{path} {'is there' if path.exists() else 'is not there: llmtop service install writes it'}")
        return 0 if _run(todo[0]) == 0 else 1
    if not path.exists():
        say(f"{path} is not there: nothing to uninstall")
        return 0
    for words in todo:
        _run(words)
    path.unlink(missing_ok=True)
    if sys.platform != "darwin":
        _run(("systemctl", "--user", "daemon-reload"))
    say(f"uninstalled: {path}")
    return 0


def _service(flags: dict[str, object], child_args: tuple[str, ...]) -> Service:
    """The service, once its configuration is known to be good."""
    from llmtop.config.resolve import resolve
    from llmtop.config.rows import ROWS
    from llmtop.neighbours.units import service as make

    variables = {name for row in ROWS for name in (row.variable, *row.env)}
    for name in sorted(variables & os.environ.keys()):
        say(f"{name} is set here, and will not be in the service: give it as an option")
    env = {name: value for name, value in os.environ.items() if name not in variables}
    configuration = resolve(flags, env, child_args)
    return make(configuration, flags, child_args, python=sys.executable)


def _file(made: Service) -> str:
    from llmtop.neighbours.units import launchd_plist, systemd_unit

    return launchd_plist(made).decode() if sys.platform == "darwin" else systemd_unit(made)


def _write(path: Path, text: str, log: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        for folder in (log.parent.parent, log.parent):  # the mode holds for the last one made
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as error:
        raise StartError(f"{path} cannot be written: {error.strerror}") from None


def _replace(path: Path, stop_s: int) -> None:
    """End an older agent of the same name, and wait until it is gone: launchd takes no second one."""
    from llmtop.neighbours.units import commands

    gone_by = time.monotonic() + stop_s
    _run(commands("uninstall", sys.platform, path, os.getuid())[0], quiet=True)
    look = commands("status", sys.platform, path, os.getuid())[0]
    while _run(look, quiet=True) == 0 and time.monotonic() < gone_by:
        time.sleep(0.2)


def _all(todo: tuple[tuple[str, ...], ...], done: str) -> int:
    for words in todo:
        if _run(words) != 0:
            say(f"{' '.join(words)} failed: the file is written, run that yourself where it can work")
            return 1
    say(done)
    if sys.platform != "darwin":
        say("it ends when you log out, unless you say: loginctl enable-linger")
    return 0


def _run(words: tuple[str, ...], *, quiet: bool = False) -> int:
    """Run a command with its output on this terminal; 127 where there is none of that name."""
    sink = subprocess.DEVNULL if quiet else None
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, check=False).returncode
    except OSError as error:
        if not quiet:
            say(f"{words[0]}: {error.strerror}")
        return 127
