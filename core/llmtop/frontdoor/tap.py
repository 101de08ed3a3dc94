"""What is kept of a child's answer while it passes, or instead of passing it."""

from __future__ import annotations

from llmtop.frontdoor.last_known import BODY_BYTES_MAX

CHILD_ERROR_BYTES_MAX = 64 * 1024
_COMPUTE_ERROR = b"Compute error."


class Tap:
    """Keeps the beginning of one answer.

    Attributes:
        instead: Nothing is passed on as it comes: the client of a stream that has begun gets it as one event.
        whole: All of the answer was kept so far.
    """

    __slots__ = ("_kept", "_limit", "instead", "whole")

    def __init__(self, *, instead: bool) -> None:
        self.instead = instead
        self.whole = True
        self._limit = CHILD_ERROR_BYTES_MAX if instead else BODY_BYTES_MAX
        self._kept = bytearray()

    def feed(self, data: bytes) -> None:
        """More of the answer's body."""
        room = self._limit - len(self._kept)
        self.whole = self.whole and len(data) <= room
        self._kept += data[:room]

    @property
    def body(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)

    @property
    def compute_error(self) -> bool:
        """A backend that can only fail from now on said so (it does at the start of a small body)."""
        return _COMPUTE_ERROR in self._kept[:4096]

    def event(self) -> bytes:
        """What was kept as one event of a stream."""
        return b"data: " + b"\ndata: ".join(self._kept.splitlines()) + b"\n\n"
