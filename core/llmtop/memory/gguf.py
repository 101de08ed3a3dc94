"""Reads the head of a GGUF file: what a model is and how large, without its weights and without trusting the file.

Bounded reads, no mapping: a file that shrinks under a mapping would end the process. Every length is checked against
the file's size; counts, nesting and the bytes read and kept have limits: a hostile file ends in ``GgufError`` soon.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from llmtop.errors import LlmtopError

Scalar = int | float | bool | str
Meta = Scalar | tuple[Scalar, ...]

MAGIC = b"GGUF"
VERSIONS = (2, 3)
WINDOW = 256 * 1024
MOST_READ = 64 * 2**20
MOST_KEYS, MOST_TENSORS = 16_384, 32_768
MOST_STRINGS = 1_200_000
"""The largest vocabularies have some 800,000 tokens and merges together."""
MOST_DEPTH, MOST_NESTED = 4, 10_000
MOST_LAYERS = 4096
"""Arrays of more numbers are not about layers: they are skipped, and only their length is noted."""
KEPT_TEXT, KEPT_IN_ALL = 1024, 2**20
"""Longer texts are not kept; beyond so many characters and elements nothing more is."""
LONGEST_NAME = 65_535
STRING, ARRAY = 8, 9
FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
"""Value types that are one number. Source: ggml docs/gguf.md."""
BLOCKS = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 36),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66),
    17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136),
    24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54),
    35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Elements and bytes of a block, by ggml type. Source: llama.cpp gguf-py/gguf/constants.py, GGML_QUANT_SIZES."""
SHARD = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$")


class GgufError(LlmtopError):
    """Not a GGUF file that can be used; the text says which and why."""


class CutShort(GgufError):
    """The file ends before the tensors that its header tells of: no server can load it."""


class Header(msgspec.Struct, frozen=True):
    """What the head says, over all shards.

    Args:
        architecture: ``general.architecture``.
        name: ``general.name``, empty without one.
        context_length: Context it was trained for [tokens]; 0 when it does not say.
        layers: Blocks [1].
        tensors: Tensors [1].
        tensor_bytes: All tensors together [bytes].
        file_bytes: Size of all files [bytes].
        layer_bytes: Tensors of each block, by its number [bytes].
        expert_bytes: Of these its experts [bytes].
        vocabulary: Tokens [1].
        tied: The output layer is the input embedding.
        embedding_bytes: The input embedding [bytes].
        exact: Every tensor's type is known; else ``tensor_bytes`` is taken from the files' sizes.
        shards: Files [1].
        meta: Numbers, texts and short arrays of numbers by key.
    """

    architecture: str
    name: str = ""
    context_length: int = 0
    layers: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    file_bytes: int = 0
    layer_bytes: Mapping[int, int] = {}
    expert_bytes: Mapping[int, int] = {}
    vocabulary: int = 0
    tied: bool = False
    embedding_bytes: int = 0
    exact: bool = True
    shards: int = 1
    meta: Mapping[str, Meta] = {}

    def number(self, key: str, default: float = 0) -> float:
        """A number under ``ARCHITECTURE.key``; of an array the largest."""
        value = self.meta.get(f"{self.architecture}.{key}", default)
        numbers = [v for v in (value if isinstance(value, tuple) else (value,)) if isinstance(v, int | float)]
        return max(numbers, default=default)

    def whole(self, key: str, default: int = 0) -> int:
        """The same as a whole number."""
        return int(self.number(key, default))

    def by_layer(self, key: str, default: int) -> tuple[int, ...]:
        """A number for each block: an array as it stands, one number repeated."""
        value = self.meta.get(f"{self.architecture}.{key}", default)
        if isinstance(value, tuple):
            numbers = tuple(int(v) for v in value if isinstance(v, int | float))[: self.layers]
            return numbers + (default,) * (self.layers - len(numbers))
        return (int(value) if isinstance(value, int | float) else default,) * self.layers

    def has(self, key: str) -> bool:
        """``ARCHITECTURE.key`` is there."""
        return f"{self.architecture}.{key}" in self.meta


class _Reader:
    """A window on a file that never reads beyond it, nor more than ``MOST_READ`` in all."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file, self._name = file, name
        self.size = os.fstat(file.fileno()).st_size
        self.at = 0
        self._window = b""
        self._base = 0
        self._read = 0
        self._strings = self._nested = self._kept = 0

    def fail(self, why: str) -> GgufError:
        return GgufError(f"{self._name}: {why}")

    def cut_short(self, why: str) -> CutShort:
        return CutShort(f"{self._name}: cut short: {why}")

    def _have(self, length: int) -> int:
        """Bring so many bytes into the window; gives their place in it."""
        if self.at + length > self.size:
            raise self.fail("the file ends in the middle of its header")
        place = self.at - self._base
        if place < 0 or place + length > len(self._window):
            want = max(length, WINDOW)
            self._read += want
            if self._read > MOST_READ:
                raise self.fail(f"the header is larger than {MOST_READ} bytes")
            self._window, self._base, place = os.pread(self._file.fileno(), want, self.at), self.at, 0
            if len(self._window) < length:
                raise self.fail("the file is shorter than it was")
        return place

    def number(self, form: str) -> int:
        place = self._have(struct.calcsize(form))
        self.at += struct.calcsize(form)
        value: int = struct.unpack_from(form, self._window, place)[0]
        return value

    def text(self) -> str:
        """A name or a text that is short enough for one."""
        length = self.number("<Q")
        if length > LONGEST_NAME:
            raise self.fail(f"a name of {length} bytes")
        place = self._have(length)
        self.at += length
        return self._window[place : place + length].decode("utf-8", "replace")

    def skip(self, length: int) -> None:
        """Step over so many bytes."""
        if length > self.size - self.at:
            raise self.fail("a length in the header goes beyond the end of the file")
        self.at += length

    def value(self, kind: int, key: str) -> tuple[Meta | None, int]:
        """One value, None for what is not kept; and the length of an array."""
        if kind in FORMATS:
            return self.number(FORMATS[kind]), 0
        if kind == STRING:
            return self._short_text(), 0
        if kind == ARRAY:
            return self._array(1)
        raise self.fail(f"{key[:80]!r} has an unknown type {kind}")

    def _keep(self, size: int) -> bool:
        self._kept += size
        return self._kept <= KEPT_IN_ALL

    def _short_text(self) -> str | None:
        length: int = struct.unpack_from("<Q", self._window, self._have(8))[0]
        if length <= KEPT_TEXT and self._keep(length):
            return self.text()
        self.at += 8
        self.skip(length)
        return None

    def _array(self, depth: int) -> tuple[tuple[Scalar, ...] | None, int]:
        """An array's numbers if they are few, and its length."""
        kind, count = self.number("<I"), self.number("<Q")
        if kind in FORMATS:
            width = struct.calcsize(FORMATS[kind])
            if count > MOST_LAYERS or not self._keep(count):
                self.skip(width * count)
                return None, count
            place = self._have(width * count)
            self.at += width * count
            return struct.unpack_from(f"<{count}{FORMATS[kind][1]}", self._window, place), count
        if kind == STRING:
            self._step_over_strings(count)
        elif kind == ARRAY:
            self._nested += count
            if depth == MOST_DEPTH or self._nested > MOST_NESTED:
                raise self.fail("arrays within arrays")
            for _ in range(count):
                self._array(depth + 1)
        else:
            raise self.fail(f"an array of an unknown type {kind}")
        return None, count

    def _step_over_strings(self, count: int) -> None:
        """The one hot loop: vocabularies have hundreds of thousands of them."""
        self._strings += count
        if self._strings > MOST_STRINGS:
            raise self.fail(f"an array of {count} texts")
        length_at = struct.Struct("<Q").unpack_from
        window, base, place = self._window, self._base, self.at - self._base
        for _ in range(count):
            if place + 8 > len(window):
                self.at = base + place
                place = self._have(8)
                window, base = self._window, self._base
            place += 8 + length_at(window, place)[0]
        self.at = base + place
        if self.at > self.size:
            raise self.fail("a length in the header goes beyond the end of the file")


class _Tensors:
    """What the list of tensors adds up to."""

    def __init__(self) -> None:
        self.count = self.bytes = self.embedding = 0
        self.layers: dict[int, int] = {}
        self.experts: dict[int, int] = {}
        self.exact, self.output = True, False

    def read(self, reader: _Reader, count: int, alignment: int) -> None:
        """Read the list and see that every tensor lies within the file."""
        last, furthest = 0, ""
        for _ in range(count):
            name = reader.text()
            axes = reader.number("<I")
            if axes > 4:
                raise reader.fail(f"tensor {name[:80]!r} has {axes} dimensions")
            elements = 1
            for _ in range(axes):
                elements *= reader.number("<Q")
            kind, offset = reader.number("<I"), reader.number("<Q")
            block, width = BLOCKS.get(kind, (1, 0))
            size = -(-elements // block) * width
            self.exact = self.exact and kind in BLOCKS
            if offset + size > reader.size:
                raise reader.cut_short(f"tensor {name[:80]!r} goes beyond the end of the file")
            if offset + size > last:
                last, furthest = offset + size, name
            self._add(name, size)
        start = -(-reader.at // alignment) * alignment
        if start + last > reader.size:
            raise reader.cut_short(f"tensor {furthest[:80]!r} goes beyond the end of the file")

    def _add(self, name: str, size: int) -> None:
        self.count += 1
        self.bytes += size
        layer = re.match(r"blk\.(\d{1,5})\.", name)
        if layer:
            for sums in (self.layers, self.experts) if "_exps." in name else (self.layers,):
                sums[int(layer[1])] = sums.get(int(layer[1]), 0) + size
        self.embedding += size if name == "token_embd.weight" else 0
        self.output = self.output or name == "output.weight"


def shard_paths(path: Path) -> tuple[Path, ...]:
    """All files of a model by the first's name: ``X-00001-of-00003.gguf`` and so on, or just the one."""
    parts = SHARD.match(path.name)
    if not parts:
        return (path,)
    return tuple(
        path.with_name(f"{parts[1]}-{n:05d}-of-{parts[3]}.gguf") for n in range(1, min(int(parts[3]), 9999) + 1)
    )


def read_header(path: Path | str) -> Header:
    """Read a model's header, all shards of it. A few ms to 0.2 s, so call it in a worker thread.

    Raises:
        GgufError: A file is missing, cut short, or not GGUF.
    """
    files = shard_paths(Path(path))
    tensors, meta, lengths, size = _Tensors(), dict[str, Meta](), dict[str, int](), 0
    for number, file in enumerate(files):
        found, its_lengths, its_size = _read_one(
            file, tensors, f"shard {number + 1} of {len(files)}: " if number else ""
        )
        size += its_size
        if number == 0:
            meta, lengths = found, its_lengths
    count = meta.get("split.count", 0)
    if isinstance(count, int) and count > 1 and count != len(files):
        raise GgufError(f"{files[0].name}: made of {count} shards, but its name does not say so")
    return _header(meta, lengths, tensors, size, len(files))


def _header(meta: dict[str, Meta], lengths: Mapping[str, int], tensors: _Tensors, size: int, shards: int) -> Header:
    architecture = str(meta.get("general.architecture", ""))[:64]

    def count(key: str) -> int:
        value = meta.get(f"{architecture}.{key}", 0)
        return min(value, 2**31) if isinstance(value, int) and value > 0 else 0

    layers = min(count("block_count"), MOST_LAYERS)
    return Header(
        architecture=architecture,
        name=str(meta.get("general.name", ""))[:200],
        context_length=count("context_length"),
        layers=layers,
        tensors=tensors.count,
        tensor_bytes=tensors.bytes if tensors.exact else size,
        file_bytes=size,
        layer_bytes=tensors.layers,
        expert_bytes=tensors.experts,
        vocabulary=count("vocab_size") or lengths.get("tokenizer.ggml.tokens", 0),
        tied=not tensors.output,
        embedding_bytes=tensors.embedding,
        exact=tensors.exact,
        shards=shards,
        meta=meta,
    )


def _read_one(path: Path, tensors: _Tensors, prefix: str) -> tuple[dict[str, Meta], dict[str, int], int]:
    """One file: its values, the lengths of its arrays, its size; its tensors are added."""
    try:
        with path.open("rb", buffering=0) as file:
            reader = _Reader(file, f"{prefix}{path.name}")  # pyright: ignore[reportArgumentType]
            return *_read_head(reader, tensors), reader.size
    except OSError as error:
        raise GgufError(f"{prefix}{path.name}: {error.strerror or error}") from error


def _read_head(reader: _Reader, tensors: _Tensors) -> tuple[dict[str, Meta], dict[str, int]]:
    if reader.size < 24:
        raise reader.fail("too short for a GGUF file")
    magic, version = reader.number("<I").to_bytes(4, "little"), reader.number("<I")
    if magic != MAGIC:
        raise reader.fail("not a GGUF file")
    if version not in VERSIONS:
        raise reader.fail(f"GGUF version {version} is not known (2 and 3 are)")
    count, keys = reader.number("<Q"), reader.number("<Q")
    if count > MOST_TENSORS or keys > MOST_KEYS:
        raise reader.fail(f"{count} tensors and {keys} keys cannot be")
    meta: dict[str, Meta] = {}
    lengths: dict[str, int] = {}
    for _ in range(keys):
        key, kind = reader.text(), reader.number("<I")
        value, length = reader.value(kind, key)
        if kind == ARRAY:
            lengths[key] = length
        if value is not None and not key.startswith("tokenizer."):
            meta[key] = value
    alignment = meta.get("general.alignment", 32)
    tensors.read(reader, count, alignment if isinstance(alignment, int) and 0 < alignment <= 2**20 else 32)
    return meta, lengths
