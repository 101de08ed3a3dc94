"""The pool of connections to children: one place for each instance, kept alive for a burst."""

from __future__ import annotations

import asyncio
import time
from collections import deque

from llmtop.frontdoor.gate import Upstream
from llmtop.frontdoor.head import Seen, place_lines
from llmtop.frontdoor.upstream import ChildHead, UpstreamConnection

IDLE_MAX = 64
IDLE_S = 1.0
"""A llama-server gives each open connection one of its few threads: none is kept longer than a burst needs it [s]."""
CONNECT_TIMEOUT_S = 10.0
FORGOTTEN_KEPT = 256
"""So many instances that are gone are remembered, for a request that was granted before and connects after [1]."""


class Place:
    """The connections of one child instance.

    Attributes:
        lines: Header lines that every request to it gets.
        open: All of them, idle or not.
        connecting: How many are being made.
        forgotten: The instance is gone; what is in use is closed after use.
        seen: The head of its last plain answer, as it came; ``seen_head`` is what it meant.
    """

    def __init__(self, upstream: Upstream) -> None:
        self.lines = place_lines(upstream)
        self.open: set[UpstreamConnection] = set()
        self.connecting = 0
        self.forgotten = False
        self.seen = Seen()
        self.seen_head: ChildHead | None = None
        self._idle: list[UpstreamConnection] = []

    def get(self) -> UpstreamConnection | None:
        """A connection that was used before, if one is free."""
        while self._idle:
            connection = self._idle.pop()  # the one used last: the others age and go
            if connection.usable:
                return connection
        return None

    def put(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request, or close it."""
        if self.forgotten or len(self._idle) >= IDLE_MAX or not connection.usable:
            connection.close()
        else:
            connection.idle_since = time.monotonic()
            self._idle.append(connection)

    def drop(self, connection: UpstreamConnection) -> None:
        """A connection is gone."""
        self.open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, before: float) -> None:
        """Close what is idle since before that time."""
        while self._idle and self._idle[0].idle_since < before:
            self._idle.pop(0).close()

    def close_idle(self) -> None:
        """Close all that is idle."""
        for connection in self._idle[:]:
            connection.close()
        self._idle.clear()


class Pool:
    """All connections to children and to the control API."""

    def __init__(self) -> None:
        self._places: dict[str, Place] = {}
        self._forgotten: deque[str] = deque(maxlen=FORGOTTEN_KEPT)

    def _place(self, upstream: Upstream) -> Place:
        place = self._places.get(upstream.key)
        if place is None:
            place = self._places[upstream.key] = Place(upstream)
            place.forgotten = upstream.key in self._forgotten
        return place

    def idle(self, upstream: Upstream) -> UpstreamConnection | None:
        """A connection that was used before, if one is free."""
        place = self._places.get(upstream.key)
        return place.get() if place is not None else None

    async def connect(self, upstream: Upstream) -> UpstreamConnection:
        """A fresh connection.

        Raises:
            OSError: Nothing listens there, or not within ``CONNECT_TIMEOUT_S``.
        """
        loop = asyncio.get_running_loop()
        place = self._place(upstream)

        def factory() -> UpstreamConnection:
            return UpstreamConnection(place)

        place.connecting += 1
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if upstream.uds:
                    _, connection = await loop.create_unix_connection(factory, upstream.uds)
                else:
                    _, connection = await loop.create_connection(factory, upstream.host, upstream.port)
        finally:
            place.connecting -= 1
        return connection

    def forget(self, key: str) -> None:
        """Drop what is idle of an instance that is gone; what is in use is closed after use."""
        self._forgotten.append(key)
        place = self._places.pop(key, None)
        if place is not None:
            place.forgotten = True
            place.close_idle()

    def sweep(self, now: float) -> None:
        """Close what was idle for ``IDLE_S``, and forget places without connections."""
        for key, place in list(self._places.items()):
            place.sweep(now - IDLE_S)
            if not place.open and not place.connecting:
                del self._places[key]

    def close(self) -> None:
        """Close everything."""
        for key in list(self._places):
            place = self._places[key]
            self.forget(key)
            for connection in list(place.open):
                connection.close()
