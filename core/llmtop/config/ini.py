"""Reads llama.cpp's preset INI as it stands: values byte for byte, comments only at the start of a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from llmtop.config.remedies import remedy
from llmtop.errors import ConfigError


class Entry(msgspec.Struct, frozen=True):
    """One ``key = value``."""

    key: str
    value: str
    line: int


class Section(msgspec.Struct, frozen=True):
    """One ``[name]`` with what stands below it."""

    name: str
    line: int
    entries: tuple[Entry, ...]


class Problem(msgspec.Struct, frozen=True):
    """A fault in the configuration that took nothing else down.

    Args:
        path: File, or folder.
        line: Line in it, 0 where that says nothing.
        text: What is wrong.
        remedy: What to do; empty takes the one that ``remedies`` has for such a text.
    """

    path: str
    line: int
    text: str
    remedy: str = ""

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}" if self.line else self.path
        helps = self.remedy or remedy(self.text)
        return f"{place}: {self.text}" + (f"; {helps}" if helps else "")


def read_ini(path: str) -> tuple[list[Section], list[Problem]]:
    """Read a preset file.

    Args:
        path: The file.

    Returns:
        Its sections in their order (a name that comes twice gives one section, later keys last), and its faults.

    Raises:
        ConfigError: It cannot be read at all.
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"--models-preset: {path} cannot be read: {error.strerror}; name a preset (INI)") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"--models-preset: {path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    return parse_ini(text, path)


def parse_ini(text: str, path: str = "preset") -> tuple[list[Section], list[Problem]]:
    """Split the text of a preset file into sections; see ``read_ini``."""
    found: dict[str, tuple[int, list[Entry]]] = {}
    problems: list[Problem] = []
    entries: list[Entry] | None = None
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        bare = line.strip(" \t")
        if not bare or bare[0] in ";#":
            continue
        if "\0" in bare:
            problems.append(
                Problem(path, number, "a NUL byte is in this line", "take it out: nothing can be called so")
            )
            entries = [] if bare.startswith("[") else entries
            continue
        if bare.startswith("["):
            name = bare[1:-1].strip() if bare.endswith("]") else ""
            if not name:
                problems.append(Problem(path, number, f"{bare!r} is not a section", "write [name] alone on the line"))
                entries = []  # what follows belongs to nothing that can be named
                continue
            if name in found:
                problems.append(
                    Problem(
                        path,
                        number,
                        f"section [{name}] was begun in line {found[name][0]} already",
                        "put its keys together",
                    )
                )
            entries = found.setdefault(name, (number, []))[1]
            continue
        key, equals, value = line.partition("=")
        if not equals or not key.strip():
            problems.append(Problem(path, number, f"{bare.split()[0]!r} is not followed by = value"))
        elif entries is not None:
            entries.append(Entry(key.strip(), value.strip(" \t"), number))
        elif key.strip() == "version" and value.strip() != "1":
            problems.append(Problem(path, number, f"version {value.strip()} is not known", "llmtop reads version 1"))
    return [Section(name, line, tuple(rows)) for name, (line, rows) in found.items()], problems
