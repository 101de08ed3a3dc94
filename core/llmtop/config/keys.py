"""Which key means what: the names that llmtop owns, reads or hands to a child, whatever form they are written in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Option(Protocol):
    """One option of a ``llama-server``, as its ``--help`` tells it."""

    @property
    def names(self) -> tuple[str, ...]:
        """All spellings with their dashes, the long ones last."""
        ...

    @property
    def takes_value(self) -> bool:
        """It is followed by a value; else it is a flag."""
        ...


class OptionTable(Protocol):
    """All options of one binary."""

    def lookup(self, key: str) -> Option | None:
        """Find an option by any of its names (with or without dashes) or by its environment variable."""
        ...

    def spellings(self) -> Iterable[str]:
        """Every name of every option, with its dashes."""
        ...


_SYNONYMS = {
    "model": ("m", "LLAMA_ARG_MODEL"),
    "model-url": ("mu", "LLAMA_ARG_MODEL_URL"),
    "docker-repo": ("dr", "LLAMA_ARG_DOCKER_REPO"),
    "hf-repo": ("hf", "hfr", "LLAMA_ARG_HF_REPO"),
    "hf-file": ("hff", "LLAMA_ARG_HF_FILE"),
    "hf-token": ("hft", "HF_TOKEN"),
    "mmproj": ("mm", "LLAMA_ARG_MMPROJ"),
    "mmproj-url": ("mmu", "LLAMA_ARG_MMPROJ_URL"),
    "model-draft": ("md", "spec-draft-model", "LLAMA_ARG_MODEL_DRAFT", "LLAMA_ARG_SPEC_DRAFT_MODEL"),
    "alias": ("a", "LLAMA_ARG_ALIAS"),
    "host": ("LLAMA_ARG_HOST",),
    "port": ("LLAMA_ARG_PORT",),
    "api-key": ("LLAMA_API_KEY",),
    "api-key-file": ("LLAMA_ARG_API_KEY_FILE",),
    "ssl-key-file": ("LLAMA_ARG_SSL_KEY_FILE",),
    "ssl-cert-file": ("LLAMA_ARG_SSL_CERT_FILE",),
    "models-dir": ("LLAMA_ARG_MODELS_DIR",),
    "models-preset": ("LLAMA_ARG_MODELS_PRESET",),
    "models-max": ("LLAMA_ARG_MODELS_MAX",),
    "models-autoload": ("no-models-autoload", "LLAMA_ARG_MODELS_AUTOLOAD"),
    "cache-ram": ("cram", "LLAMA_ARG_CACHE_RAM"),
    "sleep-idle-seconds": ("LLAMA_ARG_SLEEP_IDLE_SECONDS",),
    "stop-timeout": ("__PRESET_STOP_TIMEOUT",),
    "load-on-startup": ("__PRESET_LOAD_ON_STARTUP",),
}
_CANONICAL = {other: name for name, others in _SYNONYMS.items() for other in (name, *others)}

OWNED = frozenset(
    {
        "host",
        "port",
        "api-key",
        "api-key-file",
        "ssl-key-file",
        "ssl-cert-file",
        "models-dir",
        "models-preset",
        "models-autoload",
    }
)
"""What llmtop sets for its children itself; a preset or ``--`` that names one of these is told so."""

SOURCES = ("model", "model-url", "docker-repo", "hf-repo", "hf-file", "mmproj", "mmproj-url")
"""What names the model to load, in the order in which it goes to the child; no place for it in ``[*]``."""

DOWNLOADS = frozenset({"model-url", "docker-repo", "hf-repo", "hf-file"})
"""Sources that are not files here: not read before a load, and no use beside ``model``."""

FILES = frozenset({"model-draft"})
"""Options of a child whose value is a GGUF file that must be there before anything is evicted."""

OWN = frozenset(
    {
        "pin",
        "memory",
        "idle-unload",
        "evict-on-sleep",
        "on-client-abort",
        "cmd",
        "stop-cmd",
        "health",
        "env",
        "load-on-startup",
        "stop-timeout",
        "dedup-cache-models",
        "models-max",
        "cache-ram",
        "sleep-idle-seconds",
    }
)
"""Keys that llmtop reads itself and never hands on as they stand."""

OPENS_UP = {
    "tools": "gives clients of this model files and commands of this machine",
    "slot-save-path": "lets clients of this model write files",
    "media-path": "lets clients of this model read files",
}
"""Options that are passed on, with a line that says what they allow."""


def canonical(key: str) -> str:
    """The one name by which llmtop knows a key; other keys come back without their leading dashes."""
    bare = key.lstrip("-")
    return _CANONICAL.get(bare, bare)


class Arg(msgspec.Struct, frozen=True):
    """One option on its way to a child. ``identity`` is the same for all spellings, so that a later one replaces it."""

    identity: str
    argv: tuple[str, ...]


def identity(key: str, table: OptionTable | None) -> str:
    """A name that is the same for every spelling of one option."""
    option = table.lookup(key) if table is not None else None
    if option is not None and option.names:
        return option.names[-1].lstrip("-")
    return canonical(key).removeprefix("no-")


def to_arg(key: str, value: str, table: OptionTable | None) -> Arg:
    """Turn a key and its value into a child's argument.

    Args:
        key: As written: long, short or environment name, ``no-`` form included.
        value: As written, byte for byte.
        table: The options of the binary; without one the key's shape decides.

    Returns:
        The argument; empty ``argv`` for a flag that is off and has no ``no-`` form.

    Raises:
        ValueError: The binary does not know the key, or a flag has a value that is neither true nor false.
    """
    if table is None:
        return _guess(key, value)
    option, flipped = _find(key, table)
    if option is None:
        raise ValueError("is no option of this llama-server" + near(key, table))
    positive, negative = forms(option)
    name = positive[-1]
    if option.takes_value:
        return Arg(identity(name, table), (name, value))
    said = any(key.lstrip("-") == other.lstrip("-") for other in negative)
    if _switch(value) != (said != flipped):
        return Arg(identity(name, table), (name,))
    return Arg(identity(name, table), negative[-1:])


def near(key: str, table: OptionTable) -> str:
    """A question with the name that was meant, where one is much like the key; else nothing."""
    from difflib import get_close_matches

    known = {name.lstrip("-") for name in table.spellings() if name.startswith("--")} | OWN
    meant = get_close_matches(key.lstrip("-").lower().replace("_", "-"), known, 1, 0.8)
    return f" (did you mean {meant[0]}?)" if meant else ""


def _find(key: str, table: OptionTable) -> tuple[Option | None, bool]:
    """The option of a key, and whether the key is its opposite (``LLAMA_ARG_NO_X``; ``x`` where only ``no-x`` is)."""
    if (option := table.lookup(key)) is not None:
        return option, False
    if key.startswith("LLAMA_ARG_NO_"):
        return table.lookup("LLAMA_ARG_" + key.removeprefix("LLAMA_ARG_NO_")), True
    opposite = table.lookup(f"no-{key.lstrip('-')}")
    return (opposite, True) if opposite is not None and not opposite.takes_value else (None, False)


def forms(option: Option) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split an option's spellings into those that say it and those that deny it.

    ``--help`` lists the former first, each group with its long names last, so whatever follows the last long name
    without ``no-`` denies. An option that has only a ``no-`` form means just that.
    """
    names = option.names
    last = max(
        (i for i, name in enumerate(names) if name.startswith("--") and not name.startswith("--no-")),
        default=len(names) - 1,
    )
    return names[: last + 1], names[last + 1 :]


def _switch(value: str) -> bool:
    from llmtop.config.units import parse_bool

    try:
        return parse_bool(value) if value.strip() else True
    except ValueError:
        raise ValueError("is a flag: its value is true or false") from None


def _guess(key: str, value: str) -> Arg:
    """Without a table: long names get two dashes, names of up to three letters one; true and false make flags."""
    bare = key.lstrip("-")
    name = f"-{bare}" if len(bare) <= 3 and not key.startswith("--") else f"--{bare}"
    same = canonical(bare).removeprefix("no-")
    word = value.strip().lower()
    if word == "true":
        return Arg(same, (name,))
    if word == "false":
        return Arg(same, (f"--{bare.removeprefix('no-')}" if bare.startswith("no-") else f"--no-{bare}",))
    return Arg(same, (name, value))
