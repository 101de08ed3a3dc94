"""Which models fit together."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

ALL_SETS_UP_TO = 12
"""Models of which every set is tried; of more, one set around each."""


def fitting_sets(sizes: Mapping[str, int], budget: int | None, cap: int) -> list[tuple[str, ...]]:
    """The largest sets of models that can be loaded at once: to none of them another could be added.

    Args:
        sizes: Footprint by model [bytes].
        budget: Bytes for all; None is no limit.
        cap: Models at once [1]; 0 is no limit.

    Returns:
        Sets in the order of ``sizes``, those with most models first. Of more than twelve models, for each the set
        that is made around it by adding the smallest others.
    """
    most = cap or len(sizes)
    room = budget if budget is not None else sum(sizes.values())
    able = [model for model in sizes if sizes[model] <= room]
    if not able or most < 1:
        return []
    sets = _every(able, sizes, room, most) if len(able) <= ALL_SETS_UP_TO else _around(able, sizes, room, most)
    return sorted(sets, key=lambda chosen: (-len(chosen), [able.index(model) for model in chosen]))


def _every(able: list[str], sizes: Mapping[str, int], room: int, most: int) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for count in range(min(most, len(able)), 0, -1):
        for chosen in combinations(able, count):
            inside = any(set(chosen) <= set(larger) for larger in found)
            if not inside and sum(sizes[model] for model in chosen) <= room:
                found.append(chosen)
    return found


def _around(able: list[str], sizes: Mapping[str, int], room: int, most: int) -> list[tuple[str, ...]]:
    small_first = sorted(able, key=lambda model: (sizes[model], able.index(model)))
    found: dict[frozenset[str], None] = {}
    for anchor in able:
        chosen, left = [anchor], room - sizes[anchor]
        for model in small_first:
            if model != anchor and len(chosen) < most and sizes[model] <= left:
                chosen.append(model)
                left -= sizes[model]
        found[frozenset(chosen)] = None
    return [tuple(model for model in able if model in chosen) for chosen in found]
