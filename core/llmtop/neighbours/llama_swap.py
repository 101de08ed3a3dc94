"""Turns a llama-swap configuration into a preset file, and says of everything what became of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from llmtop.children.text import safe_text
from llmtop.config.keys import OptionTable
from llmtop.errors import ConfigError
from llmtop.neighbours.groups import cap, persistent
from llmtop.neighbours.llama_command import Command, read_command
from llmtop.neighbours.macros import Macros
from llmtop.neighbours.no_equivalent import OF_ALL, OF_MODEL

Table = Mapping[str, Any]
_TAKEN_ALL = frozenset({"models", "macros", "groups", "matrix", "hooks", "globalTTL"})
_TAKEN_MODEL = frozenset(
    {"cmd", "macros", "aliases", "ttl", "env", "checkEndpoint", "cmdStop", "proxy", "unlisted", "useModelName"}
)
_LOCAL = re.compile(r"https?://(?:localhost|127\.0\.0\.1|\[::1\]|0\.0\.0\.0):(\$\{PORT\}|\d+)(/.*)?")

_MOST_NODES = 100_000
_PUBLISHED = re.compile(r"(?:--publish=|-p)?\$\{PORT\}:\d+(?:/tcp)?")
"""Docker's words for a port that it opens at every address."""


@dataclass
class Converted:
    """A preset file.

    Args:
        text: The whole of it.
        models: How many sections it has.
        notes: What has no equivalent, or another one than may be thought; one line each, ``model NAME: …`` in front.
    """

    text: str
    models: int
    notes: tuple[str, ...]


@dataclass
class _Model:
    name: str
    lines: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])

    def put(self, key: str, value: str) -> None:
        """Add a key, if its value can stand in a preset file: one line, no blanks at its ends."""
        if "\n" in value or "\r" in value or value != value.strip(" \t"):
            self.notes.append(f"{key} cannot be written on one line and is left out")
        else:
            self.lines.append(f"{key} = {value}")


def read_yaml(path: str) -> Table:
    """Read a configuration file.

    Raises:
        ConfigError: It cannot be read, is no YAML, or holds no models.
    """
    import yaml

    try:
        loaded: object = yaml.safe_load(Path(path).read_text("utf-8-sig"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else path
        raise ConfigError(f"{place}: no YAML: {getattr(error, 'problem', None) or 'it cannot be read'}") from None
    if not _bounded(loaded):
        raise ConfigError(f"{path}: names refer to each other until it is larger than any configuration: unfold them")
    if not isinstance(loaded, dict) or not isinstance(_table(cast("Table", loaded)).get("models"), dict):
        raise ConfigError(f"{path}: holds no models: a configuration of llama-swap begins with models:")
    return _table(cast("Table", loaded))


def _bounded(loaded: object) -> bool:
    """It ends, and soon: in YAML a few lines of references can stand for millions, or for themselves."""
    waiting, count = [loaded], 0
    while waiting and count <= _MOST_NODES:
        count += 1
        node = waiting.pop()
        if isinstance(node, dict):
            waiting += cast("dict[object, object]", node).values()
        elif isinstance(node, list):
            waiting += cast("list[object]", node)
    return not waiting


def convert(config: Table, env: Mapping[str, str], options: OptionTable | None = None) -> Converted:
    """Turn a configuration into a preset file.

    Args:
        config: From ``read_yaml``.
        env: Environment, for ``${env.NAME}``.
        options: What llama-server understands; without it the shape of its arguments decides.

    Returns:
        The preset, ready to be written.
    """
    notes: list[str] = []
    commands = {name: _command(name, _table(said), config, env, options) for name, said in _models(config).items()}
    program = _usual([command.program for command in commands.values() if command.program])
    preload = _names(_table(_table(config.get("hooks")).get("on_startup")).get("preload"))
    pinned = persistent(_table(config.get("groups")))
    made: list[_Model] = []
    for name, said in _models(config).items():
        model = _Model(name)
        if name in ("*", "default") or not name.strip() or any(not c.isprintable() for c in name):
            notes.append(f"model {safe_text(name)}: no section can have that name; left out")
            continue
        _fill(model, _table(said), commands[name], program, config, env)
        if name in preload:
            model.lines.append("load-on-startup = true")
        if name in pinned:
            model.lines.append("pin = true")
            model.notes.append("its group is persistent: it is pinned, nothing evicts it while it runs")
        made.append(model)
    notes += [note for key, value in config.items() for note in _unread(key, value, OF_ALL, _TAKEN_ALL)]
    notes += [f"hooks: preload names {name}, which is no model" for name in preload if name not in commands]
    star, more = cap(config)
    if ttl := _seconds(config.get("globalTTL")):
        star.append(f"idle-unload = {ttl:.15g}")
    notes += more
    if program and Path(program).name != program:
        notes.append(f"start llmtop with --llama-server {shlex.quote(program)}")
    for model in made:
        model.notes = list(dict.fromkeys(model.notes))
    told = [*notes, *(f"model {safe_text(m.name)}: {note}" for m in made for note in m.notes)]
    return Converted(_written(star, made, notes), len(made), tuple(told))


def _fill(model: _Model, said: Table, command: Command, program: str, config: Table, env: Mapping[str, str]) -> None:
    """One section."""
    macros = Macros(_table(config.get("macros")), _table(said.get("macros")), model.name, env)
    model.notes += command.notes
    if command.keys is not None and command.program == program:
        for key, value in command.keys:
            model.put(key, value)
    else:
        if command.keys is not None:
            model.notes.append(f"it has another llama-server than most ({command.program}): kept as a command")
        _as_command(model, said, command, macros)
    for key, values in (("alias", _aliases(said.get("aliases"), model)), ("env", _names(said.get("env")))):
        filled = [macros.fill(value) for value in values]
        if filled:
            model.put(key, ",".join(filled) if key == "alias" else shlex.join(filled))
    ttl = said.get("ttl")
    if _seconds(ttl):
        model.lines.append(f"idle-unload = {ttl:.15g}")
    elif ttl == 0 and _seconds(config.get("globalTTL")):
        model.lines.append("idle-unload = off")
    if said.get("unlisted"):
        model.notes.append("unlisted: all models are listed in /v1/models")
    if said.get("useModelName"):
        model.notes.append("useModelName: requests are passed on with the name that the client sent")
    model.notes += [note for key, value in said.items() for note in _unread(key, value, OF_MODEL, _TAKEN_MODEL)]
    model.notes += [f"{name} is not defined" for name in macros.unknown]


def _as_command(model: _Model, said: Table, command: Command, macros: Macros) -> None:
    """A section with its own command line, as another server than llama-server has it."""
    words = list(command.words)
    proxy = _LOCAL.fullmatch(macros.fill(str(said.get("proxy") or "http://localhost:${PORT}")))
    if proxy is None:
        model.notes.append("proxy: llmtop reaches a model only at a port of this machine that it chose")
    elif proxy[1].isdigit():
        words = [re.sub(rf"(?<!\d){proxy[1]}(?!\d)", "${PORT}", word) for word in words]
    if proxy is not None and proxy[2] not in (None, "/"):
        model.notes.append(f"proxy: requests go to the root of the port, not to {safe_text(proxy[2])}")
    if not words:
        model.notes.append("it has no cmd: it cannot be loaded")
        return
    model.put("cmd", _joined(words))
    if any(_PUBLISHED.fullmatch(word) for word in words):
        model.notes.append("the container's port is open to other machines: 127.0.0.1:${PORT}:… keeps it to this one")
    if not any("${PORT}" in word for word in words):
        model.notes.append("its cmd does not contain ${PORT}: it must listen on the port in the variable PORT")
    check = said.get("checkEndpoint")
    if isinstance(check, str) and check.startswith("/"):
        model.put("health", macros.fill(check))
    elif check:
        model.notes.append(f"checkEndpoint: {safe_text(str(check))}: a model is ready when its health path answers 200")
    if stop := said.get("cmdStop"):
        ending = read_command(macros.fill(str(stop)), None)
        model.notes += [note.replace("cmd ", "cmdStop ", 1) for note in ending.notes if not ending.words]
        if ending.words:
            model.put("stop-cmd", _joined(ending.words))


def _command(name: str, said: Table, config: Table, env: Mapping[str, str], options: OptionTable | None) -> Command:
    macros = Macros(_table(config.get("macros")), _table(said.get("macros")), name, env)
    command = read_command(macros.fill(str(said.get("cmd") or "")), options)
    command.notes += [f"{macro} is not defined" for macro in macros.unknown]
    return command


def _joined(words: Sequence[str]) -> str:
    """Words as one line that splits into them again; ``${PORT}`` and the like are left readable."""
    return " ".join(word if re.fullmatch(r"[\w@%+=:,./{}$-]+", word) else shlex.quote(word) for word in words)


def _written(star: Sequence[str], models: Sequence[_Model], notes: Sequence[str]) -> str:
    lines = ["version = 1", "", "; Made by llmtop import llama-swap. Notes stand where something is not the same."]
    lines += [f"; {safe_text(note)}" for note in notes]
    if star:
        lines += ["", "[*]", *star]
    for model in models:
        lines += ["", f"[{model.name}]", *(f"; {safe_text(note)}" for note in model.notes), *model.lines]
    return "\n".join(lines) + "\n"


def _unread(key: str, value: Any, known: Mapping[str, str], taken: frozenset[str]) -> Iterable[str]:
    if key in taken or value in (None, "", [], {}, False):
        return
    if key == "filters":
        yield from (f"filters.{name}: {known['filters']}" for name in _table(value))
    else:
        yield f"{safe_text(key)}: {known.get(key, 'not known here, left out')}"


def _models(config: Table) -> dict[str, Any]:
    return {str(name): said for name, said in _table(config.get("models")).items()}


def _table(value: Any) -> Table:
    return {str(k): v for k, v in cast("Mapping[object, Any]", value).items()} if isinstance(value, dict) else {}


def _names(value: Any) -> list[str]:
    return [str(part) for part in cast("list[object]", value)] if isinstance(value, list) else []


def _aliases(value: Any, model: _Model) -> list[str]:
    """Aliases, as names or as tables with an ``id``."""
    found: list[str] = []
    for part in cast("list[object]", value) if isinstance(value, list) else []:
        name = str(_table(part).get("id", "")) if isinstance(part, dict) else str(part)
        if not name or "," in name:
            model.notes.append(f"alias {safe_text(name)!r} cannot be one here and is left out")
        else:
            found.append(name)
    return found


def _seconds(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e9 else 0.0


def _usual(programs: Sequence[str]) -> str:
    """The llama-server that most models have, of equals the first."""
    return max(programs, key=programs.count) if programs else ""
