"""Fixtures of the screen's tests: an app on a core that stands still."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest
from textual.pilot import Pilot

from llmtop.snapshot import Snapshot
from llmtop_tui.app import Leave, LlmtopApp
from llmtop_tui.panels.base import LineView
from llmtop_tui.scene_client import SceneClient
from llmtop_tui.scenes import SCENES
from llmtop_tui.view import View

Screen = tuple[LlmtopApp, SceneClient, Pilot[Leave]]
OpenScreen = Callable[..., AbstractAsyncContextManager[Screen]]


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.delenv("TEXTUAL_THEME", raising=False)
    monkeypatch.setenv("PAGER", "cat")
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)


@pytest.fixture
def scene() -> Callable[[str], Snapshot]:
    return lambda name: SCENES[name]()


@pytest.fixture
def view_of() -> Callable[[Snapshot], View]:
    def make(snapshot: Snapshot) -> View:
        view = View(snapshot)
        view.take(snapshot)
        return view

    return make


@pytest.fixture
def open_screen() -> OpenScreen:
    """Opens the app on a scene: ``async with open_screen("full") as (app, client, pilot)``."""

    @asynccontextmanager
    async def opened(
        name: str | Snapshot = "full", size: tuple[int, int] = (120, 40), embedded: bool = True, **options: Any
    ) -> AsyncIterator[Screen]:
        snapshot = SCENES[name]() if isinstance(name, str) else name
        client = SceneClient(snapshot, embedded=embedded)
        app = LlmtopApp(client, **options)
        async with app.run_test(size=size, notifications=True) as pilot:
            await pilot.pause()
            yield app, client, pilot
            await pilot.pause()
            assert stale_panels(app) == []

    return opened


def stale_panels(app: LlmtopApp) -> list[str]:
    """Panels that would look otherwise if they were drawn now; drawing is left out where nothing seems to change it."""
    return [
        panel.id or ""
        for panel in app.main.query(LineView)
        if panel.view is not None
        and all(panel.content_size)
        and panel.lines(panel.view, *panel.content_size)[: panel.content_size.height] != panel._drawn
    ]


@pytest.fixture
def rows_of() -> Callable[[LlmtopApp], list[str]]:
    """What stands on the screen, row by row."""

    def read(app: LlmtopApp) -> list[str]:
        strips = app.screen._compositor.render_strips()
        return ["".join(segment.text for segment in strip) for strip in strips]

    return read


@pytest.fixture
def verbs_done() -> Callable[[LlmtopApp, Pilot[Leave]], Awaitable[None]]:
    """Waits until every command that was given has been answered."""

    async def wait(app: LlmtopApp, pilot: Pilot[Leave]) -> None:
        await pilot.pause()
        running = [w for w in app.workers if w.group in ("verbs", "log")]
        if running:
            await app.workers.wait_for_complete(running)
        await pilot.pause()

    return wait
