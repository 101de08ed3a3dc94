"""Makes sense of preset sections: what goes to the child, what llmtop reads itself, what is not allowed there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmtop.config.ini import Entry, Problem, Section
from llmtop.config.keys import FILES, OPENS_UP, OWN, OWNED, SOURCES, Arg, OptionTable, canonical, identity, to_arg
from llmtop.config.options import Said, read
from llmtop.config.rows import BY_KEY
from llmtop.config.units import is_text, parse_bool, parse_cache_ram, parse_count, parse_size, parse_span
from llmtop.errors import ConfigError

GLOBAL = "*"
NEVER_MODELS = frozenset({GLOBAL, "default"})
"""Sections that are no models: ``[*]`` is for all, ``[default]`` is what some make of keys above any section."""

STAR_ONLY = frozenset({"models-max", "dedup-cache-models"})


def _choice(value: str) -> str:
    if value not in {"cancel", "drain"}:
        raise ValueError("is neither cancel nor drain")
    return value


def _command(value: str) -> str:
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None
    if not words:
        raise ValueError("is empty")
    return value


def _health(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError("is not a path: it begins with /")
    return value


def _environment(value: str) -> tuple[tuple[str, str], ...]:
    try:
        words = [word.partition("=") for word in shlex.split(value)]
    except ValueError as error:
        raise ValueError(f"cannot be split into words: {error}") from None
    if not words or any(not equals or not name for name, equals, _ in words):
        raise ValueError("is not NAME=VALUE, or several of them with blanks between")
    return tuple((name, text) for name, _, text in words)


_READ: dict[str, Callable[[str], Any]] = {
    "pin": parse_bool,
    "memory": parse_size,
    "idle-unload": parse_span,
    "evict-on-sleep": parse_bool,
    "on-client-abort": _choice,
    "cmd": _command,
    "stop-cmd": _command,
    "health": _health,
    "env": _environment,
    "load-on-startup": parse_bool,
    "stop-timeout": parse_span,
    "dedup-cache-models": parse_bool,
    "models-max": parse_count,
    "cache-ram": parse_cache_ram,
    "sleep-idle-seconds": parse_span,
}
assert set(_READ) == OWN


@dataclass
class Draft:
    """What a section comes down to, before it meets the files on disk.

    Args:
        name: Section name.
        path: Preset file.
        line: Line of its head.
        args: Arguments for the child.
        sources: What names the model, by canonical key, values byte for byte.
        aliases: Other names.
        own: llmtop's own keys, read.
        env: Variables of the child.
        files: Files that must be there, with the key that names them.
        problem: Why its model cannot be loaded; empty when nothing is wrong.
    """

    name: str
    path: str = ""
    line: int = 0
    args: list[Arg] = field(default_factory=list[Arg])
    sources: dict[str, str] = field(default_factory=dict[str, str])
    aliases: list[str] = field(default_factory=list[str])
    own: dict[str, Any] = field(default_factory=dict[str, Any])
    env: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    files: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    problem: str = ""


@dataclass
class Presets:
    """A preset file, read: the draft of ``[*]``, those of the models, and all that is wrong with it."""

    star: Draft
    drafts: dict[str, Draft] = field(default_factory=dict[str, Draft])
    problems: list[Problem] = field(default_factory=list[Problem])
    warnings: list[str] = field(default_factory=list[str])


def interpret(
    path: str, sections: Sequence[Section], table: OptionTable | None, problems: Sequence[Problem] = ()
) -> Presets:
    """Read the sections of a preset file.

    Args:
        path: The file, for messages.
        sections: From ``read_ini``.
        table: The options of the llama-server that will run; None when it is not known.
        problems: Faults found before.

    Returns:
        Every section's draft; nothing in one section takes another down.
    """
    presets = Presets(Draft(GLOBAL, path), problems=list(problems))
    for section in sections:
        if section.name == "default":
            presets.warnings.append(
                f"{path}:{section.line}: [default] is not a model and is left out: keys for all models belong into [*]"
            )
            continue
        reader = _Reader(Draft(section.name, path, section.line), table, presets)
        for entry in section.entries:
            reader.take(entry)
        if section.name == GLOBAL:
            presets.star = reader.draft
        else:
            presets.drafts[section.name] = reader.draft
    return presets


class _Reader:
    """Fills one draft, entry by entry."""

    def __init__(self, draft: Draft, table: OptionTable | None, presets: Presets) -> None:
        self.draft = draft
        self._table = table
        self._presets = presets
        self._star = draft.name == GLOBAL

    def take(self, entry: Entry) -> None:
        """Sort one entry to where it belongs."""
        key = canonical(entry.key)
        if key in OWNED:
            self._warn(entry, f"{key} is llmtop's to set and is left out")
        elif key == "alias":
            self._alias(entry)
        elif key in OWN:
            self._own(key, entry)
        elif key in SOURCES:
            self._source(key, entry)
        elif key == "hf-token":
            self.draft.env.append(
                ("HF_TOKEN", entry.value)
            )  # on a command line every user of the machine could read it
        else:
            self._argument(key, entry)

    def _warn(self, entry: Entry, text: str) -> None:
        self._presets.warnings.append(f"{self.draft.path}:{entry.line}: [{self.draft.name}] {text}")

    def _fault(self, entry: Entry, text: str) -> None:
        what, colon, helps = text.rpartition(": ")
        if colon and helps.startswith(("write", "it begins")):
            problem = Problem(self.draft.path, entry.line, f"[{self.draft.name}] {what}", helps)
        else:
            problem = Problem(self.draft.path, entry.line, f"[{self.draft.name}] {text}")
        self._presets.problems.append(problem)
        if not self._star:
            self.draft.problem = self.draft.problem or text

    def _alias(self, entry: Entry) -> None:
        if self._star:
            self._warn(entry, "alias is for one model and is left out")
        else:
            self.draft.aliases += [name.strip() for name in entry.value.split(",") if name.strip()]

    def _own(self, key: str, entry: Entry) -> None:
        if key in STAR_ONLY and not self._star:
            self._warn(entry, f"{key} is for all models and is left out: put it into [*]")
            return
        try:
            self.draft.own[key] = _READ[key](entry.value)
        except ValueError as error:
            shown = "its value" if key == "env" else repr(entry.value)  # variables hold secrets
            self._fault(entry, f"{key}: {shown} {error}")

    def _source(self, key: str, entry: Entry) -> None:
        if self._star:
            self._warn(entry, f"{key} names one model and is left out: put it into that model's section")
        elif not entry.value:
            self._fault(entry, f"{key} is empty")
        else:
            self.draft.sources[key] = entry.value

    def _argument(self, key: str, entry: Entry) -> None:
        try:
            arg = to_arg(entry.key, entry.value, self._table)
        except ValueError as error:
            self._warn(entry, f"{entry.key} {error}; left out")
            return
        if self._table is None and entry.key.startswith("LLAMA_"):
            self.draft.env.append((entry.key, entry.value))  # the child reads it as it stands
            return
        if not entry.value and len(arg.argv) > 1:
            self._warn(entry, f"{entry.key} has no value: loads may fail, give it one or remove the line")
        if key in OPENS_UP:
            self._warn(entry, f"{key} {OPENS_UP[key]}")
        if key in FILES:
            self.draft.files.append((key, entry.value))
        self.draft.args = [a for a in self.draft.args if a.identity != arg.identity] + [arg]


def star_settings(path: str, sections: Sequence[Section]) -> dict[str, Said]:
    """What ``[*]`` says about llmtop's own options, by parameter name.

    Raises:
        ConfigError: ``models-max`` cannot be read there; running at the default instead would be what nobody asked for.
    """
    found: dict[str, Said] = {}
    for section in sections:
        if section.name != GLOBAL:
            continue
        for entry in section.entries:
            row = BY_KEY.get(canonical(entry.key).replace("-", "_"))
            if row is not None and row.star:
                where = f"{path}:{entry.line}"
                found[row.key] = Said(read(row, entry.value, f"{where}: {row.name}"), "preset", where)
    return found


@dataclass
class ChildArgs:
    """What stands after ``--``.

    Args:
        args: What every child gets, in order, byte for byte.
        said: What is llmtop's to share out or decide, by parameter name.
        warnings: What was left out, and why.
    """

    args: list[str] = field(default_factory=list[str])
    said: dict[str, Said] = field(default_factory=dict[str, Said])
    warnings: list[str] = field(default_factory=list[str])


_VALUELESS = frozenset({"models-autoload"})


def split_child_args(words: Sequence[str]) -> ChildArgs:
    """Take out of the children's arguments what llmtop sets or shares out itself; everything else passes untouched.

    Raises:
        ConfigError: The value of ``--cache-ram`` or ``--sleep-idle-seconds`` cannot be read, or a word is no text.
    """
    result = ChildArgs()
    rest = list(words)
    if not all(map(is_text, rest)):
        raise ConfigError("what follows -- is not UTF-8 text")
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        key = canonical(name) if word.startswith("-") else ""
        row = BY_KEY.get(key.replace("-", "_"))
        ours = key in OWNED or key in SOURCES or key in {"alias", "cache-ram", "sleep-idle-seconds", "models-max"}
        if not ours:
            result.args.append(word)
            continue
        if not equals and key not in _VALUELESS and rest:
            value = rest.pop(0)
        if key in {"cache-ram", "sleep-idle-seconds"} and row is not None:
            result.said[row.key] = Said(read(row, value, f"-- {name}"), "flag", f"-- {name}")
        elif key == "models-max":
            result.warnings.append("models-max after -- is for llmtop, not for a child; left out: put it before --")
        else:
            result.warnings.append(f"{name} after -- is llmtop's to set for each child; left out")
    return result


def as_args(words: Sequence[str], table: OptionTable | None) -> list[Arg]:
    """Group words into options with their values, so that each can replace a preset's."""
    groups: list[list[str]] = []
    for word in words:
        if begins_option(word) or not groups:
            groups.append([word])
        else:
            groups[-1].append(word)
    return [Arg(identity(group[0].partition("=")[0], table), tuple(group)) for group in groups]


def begins_option(word: str) -> bool:
    """The word is an option, and no negative number or lone dash."""
    return len(word) > 1 and word[0] == "-" and not (word[1].isdigit() or word[1] == ".")


def merge(*layers: Sequence[Arg]) -> tuple[str, ...]:
    """Put layers of arguments together; a later layer replaces what an earlier one says about the same option."""
    return tuple(word for layer in kept(*layers) for word in layer)


def kept(*layers: Sequence[Arg]) -> list[tuple[str, ...]]:
    """What is left of each layer of arguments when those after it have replaced theirs."""
    replaced: set[str] = set()
    left: list[tuple[str, ...]] = []
    for layer in reversed(layers):
        left.insert(0, tuple(word for arg in layer if arg.identity not in replaced for word in arg.argv))
        replaced |= {arg.identity for arg in layer}
    return left


def inherited(star: Draft, draft: Draft | None) -> Mapping[str, Any]:
    """Llmtop's own keys of one model: the section's over those of ``[*]`` that no global option takes over."""
    common = {key: value for key, value in star.own.items() if key not in BY_STAR_OPTION}
    return common | (draft.own if draft is not None else {})


BY_STAR_OPTION = frozenset(row.name for row in BY_KEY.values() if row.star)
"""Keys of ``[*]`` that became options of the whole (``Settings``)."""
