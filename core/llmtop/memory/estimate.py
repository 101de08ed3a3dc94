"""What a model will take, from its files' headers and its arguments, before it was ever loaded."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import msgspec

from llmtop.config.spec import MIB, ModelSpec
from llmtop.memory import kv
from llmtop.memory.arguments import Arguments, read_arguments
from llmtop.memory.gguf import GgufError, Header, read_header, shard_paths

ATTENTION_ROWS, FEED_FORWARD_ROWS, RESIDUAL_ROWS = 9, 3, 4
"""Rows in f32 that a pass holds at once [1]: of the model's width in attention; of the inner width in the feed-forward
part, and of the model's beside them. Measured with llama.cpp b10434 and b11434 on a CPU."""
COMPUTE_FACTOR, COMPUTE_MARGIN = 1.3, 256 * MIB
"""On top of the formula, for what differs by architecture and backend."""
ROUGH_FACTOR = 1.25
"""Files' size to footprint where there is no formula."""


class Estimate(msgspec.Struct, frozen=True):
    """What a model will take [bytes].

    Args:
        total: Everything but the prompt cache, which has a budget of its own; with ``vram`` what is on the GPU.
        weights: Tensors, shards and adapters, the draft model's too.
        kv: KV cache and recurrent state.
        compute: Compute and output buffers, with a margin.
        projector: Projector of images or sound.
        host: What stays in the machine's memory beside a GPU; 0 where all memory is one.
        rough: Files' size and a quarter: there is no formula for this architecture, or a type of tensor is not known.
        notes: What was assumed, one line each.
    """

    total: int
    weights: int
    kv: int = 0
    compute: int = 0
    projector: int = 0
    host: int = 0
    rough: bool = False
    notes: tuple[str, ...] = ()


class Headers:
    """Headers read before, by path, size and time. Safe to use from several threads."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int, int], Header] = {}
        self._lock = threading.Lock()

    def get(self, path: str) -> Header:
        """The header of a file and its shards.

        Raises:
            GgufError: As ``read_header``.
        """
        try:
            stats = [os.stat(shard) for shard in shard_paths(Path(path))]
        except OSError as error:
            name = Path(error.filename or path).name
            raise GgufError(f"{name}: {error.strerror or error}") from error
        key = (path, sum(s.st_size for s in stats), max(s.st_mtime_ns for s in stats))
        with self._lock:
            known = self._kept.get(key)
        if known is not None:
            return known
        header = read_header(path)
        with self._lock:
            self._kept = {k: h for k, h in self._kept.items() if k[0] != path} | {key: header}
        return header


def estimate(
    spec: ModelSpec,
    headers: Headers,
    *,
    env: Mapping[str, str] | None = None,
    platform: str = sys.platform,
    vram: bool = False,
) -> tuple[Estimate | None, str]:
    """Estimate a model's footprint. Reads files, so call it in a worker thread.

    Args:
        spec: The model.
        headers: Headers read before.
        env: Environment that the child inherits.
        vram: Count what is on GPUs with memory of their own (the budget is made of that), not the whole.
        platform: ``sys.platform``; Metal keeps one more copy of a block's cache.

    Returns:
        The estimate, or None and why there is none.
    """
    if spec.cmd:
        return None, "another server's command: nothing to read"
    if not spec.path:
        return None, "not downloaded yet: nothing to read"
    args = read_arguments(spec, env)
    try:
        main = headers.get(spec.path)
        extra = _extra(spec, args, headers)
    except GgufError as error:
        return None, str(error)
    whole = _add_up(main, args, extra, platform)
    return (_on_gpu(whole, main, args) if vram and not whole.rough else whole), ""


class _Extra(msgspec.Struct):
    """What other files add [bytes]."""

    projector: int = 0
    weights: int = 0
    kv: int = 0
    notes: list[str] = []


def _extra(spec: ModelSpec, args: Arguments, headers: Headers) -> _Extra:
    extra = _Extra()
    shards = {str(path) for path in shard_paths(Path(spec.path))}
    others = [file for file in spec.files if file not in shards and file not in (args.draft, args.mmproj)]
    projectors = [args.mmproj] if args.mmproj else [f for f in others if Path(f).name.lower().startswith("mmproj")][:1]
    if args.projector:
        extra.projector = sum(headers.get(file).tensor_bytes for file in projectors)
    if args.draft:
        draft = headers.get(args.draft)
        extra.weights += draft.tensor_bytes
        extra.kv += kv.cache_bytes(draft, args) + kv.state_bytes(draft, args)
        extra.notes.append("with the draft model and its cache")
    if args.lora:
        extra.weights += headers.get(args.lora).tensor_bytes
    return extra


def _add_up(main: Header, args: Arguments, extra: _Extra, platform: str) -> Estimate:
    notes = list(extra.notes)
    if not args.context:
        notes.append(f"no -c: the whole context of {main.context_length or 4096} tokens")
    weights = main.tensor_bytes + extra.weights
    if main.architecture in kv.NO_FORMULA or not main.layers or not main.exact:
        rough = int(main.file_bytes * ROUGH_FACTOR) + extra.weights + extra.kv + extra.projector
        notes.append(f"rough: no formula for {main.architecture or 'this file'}, a quarter on top of its size")
        rest = rough - weights - extra.kv - extra.projector
        return Estimate(rough, weights, extra.kv, max(0, rest), extra.projector, 0, True, tuple(notes))
    cache = kv.cache_bytes(main, args) + kv.state_bytes(main, args) + extra.kv
    compute = compute_bytes(main, args, metal=platform == "darwin")
    if extra.projector:
        compute += extra.projector // 4
    total = weights + cache + compute + extra.projector
    return Estimate(total, weights, cache, compute, extra.projector, 0, False, tuple(notes))


def _on_gpu(whole: Estimate, main: Header, args: Arguments) -> Estimate:
    """The part of it that goes to the GPU: the last blocks, as many as asked for, the output layer as one more.

    Source: llama.cpp src/llama-model.cpp: the first block there is layers + 1 - n_gpu_layers; the embedding stays.
    """
    wanted = main.layers + 1 if args.gpu_layers is None else args.gpu_layers
    first = max(0, main.layers + 1 - wanted)
    skipped = range(main.layers) if args.experts_on_cpu else range(args.cpu_experts)
    staying = sum(main.expert_bytes.get(layer, 0) for layer in skipped if layer >= first)
    blocks = sum(size for layer, size in main.layer_bytes.items() if layer >= first) - staying
    rest = main.tensor_bytes - sum(main.layer_bytes.values())
    top = (rest if main.tied else rest - main.embedding_bytes) if wanted > main.layers else 0
    weights = whole.weights - main.tensor_bytes + blocks + top
    share = max(0, main.layers - first) / max(1, main.layers)
    cache = int(whole.kv * share) if args.kv_offload else 0
    total = weights + cache + whole.compute + whole.projector
    return msgspec.structs.replace(whole, total=total, weights=weights, kv=cache, host=max(0, whole.total - total))


def compute_bytes(header: Header, args: Arguments, *, metal: bool) -> int:
    """Compute and output buffers with their margin [bytes].

    Args:
        header: The model.
        args: Its arguments.
        metal: Metal reserves an f16 copy of one block's keys and values. Source: llama.cpp ggml-metal-ops.cpp.

    Source: measured with llama.cpp b11434 (activations, mask), its src/llama-context.cpp (output).
    """
    width, heads = header.whole("embedding_length"), max(1, header.whole("attention.head_count", 1))
    tokens, cells = args.ubatch, kv.cells_per_stream(header, args)
    experts = header.whole("expert_feed_forward_length") * header.whole("expert_used_count")
    inner = max(header.whole("feed_forward_length"), experts)
    activations = max(ATTENTION_ROWS * width, FEED_FORWARD_ROWS * inner + RESIDUAL_ROWS * width) * 4 * tokens
    scores = cells * tokens * ((heads + 1) * 4 if args.flash == "off" else 2)  # with the mask, f32 and f16
    rows = tokens if args.embedding else args.slots
    output = (header.vocabulary + width) * 4 * rows
    copy = 0
    if metal and header.layers:
        kv_heads = max(header.by_layer("attention.head_count_kv", heads))
        key = header.whole("attention.key_length", width // heads)
        value = header.whole("attention.value_length", width // heads)
        copy = cells * kv.streams(args) * kv_heads * (key + value) * 2 + 4 * min(tokens, 32) * heads * 32 * (value + 2)
    return int((activations + scores + output + copy) * COMPUTE_FACTOR) + COMPUTE_MARGIN
