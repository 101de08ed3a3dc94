"""A gate that does as it is told, a child that answers by script, raw clients: for tests of the front door."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from llmtop.config.spec import Settings
from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.gate import Grant, Ticket, Upstream
from llmtop.frontdoor.server import FrontDoor


class FakeTicket:
    """A request as the fake gate sees it.

    Attributes:
        closed: What ``close`` was told, one entry a call.
    """

    def __init__(self, id_: str, model: str, **asked: Any) -> None:
        loop = asyncio.get_running_loop()
        self.id = id_
        self.model = model
        self.asked = asked
        self.granted: asyncio.Future[Grant] = loop.create_future()
        self.cut: asyncio.Future[Refusal] = loop.create_future()
        self.closed: list[tuple[int, bool]] = []
        self.over = asyncio.Event()

    def close(self, status: int, *, compute_error: bool = False) -> None:
        """Note the end."""
        self.closed.append((status, compute_error))
        self.over.set()

    def grant(self, upstream: Upstream, queue_ms: int = 0, load_ms: int = 0) -> None:
        """Let it go to a child."""
        self.granted.set_result(Grant(upstream, queue_ms, load_ms))

    def refuse(self, refusal: Refusal) -> None:
        """Refuse it."""
        self.granted.set_exception(Refused(refusal))


class FakeGate:
    """Grants at once (``hold`` False) or when the test says so.

    Args:
        upstream: Where all models live.
        names: Ids, and aliases with the id they mean.
    """

    def __init__(self, upstream: Upstream, names: dict[str, str] | None = None) -> None:
        self.upstream = upstream
        self.control_upstream = upstream
        self.names = names or {"A": "A", "B": "B", "alias": "A", "org/m": "org/m", "org": "org"}
        self.hold = False
        self.is_busy = False
        self.observed: Upstream | str = upstream
        self.tickets: list[FakeTicket] = []
        self.log: list[dict[str, Any]] = []
        self.admitted = asyncio.Event()

    def resolve(self, name: str) -> str | None:
        """The id that a name means."""
        return self.names.get(name)

    def model_ids(self) -> tuple[str, ...]:
        """All ids."""
        return tuple(dict.fromkeys(self.names.values()))

    def admit(self, model: str, *, path: str, client: str, stream: bool, autoload: bool | None = None) -> Ticket:
        """Let a request in."""
        ticket = FakeTicket(f"t{len(self.tickets)}", model, path=path, client=client, stream=stream, autoload=autoload)
        self.tickets.append(ticket)
        self.admitted.set()
        if not self.hold:
            ticket.grant(self.upstream, queue_ms=7, load_ms=3)
        return ticket

    def observe(self, model: str) -> Upstream | str:
        """Where a model may be looked at."""
        return self.observed

    def busy(self, model: str) -> bool:
        """It has requests in flight."""
        return self.is_busy

    def control(self) -> Upstream:
        """The control API."""
        return self.control_upstream

    def finished(self, **line: Any) -> None:
        """Note a line of the access log."""
        self.log.append(line)


class Request(msgspec.Struct):
    """What reached the fake child."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int


Script = Callable[[Request, asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def plain(
    status: str = "200 OK", body: bytes = b'{"ok":true}', extra: str = "Content-Type: application/json\r\n"
) -> Script:
    """A script that gives one answer with a length."""

    async def script(request: Request, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = f"HTTP/1.1 {status}\r\n{extra}Content-Length: {len(body)}\r\n\r\n".encode()
        writer.write(head if request.method == "HEAD" else head + body)

    return script


class FakeChild:
    """A server on loopback whose answers are a script's.

    Attributes:
        requests: All that came.
        gone: Set when a connection ends while its script has not.
    """

    def __init__(self) -> None:
        self.script: Script = plain()
        self.requests: list[Request] = []
        self.connections = 0
        self.came = asyncio.Event()
        self.gone = asyncio.Event()
        self.wait_for_body = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> Upstream:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=2**20)
        return Upstream("child-1", port=self._server.sockets[0].getsockname()[1], api_key="child-key")

    async def close(self) -> None:
        """End it and all its connections."""
        assert self._server is not None
        self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        number = self.connections
        try:
            while True:
                request = await self._read(reader, number)
                self.requests.append(request)
                self.came.set()
                await self.script(request, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            self.gone.set()
        finally:
            self._tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()

    async def _read(self, reader: asyncio.StreamReader, number: int) -> Request:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        body = b""
        if self.wait_for_body and "content-length" in headers:
            body = await reader.readexactly(int(headers["content-length"]))
        elif self.wait_for_body and "transfer-encoding" in headers:
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        return Request(method, target, headers, body, number)


class Reply(msgspec.Struct):
    """An answer as a client read it.

    Args:
        clean: It ended as its framing says.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    clean: bool = True

    def json(self) -> Any:
        """The body's value."""
        return msgspec.json.decode(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object."""
        error: dict[str, Any] = self.json()["error"]
        return error


class Client:
    """A connection on which bytes are sent as they stand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        self.writer.write(data)
        await self.writer.drain()

    async def head(self) -> Reply:
        """Read an answer's head."""
        first, *lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin1").split("\r\n")
        headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        return Reply(int(first.split(" ")[1]), headers, b"")

    async def chunk(self) -> bytes:
        """Read one chunk; empty at the end."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def reply(self, *, head_only: bool = False) -> Reply:
        """Read an answer, however it ends."""
        reply = await self.head()
        if head_only or reply.status in (204, 304):
            return reply
        try:
            if "content-length" in reply.headers:
                reply.body = await self.reader.readexactly(int(reply.headers["content-length"]))
            elif "transfer-encoding" in reply.headers:
                while part := await self.chunk():
                    reply.body += part
            else:
                reply.body = await self.reader.read()
        except asyncio.IncompleteReadError as error:
            reply.body += error.partial
            reply.clean = False
        except (ConnectionError, ValueError):
            reply.clean = False
        return reply

    async def ended(self) -> bool:
        """Wait for the server to end the connection."""
        with contextlib.suppress(ConnectionError):
            return await self.reader.read(1) == b""
        return True

    async def close(self) -> None:
        """Leave."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()


class House:
    """A front door with one fake child and a fake gate."""

    def __init__(self, door: FrontDoor, gate: FakeGate, child: FakeChild, port: int) -> None:
        self.door = door
        self.gate = gate
        self.child = child
        self.port = port
        self._clients: list[Client] = []

    async def client(self) -> Client:
        """A new connection."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port, limit=2**20))
        self._clients.append(client)
        return client

    async def raw(self, data: bytes, *, head_only: bool = False) -> Reply:
        """Send bytes on a new connection and read one answer."""
        client = await self.client()
        with contextlib.suppress(ConnectionError):
            await client.send(data)
        return await client.reply(head_only=head_only)

    async def ask(self, method: str, target: str, body: Any = b"", headers: str = "", host: str = "127.0.0.1") -> Reply:
        """One request on a connection of its own."""
        return await self.raw(request(method, target, body, headers, host), head_only=method == "HEAD")

    async def quiet(self) -> None:
        """Wait until nothing is in flight, and see that each ticket was closed once and every byte given back."""
        await until(lambda: not self.door.exchanges and all(t.closed for t in self.gate.tickets))
        assert [len(t.closed) for t in self.gate.tickets] == [1] * len(self.gate.tickets)
        assert self.door.space.used == 0

    async def close(self) -> None:
        """End it all."""
        for client in self._clients:
            await client.close()
        await self.door.aclose(0)
        await self.child.close()


async def until(test: Callable[[], bool], timeout_s: float = 5) -> None:
    """Wait for something that no single event tells."""
    async with asyncio.timeout(timeout_s):
        while not test():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def request(method: str, target: str, body: Any = b"", headers: str = "", host: str = "127.0.0.1") -> bytes:
    """A request's bytes; a body that is no bytes is sent as JSON."""
    data = body if isinstance(body, bytes) else msgspec.json.encode(body)
    kind = "Content-Type: application/json\r\n" if data and "content-type" not in headers.lower() else ""
    return (
        f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n{kind}{headers}Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


@contextlib.asynccontextmanager
async def house(spool_dir: Path, **settings: Any) -> AsyncGenerator[House]:
    """A front door on a free port of loopback, with a child and a gate to play with."""
    child = FakeChild()
    upstream = await child.start()
    gate = FakeGate(upstream)
    door = FrontDoor(gate, Settings(port=0, **settings), spool_dir=spool_dir)
    place = House(door, gate, child, await door.start())
    try:
        yield place
    finally:
        await place.close()
