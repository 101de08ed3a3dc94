"""What children said last on paths that must not be asked again without need."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

ENTRIES_MAX = 64
BODY_BYTES_MAX = 256 * 1024


class Known(msgspec.Struct, frozen=True):
    """One answer.

    Args:
        instance: Key of the child that gave it.
        at: When, on the loop's clock [s].
        content_type: Of the answer, as sent.
        body: Of the answer.
    """

    instance: str
    at: float
    content_type: bytes
    body: bytes


class LastKnown:
    """The last good answer for each target; the least recently used leaves first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, bytes], Known] = OrderedDict()

    def put(self, model: str, target: bytes, known: Known) -> None:
        """Remember an answer, unless it is too large."""
        if len(known.body) > BODY_BYTES_MAX:
            return
        self._kept[model, target] = known
        self._kept.move_to_end((model, target))
        if len(self._kept) > ENTRIES_MAX:
            self._kept.popitem(last=False)

    def get(self, model: str, target: bytes, instance: str) -> Known | None:
        """The last answer of this very child."""
        known = self._kept.get((model, target))
        if known is None or known.instance != instance:
            return None
        self._kept.move_to_end((model, target))
        return known
