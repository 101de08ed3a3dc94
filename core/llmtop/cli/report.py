"""What ``llmtop check`` says: what every child would be started with, and every fault with its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from llmtop.children.command import masked
from llmtop.children.text import safe_text
from llmtop.config.discovery import cache_share
from llmtop.config.options import is_loopback
from llmtop.config.resolve import Configuration
from llmtop.config.spec import MIB, ModelSpec


def report(configuration: Configuration) -> str:
    """Put a configuration in words.

    Args:
        configuration: From ``resolve``.

    Returns:
        Lines for a person; no secrets.
    """
    return "\n".join(_lines(configuration))


def _lines(configuration: Configuration) -> Iterator[str]:
    settings, catalog = configuration.settings, configuration.catalog
    keys = f"{len(settings.api_keys)} key(s)" if settings.api_keys else "no key"
    reach = "this machine only" if is_loopback(settings.host) else "open to other machines"
    yield f"listen      {settings.host}:{settings.port}, {reach}, {keys}"
    yield f"server      {configuration.server.path if configuration.server else 'none'}"
    cap = str(settings.models_max) if settings.models_max else "none"
    yield f"models-max  {cap} ({settings.models_max_source})"
    budget = settings.budget if not settings.budget.isdigit() else f"{int(settings.budget) // MIB} MiB"
    yield f"budget      {budget}; prompt cache {settings.cache_ram_mib} MiB in all"
    yield f"state       {settings.state_dir}"
    yield f"models      {len(catalog.models)}"
    for spec in catalog.models.values():
        yield from _model(configuration, spec)
    for problem in catalog.problems:
        yield f"problem     {safe_text(str(problem))}"
    told = {str(problem) for problem in catalog.problems}
    for warning in settings.warnings:
        if warning not in told:
            yield f"warning     {safe_text(warning)}"
    if not catalog.problems:
        yield "No problems found."


def _model(configuration: Configuration, spec: ModelSpec) -> Iterator[str]:
    marks = [name for name, on in (("pinned", spec.pin), ("loaded at start", spec.load_on_startup)) if on]
    also = f" (also {', '.join(spec.aliases)})" if spec.aliases else ""
    yield f"  {safe_text(spec.id)}{also}  [{', '.join((spec.source, *marks))}]"
    if spec.problem:
        yield f"      cannot be loaded: {safe_text(spec.problem)}"
    elif spec.cmd:
        yield f"      cmd {safe_text(spec.cmd)}"
        yield "      its port has no key of its own: every program on this machine can reach it"
    else:
        share = cache_share(configuration.settings, configuration.catalog, spec)
        yield "      " + safe_text(shlex.join(masked((*spec.source_args, *spec.args, "--cache-ram", str(share)))))
