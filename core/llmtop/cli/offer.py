"""A ``llmtop`` started where one serves already: the person at the terminal may look at that one instead."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from llmtop.cli.caller import Caller, KeyWanted, Target
from llmtop.cli.context import View
from llmtop.errors import StartError

if TYPE_CHECKING:
    from llmtop.config.resolve import Configuration
    from llmtop.config.spec import Settings

LOOK_S = 2.0
"""Whoever holds the place answers within that, or nothing is offered [s]."""
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Where to ask one that listens everywhere."""


def run_or_attach(view: View, configuration: Configuration) -> int:
    """Run a core and show it; where another one has the port or the state folder, ask whether to attach to that.

    Args:
        view: The terminal view. There is a terminal.
        configuration: What to run.

    Returns:
        Exit code.

    Raises:
        StartError: It cannot start; the holder is no llmtop that answers, or the user wants none of it.
    """
    try:
        return view.run(configuration)
    except StartError as error:
        return _offer(view, configuration.settings, error)


def _offer(view: View, settings: Settings, error: StartError) -> int:
    """Attach to whoever is in the way, or raise the error with what is known of it."""
    from llmtop.remote_router import is_router

    holder = _holder(settings)
    try:
        pid = Caller(holder, LOOK_S).pid()
    except KeyWanted:
        raise StartError(f"{error}; that llmtop wants its key: --api-key KEY, or LLAMA_API_KEY") from None
    except StartError:
        if is_router(holder.url, holder.key):
            raise StartError(f"{error}; `llmtop attach {holder.url}` can show it: llama.cpp's router") from None
        raise error from None
    if not typer.confirm(f"llmtop (pid {pid}) already serves on {holder.url}: attach to it?", default=True):
        raise error
    return view.attach(holder.url, holder.key, readonly=settings.readonly, record=settings.record)


def _holder(settings: Settings) -> Target:
    """The one in the way: the state folder's owner, else who has the port. A port of another user's gets no key."""
    from llmtop.children.owner import read_owner
    from llmtop.children.process import listener

    key = settings.api_keys[0] if settings.api_keys else ""
    owner = read_owner(Path(settings.state_dir))
    if owner is not None and owner.url:
        return Target(owner.url, key, "the state folder's record")
    host = _ANY.get(settings.host, settings.host)
    url = f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"
    return Target(url, key if listener(settings.port) is not None else "", "the port")
