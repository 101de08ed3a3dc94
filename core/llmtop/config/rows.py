"""The table of all options: field in ``Settings``, how the text is read, environment names, help.

The command line is made from it, so a new option is one new row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmtop.config.spec import MIB
from llmtop.config.units import (
    is_text,
    parse_bool,
    parse_cache_ram,
    parse_count,
    parse_duration,
    parse_size,
    parse_span,
)

UNLIMITED = 2**62
"""Stands for "no limit" where a number is wanted [bytes]."""


def _text(value: str) -> str:
    if not value.strip():
        raise ValueError("is empty")
    return value


def _folder(value: str) -> str:
    path = os.path.abspath(os.path.expanduser(_text(value)))
    if not is_text(path):
        raise ValueError("is in a folder whose name is not UTF-8: rename that")
    return path


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
        env: llama.cpp's variables that mean the same, best first.
        metavar: For ``--help``.
        panel: Group in ``--help``.
        short: More spellings.
        switch: A flag without a value.
        off_switch: It has a ``--no-…`` form.
        many: May be given more than once, and as a list with commas.
        star: The preset's ``[*]`` may set it.
        help: For ``--help``.
    """

    name: str
    field: str
    parse: Callable[[str], Any]
    env: tuple[str, ...] = ()
    metavar: str = "TEXT"
    panel: str = "Models"
    short: tuple[str, ...] = ()
    switch: bool = False
    off_switch: bool = False
    many: bool = False
    star: bool = False
    help: str = ""

    @property
    def variable(self) -> str:
        """Its own environment variable."""
        return "LLMTOP_" + self.name.replace("-", "_").upper()

    @property
    def key(self) -> str:
        """Its name as a Python parameter."""
        return self.name.replace("-", "_")


_QUEUE, _NET, _OTHER = "Queue and memory", "Network and access", "Other"

ROWS: tuple[Row, ...] = (
    Row("models-dir", "models_dir", _folder, ("LLAMA_ARG_MODELS_DIR",), "DIR",
        help="Folder of models: one .gguf each, or a folder each (shards, mmproj). Default: the Hugging Face cache."),
    Row("models-preset", "models_preset", _folder, ("LLAMA_ARG_MODELS_PRESET",), "FILE",
        help="llama.cpp preset file (INI) with \\[*] and a section a model."),
    Row("models-max", "models_max", _cap, ("LLAMA_ARG_MODELS_MAX",), "N", star=True,
        help="At most N models at once, 0 = no cap. Default 4."),
    Row("llama-server", "llama_server", _text, (), "PATH",
        help="The llama-server to run. Default: found on PATH, in Homebrew's folders, or the demo extra's."),
    Row("cache-ram", "cache_ram_mib", parse_cache_ram, ("LLAMA_ARG_CACHE_RAM",), "MIB", short=("-cram",), star=True,
        help="Prompt cache of all children together. Default 8192."),
    Row("memory-budget", "budget", _budget, (), "SIZE", _QUEUE,
        help="auto, off, or a size such as 48GiB. Default auto."),
    Row("max-wait", "max_wait_s", parse_duration, (), "S", _QUEUE,
        help="Busy models are drained for a request that has waited this long; 0 at once, off never. Default 15."),
    Row("stop-timeout", "stop_timeout_s", parse_span, (), "S", _QUEUE, star=True,
        help="From the polite stop to SIGKILL. Default: by the model's size, 10 to 60."),
    Row("load-timeout", "load_timeout_s", parse_span, (), "S", _QUEUE,
        help="Give a load up after this long without progress or output. Default 600."),
    Row("idle-unload", "idle_unload_s", parse_span, (), "S", _QUEUE, star=True,
        help="Unload a model that was idle this long. Default off."),
    Row("sleep-idle-seconds", "sleep_idle_s", parse_span, ("LLAMA_ARG_SLEEP_IDLE_SECONDS",), "S", _QUEUE, star=True,
        help="Let a child sleep after this long without work. Default off."),
    Row("max-queue", "max_queue", _queue, (), "N", _QUEUE,
        help="Requests that may wait for one model; four times that for all. Default 512."),
    Row("host", "host", _host, ("LLAMA_ARG_HOST",), "ADDR", _NET,
        help="Address to listen on. Default 127.0.0.1."),
    Row("port", "port", _port, ("LLAMA_ARG_PORT",), "PORT", _NET,
        help="Port to listen on. Default 8080."),
    Row("api-key", "api_keys", _text, ("LLAMA_API_KEY",), "KEY", _NET, many=True,
        help="Key that clients must send; may be repeated."),
    Row("api-key-file", "", _folder, ("LLAMA_ARG_API_KEY_FILE",), "FILE", _NET,
        help="File with one key a line."),
    Row("insecure", "insecure", parse_bool, panel=_NET, switch=True,
        help="Listen beyond this machine without a key."),
    Row("allow-host", "allow_hosts", _text, (), "HOST", _NET, many=True,
        help="One more Host that may manage; may be repeated."),
    Row("allow-origin", "allow_origins", _text, (), "ORIGIN", _NET, many=True,
        help="A web page's Origin that may call; may be repeated."),
    Row("client-stall", "client_stall_s", parse_span, (), "S", _NET,
        help="A client that takes no byte for this long has left. Default 60."),
    Row("drain-timeout", "drain_timeout_s", parse_span, (), "S", _NET,
        help="Cut what still runs on a draining model after this long. Default off."),
    Row("heartbeat", "heartbeat_s", _beat, (), "S", _NET,
        help="Comment to a waiting stream each S seconds, 0 never. Default 15."),
    Row("max-body", "max_body", _body, (), "SIZE", _NET,
        help="Largest request. Default 256MiB."),
    Row("models-autoload", "autoload", parse_bool, ("LLAMA_ARG_MODELS_AUTOLOAD",), "", _OTHER, switch=True,
        off_switch=True, help="Load a model when a request names it. Default on."),
    Row("watch", "watch", parse_bool, panel=_OTHER, switch=True, off_switch=True,
        help="Read the configuration again when preset file or models folder change. Default: only the preset file."),
    Row("readonly", "readonly", parse_bool, panel=_OTHER, switch=True,
        help="No keys that change anything on the screen."),
    Row("state-dir", "state_dir", _folder, (), "DIR", _OTHER,
        help="Where footprints, swaps, records and logs are kept."),
    Row("record", "record", _folder, (), "FILE", _OTHER,
        help="Write the run to a file that --replay shows again."),
)  # fmt: skip
"""All options, in the order of ``--help``."""

BY_KEY = {row.key: row for row in ROWS}

BY_FIELD = {row.field: row.name for row in ROWS if row.field}
"""Fields of ``Settings`` to the option that fills them."""
