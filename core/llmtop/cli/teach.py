"""What ``--help`` shows beside the options: the text as it flows, and a few calls to begin with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import typer

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "": (
        ("demo", "nothing needed: tiny models that it writes itself"),
        ("--models-dir ~/models --models-max 2", "serve a folder, two models at once, and show it"),
        ("serve --models-preset models.ini --memory-budget 48GiB -- -ngl 99 --flash-attn on", ""),
        ("ps", "what a running llmtop is doing"),
    ),
    "serve": (
        ("serve --models-dir ~/models --models-max 2", ""),
        ("serve --models-preset models.ini -- -ngl 99 -c 8192", "what follows -- goes to every llama-server"),
        ("serve --host 0.0.0.0 --api-key-file keys.txt", "for other machines; without a key it is refused"),
        ("attach", "the screen, from another terminal"),
    ),
    "check": (
        ("check --models-preset models.ini", "the options of llmtop serve; it says what each child would get"),
        ("check --models-dir ~/models -- -c 8192", ""),
    ),
    "demo": (
        ("demo", ""),
        ("demo --seconds 20 --simulated", "twenty seconds, without a llama-server"),
    ),
    "attach": (
        ("attach", "the one of this machine"),
        ("attach http://mini.local:8080 --api-key KEY", "another machine's"),
    ),
    "web": (
        ("web", "the screen of this machine's llmtop, in a browser"),
        ("web http://mini.local:8080 --readonly", "another machine's, to look at only"),
    ),
    "ps": (
        ("ps", ""),
        ("ps --watch", "again each second, without the screen"),
        ("ps --json | jq -r '.models[] | select(.state == \"loaded\").id'", ""),
    ),
    "swaps": (
        ("swaps", ""),
        ("swaps --json | jq '.swaps[-1].phases'", "where the last one's time went"),
    ),
    "logs": (
        ("logs qwen3-14b-q5", ""),
        ("logs qwen3-14b-q5 -f", "new lines as they come, the next load's too"),
    ),
    "load": (("load qwen3-14b-q5", "told once it is queued; llmtop ps shows how it goes"),),
    "evict": (
        ("evict qwen3-14b-q5", "what it is answering, it finishes"),
        ("evict qwen3-14b-q5 --instance 7", "only if it is still the one that ps --json told of"),
    ),
    "pin": (("pin qwen3-14b-q5", "until llmtop unpin; for good: pin = true in the preset"),),
    "unpin": (("unpin qwen3-14b-q5", ""),),
    "kill": (
        ("kill qwen3-14b-q5", ""),
        ("kill qwen3-14b-q5 --instance 7", "only if it is still the one that ps --json told of"),
    ),
    "queue": (
        ("queue", "who waits, and why"),
        ("queue hold", "swap nothing; loaded models go on answering"),
        ("queue step", "while held: let the first in the queue have its swap"),
        ("queue resume", ""),
    ),
    "fit": (
        ("fit --models-dir ~/models -- -c 8192", "a context of 8192 tokens: the KV cache is a large part"),
        ("fit --models-dir ~/models --memory-budget 48GiB", "as it would be on another machine"),
    ),
    "doctor": (
        ("doctor", ""),
        ("doctor --memory --memory-budget auto", "only what is measured, and the budget"),
    ),
    "simulate": (
        ("simulate run.jsonl", "a trace, or what --record wrote"),
        ("simulate run.jsonl --sweep models-max=1..4 max-wait=5,15,60", "compare, and recommend"),
        ("simulate run.jsonl --size qwen3=18GiB --load qwen3=12 --memory-budget 48GiB", ""),
    ),
    "import": (
        ("import llama-swap config.yaml -o models.ini", ""),
        ("check --models-preset models.ini", "then look at it"),
    ),
    "export": (
        ("export opencode > opencode.json", ""),
        ("export curl", "two calls to try"),
    ),
    "service": (
        ("service install --print --models-dir ~/models", "show the file, do nothing"),
        ("service install --models-dir ~/models --models-max 2 -- -ngl 99", ""),
        ("service status", ""),
    ),
}
"""By command, "" for llmtop itself: the words of a call, and what it is for."""


def teach(app: typer.Typer, examples: Mapping[str, tuple[tuple[str, str], ...]] = EXAMPLES) -> None:
    """Give every command its help as flowing text, and its examples below."""
    for command in app.registered_commands:
        name = command.name or str(getattr(command.callback, "__name__", ""))
        command.help = flowing(command.help or inspect.getdoc(command.callback) or "")
        command.epilog = _shown(examples.get(name, ())) + (command.epilog or "")
    if (root := app.registered_callback) is not None and root.callback is not None:
        root.help = flowing(inspect.getdoc(root.callback) or "")
        root.epilog = _shown(examples[""]) + (root.epilog or "")


def flowing(text: str) -> str:
    """A docstring with one line a paragraph: the terminal's width breaks it, not the source's."""
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text).split("\n\n"))


def _shown(calls: tuple[tuple[str, str], ...]) -> str:
    if not calls:
        return ""
    lines = [f"llmtop {words}" + (f"  [dim]# {why}[/dim]" if why else "") for words, why in calls]
    return "\n".join(["[bold]Examples[/bold]", "", *lines, ""])
