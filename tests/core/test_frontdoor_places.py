"""Where the front door listens, and which connections to children it keeps."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from llmtop.config.spec import Settings
from llmtop.frontdoor import server as servers
from llmtop.frontdoor.gate import Upstream
from llmtop.frontdoor.pool import FORGOTTEN_KEPT, Pool
from llmtop.frontdoor.server import FrontDoor
from llmtop.testing.frontdoor import FakeChild, House, house, request

pytestmark = pytest.mark.anyio
PATH = "/v1/completions"
ASK = {"model": "A", "prompt": "x"}


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as it:
        yield it


async def open_door(place: House, folder: Path, monkeypatch: pytest.MonkeyPatch, faults: dict[int, int]) -> FrontDoor:
    """A door on ``localhost`` where binding an address of a family fails as told."""
    found = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 0, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 0)),
    ]

    async def look_up(*_args: Any, **_more: Any) -> list[Any]:
        return found

    listen = servers._listen

    def bind(family: int, address: tuple[object, ...]) -> socket.socket:
        if family in faults:
            raise OSError(faults[family], "as told")
        return listen(family, address)

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", look_up)
    monkeypatch.setattr(servers, "_listen", bind)
    return FrontDoor(place.gate, Settings(host="localhost", port=0), spool_dir=folder)


@pytest.mark.parametrize("missing", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
@pytest.mark.parametrize("family", [socket.AF_INET6, socket.AF_INET])
async def test_an_address_that_this_machine_lacks_is_passed_over_where_another_one_is_there(
    place: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: int, family: int
) -> None:
    if family == socket.AF_INET and not has_ipv6():
        pytest.skip("no IPv6 here")
    door = await open_door(place, tmp_path, monkeypatch, {family: missing})
    port = await door.start()
    try:
        host = "127.0.0.1" if family == socket.AF_INET6 else "::1"
        with socket.socket(socket.AF_INET if family == socket.AF_INET6 else socket.AF_INET6) as client:
            client.settimeout(2)
            client.connect((host, port))
    finally:
        await door.aclose(0)


async def test_a_host_none_of_whose_addresses_is_here_is_an_error(
    place: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: dict[int, int] = {socket.AF_INET6: errno.EAFNOSUPPORT, socket.AF_INET: errno.EADDRNOTAVAIL}
    door = await open_door(place, tmp_path, monkeypatch, faults)
    with pytest.raises(OSError, match="as told"):
        await door.start()


async def test_a_port_that_is_taken_on_one_address_is_an_error_though_another_one_is_free(
    place: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    door = await open_door(place, tmp_path, monkeypatch, {socket.AF_INET: errno.EADDRINUSE})
    with pytest.raises(OSError, match="as told"):
        await door.start()


async def test_a_request_granted_before_its_instance_went_leaves_no_connection_behind(place: House) -> None:
    upstream = place.gate.upstream
    place.door.forget(upstream.key)
    assert (await place.ask("POST", PATH, ASK)).status == 200
    await place.quiet()
    assert open_connections(place.door.pool) == 0, "it is closed after use, not kept for a second"
    assert place.door.pool.idle(upstream) is None


async def test_a_place_is_kept_while_a_connection_to_it_is_being_made(
    place: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await place.client()
    loop, began, go = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
    connect = loop.create_connection

    async def slowly(*args: Any, **more: Any) -> Any:
        began.set()
        await go.wait()
        return await connect(*args, **more)

    monkeypatch.setattr(loop, "create_connection", slowly)
    await client.send(request("POST", PATH, ASK))
    await began.wait()
    place.door.pool.sweep(loop.time())
    go.set()
    assert (await client.reply()).status == 200
    await place.quiet()
    assert open_connections(place.door.pool) == 1
    place.door.pool.sweep(loop.time() + 60)
    assert open_connections(place.door.pool) == 0, "what is idle too long is closed, however its place came about"


async def test_what_was_forgotten_is_remembered_within_bounds() -> None:
    pool = Pool()
    for i in range(FORGOTTEN_KEPT * 3):
        pool.forget(f"m#{i}")
    assert pool.idle(Upstream("m#0", port=1)) is None
    assert len(pool._forgotten) == FORGOTTEN_KEPT


async def test_a_taken_port_is_an_error_of_the_caller(place: House, tmp_path: Path) -> None:
    other = FrontDoor(place.gate, Settings(port=place.port), spool_dir=tmp_path)
    with pytest.raises(OSError, match="in use"):
        await other.start()


async def test_the_control_api_is_one_more_upstream(place: House, tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(FakeChild()._serve, tmp_path / "c.sock")
    place.gate.control_upstream = type(place.gate.upstream)("control", uds=str(tmp_path / "c.sock"))
    async with server:
        for _ in range(3):
            reply = await place.ask("POST", "/api/queue/hold", {})
            assert (reply.status, reply.body) == (200, b'{"ok":true}')
    assert not place.gate.tickets
    await place.door.aclose(0)


async def test_when_descriptors_run_out_nothing_is_accepted_for_a_moment(
    place: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Exhausted:
        def accept(self) -> None:
            raise OSError(24, "Too many open files")

    monkeypatch.setattr(servers, "ACCEPT_PAUSE_S", 0.05)
    place.door._accept(Exhausted())  # type: ignore[arg-type]
    assert (place.door.accept_pauses, place.door._accepting) == (1, False)
    assert (await place.ask("GET", "/health")).status == 200, "who came meanwhile is served after it"


async def test_beyond_the_limit_connections_wait_until_one_ends(place: House) -> None:
    place.door.connections_max = 2
    first, second = await place.client(), await place.client()
    for client in (first, second):
        await client.send(request("GET", "/health"))
        await client.reply()
    third = await place.client()
    await third.send(request("GET", "/health"))
    await first.close()
    assert (await third.reply()).status == 200
    assert len(place.door.connections) == 2


def open_connections(pool: Pool) -> int:
    return sum(len(place.open) for place in pool._places.values())


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
