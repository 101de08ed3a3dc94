"""``resolve`` for a person who wants to know of every fault at once: what cannot be read is told, left out, and gone past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from llmtop.config.discovery import build_catalog
from llmtop.config.ini import Section, read_ini
from llmtop.config.options import Said, read_keys, said, settle
from llmtop.config.preset import GLOBAL, ChildArgs, split_child_args, star_settings
from llmtop.config.resolve import Configuration, find_or_miss
from llmtop.config.rows import BY_KEY, ROWS, Row
from llmtop.config.spec import Settings
from llmtop.errors import ConfigError


def examine(
    flags: Mapping[str, object], env: Mapping[str, str], child_args: Sequence[str]
) -> tuple[Configuration, tuple[str, ...]]:
    """Read the whole configuration, faults or not.

    Args:
        flags: As ``resolve.resolve``.
        env: The same.
        child_args: The same.

    Returns:
        The configuration as far as it can be read, and every fault in one line: place, what is wrong, what to do.
    """
    faults: list[str] = []
    flags, env = dict(flags), dict(env)
    for row in ROWS:
        _try_option(row, flags, env, faults)
    try:
        child = split_child_args(child_args)
    except ConfigError as error:
        faults.append(str(error))
        child = ChildArgs()
    settings = _settle(flags, env, child.said, {}, faults)
    sections = _sections(settings, flags, env, faults)
    star = _star(settings.models_preset, sections) if sections else {}
    settings = _settle(flags, env, child.said, star, faults)
    settings = msgspec.structs.replace(
        settings, child_args=tuple(child.args), models_preset=settings.models_preset if sections is not None else ""
    )
    server, missing = find_or_miss(settings, env)
    try:
        catalog = build_catalog(settings, server, env=env, refuse=False)
    except ConfigError as error:
        faults.append(str(error))
        nowhere = dict(env) | {"LLAMA_CACHE": "/nonexistent"}  # the models of the cache are not meant by a wrong folder
        settings = msgspec.structs.replace(settings, models_dir="")
        catalog = replace_warnings(build_catalog(settings, server, env=nowhere, refuse=False))
    made = Configuration(settings, catalog, server, None, flags, env, tuple(child_args))
    faults += [str(problem) for problem in catalog.problems]
    if missing is not None and made.needs_server:
        faults.append(str(missing))
    notes = dict.fromkeys((*settings.warnings, *child.warnings, *catalog.warnings))
    made = replace(made, settings=msgspec.structs.replace(settings, warnings=tuple(notes)))
    return made, tuple(dict.fromkeys(faults))
