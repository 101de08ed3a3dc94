"""The lines of one child that are still kept."""

from __future__ import annotations

from collections import deque

from llmtop.snapshot import LogLine

FIRST = 50
LAST = 1950


class Ring:
    """The first lines (how it was started) and the newest; what lies between is gone."""

    def __init__(self, first: int = FIRST, last: int = LAST) -> None:
        self._room = first
        self._first: list[LogLine] = []
        self._last: deque[LogLine] = deque(maxlen=last)

    def append(self, line: LogLine) -> None:
        """Keep a line."""
        if len(self._first) < self._room:
            self._first.append(line)
        else:
            self._last.append(line)

    def lines(self) -> tuple[LogLine, ...]:
        """All kept lines, oldest first."""
        return (*self._first, *self._last)

    def texts(self) -> list[str]:
        """The same, text only."""
        return [line.text for line in self.lines()]
