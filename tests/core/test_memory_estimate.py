from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.config.spec import ModelSpec
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.memory import kv
from llmtop.memory.arguments import Arguments, read_arguments
from llmtop.memory.estimate import Headers, compute_bytes, estimate
from llmtop.memory.gguf import Header
from llmtop.memory.together import fitting_sets

MIB = 2**20


PATTERN, WINDOW = "attention__sliding_window_pattern", "attention__sliding_window"
SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 512, "ssm__state_size": 16, "ssm__group_count": 1}


def model(architecture: str = "llama", layers: int = 2, **keys: Any) -> Header:
    """A header of eight KV heads of 128, with these keys (``__`` is a dot)."""
    plain: dict[str, Any] = {
        "embedding_length": 2048,
        "feed_forward_length": 4096,
        "attention.head_count": 16,
        "attention.head_count_kv": 8,
        "attention.key_length": 128,
        "attention.value_length": 128,
    }
    plain |= {name.replace("__", "."): value for name, value in keys.items()}
    meta = {f"{architecture}.{name}": value for name, value in plain.items() if value is not None}
    return Header(architecture, context_length=131072, layers=layers, vocabulary=32000, meta=meta)


def mib(header: Header, **args: Any) -> float:
    return kv.cache_bytes(header, msgspec.structs.replace(Arguments(context=8192), **args)) / MIB


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({}, 64.0),
        ({"cache_k": "q8_0", "cache_v": "q8_0"}, 34.0),
        ({"cache_k": "q4_0", "cache_v": "f32"}, 73.0),
        ({"cache_k": "unheard of"}, 64.0),
        ({"parallel": 3}, 66.0),
        ({"parallel": 3, "unified": True}, 64.0),
        ({"parallel": 1}, 64.0),
        ({"context": 8000}, 64.0),
        ({"context": 0}, 1024.0),
    ],
)
def test_plain_attention_is_exact(args: dict[str, Any], expected: float) -> None:
    """The first two and the fifth were measured with llama-server."""
    assert mib(model(), **args) == expected


def test_heads_may_differ_by_layer() -> None:
    assert mib(model(attention__head_count_kv=(8, 2))) == 40.0


def test_transposed_values_have_the_width_of_the_widest_layer() -> None:
    assert mib(model(attention__head_count_kv=(8, 2)), flash="off") == 52.0


def test_missing_lengths_come_from_the_width() -> None:
    assert mib(model(attention__key_length=None, attention__value_length=None)) == 64.0


def test_compressed_attention_keeps_one_row_and_no_values() -> None:
    header = model("deepseek2", attention__key_length=576, attention__key_length_mla=192, attention__head_count_kv=1)
    assert mib(header) == 2 * 8192 * 576 * 2 / MIB


@pytest.mark.parametrize(
    ("header", "args", "full", "short"),
    [
        (model("gemma3", 12, attention__sliding_window=512), {}, 2, 2560),
        (model("gemma3", 12, attention__sliding_window=512), {"parallel": 2}, 2, 2 * 1024),
        (model("gemma3", 12, attention__sliding_window=512), {"swa_full": True}, 12, 0),
        (model("gemma2", 4), {"context": 32768, "parallel": 1, "unified": True}, 2, 4608),
        (model("gpt-oss", 4, attention__sliding_window=128), {"ubatch": 2048}, 2, 2560),
        (model("x", 4, **{WINDOW: 512, PATTERN: (True, True, False, True)}), {}, 1, 2560),
        (model("x", 4, attention__sliding_window=512, attention__sliding_window_pattern=4), {}, 1, 2560),
        (model("x", 4, attention__sliding_window=512, attention__sliding_window_pattern=0), {}, 0, 2560),
        (model("smallthinker", 4, attention__sliding_window=512), {}, 1, 2560),
        (model("phi3", 4, attention__sliding_window=512), {}, 4, 0),
        (model("x", 4, attention__sliding_window=512), {}, 4, 0),
        (model("gemma3", 12, attention__sliding_window=4096), {}, 2, 8192),
    ],
)  # fmt: skip
def test_sliding_window_layers_keep_the_window_only(
    header: Header, args: dict[str, Any], full: int, short: int
) -> None:
    context = args.get("context", 8192)
    cells = full * context + (header.layers - full) * short
    assert mib(header, **args) == cells * 4096 / MIB


def test_window_layers_may_have_dimensions_of_their_own() -> None:
    header = model("gemma4", 2, attention__sliding_window=512, attention__sliding_window_pattern=(True, False),
                   attention__key_length_swa=64, attention__value_length_swa=64)  # fmt: skip
    assert mib(header) == (2560 * 2048 + 8192 * 4096) / MIB


def test_layers_that_share_or_only_predict_own_no_cache() -> None:
    assert mib(model(layers=4, attention__shared_kv_layers=1, nextn_predict_layers=1)) == 64.0
    assert mib(model("gemma3n", 30)) == 20 * 32.0


@pytest.mark.parametrize(
    ("header", "recurrent", "elements"),
    [
        (model("mamba2", 4, **SSM), 4, 3 * 544 + 8192),
        (model("rwkv6", 3, wkv__head_size=64), 3, 2 * 2048 + 2048 * 64),
        (model("lfm2", 4, shortconv__l_cache=3, attention__head_count_kv=(0, 0, 8, 0)), 3, 4096),
        (model("qwen3next", 8, **SSM), 6, 3 * 544 + 8192),
        (model("minimax-01", 4), 3, 128 * 128 * 16),
        (model("kimi-linear", 2, kda__head_dim=32, attention__head_count_kv=(0, 8)), 1, 9 * 16 * 32 + 1024 * 16),
        (model("x", 2, attention__recurrent_layers=(False, True), ssm__inner_size=8, ssm__state_size=8), 1, 64),
    ],
)  # fmt: skip
def test_recurrent_layers_keep_state_for_each_slot(header: Header, recurrent: int, elements: int) -> None:
    assert kv.state_bytes(header, Arguments(parallel=2)) == recurrent * elements * 4 * 2
    attention = 0 if header.architecture in kv.RECURRENT else header.layers - recurrent
    assert mib(header) == attention * 32.0


@pytest.mark.parametrize(
    ("width", "inner", "heads", "args", "measured_mib"),
    [
        (2048, 4096, 16, {"context": 8192}, 44.02),
        (2048, 4096, 16, {"context": 32768}, 68.02),
        (2048, 4096, 16, {"context": 131072}, 164.02),
        (2048, 4096, 16, {"context": 8192, "ubatch": 2048}, 176.07),
        (2048, 4096, 16, {"context": 8192, "flash": "off"}, 300.01),
        (256, 3640, 4, {"context": 4096}, 27.34),
        (256, 3640, 4, {"context": 32768}, 55.34),
        (256, 3640, 4, {"context": 8000, "parallel": 3}, 26.14),
        (64, 128, 4, {"context": 8192}, 9.01),
        (64, 128, 4, {"context": 8192, "ubatch": 128}, 2.25),
        (64, 128, 4, {"context": 8192, "flash": "off"}, 80.76),
    ],
)
def test_compute_buffer_covers_what_llama_server_measured(
    width: int, inner: int, heads: int, args: dict[str, Any], measured_mib: float
) -> None:
    """Buffers that llama.cpp b11434 and b10434 told on a CPU; the formula is within 16 % of each before its margin."""
    header = model(embedding_length=width, feed_forward_length=inner, attention__head_count=heads)
    told = compute_bytes(msgspec.structs.replace(header, vocabulary=286), Arguments(**args), metal=False) / MIB
    assert (told - 256) / 1.3 == pytest.approx(measured_mib, rel=0.16)
    assert told >= measured_mib


@pytest.mark.parametrize(("embedding", "measured_mib"), [(False, 8.01 + 0.92), (True, 121.69 + 0.92)])
def test_output_rows_of_a_large_vocabulary_are_one_a_slot_or_one_a_token(embedding: bool, measured_mib: float) -> None:
    """Compute and output buffers that llama-server b10434 told for 60,000 tokens of vocabulary."""
    header = model(embedding_length=256, feed_forward_length=512, attention__head_count=4)
    args = Arguments(context=4096, embedding=embedding)
    told = compute_bytes(msgspec.structs.replace(header, vocabulary=60000), args, metal=False) / MIB
    assert (told - 256) / 1.3 == pytest.approx(measured_mib, rel=0.16)


def test_metal_keeps_one_more_copy_of_a_layers_cache() -> None:
    args = Arguments(context=8192)
    more = compute_bytes(model(), args, metal=True) - compute_bytes(model(), args, metal=False)
    assert more == pytest.approx(1.3 * (8192 * 8 * 256 * 2 + 4 * 32 * 16 * 32 * 130), abs=2)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "A.gguf"
    write_tiny(path)
    return path


def spec(path: Path, *args: str, **fields: Any) -> ModelSpec:
    return ModelSpec("A", path=str(path), files=(str(path),), args=args, **fields)


def test_model_is_estimated_from_its_file(tiny: Path) -> None:
    found, why = estimate(spec(tiny, "-c", "4096"), Headers(), platform="linux")
    assert found is not None
    assert why == ""
    header = Headers().get(str(tiny))
    assert found.weights == header.tensor_bytes
    assert found.kv == kv.cache_bytes(header, Arguments(context=4096))
    assert found.total == found.weights + found.kv + found.compute
    assert not found.rough


def test_projector_draft_and_adapter_are_added(tiny: Path, tmp_path: Path) -> None:
    for name in ("mmproj-A.gguf", "draft.gguf", "lora.gguf"):
        write_tiny(tmp_path / name)
    files = (str(tiny), str(tmp_path / "mmproj-A.gguf"))
    plain, _ = estimate(spec(tiny, "-c", "512"), Headers())
    full = ModelSpec(
        "A",
        path=str(tiny),
        files=files,
        args=("-c", "512", "-md", str(tmp_path / "draft.gguf"), "--lora", str(tmp_path / "lora.gguf")),
    )
    found, _ = estimate(full, Headers())
    assert plain is not None
    assert found is not None
    assert (found.projector, found.weights, found.kv) == (plain.weights, 3 * plain.weights, 2 * plain.kv)
    without, _ = estimate(msgspec.structs.replace(full, args=("-c", "512", "--no-mmproj")), Headers())
    assert without is not None
    assert without.projector == 0


def test_part_on_the_gpu_is_the_last_layers(tiny: Path) -> None:
    header = Headers().get(str(tiny))
    whole, _ = estimate(spec(tiny, "-c", "512"), Headers(), platform="linux")
    assert whole is not None

    def on_gpu(*args: str) -> Any:
        return estimate(spec(tiny, "-c", "512", *args), Headers(), platform="linux", vram=True)[0]

    assert on_gpu().weights == header.tensor_bytes - header.embedding_bytes
    assert (on_gpu("-ngl", "2").weights, on_gpu("-ngl", "2").kv) == (header.layer_bytes[1], whole.kv // 2)
    assert (on_gpu("-ngl", "0").weights, on_gpu("-ngl", "0").kv) == (0, 0)
    assert on_gpu("-nkvo").kv == 0
    assert on_gpu("-ngl", "0").host == whole.weights + whole.kv


@pytest.mark.parametrize(
    ("unusable", "why"),
    [
        (ModelSpec("A", cmd="server --port ${PORT}"), "another server's command: nothing to read"),
        (ModelSpec("A", source_args=("-hf", "a/b")), "not downloaded yet: nothing to read"),
        (ModelSpec("A", path="/nowhere/x.gguf"), "x.gguf: No such file or directory"),
    ],
)
def test_what_cannot_be_read_has_no_estimate(unusable: ModelSpec, why: str) -> None:
    assert estimate(unusable, Headers()) == (None, why)


def test_architecture_without_a_formula_is_rough(write: Callable[[str], Path]) -> None:
    path = write("deepseek4")
    found, _ = estimate(spec(path), Headers())
    assert found is not None
    assert found.rough
    assert found.total == int(path.stat().st_size * 1.25)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def written(architecture: str) -> Path:
        raw = architecture.encode()
        value = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, len(raw)) + raw
        path = tmp_path / f"{architecture}.gguf"
        path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + value + b"\0" * 4096)
        return path

    return written


def test_header_is_read_again_only_when_the_file_changes(tiny: Path) -> None:
    headers = Headers()
    first = headers.get(str(tiny))
    assert headers.get(str(tiny)) is first
    os.utime(tiny, ns=(1, 1))
    assert headers.get(str(tiny)) is not first


def test_arguments_win_over_variables_and_the_last_one_wins() -> None:
    words = ("-c", "1", "--ctx-size", "8192", "-ctk", "Q8_0", "-np", "2", "-ngl", "all", "--swa-full", "-kvu")
    args = read_arguments(
        ModelSpec("A", args=words, env=(("LLAMA_ARG_CTX_SIZE", "1"), ("LLAMA_ARG_UBATCH", "256"))),
        {"LLAMA_ARG_UBATCH": "64", "LLAMA_ARG_NO_KV_OFFLOAD": "1", "LLAMA_ARG_N_PARALLEL": "9"},
    )
    assert args == Arguments(
        context=8192, cache_k="q8_0", parallel=2, swa_full=True, unified=True, ubatch=256, kv_offload=False
    )


def test_option_without_its_value_is_passed_over() -> None:
    assert read_arguments(ModelSpec("A", args=("-c",))) == Arguments()
    assert read_arguments(ModelSpec("A", args=("-ub", "x"))) == Arguments()
    assert read_arguments(ModelSpec("A", args=("-c", "-5", "-b", "0", "-np", "-1"))) == Arguments()


def test_largest_sets_that_fit_are_found() -> None:
    sizes = {"a": 30, "b": 20, "c": 10, "d": 90}
    assert fitting_sets(sizes, 50, 0) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert fitting_sets(sizes, 60, 0) == [("a", "b", "c")]
    assert fitting_sets(sizes, 60, 1) == [("a",), ("b",), ("c",)]
    assert fitting_sets(sizes, None, 0) == [("a", "b", "c", "d")]
    assert fitting_sets(sizes, 5, 0) == []


def test_of_many_models_one_set_is_made_around_each() -> None:
    sizes = {f"m{n}": n for n in range(1, 31)}
    sets = fitting_sets(sizes, 36, 4)
    assert all(sum(sizes[m] for m in chosen) <= 36 and len(chosen) <= 4 for chosen in sets)
    assert {m for chosen in sets for m in chosen} == set(sizes)
    assert sets[0] == ("m1", "m2", "m3", "m4")
