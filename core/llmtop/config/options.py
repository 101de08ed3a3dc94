"""Every option of llmtop in one table: its field in ``Settings``, how its text is read, its environment names, its help.

The command line is made from this table, so a new option is one new row. Order of precedence: flag, ``LLMTOP_…``, llama.cpp's own
variable, the preset's ``[*]`` where that may say it, default.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from llmtop.config.spec import MIB, Settings
from llmtop.config.units import parse_bool, parse_cache_ram, parse_count, parse_duration, parse_size, parse_span
from llmtop.errors import ConfigError

UNLIMITED = 2**62
"""Stands for "no limit" where a number is wanted [bytes]."""

OTHER_VARIABLES = frozenset({"LLMTOP_URL", "LLMTOP_DEBUG", "LLMTOP_MEMORY_SOURCE"})
"""Variables of llmtop that are not options."""


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value


def _folder(value: str) -> str:
    return os.path.abspath(os.path.expanduser(_text(value)))


def _host(value: str) -> str:
    if "/" in value or value.endswith(".sock"):
        raise ValueError("is not an address: llmtop listens on TCP only, say 127.0.0.1")
    return _text(value).strip().strip("[]")


def _port(value: str) -> int:
    try:
        port = int(value)
    except ValueError:
        port = 0
    if not 1 <= port <= 65535:
        raise ValueError("is not a port: 1 to 65535")
    return port


def _cap(value: str) -> int:
    try:
        return parse_count(value)
    except ValueError:
        raise ValueError("is not a number of models (0 = no cap)") from None


def _budget(value: str) -> str:
    word = value.strip().lower()
    if word in {"auto", "off"}:
        return word
    size = parse_size(value)
    if size == 0:
        return "off"
    if size < MIB:
        raise ValueError(f"is only {size} bytes: write auto, off or a size such as {word}GiB")
    return str(size)


def _queue(value: str) -> int:
    return 0 if value.strip().lower() == "off" else parse_count(value)


def _body(value: str) -> int:
    return UNLIMITED if value.strip().lower() == "off" else (parse_size(value) or UNLIMITED)


def _beat(value: str) -> float:
    return parse_duration(value) or 0.0


@dataclass(frozen=True)
class Row:
    """One option.

    Args:
        name: Long name without dashes.
        field: Field of ``Settings``; empty for one that only helps to fill another.
        parse: Reads the text; raises ``ValueError`` with what would have been right.
        help: For ``--help``.
        env: llama.cpp's variables that mean the same, best first.
        metavar: For ``--help``.
        panel: Group in ``--help``.
        short: More spellings.
        switch: A flag without a value.
        off_switch: It has a ``--no-…`` form.
        many: May be given more than once, and as a list with commas.
        star: The preset's ``[*]`` may set it.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    help: str
    env: tuple[str, ...] = ()
    metavar: str = "TEXT"
    panel: str = "Models"
    short: tuple[str, ...] = ()
    switch: bool = False
    off_switch: bool = False
    many: bool = False
    star: bool = False

    @property
    def variable(self) -> str:
        """Its own environment variable."""
        return "LLMTOP_" + self.name.replace("-", "_").upper()

    @property
    def key(self) -> str:
        """Its name as a Python parameter."""
        return self.name.replace("-", "_")


_Q, _N, _O = "Queue and memory", "Network and access", "Other"

ROWS: tuple[Row, ...] = (
    Row("models-dir", "models_dir", _folder, "Folder of models: one .gguf each, or a folder each (shards, mmproj). "
        "Default: the Hugging Face cache.", ("LLAMA_ARG_MODELS_DIR",), "DIR"),
    Row("models-preset", "models_preset", _folder, "llama.cpp preset file (INI) with \\[*] and a section a model.",
        ("LLAMA_ARG_MODELS_PRESET",), "FILE"),
    Row("models-max", "models_max", _cap, "At most N models at once, 0 = no cap. Default 4.", ("LLAMA_ARG_MODELS_MAX",), "N", star=True),
    Row("models-autoload", "autoload", parse_bool, "Load a model when a request names it. Default on.", ("LLAMA_ARG_MODELS_AUTOLOAD",),
        switch=True, off_switch=True),
    Row("llama-server", "llama_server", _text, "The llama-server to run. Default: found on PATH, in Homebrew's folders, or the demo "
        "extra's.", (), "PATH"),
    Row("cache-ram", "cache_ram_mib", parse_cache_ram, "Prompt cache of all children together. Default 8192.", ("LLAMA_ARG_CACHE_RAM",), "MIB",
        short=("-cram",), star=True),
    Row("memory-budget", "budget", _budget, "auto, off, or a size such as 48GiB. Default auto.", (), "SIZE", _Q),
    Row("max-wait", "max_wait_s", parse_duration, "Busy models are drained for a request that has waited this long; 0 drains at once, off "
        "never. Default 15.", (), "S", _Q),
    Row("stop-timeout", "stop_timeout_s", parse_span, "From the polite stop to SIGKILL. Default: by the model's size, 10 to 60.", (), "S", _Q,
        star=True),
    Row("load-timeout", "load_timeout_s", parse_span, "Give a load up after this long without progress or output. Default 600.", (), "S", _Q),
    Row("idle-unload", "idle_unload_s", parse_span, "Unload a model that was idle this long. Default off.", (), "S", _Q, star=True),
    Row("sleep-idle-seconds", "sleep_idle_s", parse_span, "Let a child sleep after this long without work. Default off.",
        ("LLAMA_ARG_SLEEP_IDLE_SECONDS",), "S", _Q, star=True),
    Row("max-queue", "max_queue", _queue, "Requests that may wait for one model; four times that for all. Default 512.", (), "N", _Q),
    Row("host", "host", _host, "Address to listen on. Default 127.0.0.1.", ("LLAMA_ARG_HOST",), "ADDR", _N),
    Row("port", "port", _port, "Port to listen on. Default 8080.", ("LLAMA_ARG_PORT",), "PORT", _N),
    Row("api-key", "api_keys", _text, "Key that clients must send; may be repeated.", ("LLAMA_API_KEY",), "KEY", _N, many=True),
    Row("api-key-file", "", _folder, "File with one key a line.", ("LLAMA_ARG_API_KEY_FILE",), "FILE", _N),
    Row("insecure", "insecure", parse_bool, "Listen beyond this machine without a key.", panel=_N, switch=True),
    Row("allow-host", "allow_hosts", _text, "One more Host that may manage; may be repeated.", (), "HOST", _N, many=True),
    Row("allow-origin", "allow_origins", _text, "A web page's Origin that may call; may be repeated.", (), "ORIGIN", _N, many=True),
    Row("client-stall", "client_stall_s", parse_span, "A client that takes no byte for this long has left. Default 60.", (), "S", _N),
    Row("drain-timeout", "drain_timeout_s", parse_span, "Cut what still runs on a draining model after this long. Default off.", (), "S", _N),
    Row("heartbeat", "heartbeat_s", _beat, "Comment to a waiting stream each S seconds, 0 never. Default 15.", (), "S", _N),
    Row("max-body", "max_body", _body, "Largest request. Default 256MiB.", (), "SIZE", _N),
    Row("readonly", "readonly", parse_bool, "No keys that change anything on the screen.", panel=_O, switch=True),
    Row("state-dir", "state_dir", _folder, "Where footprints, swaps, records and logs are kept.", (), "DIR", _O),
    Row("record", "record", _folder, "Write the run to a file that --replay shows again.", (), "FILE", _O),
)  # fmt: skip
"""All options, in the order of ``--help``."""

BY_KEY = {row.key: row for row in ROWS}


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
    if isinstance(flag, bool):
        found.append(Said(flag, "flag", f"--{row.name}"))
    elif isinstance(flag, str) or (isinstance(flag, Sequence) and flag):
        found.append(
            Said(
                read(row, flag if isinstance(flag, str) else [str(word) for word in flag], f"--{row.name}"),
                "flag",
                f"--{row.name}",
            )
        )
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
        after: What stands after ``--`` and is llmtop's to decide (``cache_ram``, ``sleep_idle_seconds``), by parameter name.
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
            f"--host {settings.host} opens llmtop to other machines without a key: give --api-key KEY, or --insecure if that is meant"
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
