"""How often a new picture is shown, and what the view itself costs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from llmtop.snapshot import Snapshot
from llmtop_tui.clients import Player

if TYPE_CHECKING:
    from psutil import Process

RATES_S = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Times between two pictures that can be chosen [s]."""
CALM_S = 2.0
"""Shortest time between two pictures while nothing happens but time [s]; whatever happens is shown at once."""
BLURRED_S = 1.0
"""The same while nobody looks [s]."""
JITTER_S = 0.25
"""A core's pictures come a second apart, by about this [s]."""
SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
"""Speeds of a recording that can be chosen: recorded seconds a second."""
COST_EVERY_S = 5.0


def neighbour(values: tuple[float, ...], now: float, by: int) -> float:
    """The value that many places further, within the ends."""
    nearest = min(range(len(values)), key=lambda index: abs(values[index] - now))
    return values[max(0, min(len(values) - 1, nearest + by))]


def position_of(player: Player) -> str:
    """``00:12 x2``, and whether it stands."""
    minutes, rest = divmod(int(player.position_s), 60)
    state = " ended" if player.ended else " paused" if player.paused else ""
    return f"{minutes:02}:{rest:02} x{player.speed:g}{state}"


def is_calm(snapshot: Snapshot, before: Snapshot | None) -> bool:
    """Nobody is served or waits, no child changes, and nothing was said since the picture shown before."""
    if before is None or any(picture.queue or picture.requests for picture in (before, snapshot)):
        return False
    if any(model.state in ("loading", "stopping") or model.settling for model in snapshot.models):
        return False
    return _told(snapshot) == _told(before)


def _told(snapshot: Snapshot) -> tuple[object, ...]:
    """What does not change by time alone."""
    models = [(model.id, model.state, model.reason, model.pinned, model.stale_config) for model in snapshot.models]
    counts = (snapshot.requests_total, snapshot.errors_total, snapshot.events[-1:], snapshot.log[-1:])
    return (models, counts, snapshot.hold, snapshot.shutting_down, snapshot.oom, snapshot.faults)


class Pace:
    """Waits between two pictures; whoever cannot wait shortens it.

    Attributes:
        every_s: Time between two pictures [s].
    """

    def __init__(self) -> None:
        self.every_s = RATES_S[0]
        self._hurry = asyncio.Event()

    def hurry(self) -> None:
        """Show the next picture as soon as there is one."""
        self._hurry.set()

    def due_s(self, *, calm: bool, blurred: bool) -> float:
        """Time to the next picture [s]: longer where nothing happens, twice as long where nobody looks."""
        every = max(2 * self.every_s, BLURRED_S) if blurred else self.every_s
        return max(every, CALM_S) if calm else every

    async def wait(self, *, blurred: bool) -> None:
        """Until a picture in which something happens may be shown."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.due_s(calm=False, blurred=blurred)):
                await self._hurry.wait()
        self._hurry.clear()


class Cost:
    """Memory and processor time of this process, read now and then."""

    def __init__(self) -> None:
        self._process: Process | None = None
        self._read_at = 0.0
        self.text = ""

    def read(self, now: float) -> str:
        """``self 46 MB 1.8%``; ``now`` is monotonic [s]."""
        if self._process is None:
            import psutil  # the first picture does not wait for it

            self._process = psutil.Process()
            self._process.cpu_percent(None)  # the first reading is the start of the second
            self._read_at = now
        elif now - self._read_at >= COST_EVERY_S:
            self._read_at = now
            share = self._process.cpu_percent(None)
            self.text = f"{self._process.memory_info().rss / 1e6:.0f} MB {share:.1f}%"
        return self.text
