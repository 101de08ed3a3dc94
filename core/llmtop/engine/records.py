"""What the engine remembers of each child and each request, beyond what the scheduler needs."""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from llmtop.config.spec import ModelSpec
from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.gate import Grant, Upstream
from llmtop.snapshot import OomLine

CLIENT_LEFT = 499
FAILS_IN_ROW = 3
"""So many answers 500 in a row ask for a look at the child."""
NOT_SICK = (501, 503)
"""Server errors that say nothing about the child's health."""


@dataclass(slots=True, eq=False)
class ChildRecord:
    """A running child. Times are the loop's [s]."""

    instance: int
    spec: ModelSpec
    spawned_at: float
    pid: int | None = None
    port: int | None = None
    args: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)
    upstream: Upstream | None = None
    slots: int | None = None
    meta: dict[str, Any] | None = None
    """What it told of its model when it was ready."""
    phase: str = ""
    progress: float | None = None
    kill_at: float | None = None
    signal: str = ""
    """The last word it was given: ``exit line``, ``SIGTERM``, ``SIGKILL``."""
    oom_lines: int = 0
    sized: int | None = None
    """Footprint by its own size lines [bytes]."""
    footprint: int | None = None
    """The newest measured footprint [bytes]."""
    told: int = 0
    """The footprint at which its growth was last told of [bytes]."""
    fails: int = 0
    answered: bool = False
    left_at: float | None = None
    """When a client last left in the middle of an answer [s]."""

    def started(self, pid: int, port: int, args: tuple[str, ...], api_key: str) -> None:
        """The process exists."""
        self.pid, self.port, self.args, self.api_key = pid, port, args, api_key
        key = f"{self.spec.id}#{self.instance}"
        drain = self.spec.on_client_abort == "drain"
        self.upstream = Upstream(key, port=port, api_key=api_key, drain_on_abort=drain)

    def judge(self, status: int) -> bool:
        """Note an answer's status. True when that was one 500 too many in a row."""
        if status < 500:
            self.fails, self.answered = 0, True
        elif status not in NOT_SICK:
            self.fails += 1
        return self.fails >= FAILS_IN_ROW and self.fails % FAILS_IN_ROW == 0


class Ticket:
    """One request, from its admission to its end; the engine's side of ``frontdoor.gate.Ticket``."""

    granted_at: float | None = None
    instance: int = 0
    """The child it was granted; 0 before."""
    load_s = 0.0
    closed = False

    def __init__(
        self,
        loop: AbstractEventLoop,
        serial: int,
        model: str,
        *,
        path: str,
        client: str,
        stream: bool,
        now: float,
        on_close: Callable[[Ticket, int, bool], None],
    ) -> None:
        self.serial = serial
        self.id = str(serial)
        self.model, self.path, self.client, self.stream = model, path, client, stream
        self.granted: Future[Grant] = loop.create_future()
        self.cut: Future[Refusal] = loop.create_future()
        self.arrived_at = now
        self._on_close = on_close

    def grant(self, child: ChildRecord, now: float, load_s: float) -> None:
        """Leave to go to this child."""
        self.granted_at, self.instance, self.load_s = now, child.instance, load_s
        assert child.upstream is not None
        if not self.granted.done():
            queue_ms = round((now - self.arrived_at) * 1000)
            self.granted.set_result(Grant(child.upstream, queue_ms, min(queue_ms, round(load_s * 1000)), now))

    def refuse(self, refusal: Refusal) -> None:
        """No."""
        if not self.granted.done():
            self.granted.set_exception(Refused(refusal))
            self.granted.exception()  # a front door that has gone already need not look

    def end(self, refusal: Refusal) -> None:
        """End it though it was granted."""
        if not self.cut.done():
            self.cut.set_result(refusal)

    def close(self, status: int, *, compute_error: bool = False) -> None:
        """The answer is whole, the client left (499), or the child broke it (502)."""
        if not self.closed:
            self.closed = True
            self._on_close(self, status, compute_error)


@dataclass(slots=True)
class OomBook:
    """Out-of-memory lines, counted; the newest stays until somebody has seen it."""

    count: int = 0
    last: OomLine | None = None
    acknowledged: bool = True

    def add(self, line: OomLine, more: int) -> None:
        """A line, and how many like it came with it."""
        self.count += max(1, more)
        self.last, self.acknowledged = line, False
