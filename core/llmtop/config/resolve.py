"""The way in: flags, environment and files made one configuration, all of it before anything is started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from llmtop.config.discovery import Catalog, build_catalog
from llmtop.config.ini import Problem, Section, read_ini
from llmtop.config.options import settle
from llmtop.config.preset import split_child_args, star_settings
from llmtop.config.server import Server, find_server
from llmtop.config.spec import Settings
from llmtop.errors import ConfigError, StartError


class DemoInfo(msgspec.Struct, frozen=True):
    """What a demo run is made of.

    Args:
        folder: Its temporary folder, removed at the end.
        real: The children are real llama-servers; else simulated.
        server: The children in words, for the banner.
    """

    folder: str
    real: bool
    server: str


@dataclass(frozen=True)
class Configuration:
    """Everything a core needs to start.

    Args:
        settings: Options, with all warnings in ``warnings``.
        catalog: Models.
        server: The llama-server; None when every model has its own ``cmd``, or none is needed yet.
        demo: What the demo is made of; None outside it.
        flags: What ``resolve`` was given, so that ``reload`` can read it all again.
        env: The same.
        child_args: The same.
    """

    settings: Settings = field(repr=False)  # keys and tokens are in here
    catalog: Catalog = field(repr=False)
    server: Server | None = None
    demo: DemoInfo | None = None
    flags: Mapping[str, object] = field(default_factory=dict[str, object], repr=False)
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    child_args: Sequence[str] = field(default=(), repr=False)

    @property
    def needs_server(self) -> bool:
        """Some model, or every model that may come, is a llama-server's."""
        return not self.catalog.models or any(not spec.cmd for spec in self.catalog.models.values())


def resolve(
    flags: Mapping[str, object], env: Mapping[str, str], child_args: Sequence[str], *, need_server: bool = True
) -> Configuration:
    """Read the whole configuration.

    Args:
        flags: Parameter name (``models_max``) to what the command line said; None where it said nothing.
        env: Environment.
        child_args: What stands after ``--``.
        need_server: A missing llama-server is an error; else it is a warning.

    Returns:
        The configuration; nothing was started but, where it is not known yet, ``llama-server --help``.

    Raises:
        ConfigError: The user must change something (exit code 2).
        StartError: There is no llama-server here (exit code 1).
    """
    first = settle(flags, env)
    child = split_child_args(child_args)
    sections: list[Section] = read_ini(first.models_preset)[0] if first.models_preset else []
    settings = settle(flags, env, after=child.said, star=star_settings(first.models_preset, sections))
    settings = msgspec.structs.replace(settings, child_args=tuple(child.args))
    server, missing = find_or_miss(settings, env)
    catalog = build_catalog(settings, server, env=env)
    made = Configuration(settings, catalog, server, None, dict(flags), dict(env), tuple(child_args))
    notes = [*settings.warnings, *child.warnings, *map(str, catalog.problems), *catalog.warnings]
    if missing is not None and made.needs_server:
        if need_server:
            raise missing
        notes.append(str(missing))
    return replace(made, settings=msgspec.structs.replace(settings, warnings=tuple(dict.fromkeys(notes))))


def reload(configuration: Configuration) -> Configuration:
    """Read presets and folders again, with the options of the start.

    Raises:
        ConfigError: The preset file got a fault that it did not have: half a file must not take models away. The
            configuration of before stays good.
        StartError: As ``resolve``.
    """
    fresh = resolve(configuration.flags, configuration.env, configuration.child_args)
    known = {_same(fault) for fault in configuration.catalog.preset_faults}
    if new := [fault for fault in fresh.catalog.preset_faults if _same(fault) not in known]:
        more = f" (and {len(new) - 1} more: llmtop check tells all)" if len(new) > 1 else ""
        raise ConfigError(f"{new[0]}{more}")
    return replace(fresh, demo=configuration.demo)


def _same(fault: Problem) -> str:
    """A fault without the lines in it, which move when others are put in above."""
    return fault.text.partition(" was begun in line ")[0]


def find_or_miss(settings: Settings, env: Mapping[str, str]) -> tuple[Server | None, StartError | None]:
    """The llama-server, or why there is none; that is an error only for those who need one."""
    try:
        return find_server(settings.llama_server, env), None
    except StartError as error:
        return None, error
