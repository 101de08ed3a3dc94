# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The command palette: every action, every model by name, every theme."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider
from textual.content import Content

from llmtop_tui.actions import key_name
from llmtop_tui.format import clean
from llmtop_tui.view import holds_memory

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp

Command = tuple[str, str, Callable[[], object]]
_MOVES = ("Move",)


class _Commands(Provider):
    """Offers plain text, never markup."""

    @property
    def host(self) -> LlmtopApp:
        """The app, by its own type."""
        return cast("LlmtopApp", self.app)

    def commands(self) -> Iterator[Command]:
        """Name, help, and what to call."""
        raise NotImplementedError

    async def discover(self) -> Hits:
        for name, help_text, call in self.commands():
            yield DiscoveryHit(Content(name), call, text=name, help=help_text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, help_text, call in self.commands():
            score = matcher.match(name)
            if score > 0:
                yield Hit(score, matcher.highlight(name), call, text=name, help=help_text)


class MainCommands(_Commands):
    """All actions of the registry but the moves; every model; the themes."""

    def commands(self) -> Iterator[Command]:
        for action in self.host.actions:
            if action.group not in _MOVES and action.id not in ("palette", "escape"):
                yield f"{action.label} ({key_name(action.keys[0])})", action.help, partial(self.host.do, action.id)
        for model in self.host.newest.models:
            yield f"Go to {clean(model.id)}", model.state, partial(self.host.go_to, model.id)
        for theme in sorted(self.host.available_themes):
            yield f"Theme {theme}", "Colours of the screen.", partial(setattr, self.host, "theme", theme)


class LoadCommands(_Commands):
    """Load one of the models that do not run."""

    def commands(self) -> Iterator[Command]:
        for model in self.host.newest.models:
            if not holds_memory(model):
                yield f"Load {clean(model.id)}", "through the queue", partial(self.host.core_deeds.load_model, model.id)
