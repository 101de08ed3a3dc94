"""``llmtop demo``: everything at work, with nothing needed."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from llmtop.cli.context import has_terminal, invocation, say
from llmtop.cli.flags import with_screen
from llmtop.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Run")(with_screen(demo))


def demo(
    context: typer.Context,
    traffic: Annotated[bool, typer.Option("--traffic/--no-traffic", help="Ask the models now and then.")] = True,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.1, metavar="N", help="End by itself after N seconds.")
    ] = None,
    simulated: Annotated[bool, typer.Option("--simulated", help="Simulated children, whatever is installed.")] = False,
    llama_server: Annotated[
        str | None, typer.Option("--llama-server", metavar="PATH", help="The llama-server to run.")
    ] = None,
    port: Annotated[
        str | None, typer.Option("--port", metavar="PORT", help="Port to listen on. Default: a free one.")
    ] = None,
    models_max: Annotated[
        str | None, typer.Option("--models-max", metavar="N", help="At most N models at once. Default 2.")
    ] = None,
    memory_budget: Annotated[
        str | None, typer.Option("--memory-budget", metavar="SIZE", help="auto, off or a size.")
    ] = None,
) -> int:
    """Show what llmtop does: four tiny models that it writes itself, room for two, and a little traffic.

    The children are real llama-servers where one is found, else simulated ones; the first line says which. Port and
    state are the demo's own, and nothing is left behind.
    """
    from llmtop.demo.stage import stage
    from llmtop.demo.traffic import Traffic

    call = invocation(context)
    call.refuse_child_args("demo")
    if simulated and llama_server:
        raise ConfigError("--simulated and --llama-server contradict each other: leave one out")
    flags: dict[str, object] = {
        "llama_server": llama_server,
        "port": port,
        "models_max": models_max,
        "memory_budget": memory_budget,
    }
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # until the core takes it: the folder is cleared away
    shown = call.view is not None and has_terminal()
    with stage(flags, os.environ, simulated=simulated) as configuration:
        settings = configuration.settings
        assert configuration.demo is not None
        say(f"demo with {configuration.demo.server}, at http://{settings.host}:{settings.port}")
        clients = Traffic(
            f"http://{settings.host}:{settings.port}",
            "",
            tuple(configuration.catalog.models),
            told=None if shown else say,
            asks=traffic,
            tokens=150 if configuration.demo.real else 30,
            seconds=seconds,
            over=lambda: os.kill(os.getpid(), signal.SIGTERM),
        )
        clients.start()
        try:
            if shown and call.view is not None:
                code = call.view.run(configuration)
            else:
                from llmtop.core import serve

                code = serve(configuration)
        finally:
            clients.stop()
    say(f"demo over: {clients.tally.summary()}")
    return code
