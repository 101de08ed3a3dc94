"""What a shell offers when Tab is pressed. Whatever is wrong, it offers nothing: nobody reads errors there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import threading
from collections.abc import Generator, MutableMapping
from typing import Any

import typer

from llmtop.cli.caller import Caller, find
from llmtop.errors import LlmtopError

WITHIN_S = 0.7
"""A llmtop that has not answered by then is not waited for [s]; with the interpreter's start that is under a second."""

MOST = 200
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+=,-]+")
"""Names that a shell takes as they stand. Others are not offered: a shell acts on ``$(…)``, a name may be anything."""


@contextlib.contextmanager
def whole_names(env: MutableMapping[str, str]) -> Generator[None]:
    """Put together what bash splits: for it a colon ends a word, and it wants only what follows the last one.

    Args:
        env: Environment of a completion, ``COMP_WORDS`` with a word a line; bash's is changed.
    """
    words = env.get("COMP_WORDS", "").split("\n")[: int(env.get("COMP_CWORD", "0")) + 1]
    whole: list[str] = []
    for before, word in zip(["", *words], words, strict=False):
        if whole and ":" in {before, word}:
            whole[-1] += word
        else:
            whole.append(word)
    if len(whole) == len(words):
        yield
        return
    env["COMP_WORDS"], env["COMP_CWORD"] = "\n".join(whole), str(len(whole) - 1)
    there = whole[-1].rpartition(":")[0] + ":"
    told = io.StringIO()
    try:
        with contextlib.redirect_stdout(told):
            yield
    finally:
        sys.stdout.write("\n".join(line.removeprefix(there) for line in told.getvalue().splitlines()))


def model_names(context: typer.Context, incomplete: str) -> list[str]:
    """Ids and aliases of the running llmtop's models that begin so.

    Args:
        context: The command's, with its ``--url`` and the like as far as they are typed.
        incomplete: What is typed of the name.
    """
    found: list[str] = []

    def ask() -> None:
        try:
            found.extend(_names(context))
        except (LlmtopError, ValueError, TypeError, KeyError, AttributeError):
            return

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(WITHIN_S)
    return [name for name in list(found) if name.startswith(incomplete) and _PLAIN.fullmatch(name)][:MOST]


def queue_verbs(incomplete: str) -> list[str]:
    """The verbs of the queue that begin so."""
    return [verb for verb in ("hold", "resume", "step") if verb.startswith(incomplete)]


def _names(context: typer.Context) -> list[str]:
    given: dict[str, Any] = {**context.find_root().params, **{k: v for k, v in context.params.items() if v is not None}}
    before: list[str] = given.get("api_key") or []
    key: str | None = given.get("key") or next(iter(before), None)
    url = given.get("url") or (f"http://127.0.0.1:{given['port']}" if given.get("port") else None)
    target = find(url, key, given.get("state") or given.get("state_dir"), os.environ)
    models: list[dict[str, Any]] = json.loads(Caller(target, timeout_s=WITHIN_S).get("/v1/models"))["data"]
    return [str(name) for model in models for name in (model["id"], *model.get("aliases", ()))]
