"""Follows a core's pictures: takes them in at their pace, and tells when none comes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from llmtop.snapshot import Snapshot
from llmtop_tui.clients import Distant
from llmtop_tui.messages import SnapshotArrived
from llmtop_tui.pace import JITTER_S, Cost, Pace, is_calm, position_of
from llmtop_tui.view import level_of

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp

STALE_S = 3.0
"""A core tells something each second; after this long without, the screen says STALE [s]."""


class Watch:
    """What the view knows of its core's pulse.

    Attributes:
        pace: How often a picture is shown.
        cost: What the view takes.
    """

    def __init__(self, app: LlmtopApp) -> None:
        self._app = app
        self._distant = app.client if isinstance(app.client, Distant) else None
        self.pace, self.cost = Pace(), Cost()
        self._heard_at = time.monotonic()
        self._paused_at: float | None = None

    async def follow(self) -> None:
        """Hand the core's pictures to the screen, each when it is due; a core that is not reached is tried again."""
        app = self._app
        before: Snapshot | None = None
        shown_at = 0.0
        while True:
            try:
                async for snapshot in app.client.changes():
                    now = self._heard_at = time.monotonic()
                    blurred = not app.app_focus
                    calm = app.player is None and is_calm(snapshot, before)
                    if calm and now - shown_at < self.pace.due_s(calm=True, blurred=blurred) - JITTER_S:
                        app.view.history.add(snapshot)
                        continue
                    app.post_message(SnapshotArrived(snapshot))
                    before, shown_at = snapshot, now
                    await self.pace.wait(blurred=blurred)
            except Exception as error:  # what a client's transport raises shows as STALE, never as an end of the view
                app.log.error(error)
            await asyncio.sleep(1.0)

    def arrived(self, snapshot: Snapshot) -> None:
        """Show a picture; while paused only its alarms."""
        app = self._app
        app.newest = snapshot
        app.view.stale_s, app.view.fault = None, ""
        if app.player is not None:
            app.view.replay = position_of(app.player)
        if self._paused_at is None:
            app.view.take(snapshot)
            app.show_all()
        else:
            app.view.history.add(snapshot)
            app.main.log_panel.collect(snapshot)
            self._show_alarms()

    def _show_alarms(self) -> None:
        """While paused: the clock's row and the alarms tell the present, all else stands."""
        main = self._app.main
        now = replace(self._app.view, snapshot=self._app.newest)
        main.header.show(now)
        main.alert.show(now)

    def tick(self) -> None:
        """Each second: is the core still there, how long has the display stood, what does the view cost."""
        app, now = self._app, time.monotonic()
        view, distant = app.view, self._distant
        silent = now - self._heard_at
        stale = silent if silent > STALE_S + self.pace.every_s else None
        fault = ""
        if distant is not None and distant.fault:
            stale, fault = max(silent, distant.stale_s), distant.fault
        paused = None if self._paused_at is None else now - self._paused_at
        cost = self.cost.read(now) if level_of(app.size.width) == "wide" else ""
        told = (stale, paused, fault, cost, self.pace.every_s)
        if told != (view.stale_s, view.paused_s, view.fault, view.cost, view.every_s):
            view.stale_s, view.paused_s, view.fault, view.cost, view.every_s = told
            self._show_alarms()

    def toggle_pause(self) -> None:
        """Freeze the display, or show the present again."""
        app = self._app
        if self._paused_at is None:
            self._paused_at, app.view.paused_s = time.monotonic(), 0.0
            self._show_alarms()
        else:
            self._paused_at, app.view.paused_s = None, None
            app.view.take(app.newest)
            app.show_all()

    def show_position(self) -> None:
        """Tell where a recording stands."""
        if self._app.player is not None:
            self._app.view.replay = position_of(self._app.player)
            self._show_alarms()
