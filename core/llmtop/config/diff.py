"""What changed between two configurations, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llmtop.children.command import masked
from llmtop.config.preset import as_args
from llmtop.config.resolve import Configuration
from llmtop.config.rows import BY_FIELD
from llmtop.config.spec import MIB, ModelSpec, Settings

_SAID: dict[str, str] = {
    "path": "file",
    "aliases": "aliases",
    "source_args": "source",
    "cache_ram_mib": "cache-ram",
    "memory": "memory",
    "pin": "pin",
    "load_on_startup": "load-on-startup",
    "stop_timeout_s": "stop-timeout",
    "idle_unload_s": "idle-unload",
    "evict_on_sleep": "evict-on-sleep",
    "sleep_idle_s": "sleep-idle-seconds",
    "on_client_abort": "on-client-abort",
    "cmd": "cmd",
    "stop_cmd": "stop-cmd",
    "health": "health",
}
"""Fields of a model to the names that users know; ``args``, ``env``, ``files``, ``problem`` are told in another way."""

_WORDLESS = frozenset({"warnings", "models_max_source", "child_args", "state_dir"})


def diff(before: Configuration, after: Configuration) -> tuple[str, ...]:
    """Say what changed.

    Args:
        before: The configuration that holds.
        after: The one that was read now.

    Returns:
        A line for each option and each model, options first, models in the order of the new configuration; nothing when
        nothing changed. Values of keys, tokens and variables are in none of them.
    """
    old, new = before.catalog.models, after.catalog.models
    lines = list(_options(before.settings, after.settings))
    for name, spec in new.items():
        if name not in old:
            lines.append(f"{name} added")
        else:
            lines += [f"{name}: {change}" for change in _model(old[name], spec)]
    lines += [f"{name} removed" for name in old if name not in new]
    return tuple(lines)


def _options(old: Settings, new: Settings) -> Iterator[str]:
    for field in Settings.__struct_fields__:
        was, now = getattr(old, field), getattr(new, field)
        if was == now or field in _WORDLESS:
            continue
        name = BY_FIELD[field]
        yield "api-key: changed, from the next start on" if field == "api_keys" else f"{name}: {_shift(was, now)}"


def _model(old: ModelSpec, new: ModelSpec) -> Iterator[str]:
    for field, name in _SAID.items():
        was, now = getattr(old, field), getattr(new, field)
        if was != now:
            yield f"{name} changed: {_shift(was, now, field)}"
    if old.files != new.files and old.path == new.path:
        yield f"files changed: {len(old.files)} → {len(new.files)}"
    if arguments := "; ".join(_arguments(old.args, new.args)):
        yield f"args changed: {arguments}"
    was, now = dict(old.env), dict(new.env)
    if names := sorted(name for name in was.keys() | now.keys() if was.get(name) != now.get(name)):
        yield f"env changed: {', '.join(names)}"
    if old.problem != new.problem:
        yield f"cannot be loaded: {new.problem}" if new.problem else "can be loaded again"


def _shift(was: Any, now: Any, field: str = "") -> str:
    return f"{_word(was, field)} → {_word(now, field)}"


def _word(value: Any, field: str) -> str:
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if field == "memory":
        return f"{value / MIB:.0f} MiB"
    if isinstance(value, tuple):
        return " ".join(masked([str(part) for part in value]))  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _arguments(old: tuple[str, ...], new: tuple[str, ...]) -> Iterator[str]:
    was = {arg.identity: masked(arg.argv) for arg in as_args(old, None)}
    now = {arg.identity: masked(arg.argv) for arg in as_args(new, None)}
    hidden_old, hidden_new = ({a.identity: a.argv for a in as_args(words, None)} for words in (old, new))
    for name, words in now.items():
        if name not in was:
            yield f"{' '.join(words)} added"
        elif hidden_old[name] != hidden_new[name]:
            values = " ".join(words[1:]) if words[0] == was[name][0] else " ".join(words)
            yield f"{' '.join(was[name])} → {values or words[0]}"
    for name, words in was.items():
        if name not in now:
            yield f"{' '.join(words)} removed"
