"""What is to be done with a request, and what those who do it need of each other."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import msgspec

from llmtop.config.spec import Settings
from llmtop.errors import Refusal
from llmtop.frontdoor.body import SpoolSpace
from llmtop.frontdoor.gate import Gate, Upstream
from llmtop.frontdoor.last_known import LastKnown
from llmtop.frontdoor.pool import Pool

if TYPE_CHECKING:
    from llmtop.frontdoor.relay import Exchange


class Plan(msgspec.Struct, frozen=True):
    """What is to be done with a request, as its head tells.

    Args:
        target: Path and query for the child.
        model: Its id; empty while only the body can tell, and for the control API.
        upstream: Where to go without asking the gate for leave.
        by_body: The model's name is in the body (or in the query).
        early: Ask for leave before the body is whole.
        stream: The head asks for a stream, unless the body says otherwise.
        query_model: ``?model=``, where the body names none.
        autoload: ``?autoload=``.
        body_max: Largest body [bytes].
        remember: Keep the answer for ``LastKnown``.
        generates: A good answer tells how many tokens were generated.
    """

    target: bytes
    model: str = ""
    upstream: Upstream | None = None
    by_body: bool = False
    early: bool = False
    stream: bool = False
    query_model: str = ""
    autoload: bool | None = None
    body_max: int = 0
    remember: bool = False
    generates: bool = False


class Client(Protocol):
    """The connection that an exchange answers on."""

    @property
    def peer(self) -> str:
        """Address of the client."""
        ...

    @property
    def received_at(self) -> float:
        """When the last bytes of the request came [s, monotonic]."""
        ...

    @property
    def paused(self) -> bool:
        """More than enough waits for the client to take it."""
        ...

    def send(self, data: bytes) -> None:
        """Write bytes of the answer."""
        ...

    def cut(self, *, reset: bool) -> None:
        """End the connection in a way that no client takes for a clean end."""
        ...

    def exchange_over(self, exchange: Exchange) -> None:
        """The answer is written, as far as there is one."""
        ...


class Shared(Protocol):
    """What all exchanges of a front door have in common."""

    gate: Gate
    settings: Settings
    pool: Pool
    space: SpoolSpace
    last_known: LastKnown
    loop: asyncio.AbstractEventLoop
    exchanges: set[Exchange]
    retries: int
    clients_left: int
    upstream_errors: int


def too_large(limit: int) -> Refusal:
    """The refusal of a body beyond its limit."""
    return Refusal("payload_too_large", f"the body is larger than {limit} bytes (--max-body)")
