"""What the keys do to the pace: of a live core's pictures, or of a recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from llmtop_tui.actions import Target
from llmtop_tui.clients import Distant, Player
from llmtop_tui.messages import SnapshotArrived
from llmtop_tui.pace import RATES_S, SPEEDS, neighbour

if TYPE_CHECKING:
    from llmtop_tui.app import LlmtopApp


class PlayDeeds:
    """Pause, faster, slower, on to the next."""

    def __init__(self, app: LlmtopApp) -> None:
        self.app = app

    def pause(self, _: Target) -> None:
        """A recording stands still; of a live core only the display does."""
        player = self.app.player
        if player is None:
            self.app.watch_core.toggle_pause()
        else:
            player.paused = not player.paused
            self.app.watch_core.show_position()

    def faster(self, _: Target) -> None:
        """The next higher rate."""
        self._change(1)

    def slower(self, _: Target) -> None:
        """The next lower rate."""
        self._change(-1)

    def _change(self, by: int) -> None:
        player, pace = self.app.player, self.app.watch_core.pace
        if player is not None:
            player.speed = neighbour(SPEEDS, player.speed, by)
            self.app.watch_core.show_position()
        else:
            pace.every_s = neighbour(RATES_S, pace.every_s, -by)
            self.app.tell(f"a picture each {pace.every_s:g} s")

    def refresh(self, _: Target) -> None:
        """The present, now."""
        client = self.app.client
        self.app.watch_core.pace.hurry()
        if isinstance(client, Distant):
            self.app.run_worker(self._ask(client), group="refresh", exclusive=True, exit_on_error=False)

    async def _ask(self, client: Distant) -> None:
        try:
            snapshot = await client.refresh()
        except Exception as error:  # whatever a client's transport raises: the user is told, the view goes on
            self.app.tell(str(error), "error")
            return
        self.app.post_message(SnapshotArrived(snapshot))

    def next_swap(self, _: Target) -> None:
        """On to the next swap of the recording."""
        self._seek("swap")

    def next_oom(self, _: Target) -> None:
        """On to its next out-of-memory line."""
        self._seek("oom")

    def _seek(self, kind: Literal["swap", "oom"]) -> None:
        player = self.app.player
        if player is not None:
            self.app.run_worker(self._seek_in(player, kind), group="seek", exclusive=True, exit_on_error=False)

    async def _seek_in(self, player: Player, kind: Literal["swap", "oom"]) -> None:
        what = "swap" if kind == "swap" else "out-of-memory line"
        try:
            found = await player.seek_next(kind)
        except Exception as error:  # the file may be damaged further on
            self.app.tell(str(error), "error")
            return
        if not found:
            self.app.tell(f"no {what} in the rest of the recording", "warning")
        self.app.watch_core.pace.hurry()
