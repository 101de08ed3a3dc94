# ruff: noqa: D102  (what overrides a method of a base class is described there)
"""The tables: models, queue, requests in flight, swaps and events."""

from __future__ import annotations

from typing import cast

from textual import events
from textual.geometry import Size

from llmtop.snapshot import EventLine, Model, QueueEntry, Request, Swap
from llmtop_tui.actions import Item
from llmtop_tui.format import age, count
from llmtop_tui.glyphs import state_word
from llmtop_tui.panels.rows import RowsPanel, matches
from llmtop_tui.view import HELD, View, level_of
from llmtop_tui.widgets import lists, models_table, phases
from llmtop_tui.widgets.line import Line
from llmtop_tui.widgets.line import width as width_of_line
from llmtop_tui.widgets.words import squeeze


class ModelsPanel(RowsPanel):
    """Every model; its cursor says which one the verbs act on."""

    NAME = "MODELS"
    always_cursor = True

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.sort = models_table.SORTS[0]
        self.reversed = False

    def key_of(self, item: Item) -> str:
        return cast("Model", item).id

    def text_of(self, item: Item) -> str:
        model = cast("Model", item)
        return " ".join((model.id, state_word(model), *model.aliases))

    def made_of(self, view: View) -> tuple[object, ...]:
        return view.snapshot.models, view.growth.models

    def take(self, view: View) -> None:
        models = [m for m in view.snapshot.models if not self.pattern or matches(self.text_of(m), self.pattern)]
        models.sort(key=lambda m: models_table.sort_key(self.sort, m), reverse=self.reversed)
        before = len(self.items)
        self.put(models)
        if len(models) != before:
            self.refresh(layout=True)

    def sort_by(self, sort: str) -> None:
        """Sort by this, or turn the order round if it is sorted so already."""
        self.reversed = not self.reversed if sort == self.sort else False
        self.sort = sort
        self.retake()

    def has_title(self, width: int) -> bool:
        return level_of(width) in ("normal", "wide")

    def facts(self, view: View) -> str:
        total = len(view.snapshot.models)
        hidden = f"{len(self.items)} of {total}" if self.pattern else str(total)
        room = self.content_size.height - 2
        more = f", {len(self.items) - room} more rows" if len(self.items) > room > 0 else ""
        return hidden + more

    def title_right(self, view: View, width: int) -> Line:
        arrow = view.glyphs.down if self.reversed else view.glyphs.up
        return ((f"sort: {self.sort} {arrow}", "muted"),)

    def head(self, view: View, width: int) -> Line | None:
        return models_table.head(
            level_of(width + 1), width, self.sort, reverse=self.reversed, glyphs=view.glyphs, focused=self.has_focus
        )

    def empty(self, view: View) -> str:
        return "no model matches" if self.pattern else "no models found: see llmtop check"

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        return [models_table.row(cast("Model", item), view, level_of(width + 1), width)]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return max(1, len(self.items)) + (2 if self.has_title(width) or self.pattern else 1)

    def on_click(self, event: events.Click) -> None:
        head = 1 if self.has_title(self.content_size.width) or self.pattern else 0
        if event.y == head:
            column = models_table.column_at(level_of(self.content_size.width), event.x - 1)
            if column is not None and column.sort:
                self.sort_by(column.sort)
            return
        super().on_click(event)


class QueuePanel(RowsPanel):
    """Who waits for what, and why."""

    NAME = "QUEUE"

    def key_of(self, item: Item) -> str:
        return cast("QueueEntry", item).model

    def text_of(self, item: Item) -> str:
        entry = cast("QueueEntry", item)
        return f"{entry.model} {entry.reason}"

    def made_of(self, view: View) -> tuple[object, ...]:
        snapshot = view.snapshot
        return snapshot.queue, snapshot.requests, snapshot.models, snapshot.next_swap, snapshot.hold

    def take(self, view: View) -> None:
        self.put([e for e in view.snapshot.queue if not self.pattern or matches(self.text_of(e), self.pattern)])

    def facts(self, view: View) -> str:
        queue, running = view.snapshot.queue, 0
        if level_of(self.host.size.width) != "wide":
            running = sum(1 for request in view.snapshot.requests if request.phase == "running")
        parts: list[str] = []
        if queue:
            oldest = max(entry.waited_s for entry in queue)
            parts.append(f"{sum(entry.waiters for entry in queue)} waiting, oldest {age(oldest)}")
        if running and level_of(self.host.size.width) == "normal" and not view.snapshot.hold:
            parts.append(f"{running} running (key 2)")
        return ", ".join(parts)

    def title_right(self, view: View, width: int) -> Line:
        snapshot = view.snapshot
        lead: Line = (("next swap ", "muted"),)
        text = snapshot.next_swap
        if snapshot.hold:
            text = text.removesuffix(HELD)
            if not text:
                return (("held: d releases, nothing to step", "warn bold"),)
            loads = " loads " if level_of(self.host.size.width) in ("slim", "narrow") else " would load "
            lead = (("held: ", "warn bold"), (".", "accent bold"), (loads, "muted"))
        if not text:
            return ()
        room = max(0, width - len(self.NAME) - len(self.facts(view)) - 9 - width_of_line(lead))
        return (*lead, (squeeze(text, view, room), "text bold"))

    def head(self, view: View, width: int) -> Line | None:
        return lists.queue_head(width, level_of(self.host.size.width)) if self.items else None

    def empty(self, view: View) -> str:
        if view.kind:
            return f"a {view.kind} does not tell who waits"
        return "nothing matches" if self.pattern else "nobody waits"

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        return [lists.queue_row(cast("QueueEntry", item), view, width, level_of(self.host.size.width))]


class FlightPanel(RowsPanel):
    """Requests that are not over, where there is room for them."""

    NAME = "REQUESTS"

    def on_resize(self) -> None:
        self.divided = level_of(self.host.size.width) == "wide"
        super().on_resize()

    def key_of(self, item: Item) -> str:
        return cast("Request", item).id

    def text_of(self, item: Item) -> str:
        request = cast("Request", item)
        return f"{request.model} {request.phase} {request.client} {request.path}"

    def made_of(self, view: View) -> tuple[object, ...]:
        return (view.snapshot.requests,)

    def take(self, view: View) -> None:
        rank = {"running": 0, "loading": 1, "queued": 2}
        shown = [r for r in view.snapshot.requests if not self.pattern or matches(self.text_of(r), self.pattern)]
        shown.sort(key=lambda r: (rank[r.phase], -r.age_s))
        self.put(shown)

    def facts(self, view: View) -> str:
        running = sum(1 for r in view.snapshot.requests if r.phase == "running")
        return f"{running} running, {len(view.snapshot.requests) - running} waiting" if view.snapshot.requests else ""

    def head(self, view: View, width: int) -> Line | None:
        return lists.request_head(width) if self.items else None

    def empty(self, view: View) -> str:
        return "none"

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        return [lists.request_row(cast("Request", item), view, width)]


class EventsPanel(RowsPanel):
    """What happened, newest first; swaps with the bar of their phases."""

    NAME = "SWAPS & EVENTS"
    divided = True

    def key_of(self, item: Item) -> str:
        return f"swap {item.id}" if isinstance(item, Swap) else f"event {cast('EventLine', item).seq}"

    def text_of(self, item: Item) -> str:
        if isinstance(item, Swap):
            return f"swap {item.model} {' '.join(item.evicted)} {item.reason} {item.result}"
        event = cast("EventLine", item)
        return f"{event.kind} {event.model} {event.text}"

    def made_of(self, view: View) -> tuple[object, ...] | None:
        snapshot = view.snapshot
        if any(not swap.result for swap in snapshot.swaps.recent):
            return None  # its bar grows
        return snapshot.events, snapshot.swaps, tuple(model.id for model in snapshot.models)

    def take(self, view: View) -> None:
        snapshot = view.snapshot
        # The core says what happens as events; a swap's row is its time line, placed where it ended.
        dated: list[tuple[float, int, Item]] = [(event.at, event.seq, event) for event in snapshot.events]
        dated += [(phases.bounds(swap, snapshot.at)[1], 1 << 62, swap) for swap in snapshot.swaps.recent]
        dated.sort(key=lambda row: row[:2], reverse=True)
        at_newest = self.cursor == 0 and not self.has_focus
        if at_newest:
            self.cursor_key = None
        self.put([item for _, _, item in dated if not self.pattern or matches(self.text_of(item), self.pattern)])

    def facts(self, view: View) -> str:
        return count(view.snapshot.swaps.count, "swap") if view.snapshot.swaps.count else ""

    def empty(self, view: View) -> str:
        return "nothing matches" if self.pattern else "nothing yet"

    def item_rows(self, item: Item, view: View, width: int) -> list[Line]:
        if isinstance(item, Swap):
            return [lists.swap_row(item, view, width)]
        return [lists.event_row(cast("EventLine", item), view, width)]
