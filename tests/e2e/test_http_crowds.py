"""Crowds that come, drip and go in all the wrong moments: others are served meanwhile, and nothing of them is left."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import resource
import socket
import struct
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psutil
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

_log = logging.getLogger(__name__)
DRIPPING = 500
DRIPS = 4
DROPPED = 256
GROWTH_MAX = 24 * 2**20
"""What is left of a crowd in the memory of llmtop [bytes]: the allocator's, not a connection's."""
BODY = b'{"model": "A", "prompt": "x", "stream": true, "max_tokens": 100000}'
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % len(BODY)
PHASES = {
    "nothing": b"",
    "half a head": HEAD[:40],
    "half a body": HEAD + BODY[:30],
    "a stream": HEAD + BODY,
    "in the queue": HEAD + BODY.replace(b'"A"', b'"B"'),
    "events": b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x00",
    "many at once": b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20 + HEAD + BODY,
}


@contextlib.contextmanager
def descriptors(wanted: int) -> Generator[None]:
    """Raise this process's own limit for a while."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


class Pulse:
    """Asks for ``/health`` all the while, on a connection each."""

    def __init__(self, r: Rig) -> None:
        self._port = r.port
        self.took: list[float] = []
        self.over = False

    async def beat(self) -> None:
        """Until it is told to stop."""
        while not self.over:
            start = time.perf_counter()
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.readline(), 10)).startswith(b"HTTP/1.1 200")
            self.took.append(time.perf_counter() - start)
            writer.close()
            await writer.wait_closed()
            await asyncio.sleep(0.005)

    def share(self, part: float) -> float:
        """That share of the answers came within so long [s]."""
        return sorted(self.took)[min(len(self.took) - 1, int(len(self.took) * part))]


@contextlib.asynccontextmanager
async def beside(r: Rig) -> AsyncGenerator[None]:
    """Others are served at once meanwhile, and nothing is left afterwards: no descriptor, no request, no memory."""
    process = psutil.Process(r.process.pid)
    await asyncio.sleep(1.2)  # connections kept to the child go
    fds, rss = process.num_fds(), process.memory_info().rss
    pulse = Pulse(r)
    beating = asyncio.create_task(pulse.beat())
    yield
    pulse.over = True
    await beating

    async def clean() -> bool:
        state = await r.state()
        busy = state["requests"] or state["queue"] or any(m["in_flight"] for m in state["models"])
        return not busy and process.num_fds() <= fds + 2  # this question's own

    await r.until(clean, f"{fds} descriptors and nothing in flight", 15)
    grown = process.memory_info().rss - rss
    times = ", ".join(f"{part:.0%} within {pulse.share(part) * 1000:.1f} ms" for part in (0.5, 0.99, 1.0))
    _log.info("/health beside it: %d times, %s; %d KiB more", len(pulse.took), times, grown >> 10)
    assert pulse.share(0.5) < 0.05
    assert grown < GROWTH_MAX
    assert (await r.state())["faults"] == []
    assert "Traceback" not in r.log


async def test_five_hundred_clients_that_drip_keep_nobody_out(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"tok_rate": 2000}}) as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        with descriptors(DRIPPING + 500):
            async with beside(r):
                crowd = [socket.create_connection(("127.0.0.1", r.port)) for _ in range(DRIPPING)]
                for byte in HEAD[:DRIPS]:
                    for one in crowd:
                        one.sendall(bytes([byte]))
                    await asyncio.sleep(1)
                    assert (await r.ask(c, "A")).status_code == 200
                for one in crowd:
                    one.close()


@pytest.mark.parametrize("how", ["end", "reset"])
async def test_clients_that_go_in_any_moment_leave_nothing(tmp_path: Path, how: str) -> None:
    rng = random.Random(5)
    options = ("--models-max", "1", "--max-wait", "off")
    async with rig(tmp_path, {"A": {"tok_rate": 500}, "B": {}}, *options) as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        async with beside(r):
            for data in PHASES.values():
                crowd = [socket.create_connection(("127.0.0.1", r.port)) for _ in range(DROPPED // len(PHASES))]
                for one in crowd:
                    one.sendall(data)
                await asyncio.sleep(rng.random() / 5)
                for one in crowd:
                    if how == "reset":
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    one.close()
        assert (await r.ask(c, "A")).status_code == 200
