"""The cursor belongs to a model; filters, the log's follow, pause."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmtop.snapshot import LogLine, Model, Snapshot
from llmtop_tui.panels.rows import matches
from llmtop_tui.scene_parts import AT, GEMMA, LLAMA, NOMIC, PHI, QWEN
from llmtop_tui.scenes import full, oom

pytestmark = pytest.mark.anyio


def _with(models: tuple[Model, ...]) -> Snapshot:
    return msgspec.structs.replace(full(), models=models)


async def _show(app: Any, client: Any, pilot: Any, snapshot: Snapshot) -> None:
    client.publish(snapshot)
    while app.newest is not snapshot:
        await pilot.pause(0.02)
    await pilot.pause()


async def test_the_cursor_stays_on_its_model_through_arrival_removal_and_sort(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "j")
        assert app.main.selected_model() == NOMIC.id
        await _show(app, client, pilot, _with((Model("aaa", "loaded"), *full().models)))
        assert app.main.selected_model() == NOMIC.id
        await _show(app, client, pilot, _with((NOMIC, PHI, QWEN)))
        assert app.main.selected_model() == NOMIC.id
        for key in ("s", "S", "s", "s"):
            await pilot.press(key)
            assert app.main.selected_model() == NOMIC.id
            assert app.main.models.item.id == NOMIC.id


async def test_a_key_pressed_after_a_sort_acts_on_the_same_model(open_screen: Any, verbs_done: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("j", "j", "s", "s", "S", "p")
        await verbs_done(app, pilot)
        assert client.said == [("pin", NOMIC.id, "5")]


async def test_when_its_model_goes_the_cursor_takes_the_one_in_its_place(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("j")
        await _show(app, client, pilot, _with((GEMMA, NOMIC, QWEN)))
        assert app.main.selected_model() == NOMIC.id
        await _show(app, client, pilot, _with(()))
        assert app.main.selected_model() is None
        await pilot.press("p", "K", "e", "L", "l", "enter", "y", "Y")
        assert client.said == []


async def test_the_queue_cursor_takes_the_models_cursor_along(open_screen: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("2", "j")
        assert app.main.selected_model() == PHI.id


async def test_the_row_under_the_cursor_begins_with_its_sign(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("j")
        marked = [row for row in rows_of(app) if row.startswith(">")]
        assert len(marked) == 1
        assert LLAMA.id[:10] in marked[0]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("phi", "PHI-4", True),
        ("q8*", "x-q8_0", True),
        ("p*4", "phi-4", True),
        ("p?i", "phi", True),
        ("q?4", "phi", False),
        ("[p]", "p", False),
        ("(a+)+$", "aaaa", False),
    ],
)
def test_filters_are_parts_and_globs_never_expressions(pattern: str, text: str, found: bool) -> None:
    assert matches(text, pattern) is found


async def test_a_filter_shows_in_the_title_and_esc_clears_it(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        await pilot.press("slash", *"q8_0", "enter")
        assert any("MODELS 2 of 6  filter: q8_0" in row for row in rows_of(app))
        await pilot.press("escape")
        assert len(app.main.models.items) == 6
        await pilot.press("slash", *"zz", "escape")
        assert len(app.main.models.items) == 6
        assert app.main.models.has_focus


async def test_keys_typed_into_the_filter_are_text(open_screen: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("slash", *"pKeLxdq", "enter")
        await pilot.pause()
        assert client.said == []
        assert app.main.models.pattern == "pKeLxdq"


def _log(count: int, start: int = 0) -> tuple[LogLine, ...]:
    return tuple(LogLine(n, AT, QWEN.id, f"line {n}") for n in range(start, start + count))


async def test_the_log_follows_until_somebody_scrolls(open_screen: Any, rows_of: Any) -> None:
    async with open_screen(msgspec.structs.replace(full(), log=_log(100))) as (app, client, pilot):
        assert any("line 99" in row for row in rows_of(app))
        await pilot.press("5", "k", "k")
        await _show(app, client, pilot, msgspec.structs.replace(full(), log=_log(50, 70)))
        text = rows_of(app)
        assert any("+20 new" in row for row in text)
        assert not any("line 119" in row for row in text)
        await pilot.press("f")
        assert any("line 119" in row for row in rows_of(app))


async def test_the_log_keeps_a_bounded_number_of_lines(open_screen: Any) -> None:
    async with open_screen(msgspec.structs.replace(full(), log=_log(4000))) as (app, client, pilot):
        await _show(app, client, pilot, msgspec.structs.replace(full(), log=_log(4000, 4000)))
        assert len(app.main.log_panel.items) == 5000
        await pilot.press("5", "g")
        assert app.main.log_panel.item.text == "line 3000"


async def test_a_log_that_starts_again_at_a_lower_number_is_shown(open_screen: Any) -> None:
    async with open_screen(msgspec.structs.replace(full(), log=_log(100, 500))) as (app, client, pilot):
        restarted = msgspec.structs.replace(full(), pid=1, log=_log(3))
        await _show(app, client, pilot, restarted)
        assert [line.text for line in app.main.log_panel.items] == ["line 0", "line 1", "line 2"]


@pytest.mark.parametrize(
    ("up_s", "shown"),
    [(3.0, ["line 0", "line 1", "line 2"]), (59.9, ["line 500", "line 501"]), (1e6, ["line 500", "line 501"])],
)
async def test_a_core_that_starts_again_with_the_same_pid_counts_anew(
    up_s: float, shown: list[str], open_screen: Any
) -> None:
    """A container's first process is pid 1 each time; a picture out of turn and a night's sleep are no new start."""
    before = msgspec.structs.replace(full(), pid=1, uptime_s=60.0, log=_log(2, 500))
    async with open_screen(before) as (app, client, pilot):
        await _show(app, client, pilot, msgspec.structs.replace(before, uptime_s=up_s, at=AT + 3600, log=_log(3)))
        assert [line.text for line in app.main.log_panel.items] == shown


async def test_a_wrapped_line_is_shown_whole_and_the_cursor_stays_in_sight(open_screen: Any, rows_of: Any) -> None:
    long = tuple(LogLine(n, AT, QWEN.id, f"start{n} " + "x" * 400 + f" end{n}") for n in range(30))
    async with open_screen(msgspec.structs.replace(full(), log=long)) as (app, _, pilot):
        await pilot.press("w", "5", "g")
        text = "\n".join(rows_of(app))
        assert "start0 " in text
        assert "end0" in text
        for _ in range(12):
            await pilot.press("j")
        assert any(row.startswith(">") and "start12 " in row for row in rows_of(app))


async def test_a_paused_display_stands_still_while_alarms_come_through(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.press("space")
        later = msgspec.structs.replace(_with((QWEN,)), log=_log(3, 900), oom=oom().oom)
        await _show(app, client, pilot, later)
        text = rows_of(app)
        assert any("PAUSED 00:0" in row for row in text)
        assert any("! OOM" in row for row in text)
        assert any(GEMMA.id in row for row in text)
        await pilot.press("space")
        text = rows_of(app)
        assert not any("PAUSED" in row for row in text)
        assert any("line 902" in row for row in text)


async def test_a_silent_core_shows_as_stale(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, _pilot):
        app.watch_core._heard_at -= 60
        app.watch_core.tick()
        assert any("STALE 1m" in row for row in rows_of(app))


async def test_a_tick_that_changes_nothing_draws_nothing(open_screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_screen() as (app, client, pilot):
        await pilot.pause()
        drawn: list[object] = []

        def note(*regions: object, **_: object) -> None:
            drawn.append(regions)

        for panel in app.main.query("LineView"):
            monkeypatch.setattr(panel, "refresh", note)
        await _show(app, client, pilot, msgspec.structs.replace(full()))
        assert drawn == []
