"""Settles every option: flag before ``LLMTOP_…``, then llama.cpp's variable, the preset's ``[*]``, the default."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, cast

from llmtop.config.rows import ROWS, Row
from llmtop.config.spec import Settings
from llmtop.config.units import is_text
from llmtop.errors import ConfigError

OTHER_VARIABLES = frozenset({"LLMTOP_URL", "LLMTOP_DEBUG", "LLMTOP_MEMORY_SOURCE"})
"""Variables of llmtop that are not options."""


@dataclass(frozen=True)
class Said:
    """An option's value and where it was said."""

    value: Any
    source: str
    where: str


def default_state_dir(env: Mapping[str, str]) -> str:
    """The platform's folder for state that outlives a run."""
    home = Path(env.get("HOME") or Path.home())
    if sys.platform == "darwin":
        return str(home / "Library" / "Application Support" / "llmtop")
    return str(Path(env.get("XDG_STATE_HOME") or home / ".local" / "state") / "llmtop")


def read(row: Row, texts: str | Sequence[str], where: str) -> Any:
    """Read an option's text.

    Raises:
        ConfigError: One line with the option, its text and what would have been right.
    """
    words = [texts] if isinstance(texts, str) else list(texts)
    if row.many:
        words = [part.strip() for word in words for part in word.split(",")]
    values: list[Any] = []
    for word in words:
        if not is_text(word):
            raise ConfigError(f"{where}: its value is not UTF-8 text")
        try:
            values.append(row.parse(word))
        except ValueError as error:
            shown = "the key" if row.name == "api-key" else repr(word)
            raise ConfigError(f"{where}: {shown} {error}") from None
    return tuple(values) if row.many else values[-1]


def said(row: Row, flags: Mapping[str, object], env: Mapping[str, str]) -> list[Said]:
    """What flags and environment say about an option, the strongest first."""
    found: list[Said] = []
    flag = flags.get(row.key)
    where = f"--{row.name}"
    if isinstance(flag, bool):
        found.append(Said(flag, "flag", where))
    elif isinstance(flag, str):
        found.append(Said(read(row, flag, where), "flag", where))
    elif isinstance(flag, list | tuple) and flag:
        found.append(Said(read(row, [str(word) for word in cast("Sequence[object]", flag)], where), "flag", where))
    found += [
        Said(read(row, env[name], name), "env", name) for name in (row.variable, *row.env) if env.get(name, "") != ""
    ]
    if row.name == "models-autoload" and env.get("LLAMA_ARG_NO_MODELS_AUTOLOAD"):
        found.append(Said(False, "env", "LLAMA_ARG_NO_MODELS_AUTOLOAD"))
    return found


def settle(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    *,
    after: Mapping[str, Said] | None = None,
    star: Mapping[str, Said] | None = None,
) -> Settings:
    """Resolve every option.

    Args:
        flags: Parameter name (``models_max``) to text, list of texts, bool, or None where it was not given.
        env: The environment.
        after: What stands after ``--`` and is llmtop's to decide (``cache_ram``, ``sleep_idle_seconds``).
        star: What the preset's ``[*]`` says, by parameter name.

    Returns:
        The settings, with warnings about what was said twice or is no option.

    Raises:
        ConfigError: A value cannot be read, or values contradict each other.
    """
    values: dict[str, Any] = {}
    source, warnings = "default", _unknown(env)
    keys: tuple[str, ...] = ()
    for row in ROWS:
        voices = said(row, flags, env)
        if after and row.key in after:
            voices.insert(sum(v.source == "flag" for v in voices), after[row.key])
        if row.star and star and row.key in star:
            voices.append(star[row.key])
        if not voices:
            continue
        first = voices[0]
        if row.name == "models-max":
            source = first.source
            warnings += [
                f"models-max is {first.value} by {first.where}; {v.value} by {v.where} is not used"
                for v in voices[1:]
                if v.value != first.value
            ]
        if row.name == "api-key-file":
            keys = read_keys(first.value)
        elif row.field:
            values[row.field] = first.value
    values["api_keys"] = tuple(dict.fromkeys((*values.get("api_keys", ()), *keys)))
    values.setdefault("state_dir", default_state_dir(env))
    settings = Settings(**values, models_max_source=source, warnings=tuple(warnings))
    if not is_loopback(settings.host) and not settings.api_keys and not settings.insecure:
        raise ConfigError(
            f"--host {settings.host} opens llmtop to other machines without a key: "
            "give --api-key KEY, or --insecure if that is meant"
        )
    return settings


def _unknown(env: Mapping[str, str]) -> list[str]:
    known = {row.variable for row in ROWS} | OTHER_VARIABLES
    return [
        f"{name} is set, but llmtop has no such option"
        for name in sorted(env)
        if name.startswith("LLMTOP_") and name not in known
    ]


def read_keys(path: str) -> tuple[str, ...]:
    """Read a key file: one a line, empty lines and lines with ``#`` in front left out.

    Raises:
        ConfigError: It cannot be read, or holds no key.
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"--api-key-file: {path} cannot be read: {why}") from None
    keys = tuple(line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#"))
    if not keys:
        raise ConfigError(f"--api-key-file: {path} holds no key: write one a line")
    return keys


def is_loopback(host: str) -> bool:
    """Only this machine can reach it; a name other than ``localhost`` counts as open."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
