"""What llama-swap's groups come to where one queue, a cap and bytes decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast


def persistent(groups: Mapping[str, Any]) -> set[str]:
    """Members of groups that others may not unload."""
    return {name for group in _tables(groups) if group.get("persistent") for name in _members(group)}


def cap(config: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """How many models may run at once, as a line for ``[*]``; and what is not the same.

    Without groups llama-swap runs one model at a time. With them: the persistent groups at all times, and beside them
    the larger of the largest exclusive group and all others together. Models in no group are one exclusive group, of
    which one runs.
    """
    found = config.get("groups")
    groups = _tables(cast("Mapping[str, Any]", found)) if isinstance(found, dict) else []
    if config.get("matrix"):
        note = "matrix: there are no sets; set models-max, and memory a model, to what may run together"
        return ["; one at a time until you say more", "models-max = 1"], [note]
    if not groups:
        return ["; llama-swap without groups runs one model at a time", "models-max = 1"], []
    kept = sum(_size(group) for group in groups if group.get("persistent"))
    rest = [group for group in groups if not group.get("persistent")]
    alone = max((_size(group) for group in rest if group.get("exclusive", True)), default=0)
    grouped = {name for group in groups for name in _members(group)}
    models = config.get("models")
    if isinstance(models, dict) and any(str(name) not in grouped for name in cast("Mapping[object, Any]", models)):
        alone = max(alone, 1)
    together = sum(_size(group) for group in rest if not group.get("exclusive", True))
    note = (
        "groups: there are none; models-max counts models, memory counts bytes, the least used idle one goes first: "
        "which models run together is not fixed"
    )
    return [f"models-max = {max(kept + max(alone, together), 1)}"], [note]


def _size(group: Mapping[str, Any]) -> int:
    """How many of a group run at once: one while they swap, else all."""
    members = len(_members(group))
    return min(members, 1) if group.get("swap", True) else members


def _members(group: Mapping[str, Any]) -> list[str]:
    members = group.get("members")
    return [str(name) for name in cast("list[object]", members)] if isinstance(members, list) else []


def _tables(groups: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [cast("Mapping[str, Any]", group) for group in groups.values() if isinstance(group, dict)]
