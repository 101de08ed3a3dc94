"""A recording on the screen: its keys, its badge; and the pace of a live core."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import msgspec
import pytest

from llmtop_tui.app import LlmtopApp
from llmtop_tui.clients import Player
from llmtop_tui.pace import Pace, is_calm
from llmtop_tui.scene_client import SceneClient
from llmtop_tui.scene_parts import GEMMA, NOMIC, QWEN
from llmtop_tui.scenes import full, oom

pytestmark = pytest.mark.anyio


class Recording(SceneClient):
    """A recording that stands still."""

    def __init__(self) -> None:
        super().__init__(full(), embedded=False)
        self.speed = 1.0
        self.paused = False
        self.position_s = 12.0
        self.ended = False
        self.sought: list[str] = []
        self.found = True

    async def seek_next(self, kind: Literal["swap", "oom"]) -> bool:
        self.sought.append(kind)
        return self.found


async def _played(*keys: str, found: bool = True) -> tuple[Recording, str, str]:
    """The recording after some keys, the header, and the toasts."""
    client = Recording()
    client.found = found
    app = LlmtopApp(client, readonly=True)
    async with app.run_test(size=(120, 40), notifications=True) as pilot:
        await pilot.pause()
        await pilot.press(*keys)
        if seeking := [worker for worker in app.workers if worker.group == "seek"]:
            await app.workers.wait_for_complete(seeking)
        await pilot.pause()
        header = "".join(segment.text for segment in app.screen._compositor.render_strips()[0])
        return client, header, " ".join(n.message for n in app._notifications)


def test_a_recording_is_a_player_and_a_core_is_none() -> None:
    assert isinstance(Recording(), Player)
    assert not isinstance(SceneClient(full()), Player)


async def test_the_header_says_where_a_recording_stands() -> None:
    _, header, _ = await _played()
    assert "REPLAY 00:12 x1" in header
    assert "SERVING" not in header


@pytest.mark.parametrize(
    ("keys", "speed"), [(["plus"], 2.0), (["plus"] * 9, 16.0), (["minus"], 0.5), (["minus", "plus"], 1.0)]
)
async def test_plus_and_minus_set_the_speed(keys: list[str], speed: float) -> None:
    client, header, _ = await _played(*keys)
    assert client.speed == speed
    assert f"x{speed:g}" in header


async def test_space_stops_the_recording_and_not_the_display() -> None:
    client, header, _ = await _played("space")
    assert client.paused
    assert "REPLAY 00:12 x1 paused" in header
    assert "PAUSED" not in header
    client, header, _ = await _played("space", "space")
    assert not client.paused


async def test_brackets_move_on_to_the_next_swap_and_the_next_oom_line() -> None:
    client, _, toasts = await _played("right_square_bracket", "left_square_bracket")
    assert client.sought == ["swap", "oom"]
    assert toasts == ""


async def test_that_there_is_no_next_is_told() -> None:
    _, _, toasts = await _played("left_square_bracket", found=False)
    assert toasts == "no out-of-memory line in the rest of the recording"


@pytest.mark.parametrize("key", ["e", "K", "p", "d", "x", "L", "r"])
async def test_nothing_in_a_recording_can_be_changed(key: str) -> None:
    client, _, _ = await _played(key)
    assert client.said == []
    assert client.asked == 0


@pytest.mark.parametrize(("size", "shown"), [((120, 40), False), ((200, 60), True)])
async def test_a_wide_header_tells_the_pace_and_what_the_view_costs(
    size: tuple[int, int], shown: bool, open_screen: Any, rows_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_screen(size=size) as (app, _, pilot):
        monkeypatch.setattr(app.watch_core.cost, "read", lambda now: "46 MB 1.8%")
        await pilot.press("minus")
        app.watch_core.tick()
        await pilot.pause()
        assert ("self 46 MB 1.8%" in rows_of(app)[0]) is shown
        assert ("every 1s" in rows_of(app)[0]) is shown


def test_the_cost_is_read_now_and_then() -> None:
    from llmtop_tui.pace import Cost

    cost = Cost()
    assert cost.read(100.0) == ""
    assert cost.read(101.0) == ""
    told = cost.read(106.0)
    assert told.endswith("%")
    assert " MB " in told


async def test_a_core_out_of_reach_is_stale_with_its_age_and_its_reason(open_screen: Any, rows_of: Any) -> None:
    async with open_screen("oom", embedded=False) as (app, client, pilot):
        client.fault, client.stale_s = "http://127.0.0.1:8080 answers 500", 75.0
        app.watch_core.tick()
        await pilot.pause()
        header = rows_of(app)[0]
        assert "STALE 1m15" in header
        assert "answers 500" in header
        client.fault = ""
        client.publish(full())
        while app.newest.oom == oom().oom:
            await pilot.pause(0.05)
        await pilot.pause()
        assert "SERVING" in rows_of(app)[0]


async def test_a_router_is_called_so(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        app.view.kind = "router"
        app.show_all()
        await pilot.pause()
        assert "router" in rows_of(app)[0]


async def test_the_requests_share_the_place_of_the_queue(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, client, pilot):
        assert "2 running (key 2)" in "\n".join(rows_of(app))
        await pilot.press("2", "2")
        await pilot.pause()
        assert app.main.active.id == "flight"
        assert any("REQUESTS 2 running, 4 waiting" in row for row in rows_of(app))
        await pilot.press("x")
        await pilot.pause()
        assert "Cancel 1 running request?" in "\n".join(rows_of(app))
        await pilot.press("n", "2")
        await pilot.pause()
        assert app.main.active.id == "queue"
        assert client.said == []


async def test_the_detail_beside_the_log_follows_the_cursor(open_screen: Any, rows_of: Any) -> None:
    async with open_screen(size=(180, 50)) as (app, _, pilot):
        assert any("DETAIL gemma3-4b-it-q8_0" in row for row in rows_of(app))
        await pilot.press("j")
        await pilot.pause()
        assert any("DETAIL llama-3.1-8b" in row for row in rows_of(app))


def test_a_picture_is_calm_while_nothing_happens_but_time() -> None:
    idle = msgspec.structs.replace(full(), queue=(), requests=(), models=(QWEN, NOMIC))
    later = msgspec.structs.replace(idle, at=idle.at + 1, uptime_s=idle.uptime_s + 1)
    assert is_calm(later, idle)
    assert not is_calm(later, None)
    assert not is_calm(msgspec.structs.replace(later, hold=True), idle)
    assert not is_calm(msgspec.structs.replace(later, log=idle.log[:-1]), idle)
    assert not is_calm(msgspec.structs.replace(later, models=(QWEN, GEMMA)), idle)
    asleep = msgspec.structs.replace(QWEN, state="sleeping")
    assert not is_calm(msgspec.structs.replace(later, models=(asleep, NOMIC)), idle)
    assert not is_calm(msgspec.structs.replace(later, requests_total=idle.requests_total + 1), idle)
    assert not is_calm(later, msgspec.structs.replace(idle, requests=full().requests))
    assert not is_calm(full(), full())


@pytest.mark.parametrize(
    ("calm", "blurred", "every_s", "waits_s"),
    [
        (False, False, 0.5, 0.5),
        (True, False, 0.5, 2.0),
        (True, False, 5.0, 5.0),
        (False, True, 0.5, 1.0),
        (True, True, 1.0, 2.0),
        (False, True, 5.0, 10.0),
    ],
)
def test_calm_pictures_come_less_often_and_half_as_often_where_nobody_looks(
    calm: bool, blurred: bool, every_s: float, waits_s: float
) -> None:
    pace = Pace()
    pace.every_s = every_s
    assert pace.due_s(calm=calm, blurred=blurred) == waits_s


async def test_whoever_hurries_waits_for_nothing() -> None:
    pace = Pace()
    pace.every_s = 10.0
    pace.hurry()
    async with asyncio.timeout(1):
        await pace.wait(blurred=False)
