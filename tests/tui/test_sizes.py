"""All sizes, colour-less and ASCII terminals, and text that means harm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from llmtop_tui.scene_parts import GEMMA
from llmtop_tui.scenes import SCENES, full, hostile

pytestmark = pytest.mark.anyio
SIZES = [(200, 60), (160, 45), (120, 40), (100, 30), (80, 24), (60, 12), (59, 11), (40, 24), (20, 5), (5, 3), (1, 1)]


@pytest.mark.parametrize("size", SIZES)
async def test_every_scene_fits_every_size(size: tuple[int, int], open_screen: Any, rows_of: Any) -> None:
    for name in SCENES:
        async with open_screen(name, size=size) as (app, _, pilot):
            await pilot.pause()
            assert len(rows_of(app)) == size[1]


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((120, 40), {"header", "clock", "gauge", "models", "queue", "memory", "events", "log", "alert", "footer"}),
        (
            (200, 60),
            {
                "header",
                "clock",
                "gauge",
                "models",
                "queue",
                "flight",
                "memory",
                "events",
                "log",
                "detail",
                "alert",
                "footer",
            },
        ),
        ((80, 24), {"header", "clock", "gauge", "models", "queue", "log", "alert", "footer"}),
        ((80, 14), {"header", "clock", "gauge", "models", "queue", "alert", "footer"}),
        ((59, 11), {"header", "clock", "gauge", "models"}),
    ],
)
async def test_what_decides_nothing_is_dropped_first(size: tuple[int, int], shown: set[str], open_screen: Any) -> None:
    async with open_screen("oom", size=size) as (app, _, pilot):
        await pilot.pause()
        panels = app.main.query("LineView")
        seen = {p.id for p in panels if p.size.height and all(node.display for node in p.ancestors_with_self)}
        assert seen == shown


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (100, 30)])
async def test_all_models_the_queue_and_the_alarm_are_on_the_screen(
    size: tuple[int, int], open_screen: Any, rows_of: Any
) -> None:
    async with open_screen("oom", size=size) as (app, _, pilot):
        await pilot.pause()
        text = "\n".join(rows_of(app))
        for model in full().models:
            assert model.id[:8] in text
        assert "QUEUE 4 waiting" in text
        assert "! OOM" in text
        assert "q Quit" in text


@pytest.mark.parametrize("width", range(30, 131, 7))
async def test_the_way_out_is_always_in_the_footer_and_the_mood_in_the_header(
    width: int, open_screen: Any, rows_of: Any
) -> None:
    async with open_screen("held", size=(width, 24)) as (app, _, pilot):
        await pilot.pause()
        rows = rows_of(app)
        assert rows[-1].rstrip().endswith("q Quit")
        assert "HELD" in rows[0]
        assert width < 40 or "d Release" in rows[-1]


async def test_a_squeeze_and_back_leaves_the_screen_as_it_was(open_screen: Any, rows_of: Any) -> None:
    async with open_screen() as (app, _, pilot):
        before = rows_of(app)
        for size in ((20, 5), (1, 1), (300, 100), (80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.pause()
        assert rows_of(app) == before


@pytest.mark.parametrize("size", [(20, 5), (60, 8), (80, 12)])
async def test_the_cursor_is_in_sight_on_a_tiny_screen(size: tuple[int, int], open_screen: Any, rows_of: Any) -> None:
    async with open_screen(size=size) as (app, _, pilot):
        await pilot.press("G")
        assert any(row.startswith(">") and "\u00d7" in row for row in rows_of(app))


async def test_many_models_scroll_with_the_cursor(open_screen: Any, rows_of: Any) -> None:
    models = tuple(msgspec.structs.replace(GEMMA, id=f"model-{n:03}") for n in range(80))
    async with open_screen(msgspec.structs.replace(full(), models=models), size=(80, 24)) as (app, _, pilot):
        await pilot.press("G")
        assert any(row.startswith(">") and "model-079" in row for row in rows_of(app))
        assert app.main.log_panel.size.height >= 3


@pytest.mark.parametrize("name", list(SCENES))
@pytest.mark.parametrize("keys", ["", "question_mark", "enter", "j K", "q"])
async def test_an_ascii_screen_is_ascii(name: str, keys: str, open_screen: Any, rows_of: Any) -> None:
    async with open_screen(name, ascii_only=True) as (app, _, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert [row for row in rows_of(app) if not row.isascii()] == []


async def test_a_locale_without_utf8_gets_ascii(
    open_screen: Any, rows_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    async with open_screen() as (app, _, _pilot):
        assert all(row.isascii() for row in rows_of(app))


def _colours(app: Any) -> set[object]:
    strips = app.screen._compositor.render_strips()
    styles = [segment.style for strip in strips for segment in strip if segment.style]
    return {c for style in styles for c in (style.color, style.bgcolor) if c and not c.is_default}


@pytest.mark.parametrize("keys", ["", "j K", "question_mark"])
async def test_no_color_leaves_out_all_colour(
    keys: str, open_screen: Any, monkeypatch: pytest.MonkeyPatch, rows_of: Any
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with open_screen("oom") as (app, _, pilot):
        await pilot.press(*keys.split())
        await pilot.pause()
        assert _colours(app) == set()
        text = rows_of(app)
        assert any("FAILED" in row for row in text) or keys


async def test_an_empty_no_color_means_colour(open_screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    async with open_screen() as (app, _, _pilot):
        assert len(_colours(app)) > 8


@pytest.mark.parametrize("theme", ["llmtop", "llmtop-light", "llmtop-cvd", "textual-dark", "ansi-dark"])
async def test_a_theme_can_be_changed_while_it_runs(theme: str, open_screen: Any) -> None:
    async with open_screen("oom") as (app, _, pilot):
        if theme not in app.available_themes:
            pytest.skip("this Textual has no such theme")
        app.theme = theme
        await pilot.pause()
        await pilot.press("j", "K")
        assert app.theme == theme


KEYS = [
    "", "enter", "question_mark", "K", "e", "E", "colon", "q", "2 enter", "2 x", "4 enter", "4 G enter", "5 enter", "l",
    "exclamation_mark", "y", "Y", "z", "slash [ slash v enter", "tab tab enter", "tab tab x", "w", "s s", "p", "L",
]  # fmt: skip


@pytest.mark.parametrize("keys", KEYS)
async def test_hostile_text_reaches_the_terminal_only_as_text(keys: str, open_screen: Any) -> None:
    """Everything that is written, dialogs, pages, palette and toasts too, is free of foreign control characters."""
    async with open_screen("hostile", size=(200, 60)) as (app, _, pilot):
        await pilot.press(*keys.split())
        await pilot.pause(0.1)
        written = "".join(segment.text for strip in app.screen._compositor.render_strips() for segment in strip)
        assert written.isprintable()
        assert "\u202e" not in written
        if not keys:
            assert "x [/var/x] [b]bold[/b] [@click=app.quit]go[/] ␛]0;PWNED␇" in written


async def test_a_hostile_filter_is_harmless(open_screen: Any) -> None:
    async with open_screen("hostile") as (app, _, pilot):
        app.main.models.set_filter("\x1b]0;x\x07[/b]")
        await pilot.pause()
        written = "".join(s.text for strip in app.screen._compositor.render_strips() for s in strip)
        assert written.isprintable()


async def test_a_hostile_refusal_is_harmless(open_screen: Any) -> None:
    async with open_screen() as (app, _, pilot):
        app.tell("\x1b]0;PWNED\x07 [/x] [b]", "error")
        await pilot.pause(0.1)
        written = "".join(s.text for strip in app.screen._compositor.render_strips() for s in strip)
        assert written.isprintable()
        assert "[/x] [b]" in written


def test_the_hostile_scene_is_hostile_everywhere() -> None:
    bad = msgspec.json.encode(hostile()).decode()
    assert bad.count("PWNED") > 25
