"""The front door under clients that are slow, idle, many or large: others are served, and nothing is left behind."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

IDLE = 5000
HEALTH_S_MAX = 0.05
"""Median of ``/health`` beside all the others [s]."""
GROWTH_MAX = 48 * 2**20
"""What a single large body or answer may add to the memory of llmtop [bytes]."""
UPLOAD = 200 * 2**20
PIECE = b"x" * 2**20


class Watch:
    """The descriptors and the memory of a llmtop, before and after."""

    def __init__(self, r: Rig) -> None:
        self._rig = r
        self._process = psutil.Process(r.process.pid)
        self.descriptors = self._process.num_fds()
        self.rss = self._process.memory_info().rss
        self.peak = self.rss

    async def look(self) -> None:
        """Note the peak of the memory, for ever."""
        while True:
            self.peak = max(self.peak, self._process.memory_info().rss)
            await asyncio.sleep(0.02)

    async def nothing_left(self) -> None:
        """Descriptors and requests are as they were; a few kept connections to the child may stay for a second."""

        async def clean() -> bool:
            state = await self._rig.state()
            busy = state["requests"] or state["queue"] or any(m["in_flight"] for m in state["models"])
            return not busy and self._process.num_fds() <= self.descriptors + 2  # this question's own connections

        await self._rig.until(clean, f"no more than {self.descriptors} descriptors, nothing in flight", 10)


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Rig]:
    """A llmtop whose only model is loaded and answers fast."""
    async with rig(tmp_path, {"A": {"tok_rate": 2000}}, "--client-stall", "20") as r:
        async with r.client() as c:
            assert (await r.ask(c, "A")).status_code == 200
        yield r


async def health_s(r: Rig, times: int = 41) -> float:
    """Median time of ``/health`` on connections of its own [s]."""
    took = []
    for _ in range(times):
        start = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
        took.append(time.perf_counter() - start)
        writer.close()
    return statistics.median(took)


@contextlib.contextmanager
def descriptors(wanted: int) -> Iterator[int]:
    """Raise this process's own limit for a while; gives how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    try:
        yield max(soft, limit)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_heads_that_come_a_byte_at_a_time_keep_nobody_out(one: Rig) -> None:
    watch = Watch(one)
    slow = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(300)]
    body = [await asyncio.open_connection("127.0.0.1", one.port) for _ in range(100)]
    for _, writer in body:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
    for byte in b"POST /v1":
        for _, writer in slow + body:
            writer.write(bytes([byte]))
        await asyncio.sleep(0.02)
    assert await health_s(one) < HEALTH_S_MAX
    async with one.client() as c:
        assert (await one.ask(c, "A")).status_code == 200
    assert not (await one.state())["requests"], "a body that is not whole asks for nothing"
    for _, writer in slow + body:
        writer.transport.abort()
    await watch.nothing_left()


async def test_five_thousand_idle_connections_cost_the_others_nothing(one: Rig) -> None:
    watch = Watch(one)
    with descriptors(IDLE + 500) as limit:
        many = min(IDLE, limit - 400)
        clients: list[socket.socket] = []
        try:
            for n in range(many):
                client = socket.socket()
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", one.port))
                clients.append(client)
                if n % 200 == 199:
                    await asyncio.sleep(0.02)  # the backlog is 1,024

            async def taken() -> bool:
                return watch._process.num_fds() >= watch.descriptors + many - 10  # some of before have ended

            await one.until(taken, f"{many} connections are open", 15)
            assert await health_s(one) < HEALTH_S_MAX
            async with one.client() as c:
                assert (await one.ask(c, "A")).status_code == 200
            per_client = (watch._process.memory_info().rss - watch.rss) / many
            assert per_client < 32 * 1024, f"{per_client:.0f} bytes an idle connection"
        finally:
            for client in clients:
                client.close()
        await watch.nothing_left()


async def test_an_upload_of_two_hundred_megabytes_is_no_memory(one: Rig) -> None:
    watch = Watch(one)
    looking = asyncio.create_task(watch.look())
    head = b'{"model": "A", "max_tokens": 1, "prompt": "'
    reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
    ask = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(head) + UPLOAD + 2}\r\n\r\n"
    writer.write(ask.encode() + head)
    for _ in range(UPLOAD // len(PIECE)):
        writer.write(PIECE)
        await writer.drain()
    beside = await health_s(one, 11)
    writer.write(b'"}')
    assert (await asyncio.wait_for(reader.readline(), 20)).startswith(b"HTTP/1.1 200")
    writer.close()
    looking.cancel()
    assert watch.peak - watch.rss < GROWTH_MAX, f"{(watch.peak - watch.rss) >> 20} MiB more"
    assert beside < HEALTH_S_MAX
    assert not list((one.folder / "state").glob("tmp*")), "the body was held in a file without a name"
    await watch.nothing_left()


FLOOD = """
import asyncio, sys


async def serve(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    if not head.startswith(b"POST"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        return writer.close()
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\n")
    sent = 0
    try:
        while True:
            writer.write(b"data: " + b"x" * 65528 + b"\\n\\n")
            await writer.drain()
            sent += 65536
            with open(sys.argv[2], "w") as f:
                f.write(f"{sent}")
    except ConnectionError:
        with open(sys.argv[2], "w") as f:
            f.write(f"{sent} left")


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


asyncio.run(main())
"""
"""A server whose answer has no end and comes as fast as it is taken."""


async def test_a_reader_that_takes_nothing_is_no_memory_and_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / "flood.py").write_text(FLOOD)
    sent = tmp_path / "sent.txt"
    preset = f"version = 1\n[flood]\ncmd = {sys.executable} {tmp_path / 'flood.py'} ${{PORT}} {sent}\nmemory = 1MiB\n"
    (tmp_path / "preset.ini").write_text(preset)
    async with rig(tmp_path, {"A": {}}, "--models-preset", str(tmp_path / "preset.ini")) as r, r.client() as c:
        await r.say(c, "/models/load", model="flood")
        await r.until_state("flood", "loaded")
        await r.ask(c, "A")
        watch = Watch(r)
        looking = asyncio.create_task(watch.look())
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", r.port))
            ask = b'{"model": "flood", "stream": true}'
            head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(ask)
            await loop.sock_sendall(slow, head + ask)
            await asyncio.sleep(1.5)
            first = int(sent.read_text())
            assert (await r.ask(c, "A")).status_code == 200
            assert await health_s(r, 11) < HEALTH_S_MAX
            assert (await r.model("flood"))["in_flight"] == 1
            assert int(sent.read_text()) == first < 16 * 2**20, "the child waits for the client too"
        looking.cancel()
        assert watch.peak - watch.rss < GROWTH_MAX, f"{(watch.peak - watch.rss) >> 20} MiB more"
        await watch.nothing_left()

        async def told() -> bool:
            return "left" in sent.read_text()

        await r.until(told, "the child heard that its reader left")
