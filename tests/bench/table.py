"""Tables of a benchmark: for the terminal, and as Markdown for a page."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Table:
    """Rows of text under heads; the first column is left-aligned, the others are figures.

    Args:
        title: What was measured.
        notes: Sentences below it.
    """

    title: str
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    notes: list[str] = field(default_factory=list[str])

    def add(self, *cells: str) -> None:
        """Add a row.

        Raises:
            ValueError: Not as many cells as heads.
        """
        if len(cells) != len(self.heads):
            raise ValueError(f"{len(cells)} cells under {len(self.heads)} heads")
        self.rows.append(cells)

    def plain(self) -> str:
        """For a terminal."""
        lines = [self.heads, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.heads))]
        text = f"{self.title}\n"
        for line in lines:
            cells = [c.rjust(w) if n else c.ljust(w) for n, (c, w) in enumerate(zip(line, widths, strict=True))]
            text += "  " + "  ".join(cells).rstrip() + "\n"
        return text + "".join(f"  {note}\n" for note in self.notes)

    def markdown(self) -> str:
        """For a page."""
        lines = [self.title, "", f"| {' | '.join(self.heads)} |", "| --- |" + " ---: |" * (len(self.heads) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"


def parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser with the docstring's first line and what every benchmark understands."""
    made = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    made.add_argument("--markdown", metavar="FILE", help="write the tables there too")
    return made


def machine() -> str:
    """Where the figures come from, and how busy it was."""
    load = "/".join(f"{value:.1f}" for value in os.getloadavg())
    return f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load} at the start"


def publish(tables: Sequence[Table], markdown: str | None, where: str) -> None:
    """Print the tables, and write them to a file if one is named."""
    sys.stdout.write("\n".join([*(table.plain() for table in tables), f"({where})\n"]))
    if markdown:
        text = "\n".join([*(table.markdown() for table in tables), f"({where})\n"])
        Path(markdown).write_text(text, encoding="utf-8")


def ratio(value: float, base: float, digits: int = 2) -> str:
    """How many times ``base`` it is; a dash where there is no base."""
    return f"{value / base:.{digits}f}x" if base > 0 else "-"
