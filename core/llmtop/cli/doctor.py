"""``llmtop doctor``: every number with its source, how the budget came about, what is missing and what to do."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from llmtop.cli.context import invocation, out
from llmtop.cli.flags import merged, with_options
from llmtop.cli.jsonform import encoded
from llmtop.cli.tables import size

if TYPE_CHECKING:
    from llmtop.config.resolve import Configuration
    from llmtop.memory.devices import Devices
    from llmtop.memory.sample import Sample


class Reading(msgspec.Struct, frozen=True):
    """One number.

    Args:
        name: Field of the sample.
        bytes: The reading [bytes]; None when it is missing.
        source: Where it comes from, or why it is missing.
        age_s: Its age [s].
    """

    name: str
    bytes: int | None
    source: str
    age_s: float | None


class Diagnosis(msgspec.Struct, frozen=True):
    """All that the command found; ``--json`` prints it as it is.

    Args:
        system: Facts about machine and program.
        probe: How the memory is looked at.
        label: What the gauge counts.
        readings: The numbers.
        pressure: The system's own view, in words.
        devices: GPUs as their driver tells them.
        listed: GPUs as llama-server lists them.
        budget: Effective budget with no child running [bytes]; None is no budget.
        budget_steps: How it came about.
        advice: What is missing or wrong, and what to do.
    """

    system: dict[str, str]
    probe: str
    label: str
    readings: tuple[Reading, ...]
    pressure: str
    devices: tuple[str, ...]
    listed: tuple[str, ...]
    budget: int | None
    budget_steps: tuple[str, ...]
    advice: tuple[str, ...]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(rich_help_panel="Look into it")(with_options(doctor))


def doctor(
    context: typer.Context,
    flags: dict[str, object],
    memory: Annotated[bool, typer.Option("--memory", help="Only the memory.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show every number with its source, the budget and how it came about, what is missing and what to do.

    --json prints {"schema_version": 1, "system": {…}, "probe", "label", "readings": [{"name", "bytes", "source",
    "age_s"}], "pressure", "devices", "listed", "budget", "budget_steps", "advice"}, in bytes and seconds.
    """
    from llmtop.config.resolve import resolve

    call = invocation(context)
    configuration = resolve(merged(call.flags, flags), os.environ, call.child_args, need_server=False)
    found = diagnose(configuration)
    if as_json:
        out(encoded(msgspec.structs.asdict(found)))
    else:
        out("\n".join(_lines(found, memory_only=memory)))
    return 0


def diagnose(configuration: Configuration) -> Diagnosis:
    """Look at the machine once; nothing is started but ``llama-server --list-devices``."""
    from llmtop.memory.budget import Alone, Held, effective, look_alone
    from llmtop.memory.devices import Devices, ask_devices
    from llmtop.memory.probe import choose
    from llmtop.memory.sample import VALUES

    probe = choose(configuration.env)
    own = {os.getpid(): "llmtop"}
    sample = probe.sample(own)
    server = configuration.server
    devices = ask_devices(server.path) if server is not None else Devices(why="no llama-server found")
    alone = look_alone(sample, Alone(), Held())
    budget = effective(configuration.settings.budget, sample, devices, alone, Held())
    now = time.monotonic()
    values = {name: getattr(sample, name) for name in VALUES} | {"footprint of llmtop": sample.footprints[os.getpid()]}
    return Diagnosis(
        system=_system(configuration),
        probe=probe.name,
        label=sample.label,
        readings=tuple(
            Reading(
                name, value.bytes, value.text, round(max(0.0, now - value.at), 3) if value.bytes is not None else None
            )
            for name, value in values.items()
        ),
        pressure=f"{sample.pressure.level or 'n/a'} ({sample.pressure.detail})",
        devices=tuple(f"{d.name}: {size(d.used.bytes)} of {size(d.total.bytes)} in use" for d in sample.devices),
        listed=tuple(f"{g.backend} {g.name}: {size(g.total)}, {size(g.free)} free" for g in devices.gpus)
        or (f"none: {devices.why}",),
        budget=budget.bytes,
        budget_steps=budget.steps or (budget.why,),
        advice=tuple(_advice(configuration, sample, devices)),
    )


def _system(configuration: Configuration) -> dict[str, str]:
    from llmtop import __version__

    server = configuration.server
    build = f", build {server.help.build}" if server is not None and server.help.build is not None else ""
    return {
        "llmtop": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "llama-server": f"{server.path}{build}" if server is not None else "none found",
        "state": configuration.settings.state_dir,
        "models": str(len(configuration.catalog.models)),
    }


def _advice(configuration: Configuration, sample: Sample, devices: Devices) -> list[str]:
    """What is missing or wrong, each with what to do."""
    advice = list(sample.notes)
    settings = configuration.settings
    if configuration.server is None and configuration.needs_server:
        advice.append("no llama-server: brew install llama.cpp, or name one with --llama-server PATH")
    elif configuration.server is not None and devices.why and not devices.gpus and sample.label != "MEM":
        advice.append(f"{devices.why}: the GPU limit is taken from {sample.limit.text}")
    if not configuration.catalog.models:
        advice.append("no models: name a folder with --models-dir, or a preset with --models-preset")
    advice += [f"{spec.id}: {spec.problem}" for spec in configuration.catalog.models.values() if spec.problem]
    if sample.label == "WIRED":
        advice += _limits_differ(sample, devices)
    if sample.level.bytes is None:
        advice.append(f"the memory that a stop gives back cannot be seen ({sample.level.why}): 2 s are waited instead")
    if settings.state_dir and Path(settings.state_dir).is_dir() and not os.access(settings.state_dir, os.W_OK):
        advice.append(
            f"{settings.state_dir} cannot be written: measured footprints are lost at the end; mend its rights"
        )
    if settings.cache_ram_mib < 0:
        advice.append("the prompt cache has no limit: give --cache-ram a number")
    if not sys.flags.utf8_mode and sys.getfilesystemencoding().lower() != "utf-8":
        advice.append("the locale is not UTF-8: set LANG to one that is")
    return advice


def _limits_differ(sample: Sample, devices: Devices) -> list[str]:
    """The list of devices already holds the override, so that they differ means it was changed, or is not in force."""
    metal = [gpu.total for gpu in devices.of(("MTL", "Metal"))]
    told = sample.limit.bytes
    if not metal or told is None or "iogpu" not in sample.limit.source or abs(sum(metal) - told) <= 16 * 2**20:
        return []
    return [f"iogpu.wired_limit_mb says {size(told)} but llama-server sees {size(sum(metal))}: the latter counts"]


def _lines(found: Diagnosis, *, memory_only: bool) -> list[str]:
    from llmtop.children.text import safe_text

    lines = [] if memory_only else [f"{name:<20}{text}" for name, text in found.system.items()]
    lines += ["", f"{'memory by':<20}{found.probe}; the gauge counts {found.label}"]
    for reading in found.readings:
        age = f", {reading.age_s:.1f} s old" if reading.age_s is not None else ""
        number = size(reading.bytes) if reading.bytes is not None else ""
        lines.append(f"{reading.name:<20}{number:<12}{reading.source}{age}")
    lines.append(f"{'pressure':<20}{found.pressure}")
    lines += [f"{'device':<20}{text}" for text in found.devices]
    lines += [f"{'listed device':<20}{text}" for text in found.listed]
    lines += ["", f"{'budget':<20}{size(found.budget) if found.budget is not None else 'none'}"]
    lines += [f"{'':<20}{step}" for step in found.budget_steps]
    lines += ["", *(f"{'missing':<20}{text}" for text in found.advice)] if found.advice else ["", "Nothing is missing."]
    return [safe_text(line) for line in lines if line or not memory_only][:500]
