"""Damaged GGUF headers for the reader: what it makes of them, how long it takes and how much memory.

``memory.py --fuzz N`` runs it. Everything comes from a seed, so a failure can be had again.
"""

from __future__ import annotations

import os
import random
import struct
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from llmtop.demo.tiny_gguf import write_tiny
from llmtop.memory.gguf import GgufError, read_header
from llmtop.testing.models import write_model

SPARSE_EVERY, SPARSE_BYTES = 200, 64 * 2**20
"""One in so many inputs is followed by zeros without end: lengths that a short file refutes come true."""
EDGES = (0, 1, 2, 0x7F, 0xFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
HEADER_BYTES = 16 * 1024


@dataclass
class Findings:
    """What came out.

    Args:
        outcomes: How many were read, refused, or ended otherwise.
        took_s: Processor time in the reader alone [s].
        slowest_ms: The longest of them [ms].
        most_bytes: Most memory that Python held at once for one input, the result included [bytes].
        faults: Seeds of inputs that ended in anything but a header or a ``GgufError``, and how.
    """

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter[str])
    took_s: float = 0.0
    slowest_ms: float = 0.0
    slowest_seed: int = 0
    most_bytes: int = 0
    most_seed: int = 0
    faults: list[str] = field(default_factory=list[str])


def originals(folder: Path) -> list[bytes]:
    """Sound files to damage."""
    write_tiny(folder / "tiny.gguf")
    made = [write_model(folder, f"m{layers}", layers=layers, size=256) for layers in (1, 40)]
    return [path.read_bytes()[:HEADER_BYTES] for path in (folder / "tiny.gguf", *made)]


def _flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _edge(data: bytearray, rng: random.Random) -> None:
    """A number where a length, a count or a type may stand."""
    width, code = rng.choice(((4, "<I"), (8, "<Q")))
    at = rng.randrange(max(1, len(data) - width))
    data[at : at + width] = struct.pack(code, rng.choice(EDGES) & (2 ** (8 * width) - 1))


def _counts(data: bytearray, rng: random.Random) -> None:
    """The counts of tensors and keys, in the head of the head."""
    struct.pack_into("<Q", data, rng.choice((8, 16)), rng.choice((*EDGES, rng.randrange(100_000))))


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _repeat(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = bytes(data[start : start + rng.randint(1, 400)])
    at = rng.randrange(len(data))
    data[at:at] = piece * rng.randint(1, 4)


def _remove(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    del data[start : start + rng.randint(1, 64)]


def _noise(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(data))
    piece = rng.randbytes(rng.randint(1, 200))
    data[start : start + len(piece)] = piece


def _arrays(data: bytearray, rng: random.Random) -> None:
    """Arrays in arrays, or a long one, as the next key's value after the counts."""
    depth = rng.randint(1, 8)
    value = struct.pack("<I", 9) + b"".join(struct.pack("<IQ", 9, rng.choice((1, 3, 9_999))) for _ in range(depth))
    value += struct.pack("<IQ", rng.choice((0, 4, 6, 8, 12)), rng.choice((0, 7, 4_097, 1_200_000, 2**40)))
    data[24:24] = struct.pack("<Q", 3) + b"a.b" + value


MUTATORS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _edge,
    _edge,
    _counts,
    _cut,
    _repeat,
    _remove,
    _noise,
    _arrays,
)


def damaged(sound: list[bytes], seed: int) -> bytes:
    """Input number ``seed``: one to four kinds of damage to a sound file."""
    rng = random.Random(seed)
    data = bytearray(rng.choice(sound))
    for _ in range(rng.randint(1, 4)):
        if len(data) > 32:
            rng.choice(MUTATORS)(data, rng)
    return bytes(data)


def _read(path: Path) -> str:
    try:
        read_header(path)
    except GgufError:
        return "refused"
    except Exception as error:  # that is what is looked for
        return type(error).__name__
    return "read"


def fuzz(folder: Path, count: int, first: int = 0) -> Findings:
    """Try so many inputs; each is read twice, once for the time and once for the memory."""
    found, sound = Findings(), originals(folder)
    path = folder / "damaged.gguf"
    for seed in range(first, first + count):
        data = damaged(sound, seed)
        path.write_bytes(data)
        if seed % SPARSE_EVERY == 0:
            os.truncate(path, len(data) + SPARSE_BYTES)
        began = time.process_time()
        outcome = _read(path)
        took = time.process_time() - began
        found.took_s += took
        if took * 1e3 > found.slowest_ms:
            found.slowest_ms, found.slowest_seed = took * 1e3, seed
        tracemalloc.start()
        again = _read(path)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if most > found.most_bytes:
            found.most_bytes, found.most_seed = most, seed
        found.tried += 1
        found.outcomes[outcome] += 1
        if outcome not in ("read", "refused") or again != outcome:
            found.faults.append(f"{seed}: {outcome}, then {again}")
    return found
