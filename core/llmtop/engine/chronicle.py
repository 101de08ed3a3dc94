"""What happened: the journal in memory, its store on disk, the recording, and the faults that must not be missed."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from llmtop.config.spec import Settings
from llmtop.journal import Journal
from llmtop.journal_store import JournalStore
from llmtop.record import Recorder
from llmtop.scheduler.actions import Action
from llmtop.scheduler.events import Event
from llmtop.snapshot import EventLine, Snapshot

_log = logging.getLogger(__name__)
FAULTS_KEPT = 20
SWAPS_RESTORED = 100


class Chronicle:
    """Takes note of every step of the scheduler, and of what else is worth a line.

    Args:
        settings: ``record``.
        state_dir: Holds the store.
        now: Monotonic time [s].
        changed: Called when there is something new to show.

    Raises:
        StartError: The recording cannot be written.
    """

    def __init__(self, settings: Settings, state_dir: Path, now: float, changed: Callable[[], None]) -> None:
        self.journal = Journal()
        self.faults: deque[str] = deque(maxlen=FAULTS_KEPT)
        self._changed = changed
        self.recorder = Recorder(settings.record, now, time.time()) if settings.record else None
        self._store = JournalStore(state_dir / "llmtop.db")
        self.journal.restore(self._store.recent_swaps(SWAPS_RESTORED), self._store.learned())
        self._told = ""

    def step(self, event: Event, actions: Sequence[Action], now: float, *, routine: bool) -> None:
        """A step of the scheduler; a routine one only granted or ended a request."""
        if self.recorder is not None:
            self.recorder.step(event, actions, now)
        if not routine:
            self._tell(self.journal.observe(event, actions, now, time.time()))

    def note(self, kind: str, model: str, text: str) -> None:
        """A line that is not the scheduler's."""
        self._tell((self.journal.note(kind, model, text, time.time()),))
        self._changed()

    def fault(self, text: str) -> None:
        """Something that must not happen happened: a bug of llmtop, said, shown, and lived with."""
        _log.error("%s", text)
        if text not in self.faults:
            self.faults.append(text)
            self.note("fault", "", text)

    def picture(self, snapshot: Snapshot, now: float) -> None:
        """A snapshot for the recording."""
        if self.recorder is not None:
            self.recorder.snapshot(snapshot, now)

    def look(self) -> None:
        """Tell of a disk that keeps nothing, once for each reason."""
        problem = self._store.problem or (self.recorder.problem if self.recorder is not None else "")
        if problem and problem != self._told:
            self._told = problem
            self.note("note", "", problem)

    def close(self) -> None:
        """Write what waits; blocks a moment."""
        self._store.close()
        if self.recorder is not None:
            self.recorder.close()

    def _tell(self, lines: Sequence[EventLine]) -> None:
        for line in lines:
            _log.info("%s", line.text)
        if lines:
            self._store.keep(self.journal, lines, time.time())
