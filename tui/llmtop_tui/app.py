# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The Textual application: follows a core's snapshots, and turns keys into commands to it."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from typing import ClassVar, Literal

from textual import events, on
from textual.app import App
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, Provider
from textual.driver import Driver
from textual.widget import Widget

from llmtop.client import CoreClient
from llmtop.snapshot import Model, Snapshot
from llmtop_tui.actions import BY_ID, Action, Item, Target, is_there, shown
from llmtop_tui.asking import Asking, Leave
from llmtop_tui.clients import Other, Player
from llmtop_tui.commands import LoadCommands, MainCommands
from llmtop_tui.deeds import CoreDeeds
from llmtop_tui.format import ascii_only, clean
from llmtop_tui.glyphs import ASCII, UNICODE, utf8
from llmtop_tui.ink import Ink
from llmtop_tui.messages import ActionAsked, CursorMoved, LogFetched, SnapshotArrived
from llmtop_tui.outside import MOUSE_OFF, MOUSE_ON
from llmtop_tui.panels.base import LineView
from llmtop_tui.pen import thrifty_driver
from llmtop_tui.play_deeds import PlayDeeds
from llmtop_tui.preferences import Preferences
from llmtop_tui.screens.main import MainScreen
from llmtop_tui.screens.pager import PagerScreen
from llmtop_tui.screens.timeline import TimelineScreen
from llmtop_tui.themes import COLOR_BLIND, DARK, THEMES
from llmtop_tui.view import BREAKPOINTS, View
from llmtop_tui.view_deeds import SCREENSHOT, ViewDeeds
from llmtop_tui.watch import Watch
from llmtop_tui.widgets.line import Line
from llmtop_tui.widgets.pages import item_page

__all__ = ["Leave", "LlmtopApp"]

FONT_FACE = re.compile(r"@font-face\s*{[^}]*}\s*")


class LlmtopApp(App[Leave]):
    """The screen.

    Args:
        client: The core that is shown.
        readonly: No keys that change what is served.
        ascii_only: Plain ASCII signs, also where the locale could show more.
        detach_allowed: Leaving may keep the core of this process serving.
        preferences: The user's theme and keys; none if None.
        mouse: The terminal reports the mouse.
    """

    CSS_PATH = "app.tcss"
    TITLE = "llmtop"
    ENABLE_COMMAND_PALETTE = False
    HORIZONTAL_BREAKPOINTS = [(start, f"-{level}") for start, level in BREAKPOINTS]  # noqa: RUF012 (as in the base)
    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (12, "-low"), (18, "-short"), (30, "-tall")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+q", "do('leave')", show=False, priority=True),
        Binding("ctrl+c", "do('leave')", show=False),
    ]

    def __init__(
        self,
        client: CoreClient,
        *,
        readonly: bool = False,
        ascii_only: bool = False,
        detach_allowed: bool = True,
        preferences: Preferences | None = None,
        mouse: bool = True,
    ) -> None:
        if os.environ.get("NO_COLOR") == "":
            del os.environ["NO_COLOR"]  # empty means unset; Textual takes it as set
        mono = "NO_COLOR" in os.environ
        # With its own colours Textual turns NO_COLOR into grey shades; with the terminal's it leaves colour out.
        super().__init__(ansi_color=True if mono else None)
        self.client = client
        self.readonly = readonly
        self.detach_allowed = detach_allowed
        glyphs = ASCII if ascii_only or not utf8() else UNICODE
        self.newest: Snapshot = client.latest or Snapshot(version="", pid=0, at=time.time(), url=client.url)
        self.view = View(self.newest, glyphs=glyphs, mono=mono, readonly=readonly)
        self.view.take(self.newest)
        self.main: MainScreen = MainScreen()
        self._asking = Asking(self)
        self.core_deeds = CoreDeeds(self)
        self.deeds = (self.core_deeds, ViewDeeds(self), PlayDeeds(self))
        self.preferences = preferences or Preferences()
        self.keys = self.preferences.keys
        self.player: Player | None = client if isinstance(client, Player) else None
        self.watch_core, self.mouse = Watch(self), mouse
        self.view.kind = client.kind if isinstance(client, Other) else ""
        self._ink: tuple[str, Ink] | None = None
        self._last_key = ""
        self.animation_level = "none"
        for theme in THEMES:
            self.register_theme(theme)
        if "TEXTUAL_THEME" not in os.environ:
            chosen = self.preferences.theme
            self.theme = chosen if chosen in self.available_themes else DARK.name
        self.set_keymap({action: ",".join(keys) for action, keys in self.keys.items()})

    def get_driver_class(self) -> type[Driver]:
        """Textual's driver for this terminal, that writes fewer bytes."""
        return thrifty_driver(super().get_driver_class())

    # Life

    def on_mount(self) -> None:
        self.push_screen(self.main)
        if self.view.glyphs.ascii:
            self.add_class("-ascii")
        self.theme_changed_signal.subscribe(self, lambda _: self._recolour())
        self.call_after_refresh(self._start)
        self.run_worker(self.watch_core.follow(), group="follow", exclusive=True)
        self.set_interval(1.0, self.watch_core.tick)

    def _start(self) -> None:
        self.watch_core.tick()
        self.watch_core.show_position()
        self.show_all()
        for problem in self.preferences.problems:
            self.tell(problem, "warning")

    @on(SnapshotArrived)
    def _arrived(self, message: SnapshotArrived) -> None:
        self.watch_core.arrived(message.snapshot)

    def show_all(self) -> None:
        """Draw what differs from the state shown."""
        self.main.show(self.view)
        for screen in self.screen_stack:
            if isinstance(screen, PagerScreen | TimelineScreen):
                screen.refresh_page()

    @property
    def fault(self) -> Exception | None:
        """What ended the view, None where nothing did."""
        return self._exception

    @property
    def broken(self) -> str:
        """The fault in one line, empty where there is none."""
        return self.plain(f"{type(self.fault).__name__}: {self.fault}") if self.fault is not None else ""

    def _fatal_error(self) -> None:
        """A fault ends the view: it goes to the log whole; whoever runs the view tells it in a line."""
        if logging.getLogger().hasHandlers():
            logging.getLogger(__name__).error("the view broke", exc_info=self._exception)
        self._close_messages_no_wait()

    # Colours

    @property
    def ink(self) -> Ink:
        """Style names in the colours of the theme."""
        if self._ink is None or self._ink[0] != self.theme:
            ink = Ink(
                self.theme_variables,
                color_blind=self.theme == COLOR_BLIND.name,
                mono=self.view.mono,
                ascii=self.view.glyphs.ascii,
            )
            self._ink = (self.theme, ink)
        return self._ink[1]

    def _recolour(self) -> None:
        self._ink = None
        self.preferences.save_theme(self.theme)
        for screen in self.screen_stack:
            for panel in screen.query(LineView):
                panel.refresh()

    # Actions

    @property
    def target(self) -> Target:
        """What an action would act on now."""
        name = self.main.selected_model()
        model = next((m for m in self.newest.models if m.id == name), None)
        panel = self.main.active
        return Target(
            self.newest, model, panel.id or "", panel.item, self.client.embedded, self.player is not None, self.keys
        )

    @property
    def actions(self) -> tuple[Action, ...]:
        """The actions that this view has, with their keys."""
        return shown(readonly=self.readonly, replay=self.player is not None, keys=self.keys)

    def has_action(self, action: Action) -> bool:
        """This view has the action."""
        return is_there(action, readonly=self.readonly, replay=self.player is not None)

    def action_of(self, key: str) -> str:
        """The action of a key, empty for none."""
        return next((action.id for action in self.actions if key in action.keys), "")

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave out what this view does not have: verbs where it is read-only, a recording's keys for a live core."""
        if action == "do" and parameters and not self.has_action(BY_ID[str(parameters[0])]):
            return False
        return super().check_action(action, parameters)

    async def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.Key):
            self._last_key = event.key
        await super().on_event(event)

    def action_do(self, name: str) -> None:
        """A key of the registry."""
        self._asking.start(BY_ID[name], self._last_key)

    def do(self, name: str) -> None:
        """An action chosen by mouse or palette."""
        self._asking.start(BY_ID[name], "")

    @on(ActionAsked)
    def _asked(self, message: ActionAsked) -> None:
        self.do(message.action)

    @on(CursorMoved)
    def _moved(self, message: CursorMoved) -> None:
        """The models' cursor goes along with the queue's: one model is selected, wherever it was pointed at."""
        if message.by_user and message.panel in ("queue", "flight"):
            self.main.models.select(getattr(self.main.panel(message.panel).item, "model", ""))
        self.main.detail.redraw()
        self.main.footer.redraw()

    @on(LogFetched)
    def _fetched(self, message: LogFetched) -> None:
        self.main.log_panel.merge(message.lines)

    async def action_quit(self) -> None:
        """Textual's own way out asks as ``q`` does."""
        self.do("leave")

    # What deeds and palette ask for

    def tell(self, text: str, severity: Literal["information", "warning", "error"] = "information") -> None:
        """A toast for what the user just did."""
        self.notify(self.plain(text), severity=severity, timeout=4, markup=False)

    def picture(self) -> str:
        """The screen as SVG, without the fonts that it would fetch from elsewhere."""
        return FONT_FACE.sub("", self.export_screenshot(title="llmtop"))

    @on(events.DeliveryComplete)
    def _delivered(self, message: events.DeliveryComplete) -> None:
        if message.name == SCREENSHOT:
            self.tell(f"saved {message.path}" if message.path is not None else "the picture is in your downloads")

    @on(events.DeliveryFailed)
    def _not_delivered(self, message: events.DeliveryFailed) -> None:
        if message.name == SCREENSHOT:
            self.tell(f"the picture cannot be saved: {message.exception}", "error")

    def plain(self, text: str) -> str:
        """Text for Textual's own widgets: harmless, and plain ASCII where the screen is."""
        safe = clean(text)
        return ascii_only(safe) if self.view.glyphs.ascii else safe

    def open_page(self, name: str, text: Callable[[], list[Line]], indent: int = 11) -> None:
        """Show a page of text; rows that wrap go on at ``indent``."""
        self.push_screen(PagerScreen(name, text, self.view, indent))

    def open_row(self, item: Item) -> None:
        """A page about a row; a model's page follows what happens to it."""

        def text() -> list[Line]:
            fresh = self.view.model(item.id) if isinstance(item, Model) else None
            return item_page(fresh or item, self.view)[1]

        self.open_page(item_page(item, self.view)[0], text)

    def open_timeline(self) -> None:
        """The swaps of late over the whole screen."""
        self.push_screen(TimelineScreen(self.view))

    def open_palette(self) -> None:
        """Every action, every model."""
        self._palette(MainCommands)

    def open_load_picker(self) -> None:
        """The models that do not run."""
        self._palette(LoadCommands)

    def _palette(self, *providers: type[Provider]) -> None:
        self.push_screen(CommandPalette(providers=list(providers), placeholder="type a part of a name"))

    def go_to(self, model: str) -> None:
        """Put the cursor on a model."""
        self.main.models.set_filter("")
        self.main.use(self.main.models)
        self.main.models.select(model)

    def set_mouse(self, on: bool) -> None:
        """Let the terminal report the mouse, or keep it for its own selection."""
        self.mouse = on
        driver = self._driver
        if driver is not None:
            driver.write(MOUSE_ON if on else MOUSE_OFF)
            driver.flush()

    def on_app_focus(self) -> None:
        """Back from another window: the panel in use has the keys again."""
        focused: Widget | None = self.main.focused
        if focused is None and self.screen is self.main:
            self.main.active.focus()
