"""Loopback ports for children."""

from __future__ import annotations

import socket
from collections.abc import Callable

REST_S = 60.0
"""How long a port rests before another child gets it [s]: a client's late bytes must not reach a stranger."""

_TRIES = 64


def free_port() -> int:
    """A loopback port that nobody listens on now.

    Raises:
        OSError: No socket, or no port that is free.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class PortPicker:
    """Gives free ports, none of them twice within a minute.

    Args:
        clock: Monotonic seconds [s].
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._given: dict[int, float] = {}

    def pick(self) -> int:
        """A port that nobody listens on now.

        Raises:
            OSError: No socket, or no port that is free and rested.
        """
        now = self._clock()
        self._given = {port: at for port, at in self._given.items() if now - at < REST_S}
        for _ in range(_TRIES):
            port = free_port()
            if port not in self._given:
                self._given[port] = now
                return port
        raise OSError("no free loopback port that has rested for a minute")

    def touch(self, port: int) -> None:
        """The rest of this port starts now (its child has just left)."""
        self._given[port] = self._clock()
