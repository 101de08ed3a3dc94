"""Text from a child or a client, made safe to show; and a byte stream cut into lines, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Sequence

_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC: titles, links, clipboard
    r"|\x1b[ -/]*[0-~]?"  # two-letter escapes, and a lone ESC
    r"|\x9b[0-?]*[ -/]*[@-~]"  # CSI as one C1 byte
)
_TAB = "    "
_BLANKS = str.maketrans({"\t": _TAB, "\r": None, "\ufeff": None, "\u00a0": " "})
_LINE_CAP = 500

MAX_LINE = 64 * 1024
"""Longest line that is kept whole [bytes]; a protocol line with a model's description is a few KiB."""


def safe_text(text: str, limit: int = _LINE_CAP) -> str:
    r"""Give ``text`` as one line that no terminal acts on.

    Escape sequences go; what else does not print (C0, C1, DEL, direction marks, zero-width and other format
    characters, lone surrogates, line separators) is written as ``\xNN`` or ``\uNNNN``, so that it can be seen and
    cannot reorder its neighbours.

    Args:
        text: Anything.
        limit: Most characters of the answer [1]; a longer one ends with ``…``.
    """
    if text.isprintable():
        return text if len(text) <= limit else text[: limit - 1] + "…"
    # An escape sequence may be long; twelve times the limit is room for a colour a character and bounds the work.
    text = _ESCAPES.sub("", text[: limit * 12]).translate(_BLANKS)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _visible(c) for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def safe_lines(lines: Sequence[bytes]) -> list[str]:
    """Each of some lines of UTF-8 as ``safe_text`` gives it, without blanks at its end; harmless ones in one go."""
    block = b"\n".join(lines).decode("utf-8", "replace")
    texts = block.replace("\t", _TAB).replace("\r", "").split("\n")
    if not "".join(texts).isprintable() or max(map(len, texts)) > _LINE_CAP:
        texts = [safe_text(text) for text in block.split("\n")]
    return [text.rstrip() for text in texts]


def _visible(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


class LineSplitter:
    """Cuts reads into lines. Holds at most ``MAX_LINE`` bytes: the rest of a longer line is dropped until its end."""

    def __init__(self) -> None:
        self._rest = b""
        self._skipping = False

    def feed(self, data: bytes) -> list[bytes]:
        """Give the lines that ``data`` completes, without their ends."""
        if self._skipping:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return []
            self._skipping = False
        *lines, rest = (self._rest + data).split(b"\n")
        if len(rest) >= MAX_LINE:
            lines.append(rest[:MAX_LINE])
            rest = b""
            self._skipping = True
        self._rest = rest
        return [line[:MAX_LINE] for line in lines]

    def finish(self) -> list[bytes]:
        """Give what is left at the end of the stream."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []
