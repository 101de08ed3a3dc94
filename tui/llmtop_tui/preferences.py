"""What the user has chosen for good, in two small JSON files of the configuration folder: the theme, and other keys.

``ui.json`` is ``{"theme": NAME}`` and is written when the theme is changed. ``keymap.json`` is written by the user:
``{"ACTION": "KEY"}`` with the actions that have another key, several keys with commas between them.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from textual.keys import KEY_NAME_REPLACEMENTS

from llmtop_tui.actions import ACTIONS, BY_ID, NAMES_OF_KEYS, key_name

Keys = Mapping[str, tuple[str, ...]]
MAX_BYTES = 64 * 1024


def folder_of(env: Mapping[str, str]) -> Path:
    """``llmtop`` in the user's configuration folder."""
    home = env.get("XDG_CONFIG_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "llmtop"


@dataclass
class Preferences:
    """What was read, and where it is kept.

    Args:
        folder: Where the files are; None keeps nothing.
        theme: The theme chosen last, empty for none.
        keys: Actions with other keys than the registry's.
        problems: What is wrong with the files, a line each.
    """

    folder: Path | None = None
    theme: str = ""
    keys: Keys = field(default_factory=dict[str, tuple[str, ...]])
    problems: tuple[str, ...] = ()

    @classmethod
    def load(cls, folder: Path) -> Preferences:
        """Read the files; what is wrong with them is told in ``problems``, and what is right holds."""
        problems: list[str] = []
        chosen = _read(folder / "ui.json", problems)
        keys = keymap(_read(folder / "keymap.json", problems), problems)
        theme = chosen.get("theme", "")
        return cls(folder, theme if isinstance(theme, str) else "", keys, tuple(problems))

    def save_theme(self, theme: str) -> None:
        """Remember a theme. A folder that cannot be written costs only that."""
        if self.folder is None or theme == self.theme:
            return
        self.theme = theme
        with contextlib.suppress(OSError):
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.folder, prefix=".ui-")
            with os.fdopen(handle, "wb") as file:
                file.write(msgspec.json.encode({"theme": theme}) + b"\n")
            os.replace(name, self.folder / "ui.json")


def _read(path: Path, problems: list[str]) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MAX_BYTES), type=dict[str, object])
    except FileNotFoundError:
        return {}
    except OSError as error:
        problems.append(f"{path.name} cannot be read: {error.strerror}")
    except msgspec.MsgspecError as error:
        problems.append(f"{path.name} is left out: {error}")
    return {}


def key_of(text: str) -> str:
    """A key by the name the terminal library has for it: ``?`` and ``question_mark`` are the same."""
    text = text.strip()
    if text in NAMES_OF_KEYS:
        return NAMES_OF_KEYS[text]
    if len(text) == 1 and not text.isalnum():
        name = unicodedata.name(text, "").lower().replace("-", "_").replace(" ", "_")
        return KEY_NAME_REPLACEMENTS.get(name, name)
    return text


def keymap(told: Mapping[str, object], problems: list[str]) -> dict[str, tuple[str, ...]]:
    """The keys of ``keymap.json`` as far as they make sense; what does not is told."""
    chosen: dict[str, tuple[str, ...]] = {}
    for name, value in told.items():
        parts = value.split(",") if isinstance(value, str) else []
        keys = tuple(key_of(part) for part in parts if part.strip())
        if name not in BY_ID:
            problems.append(f"keymap.json: there is no action {name!r}")
        elif not keys:
            problems.append(f"keymap.json: {name} needs a key, like {key_name(BY_ID[name].keys[0])!r}")
        else:
            chosen[name] = keys
    return _without_clashes(chosen, problems)


def _without_clashes(chosen: dict[str, tuple[str, ...]], problems: list[str]) -> dict[str, tuple[str, ...]]:
    """No key does two things: of two actions with one key, those keep their own that the user gave it to."""
    while True:
        users: dict[str, str] = {}
        clash: tuple[str, str, str] | None = None
        for action in ACTIONS:
            for key in chosen.get(action.id, action.keys):
                other = users.setdefault(key, action.id)
                if other != action.id and clash is None:
                    clash = (key, other, action.id)
        if clash is None:
            return chosen
        key, first, second = clash
        loser = second if second in chosen else first
        problems.append(f"keymap.json: {key_name(key)} is the key of {first} and {second}; {loser} keeps its own")
        del chosen[loser]
