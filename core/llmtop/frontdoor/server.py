"""The front door itself: listeners, limits, and what all connections share."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from pathlib import Path

from llmtop.config.spec import Settings
from llmtop.errors import Refusal
from llmtop.frontdoor.access import Access
from llmtop.frontdoor.body import SpoolSpace
from llmtop.frontdoor.connection import ClientConnection
from llmtop.frontdoor.gate import Gate
from llmtop.frontdoor.last_known import LastKnown
from llmtop.frontdoor.pool import Pool
from llmtop.frontdoor.relay import Exchange

_log = logging.getLogger(__name__)
BACKLOG = 1024
CONNECTIONS_MAX = 8192
ACCEPT_PAUSE_S = 0.2
"""How long nothing is accepted once descriptors have run out [s]."""
_EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))
_DESCRIPTORS_KEPT = 64
_NOT_HERE = frozenset((errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT))
"""A name may have addresses that this machine lacks: ``localhost`` is ``::1`` too where IPv6 is off."""


class FrontDoor:
    """The relay that clients talk to.

    Args:
        gate: What it asks of the core.
        settings: ``host``, ``port``, keys, origins, limits and times.
        spool_dir: Folder for bodies that do not fit in memory.

    Attributes:
        requests: Requests taken since the start.
        retries: Requests sent a second time because a kept connection was stale.
        clients_left: Requests whose client left before its answer was whole.
        upstream_errors: Requests that a child failed.
        accept_pauses: Times that descriptors ran out.
        connections: Open connections of clients.
        exchanges: Requests that are not over.
        closing: No new requests are taken.
    """

    def __init__(self, gate: Gate, settings: Settings, *, spool_dir: Path) -> None:
        self.gate = gate
        self.settings = settings
        self.access = Access(settings)
        self.space = SpoolSpace(spool_dir)
        self.pool = Pool()
        self.last_known = LastKnown()
        self.loop: asyncio.AbstractEventLoop
        self.connections: set[ClientConnection] = set()
        self.exchanges: set[Exchange] = set()
        self.requests = 0
        self.retries = 0
        self.clients_left = 0
        self.upstream_errors = 0
        self.accept_pauses = 0
        self.closing = False
        self.connections_max = CONNECTIONS_MAX
        self._open = 0
        self._listeners: list[socket.socket] = []
        self._accepting = False
        self._accepts: set[asyncio.Task[None]] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._prefix = os.urandom(4).hex()
        self._ids = itertools.count(1)

    async def start(self) -> int:
        """Listen.

        Returns:
            The port, which the system chose where the settings say 0.

        Raises:
            OSError: The port is taken, or the host is none of ours.
        """
        self.loop = asyncio.get_running_loop()
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:  # a client's connection needs another one to its child
            self.connections_max = max(16, min(CONNECTIONS_MAX, (soft - _DESCRIPTORS_KEPT) // 2))
        host, port = self.settings.host, self.settings.port
        found = await self.loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        missing: OSError | None = None
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            try:
                self._listeners.append(_listen(family, (address[0], port, *address[2:])))
                port = port or self._listeners[0].getsockname()[1]
            except OSError as error:
                if error.errno not in _NOT_HERE:
                    self._close_sockets()
                    raise
                missing = error
        if not self._listeners:
            raise missing or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        self._resume_accepting()
        self._sweep()
        return int(port)

    def next_id(self) -> str:
        """An id for an answer that needs no ticket."""
        return f"{self._prefix}-{next(self._ids):x}"

    def forget(self, key: str) -> None:
        """An instance is gone: drop its connections."""
        self.pool.forget(key)

    # Accepting.

    def _resume_accepting(self) -> None:
        self._timers.pop("accept", None)
        if not self._accepting and not self.closing:
            self._accepting = True
            for listener in self._listeners:
                self.loop.add_reader(listener.fileno(), self._accept, listener)

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for listener in self._listeners:
                self.loop.remove_reader(listener.fileno())

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(64):
            if self._open >= self.connections_max:
                self._stop_accepting()  # goes on when a connection ends
                return
            try:
                client, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                    return
                raise
            client.setblocking(False)
            self._open += 1
            task = self.loop.create_task(self._serve(client))
            self._accepts.add(task)
            task.add_done_callback(self._accepts.discard)

    def _pause_accepting(self, error: OSError) -> None:
        self.accept_pauses += 1
        _log.warning("no new connections for %g s: %s", ACCEPT_PAUSE_S, error.strerror)
        self._stop_accepting()
        self._timers["accept"] = self.loop.call_later(ACCEPT_PAUSE_S, self._resume_accepting)

    async def _serve(self, client: socket.socket) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: ClientConnection(self), client)
        except (OSError, asyncio.CancelledError):
            self._open -= 1
            client.close()

    def connection_gone(self, connection: ClientConnection) -> None:
        """A client's connection has ended."""
        self.connections.discard(connection)
        self._open -= 1
        if not self._accepting and "accept" not in self._timers:
            self._resume_accepting()

    # Time and the end.

    def _sweep(self) -> None:
        now, stall_s = time.monotonic(), self.settings.client_stall_s
        for connection in list(self.connections):
            connection.check(now, stall_s)
        self.pool.sweep(now)
        pause = 0.5 if stall_s is None else min(0.5, max(0.02, stall_s / 4))
        self._timers["sweep"] = self.loop.call_later(pause, self._sweep)

    async def close_listeners(self) -> None:
        """Take no new connections; requests on open ones are answered 503 ``shutting_down``."""
        self.closing = True
        self._stop_accepting()
        self._close_sockets()

    def _close_sockets(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def aclose(self, grace_s: float) -> None:
        """End everything.

        Args:
            grace_s: How long requests in flight may take to end by themselves [s].
        """
        await self.close_listeners()
        await self._until(lambda: not any(e.holds_shutdown for e in self.exchanges), grace_s)
        for exchange in list(self.exchanges):
            exchange.refuse(Refusal("shutting_down", "llmtop is shutting down", retry_after_s=5))
        for connection in list(self.connections):
            connection.close_when_idle()
        await self._until(lambda: not self.connections, 0.5)
        for connection in list(self.connections):
            connection.abort()
        self.pool.close()
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._accepts):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)  # aborted transports report their end

    async def _until(self, test: Callable[[], bool], timeout_s: float) -> None:
        end = self.loop.time() + timeout_s
        while not test() and self.loop.time() < end:  # noqa: ASYNC110  # once in a lifetime
            await asyncio.sleep(0.01)


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.setblocking(False)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
