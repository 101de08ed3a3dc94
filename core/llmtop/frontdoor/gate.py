"""What the front door asks of the core: a name made an id, and leave to talk to a child. Nothing else passes."""

from __future__ import annotations

from asyncio import Future
from typing import Protocol

import msgspec

from llmtop.errors import Refusal


class Upstream(msgspec.Struct, frozen=True):
    """One child instance (or the control API) as a place to connect to.

    Args:
        key: Identity of the connection pool; a new child instance has a new key, so that a pooled connection never
            reaches its successor.
        host: Loopback address; empty for a Unix socket.
        port: TCP port.
        uds: Path of a Unix socket; empty for TCP.
        api_key: Put in ``Authorization`` towards the child; empty for none.
        drain_on_abort: Read an answer to its end when the client leaves, instead of closing the connection.
        asleep: The child is SLEEPING (only looked at in what ``observe`` gives): only neutral paths may reach it.
    """

    key: str
    host: str = "127.0.0.1"
    port: int = 0
    uds: str = ""
    api_key: str = ""
    drain_on_abort: bool = False
    asleep: bool = False


class Grant(msgspec.Struct, frozen=True):
    """Leave to send a request to its child.

    Args:
        upstream: Where.
        queue_ms: From arrival to grant, load included [ms].
        load_ms: The load's part of that [ms]; 0 if the model was there.
        at: When it was given [s, monotonic]; 0 for at once.
    """

    upstream: Upstream
    queue_ms: int = 0
    load_ms: int = 0
    at: float = 0.0


class Ticket(Protocol):
    """One request, from its admission to its end."""

    @property
    def id(self) -> str:
        """``X-Llmtop-Request-Id``."""
        ...

    @property
    def granted(self) -> Future[Grant]:
        """Done with the grant, or with ``errors.Refused`` as its exception."""
        ...

    @property
    def cut(self) -> Future[Refusal]:
        """Done, with what its client is told, when the core ends this granted request (kill, cancel, sick child …)."""
        ...

    def close(self, status: int, *, compute_error: bool = False) -> None:
        """The child's answer is whole, the client has left (499), or the child broke it (502).

        To be called exactly once; later calls do nothing.

        Args:
            status: HTTP status of the child's answer (500 for a stream that ended with ``Compute error.``); 499 when
                the client left first, 502 when the child broke the connection.
            compute_error: The answer said ``Compute error.``: in the body of a 500, or as the last event of a stream.
        """
        ...


class Gate(Protocol):
    """The core, as the front door knows it. All methods are called on the core's loop and return at once."""

    def resolve(self, name: str) -> str | None:
        """The id of the model that this name or alias means; None when there is none."""
        ...

    def model_ids(self) -> tuple[str, ...]:
        """All ids (for ``/upstream/{model}/…``, where the longest known id wins)."""
        ...

    def admit(self, model: str, *, path: str, client: str, stream: bool, autoload: bool | None = None) -> Ticket:
        """Let a request in: it is granted, queued or refused, all through its ticket.

        Args:
            model: An id from ``resolve``.
            path: Request path, for the screen.
            client: Peer address.
            stream: The client asked for a stream.
            autoload: ``?autoload=`` of this request; None takes the setting.
        """
        ...

    def observe(self, model: str) -> Upstream | str:
        """Where a GET that must not load, wake or refresh may go.

        Returns:
            The child while it is LOADED or SLEEPING, else the model's state in a word.
        """
        ...

    def busy(self, model: str) -> bool:
        """The model's child has requests in flight (then a GET of ``/slots`` and the like keeps nothing awake)."""
        ...

    def control(self) -> Upstream:
        """The control API."""
        ...

    def finished(
        self,
        *,
        request: str,
        model: str,
        path: str,
        status: int,
        queue_ms: int,
        load_ms: int,
        total_ms: float,
        tokens: int = 0,
        relay_s: float = 0.0,
    ) -> None:
        """One line for the access log and the metrics, after each request that was let in.

        Args:
            request: ``Ticket.id``.
            model: Its model.
            path: As asked for.
            status: What the client was told; 499 when it left.
            queue_ms: From arrival to grant, refusal or leaving [ms].
            load_ms: The load's part of that [ms].
            total_ms: From arrival to the end [ms].
            tokens: Tokens generated, as the answer tells; 0 where it does not.
            relay_s: The front door's own part: from the grant (or the whole request, if that came later) until it was
                written to the child, and from the child's first bytes until they were written to the client [s].
        """
        ...
