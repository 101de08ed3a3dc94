from __future__ import annotations

import random
import struct
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmtop.memory.gguf import GgufError, Header, read_header, shard_paths

U32, F32, BOOL, STRING, ARRAY, U64 = 4, 6, 7, 8, 9, 10


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def pair(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def u32(key: str, value: int) -> bytes:
    return pair(key, U32, struct.pack("<I", value))


def array(key: str, kind: int, count: int, body: bytes) -> bytes:
    return pair(key, ARRAY, struct.pack("<IQ", kind, count) + body)


def tensor(name: str, dims: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}Q", len(dims), *dims) + struct.pack("<IQ", kind, offset)


def gguf(pairs: list[bytes], tensors: list[bytes], data: int = 0, *, version: int = 3) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + b"".join(tensors)
    return head + b"\0" * (-len(head) % 32) + b"\0" * data


PAIRS = [
    pair("general.architecture", STRING, text("llama")),
    pair("general.name", STRING, text("Tiny")),
    u32("llama.block_count", 2),
    u32("llama.context_length", 2048),
    array("llama.attention.head_count_kv", U32, 2, struct.pack("<2I", 2, 4)),
    array("tokenizer.ggml.tokens", STRING, 3, text("a") + text("") + text("ccc")),
    array("tokenizer.ggml.scores", F32, 5000, b"\0" * 20_000),
    pair("llama.rope.freq_base", F32, struct.pack("<f", 0.5)),
    pair("llama.flag", BOOL, b"\1"),
]
TENSORS = [
    tensor("token_embd.weight", (64, 3), 0, 0),
    tensor("blk.0.attn_q.weight", (64, 64), 2, 768),
    tensor("blk.1.ffn_gate_exps.weight", (64, 32), 1, 768 + 2304),
]
DATA = 768 + 2304 + 4096


@pytest.fixture
def write(tmp_path: Path) -> Callable[[bytes], Path]:
    def written(raw: bytes) -> Path:
        path = tmp_path / "model.gguf"
        path.write_bytes(raw)
        return path

    return written


Write = Callable[[bytes], Path]


@pytest.mark.parametrize("version", [2, 3])
def test_header_says_what_the_model_is(write: Write, version: int) -> None:
    header = read_header(write(gguf(PAIRS, TENSORS, DATA, version=version)))
    assert (header.architecture, header.name, header.layers, header.context_length) == ("llama", "Tiny", 2, 2048)
    assert (header.tensors, header.tensor_bytes, header.exact) == (3, DATA, True)
    assert (header.layer_bytes, header.expert_bytes) == ({0: 2304, 1: 4096}, {1: 4096})
    assert (header.vocabulary, header.tied, header.embedding_bytes) == (3, True, 768)
    assert header.by_layer("attention.head_count_kv", 1) == (2, 4)
    assert (header.number("rope.freq_base"), header.whole("attention.head_count_kv"), header.whole("none", 7)) == (
        0.5,
        4,
        7,
    )
    assert not [key for key in header.meta if key.startswith("tokenizer.")]


def test_array_by_layer_may_be_short_or_a_single_number() -> None:
    header = Header("x", layers=3, meta={"x.a": (1, 2), "x.b": 5, "x.c": "no"})
    assert [header.by_layer(key, 9) for key in "abcd"] == [(1, 2, 9), (5, 5, 5), (9, 9, 9), (9, 9, 9)]


def test_unknown_type_of_tensor_falls_back_to_the_size_of_the_file(write: Write) -> None:
    raw = gguf(PAIRS, [*TENSORS, tensor("new", (64,), 99, DATA)], DATA + 640)
    header = read_header(write(raw))
    assert (header.exact, header.tensor_bytes) == (False, len(raw))


def test_shards_are_added_up(tmp_path: Path) -> None:
    first = [*PAIRS, pair("split.count", 2, struct.pack("<H", 2))]
    (tmp_path / "m-00001-of-00002.gguf").write_bytes(gguf(first, TENSORS[:1], 768))
    second = gguf([], [tensor("output.weight", (64, 3), 0, 0)], 768)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(second)
    header = read_header(tmp_path / "m-00001-of-00002.gguf")
    assert (header.shards, header.tensors, header.tensor_bytes, header.tied) == (2, 2, 1536, False)
    (tmp_path / "m-00002-of-00002.gguf").unlink()
    with pytest.raises(GgufError, match=r"shard 2 of 2: m-00002-of-00002.gguf: No such file"):
        read_header(tmp_path / "m-00001-of-00002.gguf")


def test_renamed_shard_is_told_from_a_whole_model(write: Write) -> None:
    with pytest.raises(GgufError, match="made of 3 shards"):
        read_header(write(gguf([*PAIRS, u32("split.count", 3)], TENSORS, DATA)))


def test_names_of_shards() -> None:
    assert [p.name for p in shard_paths(Path("a/x-00001-of-00003.gguf"))] == [
        f"x-0000{n}-of-00003.gguf" for n in (1, 2, 3)
    ]
    assert shard_paths(Path("x.gguf")) == (Path("x.gguf"),)


HEAD = b"GGUF" + struct.pack("<I", 3)
HUGE = 2**63
HOSTILE = {
    "empty": (b"", "too short"),
    "not gguf": (b"\x7fELF" + b"\0" * 100, "not a GGUF file"),
    "lfs pointer": (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF file"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "counts": (HEAD + struct.pack("<QQ", HUGE, HUGE), "cannot be"),
    "key length": (HEAD + struct.pack("<QQ", 0, 1) + struct.pack("<Q", HUGE), "a name of"),
    "text length": (HEAD + struct.pack("<QQ", 0, 1) + pair("a", STRING, struct.pack("<Q", HUGE)), "beyond the end"),
    "numbers": (HEAD + struct.pack("<QQ", 0, 1) + array("a", U64, HUGE, b""), "beyond the end"),
    "few numbers": (HEAD + struct.pack("<QQ", 0, 1) + array("a", U64, 4000, b""), "ends in the middle"),
    "texts": (HEAD + struct.pack("<QQ", 0, 1) + array("a", STRING, HUGE, b""), "an array of"),
    "text in texts": (
        HEAD + struct.pack("<QQ", 0, 1) + array("a", STRING, 2, struct.pack("<Q", HUGE)),
        "middle of its header",
    ),
    "last of texts": (HEAD + struct.pack("<QQ", 0, 1) + array("a", STRING, 1, struct.pack("<Q", 9)), "beyond the end"),
    "type": (HEAD + struct.pack("<QQ", 0, 1) + pair("a", 77, b""), "unknown type 77"),
    "array type": (HEAD + struct.pack("<QQ", 0, 1) + array("a", 77, 1, b""), "unknown type 77"),
    "nesting": (
        HEAD + struct.pack("<QQ", 0, 1) + pair("a", ARRAY, struct.pack("<IQ", ARRAY, 1) * 5000),
        "arrays within",
    ),
    "many arrays": (HEAD + struct.pack("<QQ", 0, 1) + array("a", ARRAY, HUGE, b""), "arrays within"),
    "dimensions": (gguf([], [text("t") + struct.pack("<I", 2**32 - 1)]), "dimensions"),
    "tensor size": (gguf([], [tensor("t", (HUGE, HUGE, HUGE, HUGE), 0, 0)]), "cut short"),
    "tensor offset": (gguf([], [tensor("t", (1,), 0, HUGE)]), "cut short"),
    "cut short": (gguf(PAIRS, TENSORS, DATA - 1), "cut short: tensor 'blk.1.ffn_gate_exps.weight'"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_file_that_lies_about_a_length_is_refused(write: Write, case: str) -> None:
    raw, why = HOSTILE[case]
    with pytest.raises(GgufError, match=why) as caught:
        read_header(write(raw))
    assert str(caught.value).startswith("model.gguf: ")
    assert "\n" not in str(caught.value)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(GgufError, match=r"none\.gguf: No such file"):
        read_header(tmp_path / "none.gguf")
    with pytest.raises(GgufError, match="Is a directory"):
        read_header(tmp_path)


def sparse(path: Path, head: bytes, size: int) -> Path:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


def seconds_of(path: Path) -> float:
    """Processor time of a reading that must end, well or in a ``GgufError``, the better of two."""
    times = []
    for _ in range(2):
        start = time.process_time()
        with suppress(GgufError):
            read_header(path)
        times.append(time.process_time() - start)
    return min(times)


LARGEST = {
    "keys": HEAD + struct.pack("<QQ", 0, 16_384),
    "tensors": HEAD + struct.pack("<QQ", 32_768, 0),
    "texts": HEAD + struct.pack("<QQ", 0, 1) + array("a", STRING, 1_200_000, b""),
    "far texts": HEAD
    + struct.pack("<QQ", 0, 1)
    + array("a", STRING, 1_200_000, struct.pack("<Q", 300_000) + b"\0" * 300_000),
    "kept numbers": HEAD + struct.pack("<QQ", 0, 16_384) + array("a", 0, 4096, b"\1" * 4096) * 4000,
    "kept texts": HEAD + struct.pack("<QQ", 0, 16_384) + pair("a", STRING, text(b"x" * 1024)) * 12_000,
    "long names": HEAD + struct.pack("<QQ", 0, 16_384) + (text(b"k" * 65_000) + struct.pack("<IB", 0, 1)) * 600,
    "arrays": HEAD + struct.pack("<QQ", 0, 1) + array("a", ARRAY, 10_000, struct.pack("<IQ", ARRAY, 0) * 10_000),
}


@pytest.mark.parametrize("case", LARGEST)
def test_largest_file_that_is_read_takes_a_second(tmp_path: Path, case: str) -> None:
    assert seconds_of(sparse(tmp_path / "model.gguf", LARGEST[case], 2**36)) < 1.0


@pytest.mark.parametrize("case", ["keys", "kept numbers", "kept texts", "long names", "arrays"])
def test_largest_file_that_is_read_takes_fifty_megabytes(tmp_path: Path, case: str) -> None:
    path = sparse(tmp_path / "model.gguf", LARGEST[case], 2**36)
    tracemalloc.start()
    try:
        seconds_of(path)
        assert tracemalloc.get_traced_memory()[1] < 50 * 10**6
    finally:
        tracemalloc.stop()


def test_vocabulary_of_eight_hundred_thousand_is_stepped_over_quickly(tmp_path: Path) -> None:
    words = b"".join(text(b"w" * (n % 13)) for n in range(800_000))
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf([*PAIRS[:4], array("tokenizer.ggml.tokens", STRING, 800_000, words)], TENSORS, DATA))
    assert seconds_of(path) < 0.8
    assert read_header(path).vocabulary == 800_000


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), cuts=st.integers(0, 8))
def test_damaged_file_ends_in_an_error_of_ours_or_in_a_header(write: Write, seed: int, cuts: int) -> None:
    rng = random.Random(seed)
    raw = bytearray(gguf(PAIRS, TENSORS, DATA))
    for _ in range(cuts):
        place = rng.randrange(1200)
        raw[place] = rng.choice((0, 1, 8, 9, 0x7F, 0xFF))
    if rng.random() < 0.3:
        del raw[rng.randrange(len(raw)) :]
    try:
        header = read_header(write(bytes(raw)))
    except GgufError:
        return
    assert header.tensor_bytes <= len(raw)
    assert header.layers <= 4096
