"""The commands for llmtop's neighbours: ``import``, ``export``, ``service``."""

from __future__ import annotations

import json
import os
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer

from llmtop.cli.caller import Caller
from llmtop.cli.context import invocation, out, say
from llmtop.cli.talk import Key, State, Url, target
from llmtop.errors import ConfigError, StartError

_PANEL = "Neighbours"
FORMATS = ("llama-swap",)
KINDS = ("openwebui", "opencode", "aider", "continue", "curl", "grafana")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("import", rich_help_panel=_PANEL)(import_)
    app.command(rich_help_panel=_PANEL)(export)


def _formats(incomplete: str) -> list[str]:
    return [name for name in FORMATS if name.startswith(incomplete)]


def _kinds(incomplete: str) -> list[str]:
    return [name for name in KINDS if name.startswith(incomplete)]


def import_(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="llama-swap", help="Whose file it is.", autocompletion=_formats)],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Its configuration (YAML).")],
    output: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write the preset there; it must not exist yet."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> int:
    """Turn the configuration of llama-swap into a preset file. Starts nothing, changes nothing of it.

    What has no equivalent stands as a comment where it was, and as a line on stderr. Look at the result with llmtop
    check --models-preset FILE.
    """
    from llmtop.neighbours.llama_swap import convert, read_yaml

    invocation(context).refuse_child_args("import")
    if source not in FORMATS:
        raise typer.BadParameter(f"{source!r} cannot be imported: {', '.join(FORMATS)} can")
    made = convert(read_yaml(file), os.environ, _options())
    for note in made.notes:
        say(note)
    if output is None:
        out(made.text)
    else:
        _write(Path(output).expanduser(), made.text, force=force)
        say(f"{made.models} model(s) written to {output}: llmtop check --models-preset {output} looks at them")
    return 0


def _options() -> Any:
    """What the llama-server here understands; None where there is none."""
    from llmtop.config.server import find_server

    try:
        return find_server("", os.environ)
    except StartError:
        return None


def _write(path: Path, text: str, *, force: bool) -> None:
    """Write a file that only its owner can read: its variables may hold secrets."""
    try:
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
        with os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ConfigError(f"{path} exists: name another file, or give --force") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def export(
    context: typer.Context,
    kind: Annotated[str, typer.Argument(metavar=f"[{'|'.join(KINDS)}]", help="What it is for.", autocompletion=_kinds)],
    url: Url = None,
    key: Key = None,
    state: State = None,
) -> int:
    """Print what points a client at the running llmtop: its URL and models, a placeholder where the key goes.

    grafana prints a dashboard for the metrics of GET /metrics, and needs no running llmtop.
    """
    if kind not in KINDS:
        raise typer.BadParameter(f"{kind!r} is none of {', '.join(KINDS)}")
    if kind == "grafana":
        invocation(context).refuse_child_args("export")
        out((resources.files("llmtop.neighbours") / "grafana.json").read_text("utf-8"))
        return 0
    from llmtop.neighbours.clients import CLIENTS

    where = target(context, url, key, state)
    data: list[dict[str, Any]] = json.loads(Caller(where).get("/v1/models"))["data"]
    models = [name for model in data if (name := str(model["id"])).isprintable()]
    if not models:
        raise StartError(f"{where.url} has no models: llmtop check says why")
    out(CLIENTS[kind](reachable(where.url), models))
    return 0


def reachable(url: str) -> str:
    """A URL that a client can use: one that listens everywhere is reached on this machine."""
    for everywhere in ("//0.0.0.0", "//[::]"):
        url = url.replace(everywhere, "//127.0.0.1", 1)
    return url
