"""Writes tiny random models that a real llama-server loads, and answers letters with. Standard library only."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import BinaryIO

ALIGNMENT = 32
_HEADS, _KV_HEADS = 4, 2
_CONTEXT = 8192
_LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]
_TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS, "\u2581"]
_FIRST_LETTER = _TOKENS.index("a")
_SCORES = [0.0] * _FIRST_LETTER + [-float(rank) for rank in range(len(_LETTERS) + 1)]
_TYPES = [2, 3, 3, *[6] * 256, *[1] * (len(_LETTERS) + 1)]  # unknown, control, control, bytes, normal
_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"

_U32, _F32, _STRING, _ARRAY, _I32 = 4, 6, 8, 9, 5
"""GGUF's value types (ggml docs/gguf.md, version 3)."""

_POOL = 1 << 15
_SPREAD = 0.05


@dataclass(frozen=True)
class _Tensor:
    """A float32 tensor ``[rows, columns]``, or ``[columns]`` with ``rows`` 0."""

    name: str
    rows: int
    columns: int
    kind: str = "random"
    scale: float = 1.0

    @property
    def count(self) -> int:
        return max(self.rows, 1) * self.columns


def write_tiny(path: Path, *, seed: int = 0, layers: int = 2, width: int = 64, pad_mib: int = 0) -> None:
    """Write a llama model of a few hundred kilobytes.

    Args:
        path: File to write; its stem becomes the model's name.
        seed: Models of different seeds say different things.
        layers: Transformer blocks [1].
        width: Embedding length [1], a multiple of 32.
        pad_mib: Make the feed-forward part at least that big [MiB], so that loading takes as long as such a file takes.

    Raises:
        ValueError: ``layers`` or ``width`` make no model.
    """
    if layers < 1 or width < 32 or width % 32:
        raise ValueError("layers is 1 or more, width a multiple of 32")
    feed = 2 * width
    if pad_mib:
        feed = max(feed, -(-pad_mib * 2**20 // (3 * 4 * width * layers)))
        feed += -feed % 32
    tensors = list(_tensors(layers, width, feed))
    keys = _keys(path.stem, layers, width, feed)
    random = Random(seed)
    pool = array("f", (random.gauss(0.0, _SPREAD) for _ in range(_POOL)))
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys))
        offset = 0
        for tensor in tensors:
            shape = (tensor.columns, tensor.rows) if tensor.rows else (tensor.columns,)
            file.write(_text(tensor.name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
            offset += tensor.count * 4 + -(tensor.count * 4) % ALIGNMENT
        _align(file)
        for tensor in tensors:
            _values(tensor, random, pool).tofile(file)
            _align(file)


def _tensors(layers: int, width: int, feed: int) -> Iterator[_Tensor]:
    kv_width = width // _HEADS * _KV_HEADS
    yield _Tensor("token_embd.weight", len(_TOKENS), width, "embedding")
    yield _Tensor("output_norm.weight", 0, width, "ones")
    yield _Tensor("output.weight", len(_TOKENS), width, "logits", 4.0)
    for layer in range(layers):
        block = f"blk.{layer}."
        yield _Tensor(block + "attn_norm.weight", 0, width, "ones")
        yield _Tensor(block + "ffn_norm.weight", 0, width, "ones")
        yield _Tensor(block + "attn_q.weight", width, width)
        yield _Tensor(block + "attn_k.weight", kv_width, width)
        yield _Tensor(block + "attn_v.weight", kv_width, width)
        yield _Tensor(block + "attn_output.weight", width, width)
        yield _Tensor(block + "ffn_gate.weight", feed, width)
        yield _Tensor(block + "ffn_up.weight", feed, width)
        yield _Tensor(block + "ffn_down.weight", width, feed, scale=0.01)  # however wide, it must not drown the rest


def _values(tensor: _Tensor, random: Random, pool: array[float]) -> array[float]:
    """A tensor's numbers, cut from the pool at random places: to draw each one takes seconds for a padded model."""
    if tensor.kind == "ones":
        return array("f", [1.0]) * tensor.count
    source = array("f", (value * tensor.scale for value in pool)) if tensor.scale != 1.0 else pool
    values = array("f")
    while len(values) < tensor.count:
        start = random.randrange(_POOL // 2)
        values.extend(source[start : start + tensor.count - len(values)])
    if tensor.kind != "random":
        _lean(values, tensor)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _lean(values: array[float], tensor: _Tensor) -> None:
    """Give every embedding one direction in common, and let the output layer read letters out of it."""
    for row in range(tensor.rows):
        letter = _FIRST_LETTER <= row < _FIRST_LETTER + len(_LETTERS)
        values[row * tensor.columns] = 1.0 if tensor.kind == "embedding" or letter else -1.0


def _keys(name: str, layers: int, width: int, feed: int) -> list[bytes]:
    return [
        _key("general.architecture", _STRING, _text("llama")),
        _key("general.name", _STRING, _text(name)),
        _key("general.alignment", _U32, _u32(ALIGNMENT)),
        _key("general.file_type", _U32, _u32(0)),
        _key("llama.context_length", _U32, _u32(_CONTEXT)),
        _key("llama.embedding_length", _U32, _u32(width)),
        _key("llama.block_count", _U32, _u32(layers)),
        _key("llama.feed_forward_length", _U32, _u32(feed)),
        _key("llama.attention.head_count", _U32, _u32(_HEADS)),
        _key("llama.attention.head_count_kv", _U32, _u32(_KV_HEADS)),
        _key("llama.attention.layer_norm_rms_epsilon", _F32, struct.pack("<f", 1e-5)),
        _key("llama.rope.dimension_count", _U32, _u32(width // _HEADS)),
        _key("llama.vocab_size", _U32, _u32(len(_TOKENS))),
        _key("tokenizer.ggml.model", _STRING, _text("llama")),
        _key("tokenizer.ggml.tokens", _ARRAY, _list(_STRING, b"".join(map(_text, _TOKENS)))),
        _key("tokenizer.ggml.scores", _ARRAY, _list(_F32, struct.pack(f"<{len(_SCORES)}f", *_SCORES))),
        _key("tokenizer.ggml.token_type", _ARRAY, _list(_I32, struct.pack(f"<{len(_TYPES)}i", *_TYPES))),
        _key("tokenizer.ggml.bos_token_id", _U32, _u32(1)),
        _key("tokenizer.ggml.eos_token_id", _U32, _u32(2)),
        _key("tokenizer.ggml.unknown_token_id", _U32, _u32(0)),
        _key("tokenizer.chat_template", _STRING, _text(_TEMPLATE)),
    ]


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _text(name) + _u32(kind) + value


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _u32(value: int) -> bytes:
    return struct.pack("<I", value)


def _list(kind: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(_TOKENS)) + items


def _align(file: BinaryIO) -> None:
    file.write(b"\0" * (-file.tell() % ALIGNMENT))
