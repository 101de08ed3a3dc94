"""Where the time of a swap went: the bars, and the screen that shows them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmtop.snapshot import Phases, Snapshot, Stop, Swap, Swaps
from llmtop_tui.scene_parts import AT, LLAMA, PHI, SWAPS, gib
from llmtop_tui.scenes import full, held, hostile
from llmtop_tui.screens.confirm import ConfirmScreen
from llmtop_tui.screens.pager import PagerScreen
from llmtop_tui.screens.timeline import TimelineScreen
from llmtop_tui.view import View
from llmtop_tui.widgets import phases, timeline
from llmtop_tui.widgets.line import plain, width

pytestmark = pytest.mark.anyio
SIZES = [(200, 60), (120, 40), (80, 24), (40, 12), (20, 5), (1, 1)]

DONE = Swap(
    9, "b", "bytes", AT - 100, ("a",), "ok", Phases(1.0, 2.0, 1.0, 0.5, 0.1, 5.0), (Stop("a", "exit line", gib(4)),)
)


def _view(snapshot: Snapshot, **options: Any) -> View:
    view = View(snapshot, **options)
    view.take(snapshot)
    return view


def _with(*swaps: Swap) -> Snapshot:
    return msgspec.structs.replace(full(), swaps=Swaps(len(swaps), swaps[-1], swaps))


def test_a_swap_is_dated_by_its_spawn_and_begins_with_the_wait() -> None:
    assert phases.bounds(DONE) == pytest.approx((AT - 104.5, AT - 94.9))
    parts = phases.spans(DONE)
    assert [part.name for part in parts] == ["queued", "drain", "stop", "settle", "spawn", "load"]
    assert parts[4].start == pytest.approx(DONE.at)


def test_a_load_under_way_lasts_until_now() -> None:
    going = msgspec.structs.replace(DONE, result="", phases=Phases(queued_s=1.0, spawn_s=0.1))
    assert phases.total(going, going.at + 7) == pytest.approx(8.0)
    assert phases.total(going, going.at + 9) == pytest.approx(10.0)
    assert phases.total(DONE, AT) == pytest.approx(9.6)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("clocked", [False, True])
@pytest.mark.parametrize("scene", [full, hostile])
def test_the_page_fits(size: tuple[int, int], clocked: bool, scene: Any) -> None:
    view = _view(scene())
    swaps = tuple(reversed(view.snapshot.swaps.recent))
    rows = timeline.render(view, swaps, timeline.Place(0, 0, clocked), *size)
    assert len(rows) <= size[1]
    assert max(width(row) for row in rows) <= size[0]


def test_bars_have_the_same_scale_or_stand_at_their_time() -> None:
    half = msgspec.structs.replace(DONE, id=10, at=AT, phases=Phases(load_s=4.8))
    view = _view(_with(DONE, half), mono=True)
    swaps = (half, DONE)
    aligned = [plain(row) for row in timeline.render(view, swaps, timeline.Place(), 147, 5)[3:]]
    assert aligned[0].count("l") * 2 == pytest.approx(sum(aligned[1].count(c) for c in "qdsmpl"), abs=4)
    clocked = [plain(row) for row in timeline.render(view, swaps, timeline.Place(clocked=True), 147, 5)[3:]]
    assert clocked[0].rstrip().endswith("l")
    assert clocked[1].find("q") < clocked[0].find("l")


def test_the_swap_under_the_cursor_tells_who_went_and_what_came_back() -> None:
    text = "\n".join(plain(row) for row in timeline.render(_view(full()), SWAPS[::-1], timeline.Place(1), 120, 40))
    assert "evicted qwen2.5-7b-q6_k" in text
    assert "qwen2.5-7b-q6_k by exit line: 5.4 of 5.4 GiB back, memory back after 0.7s" in text
    assert "queued 1.4s, stop 0.9s, settle 0.7s, spawn 0.1s, load 31s" in text


def test_memory_stands_under_the_bar_where_the_history_reaches() -> None:
    view = _view(_with(DONE))
    rows = [plain(row) for row in timeline.render(view, (DONE,), timeline.Place(), 120, 30)]
    assert any("not known to this view" in row for row in rows)
    for n in range(40):
        used = gib(20 if n < 20 else 5)
        at = DONE.at - 10 + n / 2
        memory = msgspec.structs.replace(full().memory, used=used)
        view.history._fine.appendleft(view.history.samples[0]._replace(at=at, used=used))
        assert memory.used == used
    view.history._fine = type(view.history._fine)(sorted(view.history._fine), maxlen=1500)
    rows = [plain(row) for row in timeline.render(view, (DONE,), timeline.Place(), 120, 30)]
    high = [row.count("█") for row in rows]
    assert max(high) > 90
    assert any(30 < count < 90 for count in high), "the fall after the stop shows"


async def test_the_screen_opens_moves_turns_and_closes(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("T")
        assert any(row.startswith(">") and "gemma3" in row for row in rows_of(app))
        await pilot.press("j")
        assert any(row.startswith(">") and "mistral" in row for row in rows_of(app))
        await pilot.press("z")
        assert "z by length" in rows_of(app)[0]
        await pilot.press("enter")
        assert isinstance(app.screen, PagerScreen)
        await pilot.press("escape")
        assert isinstance(app.screen, TimelineScreen)
        await pilot.press("escape")
        assert app.screen is app.main


async def test_the_cursor_stays_on_its_swap_when_another_begins(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("T", "j")
        more = msgspec.structs.replace(DONE, id=79, at=AT, model="new-one")
        client.publish(_with(*SWAPS, more))
        while app.newest.swaps.count != 4:
            await pilot.pause(0.05)
        await pilot.pause()
        assert any(row.startswith(">") and "mistral" in row for row in rows_of(app))
        await pilot.press("g")
        assert any(row.startswith(">") and "new-one" in row for row in rows_of(app))


async def test_the_queue_is_held_and_stepped_from_the_timeline(open_screen: Any, verbs_done: Any) -> None:
    async with open_screen(held()) as (app, client, pilot):
        await pilot.press("T", "full_stop", "e", "K")
        await verbs_done(app, pilot)
        assert client.said == [("step",)]
        assert isinstance(app.screen, TimelineScreen)
        assert not isinstance(app.screen, ConfirmScreen)


async def test_while_held_the_queue_says_what_a_step_would_do(open_screen: Any, rows_of: Any) -> None:
    async with open_screen(held()) as (app, _, _pilot):
        title = next(row for row in rows_of(app) if "QUEUE" in row)
        assert f"held: . would load {PHI.id}, evicts {LLAMA.id}" in title
        assert "released" not in title
        assert ". Step" in rows_of(app)[-1]


async def test_eighty_columns_also_say_whom_a_step_would_evict(open_screen: Any, rows_of: Any) -> None:
    async with open_screen(held(), size=(80, 24)) as (app, _, _pilot):
        letter = app.view.letters[LLAMA.id]
        title = next(row for row in rows_of(app) if "QUEUE" in row)
        assert f"held: . loads phi-4-m…t-q8_0, evicts {letter} " in title


async def test_a_step_says_whom_it_takes(open_screen: Any, verbs_done: Any, rows_of: Any) -> None:
    async with open_screen(held(), size=(200, 60)) as (app, _, pilot):
        await pilot.press("full_stop")
        await verbs_done(app, pilot)
        said = " ".join(note.message for note in app._notifications)
        assert said == f"one swap may pass: {PHI.id}, evicts {LLAMA.id}"


async def test_an_event_opens_whole_with_its_swap_and_what_happened_about_then(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("4", "j", "j", "enter")
        text = "\n".join(rows_of(app))
        assert "exit 0 after 1.9 s, 5.3 of 5.4 GiB back" in text
        assert "During the swap" in text
        assert "-4.5s drain qwen2.5-7b-q6_k" in text
