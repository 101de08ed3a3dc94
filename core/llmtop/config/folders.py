"""Models on disk: which files are one model, and whether they can be one at all. Symbolic links are not resolved."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from llmtop.config.ini import Problem
from llmtop.config.units import is_text
from llmtop.errors import ConfigError

_SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})", re.IGNORECASE)
_SUFFIX = ".gguf"
MAGIC = b"GGUF"
_STANDS_IN = {
    b"": "it is empty",
    b"vers": "it is a Git LFS pointer",
    b"<!DO": "it is a web page",
    b"<!do": "it is a web page",
    b"<htm": "it is a web page",
}
"""First bytes of what comes where a model was expected, to what it is."""
_UNFINISHED = ".aria2"
"""Beside a file that aria2 is still writing; the file itself has its full size from the start."""


class Found(msgspec.Struct, frozen=True):
    """A model on disk.

    Args:
        id: Its name.
        path: File to load: the only one, or the first shard.
        shards: All files of the model itself.
        projector: Its ``mmproj``, empty for none.
        problem: Why it cannot be loaded; empty when nothing is known against it.
        problem_kind: ``bad_file`` or ``not_found``.
    """

    id: str
    path: str
    shards: tuple[str, ...]
    projector: str = ""
    problem: str = ""
    problem_kind: str = "bad_file"

    @property
    def files(self) -> tuple[str, ...]:
        """Everything that belongs to it."""
        return (*self.shards, self.projector) if self.projector else self.shards


def scan(folder: str) -> tuple[list[Found], list[Problem]]:
    """List the models of a folder: each ``.gguf`` in it, and each folder in it that holds some.

    Args:
        folder: What ``--models-dir`` names.

    Returns:
        The models by name, and what was found wrong with them.

    Raises:
        ConfigError: There is no such folder, or it cannot be read.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise ConfigError(
            f"--models-dir: {folder} cannot be read: {error.strerror}; name a folder of .gguf files"
        ) from None
    names, problems = _sendable(folder, names)
    found = {model.id: model for model in group(folder, names)}
    for name in names:
        inner = os.path.join(folder, name)
        if name.startswith(".") or not os.path.isdir(inner) or _encloses(inner, folder):
            continue
        model = _one(inner, name, problems)
        if model is None:
            continue
        if name in found:
            problems.append(
                Problem(inner, 0, f"a file of that name is a model already: {found[name].path}", "rename one")
            )
        else:
            found[name] = model
    models = [found[name] for name in sorted(found)]
    problems += [Problem(model.path, 0, model.problem) for model in models if model.problem]
    return models, problems


def _sendable(folder: str, names: Iterable[str]) -> tuple[list[str], list[Problem]]:
    """Leave out names that are not UTF-8: no answer in JSON could hold them."""
    kept: list[str] = []
    problems: list[Problem] = []
    for name in names:
        if is_text(name):
            kept.append(name)
        elif not name.startswith("."):
            shown = os.fsencode(os.path.join(folder, name)).decode("utf-8", "backslashreplace")
            problems.append(Problem(shown, 0, "its name is not UTF-8 and it is left out", "rename it"))
    return kept, problems


def _encloses(inner: str, folder: str) -> bool:
    """A link back to the folder itself, or to one that holds it."""
    if not os.path.islink(inner):
        return False
    whole = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(inner), whole)) == os.path.realpath(inner)


def _one(folder: str, name: str, problems: list[Problem]) -> Found | None:
    try:
        names, left_out = _sendable(folder, sorted(os.listdir(folder)))
    except OSError as error:
        problems.append(Problem(folder, 0, f"cannot be read: {error.strerror}"))
        return None
    problems += left_out
    models = group(folder, names)
    if not models:
        return None
    chosen = next((model for model in models if model.id == name), models[0])
    if len(models) > 1:
        problems.append(
            Problem(
                folder,
                0,
                f"holds {len(models)} models, {os.path.basename(chosen.path)} is used",
                "give each a folder of its own",
            )
        )
    return msgspec.structs.replace(chosen, id=name)


def group(folder: str, names: Iterable[str]) -> list[Found]:
    """Make models of the ``.gguf`` files of one folder: shards put together, projectors with the model they are for."""
    names = [name for name in names if is_text(os.path.join(folder, name))]
    shards: dict[str, dict[int, str]] = {}
    counts: dict[str, int] = {}
    projectors: list[str] = []
    for name in names:
        path = os.path.join(folder, name)
        if name.startswith(".") or not name.lower().endswith(_SUFFIX) or not os.path.isfile(path):
            continue  # half a download, a broken link, a loop of links, a folder
        stem = name[: -len(_SUFFIX)]
        if is_projector(name):
            projectors.append(path)
            continue
        match = _SHARD.fullmatch(stem)
        model = match["stem"] if match else stem
        shards.setdefault(model, {})[int(match["index"]) if match else 1] = path
        counts[model] = max(counts.get(model, 1), int(match["count"]) if match else 1)
    return [
        _found(model, parts, counts[model], _projector(model, projectors, len(shards)))
        for model, parts in shards.items()
    ]


def is_projector(name: str) -> bool:
    """A multimodal projector, never a model of its own."""
    return "mmproj" in name.lower()


def _projector(model: str, projectors: Sequence[str], models: int) -> str:
    if models == 1:
        return projectors[0] if projectors else ""
    return next((path for path in projectors if model.lower() in os.path.basename(path).lower()), "")


def _found(model: str, parts: dict[int, str], count: int, projector: str) -> Found:
    files = tuple(parts[index] for index in sorted(parts))
    path = parts.get(1, files[0])
    if len(parts) < count:
        missing = [f"{index:05d}" for index in range(1, count + 1) if index not in parts]
        named = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
        return Found(model, path, files, projector, f"{len(parts)} of {count} shards, without {named}")
    fault = look([("model", file) for file in files] + ([("mmproj", projector)] if projector else []))
    return Found(model, path, files, projector, *(fault or ("", "bad_file")))


def look(files: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Say what a look at the files tells against a load, in microseconds.

    Args:
        files: What each is (``model``, ``mmproj`` …), and its path.

    Returns:
        The fault in one line and its kind (``not_found``, ``bad_file``); None when there is none.
    """
    for role, path in files:
        try:
            with Path(path).open("rb") as file:
                head = file.read(len(MAGIC))
        except FileNotFoundError:
            return f"{role} not found: {path}", "not_found"
        except OSError as error:
            return f"{role} cannot be read: {path}: {error.strerror}", "bad_file"
        if os.path.exists(path + _UNFINISHED):
            return f"{os.path.basename(path)} is not whole yet: {path}{_UNFINISHED} is beside it", "bad_file"
        if head != MAGIC:
            starts = _STANDS_IN.get(head, f"starts with {head.hex(' ')}")
            return f"{os.path.basename(path)} is not a GGUF file ({starts})", "bad_file"
    return None
