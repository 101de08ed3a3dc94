"""Models that were downloaded before: the Hugging Face hub's folder, and the flat one of older llama.cpp builds."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from llmtop.config.folders import Found, group, is_projector, look

_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_HELPERS = ("mtp-", "eagle3-", "dflash-", "dspark-")
"""Files that speed another model up and are none of their own (llama.cpp, common/download.cpp, build 11434)."""
_DEPTH = 3


class _Named(msgspec.Struct):
    rfilename: str = ""


class _Manifest(msgspec.Struct):
    gguf_file: _Named | None = msgspec.field(default=None, name="ggufFile")
    mmproj_file: _Named | None = msgspec.field(default=None, name="mmprojFile")


def hub_folder(env: Mapping[str, str]) -> Path:
    """Where the hub keeps its repositories, by the variables that its own tools and llama.cpp read."""
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if env.get(name):
            return Path(env[name]).expanduser()
    if env.get("HF_HOME"):
        return Path(env["HF_HOME"]).expanduser() / "hub"
    return _cache_home(env) / "huggingface" / "hub"


def flat_folder(env: Mapping[str, str]) -> Path:
    """Where llama.cpp builds before 2026 keep what they downloaded."""
    if env.get("LLAMA_CACHE"):
        return Path(env["LLAMA_CACHE"]).expanduser()
    if sys.platform == "darwin":
        return Path(env.get("HOME") or Path.home()) / "Library" / "Caches" / "llama.cpp"
    return _cache_home(env) / "llama.cpp"


def _cache_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("XDG_CACHE_HOME") or Path(env.get("HOME") or Path.home()) / ".cache")


def scan_cache(env: Mapping[str, str]) -> list[Found]:
    """List the cached models, named ``user/repo:TAG`` as llama.cpp names them; a missing folder holds none."""
    found: dict[str, Found] = {}
    for model in (*_hub(hub_folder(env)), *_flat(flat_folder(env))):
        found.setdefault(model.id, model)
    return [found[name] for name in sorted(found)]


def _hub(root: Path) -> list[Found]:
    models: list[Found] = []
    try:
        repositories = sorted(path for path in root.iterdir() if path.name.startswith("models--"))
    except OSError:
        return []
    for repository in repositories:
        snapshot = _snapshot(repository)
        if snapshot is None:
            continue
        name = repository.name.removeprefix("models--").replace("--", "/", 1)
        folders = _folders(snapshot)
        projector = next((os.path.join(folder, n) for folder, names in folders for n in names if _is_projector(n)), "")
        for folder, names in folders:
            models += [
                msgspec.structs.replace(model, id=_id(name, model.id), projector=model.projector or projector)
                for model in group(folder, names)
                if not any(helper in model.id.lower() for helper in _HELPERS)
            ]
    return models


def _is_projector(name: str) -> bool:
    """A repository's projector fits every model in it: they are one model in several quantisations."""
    return is_projector(name) and name.lower().endswith(".gguf")


def _id(repository: str, stem: str) -> str:
    match = _TAG.search(stem)
    return f"{repository}:{match[1].upper()}" if match else repository


def _snapshot(repository: Path) -> Path | None:
    """The snapshot that ``main`` points to, else the newest."""
    try:
        snapshots = [path for path in (repository / "snapshots").iterdir() if path.is_dir()]
        main = repository / "refs" / "main"
        if main.is_file() and (named := repository / "snapshots" / main.read_text("utf-8").strip()) in snapshots:
            return named
        return max(snapshots, key=lambda path: path.stat().st_mtime, default=None)
    except (OSError, UnicodeDecodeError):
        return None


def _folders(root: Path) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = []
    for folder, inner, names in os.walk(root):
        if len(Path(folder).relative_to(root).parts) >= _DEPTH:
            inner.clear()
        found.append((folder, sorted(names)))
    return sorted(found)


def _flat(root: Path) -> list[Found]:
    models: list[Found] = []
    try:
        manifests = sorted(
            path for path in root.iterdir() if path.name.startswith("manifest=") and path.suffix == ".json"
        )
    except OSError:
        return []
    for path in manifests:
        parts = path.name.removesuffix(".json").split("=")
        if len(parts) < 4:
            continue
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=_Manifest)
        except (OSError, msgspec.MsgspecError):
            continue
        user, repository, tag = parts[1:4]
        file = _flat_file(root, user, repository, manifest.gguf_file)
        if file:
            projector = _flat_file(root, user, repository, manifest.mmproj_file)
            fault = look([("model", file)] + ([("mmproj", projector)] if projector else []))
            models.append(Found(f"{user}/{repository}:{tag}", file, (file,), projector, *(fault or ("", "bad_file"))))
    return models


def _flat_file(root: Path, user: str, repository: str, named: _Named | None) -> str:
    if named is None or not named.rfilename:
        return ""
    path = root / f"{user}_{repository}_{named.rfilename.replace('/', '_')}"
    return str(path) if path.is_file() else ""
