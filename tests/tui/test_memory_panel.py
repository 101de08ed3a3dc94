"""Who holds the memory: ours, others, what was not returned; growth; estimates that are off."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmtop.snapshot import Model, Snapshot
from llmtop_tui.scene_parts import AT, GEMMA, QWEN, gib
from llmtop_tui.scenes import SCENES, full, sick, unknown
from llmtop_tui.view import Growth, View
from llmtop_tui.widgets import books, models_table
from llmtop_tui.widgets.line import plain, width

pytestmark = pytest.mark.anyio


def _view(snapshot: Snapshot) -> View:
    view = View(snapshot)
    view.take(snapshot)
    return view


def _with(*models: Model, at: float = AT) -> Snapshot:
    return msgspec.structs.replace(full(), models=models, at=at)


def test_the_summary_names_what_was_not_returned_and_the_pressure() -> None:
    assert plain(books.summary(_view(sick()), 99)) == "ours 19.0  others 2.3  not returned 1.8  pressure warn"
    assert plain(books.summary(_view(full()), 99)) == "ours 19.0  others 2.4  pressure normal"


def test_a_core_that_does_not_tell_the_shares_has_them_summed_up() -> None:
    memory = msgspec.structs.replace(full().memory, ours=None, others=None, pressure=None, stranded=gib(0.4))
    text = plain(books.summary(_view(msgspec.structs.replace(full(), memory=memory)), 99))
    assert text == "ours 19.0  others 2.0  not returned 0.4"


def test_nothing_measured_is_nothing_said() -> None:
    assert books.summary(_view(unknown()), 99) == ()


@pytest.mark.parametrize("name", list(SCENES))
@pytest.mark.parametrize("cells", [1, 20, 80, 200])
def test_the_table_fits(name: str, cells: int) -> None:
    assert all(width(row) <= cells for row in books.table(_view(SCENES[name]()), cells))


def test_each_child_has_a_row_and_so_has_everybody_else() -> None:
    rows = [plain(row).split() for row in books.table(_view(sick()), 120)]
    first = [row[:2] for row in rows if row]
    assert ["A", QWEN.id] in first
    assert ["-", "other"] in first
    assert ["?", "not"] in first


async def test_the_panel_over_the_whole_screen_lists_the_children(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        assert not any("CHILD" in row for row in rows_of(app))
        await pilot.press("3", "z")
        await pilot.pause()
        text = "\n".join(rows_of(app))
        assert "CHILD" in text
        assert "host_statistics64" in text


def _grown(sizes: list[float], step_s: float, **changes: Any) -> Growth:
    growth = Growth()
    for n, size in enumerate(sizes):
        model = msgspec.structs.replace(QWEN, footprint_bytes=gib(size), **changes)
        growth.update(_with(model, at=AT + n * step_s))
    return growth


def test_what_a_child_takes_right_after_its_load_or_takes_back_when_it_wakes_is_no_growth() -> None:
    assert QWEN.id not in _grown([9.0, 10.0, 10.9, 10.9], 1.5)
    assert QWEN.id not in _grown([10.9, 10.9, 0.1, 0.1, 5.0, 10.9], 10)
    assert QWEN.id in _grown([10.9, 10.9, 0.1, 0.1, 5.0, 11.9], 10)


def test_a_footprint_that_rises_within_a_minute_grows() -> None:
    assert QWEN.id in _grown([10.0, 10.2, 10.5], 10)


def test_small_steps_and_slow_ones_and_loads_do_not_count() -> None:
    assert QWEN.id not in _grown([10.0, 10.1, 10.1], 10)
    assert QWEN.id not in _grown([10.0, 10.2, 10.4, 10.6], 61)
    assert QWEN.id not in _grown([1.0, 5.0, 9.0], 1, state="loading")
    assert QWEN.id not in _grown([10.0, 10.5, 10.5, 10.5], 40)


def test_growth_is_marked_in_the_row() -> None:
    view = _view(_with(QWEN))
    view.take(_with(msgspec.structs.replace(QWEN, footprint_bytes=gib(12.4)), at=AT + 5))
    row = plain(models_table.row(view.snapshot.models[0], view, "normal", 119))
    assert "↑12.4" in row
    assert "↑" not in plain(models_table.row(QWEN, _view(_with(QWEN)), "normal", 119))


@pytest.mark.parametrize(
    ("plan", "style"), [(11.1, "muted"), (11.9, "muted"), (9.9, "muted"), (9.7, "warn"), (12.1, "text")]
)
def test_a_plan_stands_out_once_it_is_a_tenth_off(plan: float, style: str) -> None:
    model = msgspec.structs.replace(QWEN, reserved_bytes=gib(plan))
    assert models_table.CELLS["EST"](model, _view(_with(model)))[1] == style


def test_a_load_is_not_held_against_its_plan() -> None:
    assert models_table.CELLS["EST"](GEMMA, _view(_with(GEMMA)))[1] == "muted"
