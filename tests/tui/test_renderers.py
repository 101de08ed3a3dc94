"""Pure renderers, by value."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from llmtop.snapshot import Failure, Memory, Model, Oom, Phases, Progress, Snapshot, Swap
from llmtop_tui.format import clock
from llmtop_tui.glyphs import ASCII, UNICODE, state_word
from llmtop_tui.scene_parts import AT, GEMMA, LLAMA, MISTRAL, PHI, QWEN, gib
from llmtop_tui.view import Alarms, History, Letters, Level, Sample, View, level_of
from llmtop_tui.widgets import alert, chart, gauge, header, lists, models_table, phases
from llmtop_tui.widgets.line import plain, width

Scene = Callable[[str], Snapshot]
ViewOf = Callable[[Snapshot], View]
WIDTHS = (1, 5, 20, 40, 60, 80, 100, 120, 160, 200, 300)


@pytest.mark.parametrize(
    ("cells", "level"), [(0, "slim"), (59, "slim"), (60, "narrow"), (99, "narrow"), (100, "normal"), (160, "wide")]
)
def test_the_layout_follows_the_width(cells: int, level: Level) -> None:
    assert level_of(cells) == level


@pytest.mark.parametrize("cells", WIDTHS)
@pytest.mark.parametrize("name", ["cold", "full", "oom", "held", "sick", "unknown", "hostile"])
def test_no_row_is_wider_than_the_screen(name: str, cells: int, scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene(name))
    level = level_of(cells)
    rows = [header.render(view, cells), gauge.render(view, cells), gauge.legend(view, cells)]
    rows += [models_table.row(m, view, level, cells) for m in view.snapshot.models]
    rows += [lists.queue_row(e, view, cells, level) for e in view.snapshot.queue]
    rows += [lists.request_row(r, view, cells) for r in view.snapshot.requests]
    rows += [lists.event_row(e, view, cells) for e in view.snapshot.events]
    rows += [lists.swap_row(s, view, cells) for s in view.snapshot.swaps.recent]
    rows += [row for line in view.snapshot.log for row in lists.log_rows(line, view, cells, wrap=True)]
    if view.snapshot.oom.last:
        rows.append(alert.render(view, cells))
    assert max(width(row) for row in rows) <= cells


def test_the_header_says_who_serves_and_how_full(scene: Scene, view_of: ViewOf) -> None:
    text = plain(header.render(view_of(scene("full")), 120))
    for part in ("llmtop 0.1.0", "127.0.0.1:8080", "SERVING", "resident 4/4 (flag)", "queue 4", "req 1204", "err 3"):
        assert part in text
    assert plain(header.time_of_day(view_of(scene("full")))) == f" {clock(AT)} "


@pytest.mark.parametrize(
    ("change", "badge"),
    [
        ({"hold": True}, " HELD "),
        ({"shutting_down": True, "hold": True}, " SHUTTING DOWN "),
        ({"exposed": True}, " EXPOSED "),
        ({"faults": ("x", "y")}, " FAULT 2 "),
    ],
)
def test_what_is_not_plain_serving_is_in_reverse_video(
    change: dict[str, object], badge: str, scene: Scene, view_of: ViewOf
) -> None:
    view = view_of(msgspec.structs.replace(scene("cold"), **change))
    found = [style for text, style in header.badges(view) if text == badge]
    assert found
    assert "reverse" in found[0]


def test_an_uptime_that_is_not_told_is_left_out(scene: Scene, view_of: ViewOf) -> None:
    for uptime_s, told in ((4.0, True), (0.0, False)):
        row = "".join(
            text for text, _ in header.render(view_of(msgspec.structs.replace(scene("full"), uptime_s=uptime_s)), 200)
        )
        assert (" up " in row) is told


def test_a_silent_core_is_stale_and_a_frozen_display_is_paused(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("cold"))
    view.stale_s, view.paused_s = 7.0, 12.0
    assert plain(header.badges(view)) == " STALE 7s   PAUSED 00:12 "


def test_no_cap_is_said_so(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(msgspec.structs.replace(scene("full"), models_max=0))
    assert "resident 4/no cap" in plain(header.render(view, 120))


def _cells(memory: Memory, models: tuple[Model, ...], cells: int, *, mono: bool = True) -> str:
    snapshot = Snapshot("1", 1, AT, "http://h:1", models=models, memory=memory)
    view = View(snapshot, mono=mono)
    view.take(snapshot)
    return plain(gauge.bar(view, cells))


def test_the_gauge_gives_each_child_its_run_of_letters() -> None:
    memory = Memory(total=gib(40), limit=gib(30), used=gib(20), label="WIRED")
    models = (Model("a", "loaded", footprint_bytes=gib(10)), Model("b", "loaded", footprint_bytes=gib(5)))
    assert _cells(memory, models, 40) == "AAAAAAAAAABBBBB-----··········│·········"


def test_the_gauge_shows_where_a_load_will_end() -> None:
    memory = Memory(total=gib(20), limit=gib(20), used=gib(5), label="VRAM")
    models = (Model("a", "loading", footprint_bytes=gib(5), reserved_bytes=gib(10)),)
    assert _cells(memory, models, 20) == "AAAAAaaaaa··········"


def test_even_the_smallest_child_has_a_cell() -> None:
    memory = Memory(total=gib(20), limit=gib(20), used=gib(0.02), label="VRAM")
    models = tuple(Model(name, "loaded", footprint_bytes=gib(0.01)) for name in "xy")
    assert _cells(memory, models, 20).startswith("AB·")


def test_with_colour_the_letter_stands_at_the_start_of_its_run() -> None:
    memory = Memory(total=gib(20), limit=gib(20), used=gib(5), label="VRAM")
    assert _cells(memory, (Model("a", "loaded", footprint_bytes=gib(5)),), 20, mono=False).startswith("A    ·")


def test_rounding_does_not_add_up_along_the_gauge() -> None:
    memory = Memory(total=gib(26), limit=gib(26), used=gib(26), label="VRAM")
    models = tuple(Model(f"m{n}", "loaded", footprint_bytes=gib(1)) for n in range(26))
    assert _cells(memory, models, 39).count("·") == 0


def test_a_gauge_without_a_reading_says_so(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("unknown"))
    assert "n/a" in plain(gauge.render(view, 80))
    assert "NVML: driver not loaded" in plain(gauge.legend(view, 120))


def test_the_legend_drops_names_before_figures(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("full"))
    assert "gemma3-4b-it-q8_0 3.1>5.1" in plain(gauge.legend(view, 200))
    assert "A gemma3 3.1>5.1" in plain(gauge.legend(view, 120))
    assert "A 3.1>5.1" in plain(gauge.legend(view, 100))


def test_alarm_words_have_hysteresis() -> None:
    alarms = Alarms()
    words: list[str] = []
    for share in (0.79, 0.80, 0.78, 0.769, 0.96, 0.93, 0.919, 0.5):
        alarms.update(share)
        words.append(alarms.word)
    assert words == ["OK", "WARN", "WARN", "OK", "CRIT", "CRIT", "WARN", "OK"]


def test_a_missing_reading_leaves_the_alarm_as_it_was() -> None:
    alarms = Alarms()
    alarms.update(0.9)
    alarms.update(None)
    assert alarms.word == "WARN"


def test_letters_stay_with_their_child() -> None:
    letters = Letters()
    letters.update((Model("a", "loaded"), Model("b", "loaded")))
    letters.update((Model("a"), Model("b", "loaded"), Model("c", "loading")))
    assert (letters["a"], letters["b"], letters["c"]) == ("", "B", "A")


def test_the_history_takes_one_sample_a_second_and_skips_what_is_not_known(scene: Scene) -> None:
    history = History()
    first = scene("full")
    for at, used in ((0.0, 5), (0.4, 6), (1.0, None), (2.0, 7)):
        memory = msgspec.structs.replace(first.memory, used=used)
        history.add(msgspec.structs.replace(first, at=AT + at, memory=memory))
    assert [(s.at - AT, s.used) for s in history.samples] == [(0.0, 5), (2.0, 7)]


def test_the_chart_is_scaled_from_zero_to_the_limit() -> None:
    samples = [Sample(AT - 1, gib(12), gib(24)), Sample(AT, gib(24), gib(24))]
    rows = [plain(row) for row in chart.render(samples, AT, 1.0, chart.AXIS + 4, 2, UNICODE)]
    assert rows == ["  24 ╌╌╌█", "   0   ██"]


def test_the_chart_moves_once_a_step() -> None:
    samples = [Sample(100.0, 1, 2), Sample(109.0, 2, 2)]
    assert chart.columns(samples, 109.9, 10.0, 3) == [None, None, 2]
    assert chart.columns(samples, 110.0, 10.0, 3) == [None, 2, None]


def test_an_unloaded_model_that_failed_says_failed() -> None:
    assert state_word(MISTRAL) == "FAILED"
    assert state_word(Model("x")) == "UNLOADED"
    assert state_word(Model("x", "loaded", failure=Failure("crash", "old"))) == "LOADED"


@pytest.mark.parametrize(
    ("model", "cell"),
    [
        (GEMMA, "3.1>5.1"),
        (LLAMA, "4.4"),
        (PHI, "-"),
        (Model("x", "loaded", reserved_bytes=gib(2)), "~2.0"),
        (Model("x", settling=True, footprint_bytes=gib(1)), "1.0"),
    ],
)
def test_sizes_say_measured_growing_or_estimated(model: Model, cell: str) -> None:
    assert models_table.size_cell(model) == cell


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (GEMMA, "61 %, 8s of ~13s"),
        (Model("x", "loading", progress=Progress("", None, 130.0, 13.0)), "2m10 of ~13s, slow?"),
        (Model("x", "loading", progress=Progress("text_model", None, 3.0)), "3s, text_model"),
        (Model("x", "stopping", kill_in_s=7.2, reason="stopping for b"), "kill in 8s, stopping for b"),
        (MISTRAL, "retry in 45s, out of memory on Metal while allocating the KV cache"),
        (Model("x", settling=True, reason="1.0 GiB still out"), "settling, 1.0 GiB still out"),
        (Model("x", "stopping", stuck=True), "stuck"),
        (Model("x", "loaded", draining=True, reason="draining for b"), "draining for b"),
        (Model("x", "loaded", pinned=True, pinned_by="preset"), "pinned by preset"),
        (Model("x", "loaded", stale_config=True), "stale config"),
        (
            Model("x", "loaded", stale_config=True, draining=True, reason="draining for b"),
            "stale config, draining for b",
        ),
        (Model("x", problem="shard 2 of 3 is missing"), "shard 2 of 3 is missing"),
    ],
)
def test_the_note_says_what_it_does_and_what_ends_it(model: Model, text: str) -> None:
    assert models_table.note(model) == text


def test_a_row_has_pin_glyph_word_letter_and_name(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("full"))
    row = plain(models_table.row(QWEN, view, "normal", 119))
    assert row.startswith(
        "P● LOADED    D qwen3-14b-in…ruct-q5_k_m   1/2      10.9   11.1    -    0s  9101 pinned by operator"
    )


def test_ascii_rows_are_ascii(scene: Scene) -> None:
    view = View(scene("full"), glyphs=ASCII)
    view.take(view.snapshot)
    for model in view.snapshot.models:
        assert plain(models_table.row(model, view, "normal", 119)).isascii()
    assert plain(gauge.render(view, 119)).isascii()


@pytest.mark.parametrize(
    ("sort", "first"),
    [
        ("activity", "gemma3-4b-it-q8_0"),
        ("name", "gemma3-4b-it-q8_0"),
        ("size", MISTRAL.id),
        ("wait", GEMMA.id),
        ("idle", PHI.id),
    ],
)
def test_models_can_be_sorted(sort: str, first: str, scene: Scene) -> None:
    models = sorted(scene("full").models, key=lambda m: models_table.sort_key(sort, m))
    assert models[0].id == first


def test_a_queue_row_says_who_waits_how_long_and_for_what(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("full"))
    row = plain(lists.queue_row(view.snapshot.queue[1], view, 119, "normal"))
    assert row.split() == [
        "2",
        PHI.id,
        "1",
        "38s",
        "~11s",
        *["needs", "4.0", "GiB,", "2.1", "free:", "draining", "llama-3…q4_k_m", "(1", "request)"],
    ]


def test_the_bar_of_a_swap_divides_its_time() -> None:
    swap = Swap(1, "b", "cap", AT, ("a",), "ok", Phases(drain_s=5.0, stop_s=None, load_s=5.0))
    assert plain(phases.phase_bar(swap, 10)) == "dddddlllll"
    assert phases.phases_text(swap) == "drain 5.0s, load 5.0s"


def test_each_phase_of_a_swap_has_a_cell() -> None:
    swap = Swap(1, "b", "cap", AT, (), "ok", Phases(0.001, 0.001, 0.001, 0.001, 0.001, 60.0))
    bar = plain(phases.phase_bar(swap, 12))
    assert bar.startswith("qdsmp")
    assert len(bar) == 12


def test_the_sticky_line_counts_and_names_its_keys(scene: Scene, view_of: ViewOf) -> None:
    view = view_of(scene("oom"))
    text = plain(alert.render(view, 120))
    for part in ("! OOM", MISTRAL.id, "x14", "OutOfMemory)", "! show", "x clear"):
        assert part in text


def test_an_acknowledged_line_is_gone(scene: Scene) -> None:
    snapshot = scene("oom")
    assert alert.due(snapshot)
    assert not alert.due(msgspec.structs.replace(snapshot, oom=Oom(14, snapshot.oom.last, acknowledged=True)))
