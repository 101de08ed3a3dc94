"""Size of the KV cache and of recurrent state, by the formulas of llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping

from llmtop.memory.arguments import Arguments
from llmtop.memory.gguf import Header

ELEMENT: Mapping[str, float] = {
    "f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32, "q5_1": 24 / 32, "q5_0": 22 / 32,
    "q4_1": 20 / 32, "q4_0": 18 / 32, "iq4_nl": 18 / 32,
}  # fmt: skip
"""Bytes of an element of a cache of this type, its block's scale included."""
PATTERNS: Mapping[str, int] = {
    "gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma-embedding": 6, "gpt-oss": 2, "cohere2": 4, "llama4": 4,
    "olmo2": 4, "exaone4": 4, "exaone-moe": 4, "afmoe": 4, "mellum": 4, "smallthinker": 4, "plamo3": 8,
}  # fmt: skip
"""Every so many blocks one attends to everything, where the file does not say. Source: llama.cpp src/models."""
WINDOWS: Mapping[str, int] = {"gemma2": 4096, "llama4": 8192}
"""Sliding window where the file does not say [tokens]."""
DENSE_FIRST = ("smallthinker",)
NO_WINDOW = ("phi3",)
INTERVALS: Mapping[str, int] = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 4}
"""Every so many blocks one is full attention, the others are recurrent, where the file does not say."""
RECURRENT = ("mamba", "mamba2", "rwkv6", "rwkv7", "rwkv6qwen2", "arwkv7", "rwkv")
NO_FORMULA = ("deepseek32", "glm_dsa", "glm-dsa", "minimax_m3", "minimax-m3", "deepseek4")
"""Architectures with caches of a kind of their own: only a rough figure is possible."""
OWN_LAYERS: Mapping[str, int] = {"gemma3n": 20}
"""Blocks that own a cache, where the others share it."""
PAD = 256


def padded(cells: int) -> int:
    """Cells come in multiples of 256. Source: llama.cpp src/llama-context.cpp."""
    return -(-cells // PAD) * PAD


def context(header: Header, args: Arguments) -> int:
    """Cells of the whole cache [tokens]: as asked for, else what the model was trained for."""
    return padded(args.context or header.context_length or 4096)


def streams(args: Arguments) -> int:
    """Separate caches [1]: one for all slots, or one each."""
    return 1 if args.one_cache else args.slots


def cells_per_stream(header: Header, args: Arguments) -> int:
    """Cells of one cache [tokens]."""
    count = streams(args)
    whole = context(header, args)
    return whole if count == 1 else padded(whole // count)


def cache_bytes(header: Header, args: Arguments) -> int:
    """Keys and values of all blocks.

    Source: llama.cpp src/llama-kv-cache.cpp (rows), llama-kv-cache-iswa.cpp (window), llama-hparams.cpp (which).
    """
    layers = owning_layers(header)
    if not layers or header.architecture in RECURRENT:
        return 0
    count, cells = streams(args), cells_per_stream(header, args)
    window = windowed(header)
    span = header.whole("attention.sliding_window", WINDOWS.get(header.architecture, 0))
    short = padded(min(cells, span * (args.slots if count == 1 else 1) + args.ubatch))
    recurrent = recurrent_layers(header)
    rows = _row_bytes(header, args, window)
    total = 0.0
    for layer in range(layers):
        if layer not in recurrent:
            held = short if layer in window and not args.swa_full else cells
            total += held * count * rows[layer]
    return int(total)


def _row_bytes(header: Header, args: Arguments, window: frozenset[int]) -> list[float]:
    """Bytes of one cell of each block."""
    width = header.whole("embedding_length")
    heads = max(1, header.whole("attention.head_count", 1))
    kv_heads = header.by_layer("attention.head_count_kv", heads)
    key_k, key_v = ELEMENT.get(args.cache_k, 2.0), ELEMENT.get(args.cache_v, 2.0)
    if header.has("attention.key_length_mla"):  # MLA keeps one compressed row and no values
        return [header.whole("attention.key_length") * key_k] * header.layers

    def dims(which: str, layer: int) -> int:
        plain = header.whole(f"attention.{which}_length", width // heads)
        return header.whole(f"attention.{which}_length_swa", plain) if layer in window else plain

    values = [kv_heads[layer] * dims("value", layer) for layer in range(header.layers)]
    if args.flash == "off":  # transposed values have one width for all
        values = [max(values, default=0)] * header.layers
    return [kv_heads[layer] * dims("key", layer) * key_k + values[layer] * key_v for layer in range(header.layers)]


def owning_layers(header: Header) -> int:
    """Blocks with a cache of their own: not the last ones that share, nor those that only predict ahead."""
    shared = header.whole("attention.shared_kv_layers")
    ahead = header.whole("nextn_predict_layers")
    layers = max(0, header.layers - shared - ahead)
    return min(layers, OWN_LAYERS.get(header.architecture, layers))


def windowed(header: Header) -> frozenset[int]:
    """Blocks that attend to a sliding window only."""
    architecture = header.architecture
    if architecture in NO_WINDOW or not (header.whole("attention.sliding_window") or architecture in WINDOWS):
        return frozenset()
    pattern = header.meta.get(f"{architecture}.attention.sliding_window_pattern", PATTERNS.get(architecture))
    if isinstance(pattern, tuple):
        return frozenset(layer for layer, flag in enumerate(pattern) if flag)
    if not isinstance(pattern, int):
        return frozenset()
    if pattern == 0:
        return frozenset(range(header.layers))
    if architecture in DENSE_FIRST:
        return frozenset(layer for layer in range(header.layers) if layer % pattern)
    return frozenset(layer for layer in range(header.layers) if layer % pattern < pattern - 1)


def recurrent_layers(header: Header) -> frozenset[int]:
    """Blocks with state instead of a cache: listed, by interval, or those without KV heads."""
    architecture = header.architecture
    if architecture in RECURRENT:
        return frozenset(range(header.layers))
    listed = header.meta.get(f"{architecture}.attention.recurrent_layers")
    if isinstance(listed, tuple):
        return frozenset(layer for layer, flag in enumerate(listed) if flag)
    interval = header.whole("full_attention_interval", INTERVALS.get(architecture, 0))
    if interval:
        return frozenset(layer for layer in range(header.layers) if (layer + 1) % interval)
    heads = header.by_layer("attention.head_count_kv", 1)
    return frozenset(layer for layer, count in enumerate(heads) if count == 0)


def state_bytes(header: Header, args: Arguments) -> int:
    """Recurrent state in f32, one for each slot. Source: llama.cpp src/llama-hparams.cpp, n_embd_r and n_embd_s."""
    layers = len([layer for layer in recurrent_layers(header) if layer < header.layers])
    return layers * _state_elements(header) * 4 * max(1, args.slots)


def _state_elements(header: Header) -> int:
    """Elements of one block's state: the convolution's rolling part and the state proper."""
    width = header.whole("embedding_length")
    heads = header.whole("attention.head_count", 1)
    if header.has("wkv.head_size"):
        return header.whole("token_shift_count", 2) * width + width * header.whole("wkv.head_size")
    if header.has("shortconv.l_cache"):
        return width * max(0, header.whole("shortconv.l_cache") - 1)
    if header.has("kda.head_dim"):
        inner = header.whole("kda.head_dim")
        return 3 * max(0, header.whole("ssm.conv_kernel", 4) - 1) * heads * inner + inner * inner * heads
    if header.architecture == "minimax-01":
        return header.whole("attention.key_length") ** 2 * heads
    inner, state = header.whole("ssm.inner_size"), header.whole("ssm.state_size")
    rolling = max(0, header.whole("ssm.conv_kernel") - 1) * (inner + 2 * header.whole("ssm.group_count") * state)
    return rolling + state * inner
