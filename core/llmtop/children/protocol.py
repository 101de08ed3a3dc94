"""The lines that a llama-server in child mode exchanges with its parent over stdin and stdout."""

from __future__ import annotations

import math

import msgspec

EXIT_LINE = b"cmd_router_to_child:exit\n"
"""Ends a loaded child in order."""

_PREFIX = b"cmd_child_to_router:state:"


class Payload(msgspec.Struct, frozen=True):
    """What comes with ``loading``."""

    current: str = ""
    value: float | None = None

    @property
    def fraction(self) -> float | None:
        """``value`` between 0 and 1, None if it is no number."""
        return min(1.0, max(0.0, self.value)) if self.value is not None and not math.isnan(self.value) else None


class ChildState(msgspec.Struct, frozen=True):
    """One state line: ``loading``, ``ready``, ``sleeping``, ``downloading`` or one of a later build."""

    state: str
    payload: Payload | None = None


class _Bare(msgspec.Struct, frozen=True):
    state: str


_whole = msgspec.json.Decoder(ChildState, strict=False)
_bare = msgspec.json.Decoder(_Bare)


def parse(line: bytes) -> ChildState | None:
    """Give the state that a line of stdout tells, None for any other line. A payload of unknown shape is left out."""
    if not line.startswith(_PREFIX):
        return None
    text = line[len(_PREFIX) :]
    try:
        return _whole.decode(text)
    except msgspec.MsgspecError:
        pass
    try:
        return ChildState(_bare.decode(text).state)
    except msgspec.MsgspecError:
        return None
