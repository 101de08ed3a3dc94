"""The commands that talk to a running llmtop: look at it, and say its verbs."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Generator, Sequence
from typing import Annotated, Any, cast
from urllib.parse import quote

import typer

from llmtop.children.text import safe_text
from llmtop.cli.caller import Caller, Target, find
from llmtop.cli.complete import model_names, queue_verbs
from llmtop.cli.context import LONGEST, invocation, out, say
from llmtop.cli.jsonform import versioned
from llmtop.errors import ConfigError, StartError

_LOOK, _DO = "Look into it", "Say something to it"

Url = Annotated[str | None, typer.Option("--url", metavar="URL", help="The llmtop to talk to. [dim]LLMTOP_URL[/dim]")]
Key = Annotated[str | None, typer.Option("--api-key", metavar="KEY", help="Its key. [dim]LLAMA_API_KEY[/dim]")]
State = Annotated[
    str | None,
    typer.Option("--state-dir", metavar="DIR", help="Find it by its state folder. [dim]LLMTOP_STATE_DIR[/dim]"),
]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A model's id or alias.", autocompletion=model_names)]
Json = Annotated[bool, typer.Option("--json", help="As JSON, for programs.")]

_VERBS = {
    "load": "Load a model, through the queue like every other load.",
    "evict": "Take a model out: let it finish what it does, then stop it.",
    "pin": "Keep a model: nothing evicts it until it is unpinned.",
    "unpin": "Let a pinned model be evicted again.",
    "kill": "End a model's process at once. What it was answering is lost.",
}
_DONE = {"load": "queued", "evict": "on its way out", "pin": "pinned", "unpin": "unpinned", "kill": "killed"}
_OF_ONE = frozenset({"evict", "kill"})
"""Verbs that may be meant for one instance, and not for one loaded since."""
_WERE = {
    "load": "was there already",
    "evict": "was not running",
    "pin": "was pinned already",
    "unpin": "was not pinned",
    "kill": "was not running",
}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(rich_help_panel=_LOOK)(ps)
    app.command(rich_help_panel=_LOOK)(swaps)
    app.command(rich_help_panel=_LOOK)(logs)
    for verb, text in _VERBS.items():
        app.command(verb, help=text, rich_help_panel=_DO)(_model_command(verb))
    app.command(rich_help_panel=_DO)(queue)


def target(context: typer.Context, url: str | None, key: str | None, state: str | None) -> Target:
    """The llmtop that a command means, by its own options, else by those before its name.

    Raises:
        ConfigError: The URL is none, or there are words after ``--``.
    """
    call = invocation(context)
    call.refuse_child_args(context.info_name or "this command")
    before = call.flags
    keys = before.get("api_key")
    if key is None and isinstance(keys, list | tuple) and keys:
        key = str(cast("Sequence[object]", keys)[0])
    if url is None and isinstance(before.get("port"), str):
        url = f"http://127.0.0.1:{before['port']}"
    folder = before.get("state_dir")
    return find(url, key, state or (folder if isinstance(folder, str) else None), os.environ)


def _caller(context: typer.Context, url: str | None, key: str | None, state: str | None) -> Caller:
    return Caller(target(context, url, key, state))


@contextlib.contextmanager
def _answers(caller: Caller) -> Generator[None]:
    """What is read in here is a llmtop's answer, or an error says that it is none."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        where = caller.target
        raise StartError(f"{where.url} answers, but not as a llmtop of this version ({where.found})") from None


def ps(
    context: typer.Context,
    as_json: Json = False,
    watch: Annotated[bool, typer.Option("--watch", help="Again each second, until Ctrl-C.")] = False,
    url: Url = None,
    key: Key = None,
    state: State = None,
) -> int:
    """Say what a running llmtop does: its models, who waits for what and why, memory.

    --json prints one line: {"schema_version": 1, "version", "pid", "models_max", "hold", "models": […], "queue": […],
    "requests": […], "memory": {…}, "swaps": {…}, "oom": {…} …}, the fields of GET /api/state; sizes in bytes, times in
    seconds. With --watch that is one such line a second (NDJSON).
    """
    caller = _caller(context, url, key, state)

    def look() -> None:
        text = caller.get("/api/state")
        if as_json:
            out(versioned(text))
            return
        from llmtop.cli.tables import show_state

        with _answers(caller):
            show_state(json.loads(text), clear=watch)

    return _again(look, 1.0 if watch else None)


def _again(look: Callable[[], None], every_s: float | None) -> int:
    """Look once, or until Ctrl-C, which is how one leaves and no failure."""
    look()
    try:
        while every_s is not None:
            time.sleep(every_s)
            look()
    except KeyboardInterrupt:
        pass
    return 0


def swaps(context: typer.Context, as_json: Json = False, url: Url = None, key: Key = None, state: State = None) -> int:
    """List the swaps: what was loaded, what had to go for it, and where the time went.

    --json prints one line: {"schema_version": 1, "swaps": [{"id", "model", "reason", "evicted", "at", "result",
    "phases": {"queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s"}, "stops": […]}]}, newest last, null for
    a phase that did not occur.
    """
    caller = _caller(context, url, key, state)
    text = caller.get("/api/swaps")
    if as_json:
        out(versioned(text))
        return 0
    from llmtop.cli.tables import show_swaps

    with _answers(caller):
        show_swaps(json.loads(text))
    return 0


def logs(
    context: typer.Context,
    model: ModelName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with new lines, until Ctrl-C.")] = False,
    url: Url = None,
    key: Key = None,
    state: State = None,
) -> int:
    """Print the output of a model's child, as far as it is kept."""
    caller = _caller(context, url, key, state)
    after = -1

    def look() -> None:
        nonlocal after
        text = caller.get(f"{_path(model, 'log')}?after={after}")
        with _answers(caller):
            lines: list[dict[str, Any]] = json.loads(text)["lines"]
            if lines:
                out("\n".join(safe_text(str(line["text"]), LONGEST) for line in lines))
                after = max(int(line["seq"]) for line in lines)
            elif after < 0 and not follow:
                say(f"nothing is kept of {model}: it was not loaded since that llmtop started")

    return _again(look, 0.5 if follow else None)


def _path(model: str, verb: str) -> str:
    return f"/api/models/{quote(model, safe='', errors='surrogateescape')}/{verb}"


def _model_command(verb: str) -> Callable[..., int]:
    def say_it(
        context: typer.Context, model: str, url: str | None, key: str | None, state: str | None, **body: object
    ) -> int:
        if not model:
            raise ConfigError(f"{verb} needs a model's name: llmtop ps lists them")
        caller = _caller(context, url, key, state)
        with _answers(caller):
            changed = caller.post(_path(model, verb), body)["changed"]
        say(f"{model} {(_DONE if changed else _WERE)[verb]}")
        return 0

    def command(context: typer.Context, model: ModelName, url: Url = None, key: Key = None, state: State = None) -> int:
        return say_it(context, model, url, key, state)

    def command_of_one(
        context: typer.Context,
        model: ModelName,
        instance: Annotated[
            int | None,
            typer.Option("--instance", metavar="N", help="Only if it is still this one: ps --json tells the number."),
        ] = None,
        url: Url = None,
        key: Key = None,
        state: State = None,
    ) -> int:
        return say_it(context, model, url, key, state, **({} if instance is None else {"instance": instance}))

    return command_of_one if verb in _OF_ONE else command


def queue(
    context: typer.Context,
    verb: Annotated[
        str | None,
        typer.Argument(metavar="[hold|resume|step]", help="Left out: it is shown.", autocompletion=queue_verbs),
    ] = None,
    url: Url = None,
    key: Key = None,
    state: State = None,
) -> int:
    """Show the queue; hold it, so that nothing is swapped; let one swap happen; or let it go on."""
    if verb is not None and verb not in {"hold", "resume", "step"}:
        raise typer.BadParameter(f"{verb!r} is no verb of the queue: hold, resume or step")
    caller = _caller(context, url, key, state)
    if verb is None:
        from llmtop.cli.tables import show_queue

        text = caller.get("/api/state")
        with _answers(caller):
            show_queue(json.loads(text))
        return 0
    with _answers(caller):
        changed = caller.post(f"/api/queue/{verb}")["changed"]
    told = {"hold": "held", "resume": "resumed", "step": "takes one step"}
    were = {"hold": "was held already", "resume": "was not held", "step": "has nobody who could take a step"}
    say(f"queue {(told if changed else were)[verb]}")
    return 0
