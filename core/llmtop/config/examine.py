"""``resolve`` for one who wants to know every fault at once: what cannot be read is told, left out, and gone past."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import msgspec

from llmtop.config.discovery import Catalog, build_catalog
from llmtop.config.ini import Problem, Section, read_ini
from llmtop.config.options import Said, read_keys, said, settle
from llmtop.config.preset import ChildArgs, split_child_args, star_settings
from llmtop.config.resolve import Configuration, find_or_miss
from llmtop.config.rows import ROWS, Row
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
        _leave_out(row, flags, env, faults)
    try:
        child = split_child_args(child_args)
    except ConfigError as error:
        faults.append(str(error))
        child = ChildArgs()
    preset, sections = _preset(settle(flags | {"insecure": True}, env).models_preset, faults)
    settings = _settle(flags, env, child.said, _star(preset, sections), faults)
    settings = msgspec.structs.replace(settings, child_args=tuple(child.args), models_preset=preset)
    server, missing = find_or_miss(settings, env)
    catalog = build_catalog(settings, server, env=env, faults=faults)
    made = Configuration(settings, catalog, server, None, flags, env, tuple(child_args))
    problems = [*catalog.problems, *_cut_short(catalog), *_no_program(catalog, preset, sections, env)]
    faults += [str(problem) for problem in sorted(problems, key=lambda p: (p.path, p.line))]
    if missing is not None and made.needs_server:
        faults.append(str(missing))
    notes = dict.fromkeys((*settings.warnings, *child.warnings, *catalog.warnings))
    made = replace(made, settings=msgspec.structs.replace(settings, warnings=tuple(notes)))
    return made, tuple(dict.fromkeys(faults))


def _cut_short(catalog: Catalog) -> list[Problem]:
    """What the headers tell against models that a first look finds good; it takes up to 0.2 s a model."""
    from llmtop.memory.gguf import GgufError, read_header

    found: list[Problem] = []
    for spec in catalog.models.values():
        if spec.problem or not spec.path:
            continue
        try:
            read_header(spec.path)
        except GgufError as error:
            found.append(Problem(spec.path, 0, str(error), "download it again"))
    return found


def _no_program(
    catalog: Catalog, preset: str, sections: Sequence[Section], env: Mapping[str, str]
) -> Iterator[Problem]:
    """Other servers that are not installed."""
    lines = {section.name: section.line for section in sections}
    for spec in catalog.models.values():
        if not spec.cmd or spec.problem:
            continue
        program = shlex.split(spec.cmd)[0]
        if shutil.which(program, path=dict(spec.env).get("PATH", env.get("PATH"))) is None:
            text = f"[{spec.id}] cmd: {program} is not found, or is no program"
            yield Problem(preset, lines.get(spec.id, 0), text, "install it, or write its whole path")


def _leave_out(row: Row, flags: dict[str, object], env: dict[str, str], faults: list[str]) -> None:
    """Take out each voice of an option that cannot be read."""
    voices: list[tuple[dict[str, object], dict[str, str]]] = [({row.key: flags.get(row.key)}, {})]
    voices += [({}, {name: env[name]}) for name in (row.variable, *row.env) if name in env]
    for flag, variable in voices:
        try:
            for voice in said(row, flag, variable):
                if row.name == "api-key-file":
                    read_keys(voice.value)
        except ConfigError as error:
            faults.append(str(error))
            for name in flag:
                flags.pop(name, None)
            for name in variable:
                env.pop(name, None)


def _preset(path: str, faults: list[str]) -> tuple[str, list[Section]]:
    """The preset file's sections, and its name; neither when it cannot be read."""
    if not path:
        return "", []
    try:
        return path, read_ini(path)[0]
    except ConfigError as error:
        faults.append(str(error))
        return "", []


def _star(path: str, sections: Sequence[Section]) -> dict[str, Said]:
    """What ``[*]`` says about options; what it says wrong is among the faults of its section already."""
    found: dict[str, Said] = {}
    for section in sections:
        for entry in section.entries:
            try:
                found |= star_settings(path, [Section(section.name, section.line, (entry,))])
            except ConfigError:
                continue
    return found


def _settle(
    flags: Mapping[str, object],
    env: Mapping[str, str],
    after: Mapping[str, Said],
    star: Mapping[str, Said],
    faults: list[str],
) -> Settings:
    try:
        return settle(flags, env, after=after, star=star)
    except ConfigError as error:  # options that can be read, and contradict each other
        faults.append(str(error))
        return settle({**flags, "insecure": True}, env, after=after, star=star)
