"""Macros of a llama-swap configuration: ``${name}``, ``${env.NAME}``, and those that only it or llmtop can fill in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_MACRO = re.compile(r"\$\{([A-Za-z0-9_.-]+)\}")
_DEPTH = 20
_LONGEST = 100_000
"""No command is longer [characters]; a macro that holds itself twice is, soon."""
LEFT = frozenset({"PORT", "PID"})
"""Filled in when a child is started."""


class Macros:
    """Replaces macros in texts.

    Args:
        common: Those of the whole file.
        own: Those of one model; they win.
        model: Its id.
        env: Environment, for ``${env.NAME}``.
    """

    def __init__(self, common: Mapping[str, Any], own: Mapping[str, Any], model: str, env: Mapping[str, str]) -> None:
        self._values = {name: _text(value) for name, value in (*common.items(), *own.items())} | {"MODEL_ID": model}
        self._env = env
        self.unknown: dict[str, None] = {}
        """Macros that nothing defines, in the order in which they were met."""

    def fill(self, text: str) -> str:
        """The text with every macro replaced but ``${PORT}`` and ``${PID}``; what is not known stays as it is."""
        whole = text
        for _ in range(_DEPTH):
            filled = _MACRO.sub(self._one, text)
            if filled == text:
                return text
            if len(filled) > _LONGEST:
                break
            text = filled
        self.unknown["a macro that contains itself"] = None
        return whole

    def _one(self, match: re.Match[str]) -> str:
        name = match[1]
        if name in LEFT:
            return match[0]
        found = self._env.get(name[4:]) if name.startswith("env.") else self._values.get(name)
        if found is None:
            self.unknown[match[0]] = None
            return match[0]
        return found


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
