"""A model in the shape that llama.cpp's router gives it, with llmtop's own view beside it.

Source of names and shapes: answers of ``llama-server`` build 10434 in router mode, recorded 2026-11.
"""

from __future__ import annotations

from typing import Any

from llmtop.children.command import masked
from llmtop.config.spec import ModelSpec
from llmtop.control.port import ControlPort
from llmtop.snapshot import Failure, Model, Progress, Snapshot

_SOURCES = {"dir": "models_dir"}


def _looks_like_option(arg: str) -> bool:
    """``-c`` and ``--ctx-size`` do, ``-1`` and ``0.5`` are values."""
    return arg.startswith("-") and not arg.lstrip("-").replace(".", "", 1).isdigit() and arg != "-"


def preset_section(model_id: str, args: tuple[str, ...]) -> str:
    """The arguments as the preset section that would give them.

    Args:
        model_id: Section name.
        args: Options and their values, already masked.
    """
    lines = [f"[{model_id}]"]
    for arg, following in zip(args, [*args, "--"][1:], strict=True):
        if not _looks_like_option(arg):
            continue
        name, sign, value = arg.lstrip("-").partition("=")
        if not sign:
            value = "true" if _looks_like_option(following) else following
        lines.append(f"{name} = {value}")
    return "\n".join(lines) + "\n\n"


def exit_status(failure: Failure) -> int | None:
    """Exit code as a shell's parent sees it: negative for a signal; None when no process ended."""
    if failure.exit_code is None and failure.signal is not None:
        return -failure.signal
    return failure.exit_code


def _progress(progress: Progress | None) -> dict[str, Any] | None:
    if progress is None or progress.value is None:
        return None
    return {"stages": [progress.phase] if progress.phase else [], "current": progress.phase, "value": progress.value}


def status_data(model: Model) -> dict[str, Any]:
    """The payload of a ``model_status`` event.

    Returns:
        ``status``; ``progress`` while it loads; ``failed``, ``exit_code`` and ``message`` after a failure.
    """
    data: dict[str, Any] = {"status": model.state}
    if model.state == "loading" and (progress := _progress(model.progress)):
        data["progress"] = progress
    if model.failure is not None and model.state == "unloaded":
        data |= {"failed": True, "exit_code": exit_status(model.failure), "message": model.failure.message}
    return data


def entry(core: ControlPort, snapshot: Snapshot, model: Model) -> dict[str, Any]:
    """One element of ``GET /v1/models``.

    Args:
        core: For the configuration and the running child's own entry.
        snapshot: The picture that ``model`` is from.
        model: Which.
    """
    spec = core.spec(model.id)
    configured = _configured(spec)
    failed = model.failure is not None and model.state == "unloaded"
    status: dict[str, Any] = {
        "value": model.state,
        "args": masked(model.args) or configured,
        "preset": preset_section(model.id, configured),
        "failed": failed,
        "exit_code": exit_status(model.failure) if failed and model.failure else None,
    }
    if model.state == "loading" and (progress := _progress(model.progress)):
        status["progress"] = progress
    sees = any("mmproj" in arg for arg in spec.source_args)
    out: dict[str, Any] = {
        "id": model.id,
        "aliases": model.aliases or spec.aliases,
        "tags": (),
        "object": "model",
        "owned_by": "llamacpp" if not spec.cmd else "llmtop",
        "created": int(snapshot.at - snapshot.uptime_s),
        "status": status,
        "architecture": {"input_modalities": ["text", "image"] if sees else ["text"], "output_modalities": ["text"]},
        "source": _SOURCES.get(spec.source, spec.source),
        "can_remove": False,
        "llmtop": model,
    }
    if model.state in ("loaded", "sleeping") and (meta := core.child_info(model.id)) is not None:
        out["meta"] = meta
    return out


def listing(core: ControlPort) -> dict[str, Any]:
    """The whole of ``GET /v1/models``."""
    snapshot = core.snapshot()
    return {"data": [entry(core, snapshot, model) for model in snapshot.models], "object": "list"}


def _configured(spec: ModelSpec) -> tuple[str, ...]:
    """What the child would be started with, as far as the configuration says it."""
    return masked((*spec.args, *spec.source_args))
