"""What is kept of a child's answer while it passes, or instead of passing it."""

from __future__ import annotations

import re

from llmtop.frontdoor.last_known import BODY_BYTES_MAX

CHILD_ERROR_BYTES_MAX = 64 * 1024
TAIL_BYTES = 2048
"""An answer tells its counts, and a stream its error, in its last event: that many bytes hold it [bytes]."""
_COMPUTE_ERROR = b"Compute error."
_ERROR_EVENT = re.compile(rb'(?:"error"|(?:^|\n)error):\s*\{[^{}]*Compute error\.')
"""An error object, or the error line of older builds; a model that writes these words writes them inside a string."""
_COUNTS = (b'"predicted_n":', b'"completion_tokens":', b'"output_tokens":')
"""Members that tell how many tokens were generated: llama-server's own, OpenAI's, Anthropic's. What a model writes is
not mistaken for one: inside a string the quotes are escaped."""
_NUMBER = re.compile(rb"\s*([0-9]{1,9})[\s,}]")


class Tap:
    """Keeps the beginning of one answer.

    Attributes:
        instead: Nothing is passed on as it comes: the client of a stream that has begun gets it as one event.
        whole: All of the answer was kept so far.
        tokens: It tells of none.
    """

    __slots__ = ("_kept", "_limit", "instead", "whole")
    tokens = 0

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


class Tail:
    """Keeps the end of one good answer; large pieces are only referred to, so that a stream costs next to nothing.

    Attributes:
        instead: False: all of it is passed on as it comes.
    """

    __slots__ = ("_kept",)
    instead = False

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> None:
        """More of the answer's body."""
        self._kept = data if len(data) >= TAIL_BYTES else self._kept[len(data) - TAIL_BYTES :] + data

    @property
    def compute_error(self) -> bool:
        """It ended with an error event that says that the backend can only fail from now on."""
        start = max(0, len(self._kept) - TAIL_BYTES)
        return self._kept.find(_COMPUTE_ERROR, start) >= 0 and _ERROR_EVENT.search(self._kept, start) is not None

    @property
    def tokens(self) -> int:
        """Tokens generated, as the last event or the end of the body tells; 0 where it does not."""
        for name in _COUNTS:
            at = self._kept.rfind(name, -TAIL_BYTES)
            if at >= 0:
                number = _NUMBER.match(self._kept, at + len(name))
                return int(number[1]) if number else 0
        return 0
