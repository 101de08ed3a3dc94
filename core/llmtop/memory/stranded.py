"""Memory that a dead child left behind: off the budget while it is out, back in it as it returns."""

from __future__ import annotations

MIB = 2**20
NOTHING = 256 * MIB
"""Less than this cannot be told from noise [bytes]."""


class Stranded:
    """Follows the count that bytes are missing from.

    What a running child takes and gives moves the same count, so only a fall below the highest reading since the set of
    children last changed counts as a return, and only once the next reading confirms it. A rise takes it back.

    Attributes:
        bytes: What is out now.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._amount = 0
        self._last = 0
        self._high = 0
        self._children: frozenset[int] | None = None

    def add(self, amount: int) -> None:
        """A child is gone, and this much of its memory has not come back [bytes]."""
        self.bytes += max(0, amount)
        self._children = None

    def observe(self, level: int | None, children: frozenset[int], *, quiet: bool, floor: int | None) -> None:
        """Take a reading.

        Args:
            level: The count [bytes]; None is no reading.
            children: Instances that run.
            quiet: None of them is stopping or settling.
            floor: The count as it was with no child and nothing stranded [bytes]; None when it was never seen.
        """
        if level is None or not quiet or (not self.bytes and not self._amount):
            return
        if children != self._children:
            self._children, self._high = children, level
            self._amount = self._last = self.bytes
        self._high = max(self._high, level)
        out = max(0, self._amount - (self._high - level))
        if floor is not None:
            out = min(out, max(0, level - floor))
        confirmed = max(out, self._last)
        self._last = out
        self.bytes = confirmed if confirmed >= NOTHING else 0
        if not self.bytes:  # all of it came back: a later rise is somebody else's
            self._amount = self._last = 0
