"""The lines of one child that are still kept."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from llmtop.snapshot import LogLine

FIRST = 50
LAST = 1950


class Ring:
    """The first lines (how it was started) and the newest; what lies between is gone."""

    def __init__(self, first: int = FIRST, last: int = LAST) -> None:
        self._room = first
        self._first: list[LogLine] = []
        self._last: deque[LogLine] = deque(maxlen=last)

    def extend(self, lines: Sequence[LogLine]) -> None:
        """Keep lines."""
        room = self._room - len(self._first)
        if room:
            self._first += lines[:room]
        self._last.extend(lines[room:])

    def lines(self) -> tuple[LogLine, ...]:
        """All kept lines, oldest first."""
        return (*self._first, *self._last)

    def texts(self) -> list[str]:
        """The same, text only."""
        return [line.text for line in self.lines()]
