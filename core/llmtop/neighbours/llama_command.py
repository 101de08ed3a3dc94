"""A command line of llama-server, as keys of a preset; any other command line, as its words."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from llmtop.children.text import safe_text
from llmtop.config.keys import OWNED, OptionTable, canonical
from llmtop.config.preset import begins_option

_PROGRAM = re.compile(r"llama-server(?:[-_.].*)?")
_UNSAID = frozenset({"port", "host", "alias"})
"""What llmtop sets itself and what therefore is not worth a note."""


@dataclass
class Command:
    """A command line.

    Args:
        words: All its words.
        program: The llama-server that it starts, empty for anything else.
        keys: Its options as keys of a preset; None where it must stay a command line.
        notes: What is not the same.
    """

    words: tuple[str, ...] = ()
    program: str = ""
    keys: tuple[tuple[str, str], ...] | None = None
    notes: list[str] = field(default_factory=list[str])


def read_command(text: str, options: OptionTable | None) -> Command:
    """Read a command line; lines that begin with ``#`` are comments, a backslash at a line's end goes on.

    Args:
        text: The command with its macros filled in.
        options: What llama-server understands; without it, a word that does not begin with a dash is a value.

    Returns:
        The command. It stays a command line where it is no plain call of a llama-server, where an option comes twice,
        or where a value would not survive in a preset file.
    """
    lines = text.replace("\\\r\n", " ").replace("\\\n", " ").splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    try:
        words = shlex.split(text)
    except ValueError as error:
        return Command(notes=[f"cmd cannot be split into words: {error}; left out"])
    command = Command(tuple(words))
    if not words or not _PROGRAM.fullmatch(words[0].rsplit("/", 1)[-1]):
        return command
    command.program = words[0]
    keys: dict[str, str] = {}
    rest = words[1:]
    while rest:
        word = rest.pop(0)
        if not begins_option(word):
            command.notes.append(f"{safe_text(word)} belongs to no option: kept as a command")
            return command
        name, equals, value = word.partition("=")
        option = options.lookup(name) if options is not None else None
        takes = option.takes_value if option is not None else bool(rest) and not begins_option(rest[0])
        if not equals:
            value = rest.pop(0) if takes and rest else "true"
        key = canonical(name)
        if key in _UNSAID:
            continue
        if key in OWNED:
            command.notes.append(f"{name} is llmtop's to set and is left out")
            continue
        if key in keys:
            command.notes.append(f"{name} comes more than once: kept as a command")
            return command
        if "\n" in value or value != value.strip() or not value:
            command.notes.append(f"the value of {name} cannot stand in a preset: kept as a command")
            return command
        if name.startswith("--") and len(key) <= 3:
            key = name  # a short name that takes two dashes: without its dashes it would get one
        keys[key] = value
    command.keys = tuple(keys.items())
    return command
