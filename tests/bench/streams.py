"""Clients of streams, many in one process: when each event came, and what stays open."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

EVENT, END = b"data: ", b"\r\n0\r\n\r\n"
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Heard:
    """Some streams that ran side by side.

    Args:
        first_ms: Time to the first event, one a stream [ms].
        gaps_ms: Time from one arrival to the next of the same stream [ms].
        events: Events of all of them.
        took_s: From the first request to the last end [s].
    """

    first_ms: tuple[float, ...]
    gaps_ms: tuple[float, ...]
    events: int
    took_s: float


class Reader(asyncio.Protocol):
    """One client: sends its request and notes when events come.

    Args:
        request: Bytes to send.
        until_first: It is content with the first event.
    """

    def __init__(self, request: bytes, *, until_first: bool = False) -> None:
        self._request = request
        self._until_first = until_first
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began = 0.0
        self.came: list[float] = []
        self.events = 0
        self._tail = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.began = time.perf_counter()
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if not self.came and not data.startswith(b"HTTP/1.1 200") and not self._tail:
            self._end(RuntimeError(f"not a stream: {data[:300]!r}"))
            return
        found = data.count(EVENT)
        if found:
            self.came.append(time.perf_counter())
            self.events += found
        self._tail = (self._tail + data)[-len(END) :]
        if self._tail == END or (found and self._until_first):
            self._end(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._end(exc or RuntimeError("the stream was cut"))

    def _end(self, error: Exception | None) -> None:
        if self.over.done():
            return
        if error is None:
            self.over.set_result(None)
        else:
            self.over.set_exception(error)


def request_of(path: str, body: Mapping[str, Any]) -> bytes:
    """A POST as it goes on the wire."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


async def _open(port: int, request: bytes, *, until_first: bool = False) -> Reader:
    loop = asyncio.get_running_loop()
    _, reader = await loop.create_connection(lambda: Reader(request, until_first=until_first), "127.0.0.1", port)
    return reader


async def _read(port: int, requests: list[bytes]) -> Heard:
    began = time.perf_counter()
    readers = [await _open(port, request) for request in requests]
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(reader.over for reader in readers))
    took = time.perf_counter() - began
    for reader in readers:
        reader.transport.abort()
    gaps = [(b - a) * 1e3 for reader in readers for a, b in zip(reader.came, reader.came[1:], strict=False)]
    first = [(reader.came[0] - reader.began) * 1e3 for reader in readers]
    return Heard(tuple(first), tuple(gaps), sum(reader.events for reader in readers), took)


def read(port: int, path: str, bodies: list[dict[str, Any]]) -> Heard:
    """Read streams side by side to their ends.

    Raises:
        RuntimeError: One of them was refused or cut.
    """
    return asyncio.run(_read(port, [request_of(path, body) for body in bodies]))


class Held:
    """Streams that are open and stay so, on a loop that runs only while more are opened.

    Args:
        port: Where.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._loop = asyncio.new_event_loop()
        self._readers: list[Reader] = []

    def open(self, count: int, path: str, body: Mapping[str, Any]) -> None:
        """Open some, and wait for the first event of each."""
        self._loop.run_until_complete(self._open(count, request_of(path, body)))

    async def _open(self, count: int, request: bytes) -> None:
        for start in range(0, count, 50):
            some = [await _open(self._port, request, until_first=True) for _ in range(start, min(count, start + 50))]
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.gather(*(reader.over for reader in some))
            self._readers += some

    def close(self) -> None:
        """Leave."""
        for reader in self._readers:
            reader.transport.abort()
        self._loop.run_until_complete(asyncio.sleep(0.01))
        self._loop.close()


def quantile(values: tuple[float, ...], share: float) -> float:
    """The value below which that share lies; 0 of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0
