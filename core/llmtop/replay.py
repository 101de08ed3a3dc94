"""A recorded run as a core that views can look at: it plays in its own time, faster, or stands still."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.errors import ConfigError, Refusal
from llmtop.record import read_recording
from llmtop.snapshot import LogLine, Snapshot

STILL_S = 1.0
"""While nothing changes the same snapshot comes again after this [s]."""
LOG_KEPT = 5000
Kind = Literal["swap", "oom"]
"""What a replay can be moved on to: the next swap, or the next out-of-memory line."""
_NO = Reply(False, refusal=Refusal("conflict", "this is a recording: nothing in it can be changed"))


class ReplayClient:
    """Implements ``llmtop.client.CoreClient`` on a file.

    Args:
        path: A recording.
        speed: Recorded seconds for each second of the watcher's [1].

    Attributes:
        paused: It stands still.
        position_s: Recorded seconds played so far [s].
        ended: It has shown its last snapshot.

    Raises:
        ConfigError: The file is no recording, or holds no snapshot.
    """

    def __init__(self, path: str | Path, speed: float = 1.0) -> None:
        self._path = Path(path)
        self.speed = speed
        self.paused = False
        self.position_s = 0.0
        self.ended = False
        self._target_s = 0.0
        self._log: deque[LogLine] = deque(maxlen=LOG_KEPT)
        self._latest: Snapshot | None = None
        first = next((line.snapshot for line in read_recording(path) if line.snapshot is not None), None)
        if first is None:
            raise ConfigError(f"{path}: the recording holds no snapshot, there is nothing to show")
        self._show(first)

    @property
    def url(self) -> str:
        """Where the recorded front door listened."""
        return self._latest.url if self._latest is not None else str(self._path)

    @property
    def embedded(self) -> bool:
        """A recording does not end with its view."""
        return False

    @property
    def latest(self) -> Snapshot | None:
        """The snapshot at the present position."""
        return self._latest

    async def changes(self) -> AsyncIterator[Snapshot]:
        """Play from the start; at the end the last snapshot stays."""
        clock = asyncio.get_running_loop().time
        seen, self.position_s, self.ended, self._target_s = clock(), 0.0, False, 0.0
        for line in read_recording(self._path):
            if line.snapshot is None:
                continue
            shown = clock()
            if line.t < self._target_s:  # on the way to where the watcher wants to be
                self._show(line.snapshot)
                await asyncio.sleep(0)
                continue
            while self.position_s < line.t:
                if self._target_s >= line.t:
                    self.position_s = line.t
                    break
                missing = (line.t - self.position_s) / self.speed if self.speed > 0 and not self.paused else STILL_S
                await asyncio.sleep(min(missing, 0.1))
                now = clock()
                if not self.paused:
                    self.position_s = min(line.t, self.position_s + (now - seen) * self.speed)
                seen = now
                if now - shown >= STILL_S and self._latest is not None:
                    shown = now
                    yield self._latest
            self._show(line.snapshot)
            yield line.snapshot
        self.ended = True
        while self._latest is not None:
            await asyncio.sleep(STILL_S)
            yield self._latest

    async def seek_next(self, kind: Kind) -> bool:
        """Move on to the next of its kind, also while paused.

        Returns:
            False where the rest of the recording holds none; nothing moves then.
        """
        here = max(self.position_s, self._target_s)
        found = await asyncio.to_thread(self._find, kind, here)
        if found is None:
            return False
        self._target_s = max(self._target_s, found)
        return True

    def _find(self, kind: Kind, here_s: float) -> float | None:
        """When the count of that kind is next higher than it was before [s]."""
        count = 0
        for line in read_recording(self._path):
            if line.snapshot is None:
                continue
            this = _count(line.snapshot, kind)
            if line.t > here_s and this > count:
                return line.t
            count = this
        return None

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Refuse."""
        return _NO

    async def queue(self, verb: QueueVerb) -> Reply:
        """Refuse."""
        return _NO

    async def cancel(self, request: str) -> Reply:
        """Refuse."""
        return _NO

    async def acknowledge_oom(self) -> Reply:
        """Refuse."""
        return _NO

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """The model's lines as far as the snapshots played so far hold them."""
        return tuple(line for line in self._log if line.model == model)

    def _show(self, snapshot: Snapshot) -> None:
        newest = self._log[-1].seq if self._log else -1
        self._log.extend(line for line in snapshot.log if line.seq > newest)
        self._latest = snapshot


def _count(snapshot: Snapshot, kind: Kind) -> int:
    return snapshot.swaps.count if kind == "swap" else snapshot.oom.count
