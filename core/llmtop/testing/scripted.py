"""A server that says what no real one would, byte by byte, over real sockets; for what follows another's events."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any

from llmtop.remote import RemoteClient
from llmtop.remote_router import RouterClient
from llmtop.snapshot import Snapshot

FEED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
"""The head of a stream of events that ends with its connection."""
PATIENCE_S = 20.0
"""Nothing takes longer that is not broken [s]."""


def whole(status: str, body: bytes = b"", kind: str = "application/json") -> bytes:
    """A complete answer."""
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Asked:
    """One request, and the way to answer it."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *rest = head.decode().split("\r\n")
        self.method, self.path, _ = first.split()
        self.headers = dict(line.lower().split(": ", 1) for line in rest if line)
        self._reader, self._writer = reader, writer

    async def say(self, data: bytes) -> None:
        """Send it."""
        self._writer.write(data)
        await self._writer.drain()

    async def left(self) -> None:
        """Until the client has closed its side."""
        assert await self._reader.read() == b""


Script = Callable[[Asked], Awaitable[None]]


class Server:
    """Answers by the last word of a path: one script after the other, the last one for ever; 404 where there is none.

    Attributes:
        asked: All requests so far.
        url: Where it listens, or did.
    """

    def __init__(self, **scripts: Script | Sequence[Script]) -> None:
        self.scripts = {name: [script] if callable(script) else list(script) for name, script in scripts.items()}
        self.asked: list[Asked] = []
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    def times(self, path: str) -> int:
        """How often a path was asked for."""
        return sum(asked.path == path for asked in self.asked)

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.add(asyncio.create_task(self._answer(reader, writer)))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError, asyncio.IncompleteReadError):
            asked = Asked(await reader.readuntil(b"\r\n\r\n"), reader, writer)
            self.asked.append(asked)
            scripts = self.scripts.get(asked.path.rsplit("/", 1)[1], [answers(whole("404 Not Found"))])
            await (scripts.pop(0) if len(scripts) > 1 else scripts[0])(asked)

    @contextlib.asynccontextmanager
    async def up(self, port: int = 0) -> AsyncGenerator[Server]:
        """Serve, on a free port if 0; at the end all its connections are closed."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            told = await asyncio.gather(*self._tasks, return_exceptions=True)
            self._tasks.clear()
            assert not [fault for fault in told if isinstance(fault, Exception)]


def answers(*parts: bytes, stay: bool = False) -> Script:
    """Say this, and close the connection, or wait until the client does."""

    async def script(asked: Asked) -> None:
        for part in parts:
            await asked.say(part)
        if stay:
            await asked.left()

    return script


async def until(test: Callable[[], Any]) -> None:
    """Wait for something.

    Raises:
        TimeoutError: It did not come within ``PATIENCE_S``.
    """
    async with asyncio.timeout(PATIENCE_S):
        while not test():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def following(client: RemoteClient | RouterClient) -> AsyncGenerator[AsyncGenerator[Snapshot]]:
    """The pictures of a client, for ``PATIENCE_S`` at most; at the end it lets go of its core."""
    async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(client.changes()) as changes:
        try:
            yield changes
        finally:
            await client.aclose()
