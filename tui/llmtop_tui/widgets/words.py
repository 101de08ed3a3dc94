"""Sentences of the core in few cells: names get shorter before anything that is said is cut."""

from __future__ import annotations

import re
from functools import lru_cache, partial

from llmtop_tui.format import clean, cut_end, cut_middle, width_of
from llmtop_tui.view import View

SHORT = (28, 22, 18, 14)
"""Cells for a name in a sentence that is too long, the longest first."""
_FIGURES = re.compile(r"^needs [^:]*: ")
"""How a sentence starts that tells sizes first, and then whom it waits for."""


def _shorter(size: int, ellipsis: str, found: re.Match[str]) -> str:
    return cut_middle(found[0], size, ellipsis)


def squeeze(text: str, view: View, cells: int, *, past: bool = False) -> str:
    """A sentence in so many cells.

    Names of models are cut in their middle, then those that have a letter in the table are called by it; then figures
    at its start go, and only then its end is cut. What is ``past`` uses no letters: they are those of now.
    """
    text = clean(text)
    if width_of(text) <= cells:
        return text
    names = tuple((model.id, "" if past else view.letters[model.id]) for model in view.snapshot.models if model.id)
    return _squeezed(text, names, cells, view.glyphs.ellipsis)


@lru_cache(maxsize=512)  # most sentences stand for many pictures
def _squeezed(text: str, names: tuple[tuple[str, str], ...], cells: int, ellipsis: str) -> str:
    """A sentence that does not fit; ``names`` are those of models, with their letters."""
    if not names:
        return cut_end(text, cells, ellipsis)
    letters = dict(names)
    every = "|".join(sorted(map(re.escape, letters), key=len, reverse=True))
    pattern = re.compile(rf"(?<![\w-])(?:{every})(?![\w-])")
    short = text
    for size in SHORT:
        short = pattern.sub(partial(_shorter, size, ellipsis), text)
        if width_of(short) <= cells:
            return short
    if any(letters.values()):
        short = pattern.sub(lambda found: letters[found[0]] or cut_middle(found[0], SHORT[-1], ellipsis), text)
    if width_of(short) > cells:
        short = _FIGURES.sub("", short)
    return cut_end(short, cells, ellipsis)
