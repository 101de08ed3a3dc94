"""``llmtop web``: the view of a core that runs elsewhere, in a browser of this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from llmtop.cli.attach import AlsoWhere, Readonly, Where, look_first
from llmtop.cli.context import invocation
from llmtop.cli.flags import with_screen
from llmtop.cli.talk import Key, State, target
from llmtop.errors import ConfigError

PORT = 8081


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Run")(with_screen(web))


def web(
    context: typer.Context,
    url: Where = None,
    also_url: AlsoWhere = None,
    key: Key = None,
    state: State = None,
    readonly: Readonly = False,
    host: Annotated[str, typer.Option("--host", metavar="ADDR", help="A loopback address to listen at.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="The port for browsers; 0 takes a free one.")
    ] = PORT,
) -> int:
    r"""Show the screen of a running llmtop in a browser of this machine.

    It prints an address with a key in it, a new one at each start. Whoever
    opens it has the keys of the screen: keep it to yourself, or give --readonly.

    Closing a tab, q and Ctrl-C end views only: what they show goes on.

    From another machine: ssh -L 8081:127.0.0.1:8081 HOST, and open the same
    address there.

    It needs the extra: pip install 'llmtop-swap\[web]'
    """
    call = invocation(context)
    where = target(context, url or also_url, key, state)
    if call.view is None:
        raise ConfigError("web has no screen to show here: run it as llmtop")
    from llmtop.config.options import is_loopback

    if not is_loopback(host):
        raise ConfigError(f"--host {host}: web listens on this machine only (127.0.0.1, ::1, localhost); use ssh -L")
    look_first(where)
    return call.view.web(where.url, where.key, readonly=readonly, host=host, port=port)
