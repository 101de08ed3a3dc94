"""A recorded run as a core that views can look at: it plays in its own time, faster, or stands still."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.errors import ConfigError, Refusal
from llmtop.record import read_recording
from llmtop.snapshot import LogLine, Snapshot

STILL_S = 1.0
"""While nothing changes the same snapshot comes again after this [s]."""
LOG_KEPT = 5000
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
        seen, self.position_s, self.ended = clock(), 0.0, False
        for line in read_recording(self._path):
            if line.snapshot is None:
                continue
            shown = clock()
            while self.position_s < line.t:
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
