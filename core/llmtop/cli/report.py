"""What ``llmtop check`` says: what every child would be started with, and every fault with its place."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from llmtop.children.command import masked
from llmtop.children.text import safe_text
from llmtop.config.discovery import cache_share
from llmtop.config.options import is_loopback
from llmtop.config.resolve import Configuration
from llmtop.config.spec import MIB, ModelSpec

LENGTH = 4000
"""Longest line that is printed whole [characters]."""


def report(configuration: Configuration, faults: Sequence[str]) -> str:
    """Put a configuration in words.

    Args:
        configuration: From ``examine``.
        faults: The same.

    Returns:
        Lines for a person; no secrets.
    """
    return "\n".join(safe_text(line, LENGTH) for line in _lines(configuration, faults))


def machine_report(configuration: Configuration, faults: Sequence[str]) -> dict[str, object]:
    """The same for a program; see ``llmtop check --help`` for its fields."""
    settings, catalog = configuration.settings, configuration.catalog
    return {
        "faults": list(faults),
        "warnings": [warning for warning in settings.warnings if warning not in faults],
        "models": [
            {
                "id": spec.id,
                "aliases": spec.aliases,
                "source": spec.source,
                "problem": spec.problem,
                "args": list(_command(configuration, spec)),
                "origins": {
                    place: list(masked(words))
                    for place, words in configuration.catalog.origins.get(spec.id, {}).items()
                },
            }
            for spec in catalog.models.values()
        ],
        "models_max": settings.models_max,
        "models_max_source": settings.models_max_source,
        "budget": settings.budget,
        "server": configuration.server.path if configuration.server is not None else None,
    }


def _lines(configuration: Configuration, faults: Sequence[str]) -> Iterator[str]:
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
    for warning in settings.warnings:
        if warning not in faults:
            yield f"warning     {warning}"
    yield from faults
    yield f"{len(faults)} fault(s)." if faults else "No faults found."


def _model(configuration: Configuration, spec: ModelSpec) -> Iterator[str]:
    marks = [name for name, on in (("pinned", spec.pin), ("loaded at start", spec.load_on_startup)) if on]
    also = f" (also {', '.join(spec.aliases)})" if spec.aliases else ""
    yield f"  {spec.id}{also}  [{', '.join((spec.source, *marks))}]"
    if spec.problem:
        yield f"      cannot be loaded: {spec.problem}"
    elif spec.cmd:
        yield f"      cmd {shlex.join(_command(configuration, spec))}"
        yield (
            "      its port is as open as loopback is: it has no key of its own, and every program and user of this "
            "machine can reach it"
        )
    else:
        yield "      " + shlex.join(_command(configuration, spec))
        for place, words in configuration.catalog.origins.get(spec.id, {}).items():
            yield f"      by {place}: {shlex.join(masked(words))}"


def _command(configuration: Configuration, spec: ModelSpec) -> tuple[str, ...]:
    """What its child is started with, secrets masked; without what llmtop adds for itself."""
    if spec.cmd:
        return masked(shlex.split(spec.cmd))
    share = cache_share(configuration.settings, configuration.catalog, spec)
    return masked((*spec.source_args, *spec.args, "--cache-ram", str(share)))
