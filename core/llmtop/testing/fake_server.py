#!/usr/bin/env python3
"""A simulated ``llama-server`` for tests, and for ``llmtop demo`` where no real one is at hand. Run as a file.

For ``MODEL.gguf`` it reads ``MODEL.json`` (see ``fake_model.KNOBS``) and appends what happens to it to
``MODEL.events.jsonl`` there, or in the folder ``$LLMTOP_FAKE_EVENTS``: one JSON object a line, ``t`` in seconds since
the epoch. A model without a ``.json`` loads in 1.5 s, prints size lines and answers with letters at 40 tokens a
second.

It keeps to what the real one does: child mode when ``LLAMA_SERVER_ROUTER_PORT`` is set (states on stdout, commands on
stdin, read only once it is loaded; leaves at once when stdin ends; after SIGTERM it closes its port and waits for
stdin), 503 while loading, the key on all routes but ``/health`` and ``/v1/models``, sleep and wake, and that ``GET
/slots`` wakes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Coroutine
from typing import Any

if not __package__:  # run as a file, without site packages: it starts sooner
    sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from llmtop.testing.fake_http import Front
from llmtop.testing.fake_model import HELP, Model, option, say

_EXIT_COMMAND = b"cmd_router_to_child:exit"


class Life:
    """What goes on besides requests: load, commands, signals, sleep, noise."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.knobs = model.knobs
        self.server: asyncio.Server | None = None
        self.leaving = False
        self.tasks: list[asyncio.Task[None]] = []

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something in the background."""
        self.tasks.append(asyncio.get_running_loop().create_task(work))

    async def load(self) -> None:
        """Loading, then ready."""
        model, knobs = self.model, self.knobs
        if not knobs["stdin_after_load"]:
            self.start(self.commands())
        lines = [*(model.size_lines() if knobs["sizes"] else []), *knobs["load_lines"]]
        steps = max(10, len(lines))
        for i in range(steps):
            model.tell("loading", {"stages": ["text_model"], "current": "text_model", "value": i / steps})
            if i < len(lines):
                say(lines[i])
            await asyncio.sleep(knobs["load_ms"] / 1000 / steps)
        if knobs["exit_at_load"] is not None:
            model.exit(knobs["exit_at_load"])
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.terminate)
        model.state, model.used = "ready", time.monotonic()
        model.note("ready")
        say("srv  llama_server: model loaded")
        model.tell("ready", {"id": model.alias, "object": "model", "meta": {"n_ctx": 4096, "size": 1}})
        if knobs["stdin_after_load"]:
            self.start(self.commands())
        self.start(self.doze())

    async def commands(self) -> None:
        """What the parent says on stdin."""
        if not self.model.child_mode:
            return
        reader = asyncio.StreamReader()
        try:
            await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        except ValueError:  # a file or /dev/null: it is at its end
            reader.feed_eof()
        async for line in reader:
            if not self.knobs["ignore_stdin"] and line.startswith(_EXIT_COMMAND):
                self.model.note("exit_command")
                self.start(self.leave())
        if not self.knobs["ignore_stdin"]:
            self.model.note("stdin_eof")
            self.model.exit(1)

    def terminate(self) -> None:
        """SIGTERM once loaded. In child mode the real one closes its port and goes on waiting for stdin."""
        self.model.note("term")
        if self.knobs["ignore_term"]:
            return
        if self.leaving:
            say("Received second interrupt, terminating immediately.")
            self.model.exit(1)
        if self.model.child_mode:
            self.leaving = True
            if self.server is not None:
                self.server.close()
        else:
            self.start(self.leave())

    async def leave(self) -> None:
        """An exit in order."""
        self.leaving = True
        await asyncio.sleep(self.knobs["stop_ms"] / 1000)
        say("srv    operator(): cleaning up before exit...")
        self.model.exit(0)

    async def doze(self) -> None:
        """Sleep after idleness."""
        model, limit = self.model, self.knobs["sleep_idle_s"]
        while limit:
            await asyncio.sleep(0.02)
            if model.state == "ready" and not model.busy and time.monotonic() - model.used > limit:
                model.state = "sleeping"
                model.note("sleep")
                model.tell("sleeping")

    async def wake(self) -> None:
        """Be awake; several may ask at once."""
        model = self.model
        if model.state == "sleeping":
            model.state = "waking"
            await asyncio.sleep(self.knobs["wake_ms"] / 1000)
            model.state = "ready"
            model.note("wake")
            model.tell("ready", {})
        while model.state == "waking":  # noqa: ASYNC110 (a simulation may poll)
            await asyncio.sleep(0.005)

    async def noise(self) -> None:
        """Lines without end."""
        n = 0
        begin = time.monotonic()
        while self.knobs["flood"]:
            await asyncio.sleep(0.02)
            due = int((time.monotonic() - begin) * self.knobs["flood"])
            block = "".join(f"slot update_slots: id  0 | task {i} | [bold]noise[/bold] {i}\n" for i in range(n, due))
            n = due
            os.write(2, block.encode())


def misbehave(knobs: dict[str, Any]) -> None:
    """What a badly behaved child does to its pipes right at the start."""
    if knobs["fork_holder"] and os.fork() == 0:
        if knobs["fork_holder"] == "session":
            os.setsid()
        time.sleep(20)
        os._exit(0)
    if knobs["binary"]:
        os.write(2, bytes(range(256)) * 8 + b"\x1b[31m\x1b]0;title\x07\xff\xfe\n")
    if knobs["long_line"]:
        left = b"x" * knobs["long_line"]
        while left:
            left = left[os.write(2, left) :]
        os.write(2, b"\n")
    if knobs["close_stdout"]:
        os.close(1)


async def serve(model: Model) -> None:
    """Live."""
    life = Life(model)
    front = Front(model, life.wake)
    host, port = option(("--host",), "LLAMA_ARG_HOST", "127.0.0.1"), option(("--port",), "LLAMA_ARG_PORT", "8080")
    try:
        life.server = await asyncio.start_server(front.connection, host, int(port), limit=2**20)
    except OSError:
        say(f"srv         start: couldn't bind HTTP server socket, hostname: {host}, port: {port}")
        say("srv  llama_server: exiting due to HTTP server error")
        model.exit(1)
    say(f"srv  llama_server: listening on http://{host}:{port}")
    await asyncio.gather(life.load(), life.noise(), asyncio.Event().wait())


def main() -> None:
    """Answer a question about the program, or be a server."""
    asked = set(sys.argv[1:])
    if asked & {"--help", "-h", "--usage"}:
        sys.stdout.write(HELP)
    elif "--version" in asked:
        sys.stderr.write("version: 11434 (simulated)\n")
    elif "--list-devices" in asked:
        sys.stdout.write("Available devices:\n")
    elif not asked & {"-m", "--model", "-hf", "--hf-repo"} and "LLAMA_ARG_MODEL" not in os.environ:
        say("srv  llama_server: starting server in router mode")
        time.sleep(60)
    else:
        model = Model()
        env = {k: v for k, v in os.environ.items() if k.startswith(("LLAMA", "LLMTOP", "GGML"))}
        model.note("spawn", argv=sys.argv[1:], env=env)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if model.knobs["ignore_term"] else signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        misbehave(model.knobs)
        if problem := model.problem():
            say(problem)
            say(f"llama_model_load: error loading model: llama_model_loader: failed to load model from {model.path}")
            say("srv  llama_server: exiting due to model loading error")
            model.exit(1)
        asyncio.run(serve(model))


if __name__ == "__main__":
    main()
