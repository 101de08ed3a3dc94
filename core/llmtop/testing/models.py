"""Made-up models and a made-up llama-server for tests and demonstrations."""

from __future__ import annotations

import json
import shlex
import struct
import sys
from pathlib import Path
from typing import Any

from llmtop.testing import fake_server

_U32, _STRING = 4, 8  # value types of GGUF
_ALIGN = 32


def write_model(
    folder: Path, name: str, *, size: int = 4096, layers: int = 2, context: int = 2048, **knobs: Any
) -> Path:
    """Write ``NAME.gguf``, a valid GGUF file (version 3) with one tensor, and its sidecar for the simulated server.

    Args:
        folder: Made if it is missing.
        name: The model's id.
        size: Size of the tensor [bytes]; the file is sparse.
        layers: ``llama.block_count`` [1].
        context: ``llama.context_length`` [1].
        knobs: See ``fake_model.KNOBS``; with none there is no sidecar, and it behaves pleasantly.

    Returns:
        The model's path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.gguf"
    numbers = {
        "block_count": layers,
        "context_length": context,
        "embedding_length": 64,
        "feed_forward_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "vocab_size": 256,
    }
    pairs = [_pair("general.architecture", _STRING, _text("llama")), _pair("general.name", _STRING, _text(name))]
    pairs += [_pair(f"llama.{key}", _U32, struct.pack("<I", value)) for key, value in numbers.items()]
    floats = max(size, 4) // 4
    tensor = _text("token_embd.weight") + struct.pack("<IQIQ", 1, floats, 0, 0)  # dimensions, length, F32, offset
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor
    head += bytes(-len(head) % _ALIGN)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + floats * 4)
    if knobs:
        path.with_suffix(".json").write_text(json.dumps(knobs))
    return path


def server_command(folder: Path, events: Path | None = None) -> Path:
    """Write an executable ``llama-server`` into ``folder`` that is the simulated one, and give its path.

    Args:
        folder: Made if it is missing.
        events: Folder for the events; beside the models if None.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "llama-server"
    export = f"LLMTOP_FAKE_EVENTS={shlex.quote(str(events))} export LLMTOP_FAKE_EVENTS; " if events else ""
    path.write_text(
        f'#!/bin/sh\n{export}exec {shlex.quote(sys.executable)} -IS {shlex.quote(fake_server.__file__)} "$@"\n'
    )
    path.chmod(0o755)
    return path


def read_events(model: Path, name: str = "") -> list[dict[str, Any]]:
    """What happened to the children of a model, oldest first; only those called ``name`` if that is given."""
    path = model.with_suffix(".events.jsonl")
    if not path.exists():
        return []
    events = [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [event for event in events if name in ("", event["event"])]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _pair(key: str, kind: int, value: bytes) -> bytes:
    return _text(key) + struct.pack("<I", kind) + value
