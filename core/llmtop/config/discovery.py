"""Makes one catalogue of what lies on disk and what the presets say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from llmtop.config.cache import hub_folder, scan_cache
from llmtop.config.folders import Found, look, scan
from llmtop.config.ini import Problem, read_ini
from llmtop.config.keys import DOWNLOADS, SOURCES, Arg, OptionTable, near
from llmtop.config.preset import Draft, Presets, as_args, begins_option, inherited, interpret, kept, merge
from llmtop.config.spec import ModelSpec, Settings
from llmtop.errors import ConfigError


class Catalog(msgspec.Struct, frozen=True):
    """All models, and what is wrong with the configuration.

    Args:
        models: By id, in the order in which they are shown.
        problems: Faults with their place; each took at most one model down.
        warnings: What was left out or is worth knowing, one line each.
        origins: By id: where each of a child's arguments was said (``[*]``, ``[section]``, ``--``).
        preset_faults: Those of the problems that stand in the preset file itself, whatever lies on disk.
    """

    models: dict[str, ModelSpec]
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    preset_faults: tuple[Problem, ...] = ()
    origins: dict[str, dict[str, tuple[str, ...]]] = {}


_LONG = {name: f"--{name}" for name in SOURCES} | {"model": "-m"}


def build_catalog(
    settings: Settings,
    table: OptionTable | None,
    *,
    env: Mapping[str, str] | None = None,
    faults: list[str] | None = None,
) -> Catalog:
    """Find all models and read their presets.

    Args:
        settings: The settings, ``child_args`` as ``preset.split_child_args`` left them.
        table: The options of the llama-server; None when it is not known.
        env: Environment that says where caches are; the process's own if None.
        faults: Takes what would be an error, which is gone past then.

    Returns:
        The catalogue.

    Raises:
        ConfigError: A folder or file that an option names is not there, or more models are to be loaded at the start
            than the cap allows.
    """
    env = os.environ if env is None else env
    found, problems, source = _on_disk(settings, env, faults)
    presets = _presets(settings, table)
    found = _unclaimed(found, presets)
    extra = as_args(settings.child_args, table)
    models = {
        model.id: _spec(model.id, model, presets.drafts.get(model.id), presets.star, extra, settings, source)
        for model in found
    }
    known = {model.id for model in found if model.problem}  # told of already, with the file
    for name, draft in presets.drafts.items():
        if name not in models:
            models[name] = _spec(name, None, draft, presets.star, extra, settings, "preset")
        if models[name].problem and not draft.problem and name not in known:
            problems.append(Problem(draft.path, draft.line, f"[{name}] {models[name].problem}"))
    models, clashes = _unique(models, presets)
    warnings = [*presets.warnings, *clashes, *_unknown(extra, table)]
    if not models:
        place = settings.models_dir or str(hub_folder(env))
        warnings.append(
            f"no models: {place} holds no .gguf file; name a folder with --models-dir or a preset with --models-preset"
        )
    warnings += [*cache_warnings(settings, models), *_contradictions(settings, models)]
    if too_many := _too_many(settings, models):
        if faults is None:
            raise ConfigError(too_many)
        faults.append(too_many)
    origins = {name: _origins(name, presets, extra) for name, spec in models.items() if not spec.cmd}
    return Catalog(models, (*problems, *presets.problems), tuple(warnings), tuple(presets.problems), origins)


def _unknown(extra: Sequence[Arg], table: OptionTable | None) -> list[str]:
    """What follows ``--`` and ends every child at once; it is passed on all the same: ``--help`` may not tell all."""
    lines: list[str] = []
    if table is None:
        return lines
    for word in dict.fromkeys(arg.argv[0] for arg in extra):
        name, equals, value = word.partition("=")
        if begins_option(word) and table.lookup(word) is not None:
            continue
        known = equals and table.lookup(name) is not None
        mend = f"write {name} {value}" if known else f"take it out{near(name, table)}"
        lines.append(f"{word if known else name} after -- is no option of this llama-server: loads will fail, {mend}")
    return lines


def _origins(name: str, presets: Presets, extra: Sequence[Arg]) -> dict[str, tuple[str, ...]]:
    draft = presets.drafts.get(name)
    layers = kept(presets.star.args, draft.args if draft is not None else (), extra)
    return {place: words for place, words in zip(("[*]", f"[{name}]", "--"), layers, strict=True) if words}


def _on_disk(
    settings: Settings, env: Mapping[str, str], faults: list[str] | None
) -> tuple[list[Found], list[Problem], str]:
    """What lies in the models folder, else in the caches; what is wrong with it; and which of the two it was."""
    if not settings.models_dir:
        cached = scan_cache(env)
        return cached, [Problem(model.path, 0, model.problem) for model in cached if model.problem], "cache"
    try:
        return *scan(settings.models_dir), "dir"
    except ConfigError as error:
        if faults is None:
            raise
        faults.append(str(error))
        return [], [], "dir"


def _presets(settings: Settings, table: OptionTable | None) -> Presets:
    if not settings.models_preset:
        return Presets(Draft("*"))
    sections, problems = read_ini(settings.models_preset)
    return interpret(settings.models_preset, sections, table, problems)


def _unclaimed(found: Sequence[Found], presets: Presets) -> list[Found]:
    """Leave out what a section of another name loads: else it is listed twice, once with wrong settings."""
    if not presets.star.own.get("dedup-cache-models", True):
        return list(found)
    sources = [draft.sources for draft in presets.drafts.values()]
    files = {place for said in sources if "model" in said for place in _places(said["model"])}
    repositories = {said["hf-repo"].lower() for said in sources if "hf-repo" in said and "model" not in said}
    return [
        model
        for model in found
        if model.id in presets.drafts
        or (
            not any(place in files for shard in model.shards for place in _places(shard))
            and model.id.lower() not in repositories
        )
    ]


def _places(path: str) -> set[str]:
    """A file's name as written, and as it is once links are followed."""
    return {os.path.abspath(path), os.path.realpath(path)}


def _spec(
    name: str,
    found: Found | None,
    draft: Draft | None,
    star: Draft,
    extra: Sequence[Any],
    settings: Settings,
    source: str,
) -> ModelSpec:
    own = inherited(star, draft)
    pin = bool(own.get("pin", False))
    cmd = str(own.get("cmd", ""))
    sources, files, fault = ({}, [], None) if cmd else _sources(found, draft)
    args = () if cmd else merge(star.args, draft.args if draft else (), extra)
    if found is not None and found.projector and {"--no-mmproj", "--no-mmproj-auto"} & set(args):
        sources.pop("mmproj", None)
    if draft is not None and draft.problem:
        fault = (draft.problem, "bad_argument")
    variables = dict((*star.env, *(draft.env if draft else ()), *star.own.get("env", ()), *own.get("env", ())))
    return ModelSpec(
        id=name,
        path=os.path.abspath(sources["model"]) if "model" in sources else "",
        files=tuple(files),
        aliases=tuple(dict.fromkeys(draft.aliases)) if draft else (),
        args=args,
        source_args=tuple(word for key in SOURCES if key in sources for word in (_LONG[key], sources[key])),
        cache_ram_mib=own.get("cache-ram"),
        memory=own.get("memory"),
        pin=pin,
        load_on_startup=bool(own.get("load-on-startup", False)),
        stop_timeout_s=own.get("stop-timeout", settings.stop_timeout_s),
        idle_unload_s=None if pin else own.get("idle-unload", settings.idle_unload_s),
        evict_on_sleep=bool(own.get("evict-on-sleep", False)) and not pin,
        sleep_idle_s=None if pin or cmd else _said(own, "sleep-idle-seconds", settings.sleep_idle_s),
        on_client_abort=own.get("on-client-abort", "cancel"),
        cmd=cmd,
        stop_cmd=own.get("stop-cmd", ""),
        health=own.get("health", "/health"),
        env=tuple(variables.items()),
        source="preset" if draft is not None and (found is None or "model" in draft.sources or cmd) else source,
        problem=fault[0] if fault else "",
        problem_kind=fault[1] if fault else "bad_file",
    )


def _said(own: Mapping[str, Any], key: str, common: float | None) -> float | None:
    """A section's own time; 0 where it says "off" against a time that holds for all."""
    return (own[key] or 0.0) if key in own else common


def _sources(found: Found | None, draft: Draft | None) -> tuple[dict[str, str], list[str], tuple[str, str] | None]:
    """What names the model, the files that takes, and what is wrong with them."""
    said = dict(draft.sources) if draft is not None else {}
    named = [*draft.files] if draft is not None else []
    if "model" in said:
        said = {
            key: value for key, value in said.items() if key not in DOWNLOADS
        }  # a local file never needs the network
    shards: tuple[str, ...] = ()
    fault: tuple[str, str] | None = None
    if not {"model", "model-url", "docker-repo", "hf-repo"} & said.keys():
        if found is None:
            return said, [], ("no model, hf-repo or cmd in this section, and no such model on disk", "bad_argument")
        projector = {"mmproj": found.projector} if found.projector else {}
        said = {"model": found.path} | projector | said
        shards, fault = found.shards, (found.problem, found.problem_kind) if found.problem else None
    elif "model" in said:
        shards, fault = _shards(said["model"])
    named += [("mmproj", said["mmproj"])] if "mmproj" in said else []
    files = [("model", shard) for shard in shards] + named
    return said, [path for _, path in files], fault or look(files)


def _shards(path: str) -> tuple[tuple[str, ...], tuple[str, str] | None]:
    """All files of a model that a preset names by its first one."""
    from llmtop.config.folders import group

    folder, name = os.path.split(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        names = [name]
    for model in group(folder, names):
        if path in model.shards:
            problem = (model.problem, model.problem_kind) if model.problem and len(model.shards) > 1 else None
            return model.shards, problem
    return (path,), None


def recheck(spec: ModelSpec) -> ModelSpec:
    """Look at a model's files again, before anything is evicted for it: one may have come back, or gone.

    Args:
        spec: The model; one with a bad argument stays as it is.

    Returns:
        The model with its ``problem`` as it is now.
    """
    if spec.cmd or (spec.problem_kind == "bad_argument" and spec.problem):
        return spec
    if spec.problem and "shards" in spec.problem and spec.path:
        shards, fault = _shards(spec.path)
        kept = tuple(file for file in spec.files if file not in shards)
        return msgspec.structs.replace(
            spec,
            files=(*shards, *kept),
            problem=fault[0] if fault else "",
            problem_kind=fault[1] if fault else "bad_file",
        )
    fault = look((_role(spec, file), file) for file in spec.files)
    return msgspec.structs.replace(
        spec, problem=fault[0] if fault else "", problem_kind=fault[1] if fault else "bad_file"
    )


def _role(spec: ModelSpec, file: str) -> str:
    words = spec.source_args
    return "mmproj" if any(a == "--mmproj" and b == file for a, b in pairwise(words)) else "model"


def _unique(models: dict[str, ModelSpec], presets: Presets) -> tuple[dict[str, ModelSpec], list[str]]:
    """Give every alias to the first that has it; an id is never an alias of another."""
    owner = dict.fromkeys(models, "")
    warnings: list[str] = []
    kept: dict[str, tuple[str, ...]] = {}
    for name in presets.drafts:
        mine: list[str] = []
        for alias in models[name].aliases:
            if alias == name:
                continue
            if alias in owner:
                of = f"an alias of [{owner[alias]}]" if owner[alias] else "a model's own name"
                draft = presets.drafts[name]
                warnings.append(f"{draft.path}:{draft.line}: [{name}] alias {alias} is {of} already and is left out")
            else:
                owner[alias] = name
                mine.append(alias)
        kept[name] = tuple(mine)
    return {
        name: msgspec.structs.replace(spec, aliases=kept.get(name, spec.aliases)) for name, spec in models.items()
    }, warnings


def _too_many(settings: Settings, models: Mapping[str, ModelSpec]) -> str:
    """Why the start-up loads cannot be; empty when they can."""
    wanted = sum(spec.load_on_startup for spec in models.values())
    if not settings.models_max or wanted <= settings.models_max:
        return ""
    return (
        f"number of models to load on startup ({wanted}) exceeds models_max ({settings.models_max}): "
        "raise --models-max, or take load-on-startup from some"
    )


def _contradictions(settings: Settings, models: Mapping[str, ModelSpec]) -> list[str]:
    """What can be configured, but not have its way."""
    lines: list[str] = []
    pins = [name for name, spec in models.items() if spec.pin]
    if settings.models_max and len(pins) >= settings.models_max and len(models) > len(pins):
        lines.append(
            f"{len(pins)} pinned models take all of models-max {settings.models_max} while they run: "
            "requests for others are refused then"
        )
    if settings.budget.isdigit():
        lines += [
            f"[{name}] memory is more than --memory-budget: it will never be loaded"
            for name, spec in models.items()
            if spec.memory is not None and spec.memory > int(settings.budget)
        ]
    return lines


def cache_share(settings: Settings, catalog: Catalog, spec: ModelSpec) -> int | None:
    """Work out one child's part of the prompt cache, which is one budget for all.

    What presets set for themselves comes off first; the rest is divided by the smaller of the cap and the number of the
    other models (no cap: by the models).

    Args:
        settings: ``cache_ram_mib`` is the whole [MiB].
        catalog: All models.
        spec: The model whose child is to be spawned.

    Returns:
        Its ``--cache-ram`` [MiB]: 0 off, -1 no limit; None for a server that is not a llama-server.
    """
    if spec.cmd:
        return None
    if spec.cache_ram_mib is not None:
        return spec.cache_ram_mib
    if settings.cache_ram_mib <= 0:
        return settings.cache_ram_mib
    servers = [model for model in catalog.models.values() if not model.cmd]
    own = sum(max(model.cache_ram_mib, 0) for model in servers if model.cache_ram_mib is not None)
    others = sum(model.cache_ram_mib is None for model in servers)
    parts = min(settings.models_max, others) if settings.models_max else others
    return max(settings.cache_ram_mib - own, 0) // max(parts, 1)


def cache_warnings(settings: Settings, models: Mapping[str, ModelSpec]) -> list[str]:
    """Say what a prompt cache without a limit, or a budget that presets use up, comes to."""
    unlimited = [name for name, spec in models.items() if spec.cache_ram_mib == -1 and not spec.cmd]
    own = sum(max(spec.cache_ram_mib or 0, 0) for spec in models.values() if not spec.cmd)
    lines = (
        ["--cache-ram -1 sets no limit: every child's prompt cache grows until memory is gone"]
        if settings.cache_ram_mib == -1
        else []
    )
    lines += [f"[{name}] cache-ram = -1 sets no limit to its prompt cache" for name in unlimited]
    if 0 < settings.cache_ram_mib < own:
        lines.append(
            f"presets set {own} MiB of prompt cache for themselves, more than --cache-ram {settings.cache_ram_mib}: "
            "others get none"
        )
    return lines
