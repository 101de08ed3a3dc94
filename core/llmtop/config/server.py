"""The llama-server that will run, together with what it understands."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from llmtop.config.keys import Option

if TYPE_CHECKING:
    from llmtop.children.binary import ServerHelp


@dataclass(frozen=True)
class Server:
    """One llama-server binary; an ``OptionTable`` of its own options.

    Args:
        path: Where it is.
        help: What its ``--help`` told.
    """

    path: str
    help: ServerHelp = field(repr=False)

    def lookup(self, key: str) -> Option | None:
        """Find an option by any of its names, with or without dashes, or by its environment variable."""
        options = self.help.options
        bare = key.lstrip("-")
        for name in (key, f"--{bare}", f"-{bare}"):
            if name in options:
                return options[name]
        return next((option for option in options.values() if option.env == key), None) if key.isupper() else None

    def spellings(self) -> Iterable[str]:
        """Every name of every option, with its dashes."""
        return self.help.options


def find_server(named: str, env: Mapping[str, str]) -> Server:
    """Find the llama-server and read its options.

    Args:
        named: What ``--llama-server`` says; empty looks in the usual places.
        env: Environment, for the search.

    Returns:
        The binary.

    Raises:
        StartError: There is none, or it cannot be run.
    """
    from llmtop.children.binary import find_llama_server, server_help

    path = find_llama_server(named or env.get("LLMTOP_LLAMA_SERVER", ""))
    return Server(path, server_help(path))
