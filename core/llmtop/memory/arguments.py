"""The child's arguments that change how much memory it takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from llmtop.config.spec import ModelSpec

VALUES: Mapping[str, tuple[str, ...]] = {
    "context": ("-c", "--ctx-size", "LLAMA_ARG_CTX_SIZE"),
    "parallel": ("-np", "--parallel", "LLAMA_ARG_N_PARALLEL"),
    "batch": ("-b", "--batch-size", "LLAMA_ARG_BATCH"),
    "ubatch": ("-ub", "--ubatch-size", "LLAMA_ARG_UBATCH"),
    "cache_k": ("-ctk", "--cache-type-k", "LLAMA_ARG_CACHE_TYPE_K"),
    "cache_v": ("-ctv", "--cache-type-v", "LLAMA_ARG_CACHE_TYPE_V"),
    "gpu_layers": ("-ngl", "--gpu-layers", "--n-gpu-layers", "LLAMA_ARG_N_GPU_LAYERS"),
    "flash": ("-fa", "--flash-attn", "LLAMA_ARG_FLASH_ATTN"),
    "mmproj": ("-mm", "--mmproj", "LLAMA_ARG_MMPROJ"),
    "draft": ("-md", "--model-draft", "--spec-draft-model", "LLAMA_ARG_MODEL_DRAFT"),
    "lora": ("--lora",),
    "cpu_experts": ("-ncmoe", "--n-cpu-moe", "LLAMA_ARG_N_CPU_MOE"),
    "override": ("-ot", "--override-tensor"),
    "load_mode": ("-lm", "--load-mode", "LLAMA_ARG_LOAD_MODE"),
}
"""Field by option and environment name; each takes one value, the last one wins. Source: llama.cpp common/arg.cpp."""
SWITCHES: Mapping[str, tuple[str, str, bool]] = {
    "--swa-full": ("swa_full", "LLAMA_ARG_SWA_FULL", True),
    "-kvu": ("unified", "LLAMA_ARG_KV_UNIFIED", True),
    "--kv-unified": ("unified", "LLAMA_ARG_KV_UNIFIED", True),
    "-no-kvu": ("unified", "", False),
    "--no-kv-unified": ("unified", "", False),
    "-nkvo": ("kv_offload", "", False),
    "--no-kv-offload": ("kv_offload", "LLAMA_ARG_NO_KV_OFFLOAD", False),
    "--no-mmproj": ("projector", "LLAMA_ARG_NO_MMPROJ", False),
    "-cmoe": ("experts_on_cpu", "LLAMA_ARG_CPU_MOE", True),
    "--cpu-moe": ("experts_on_cpu", "LLAMA_ARG_CPU_MOE", True),
    "--embedding": ("embedding", "LLAMA_ARG_EMBEDDINGS", True),
    "--embeddings": ("embedding", "LLAMA_ARG_EMBEDDINGS", True),
    "--rerank": ("embedding", "LLAMA_ARG_RERANKING", True),
    "--reranking": ("embedding", "LLAMA_ARG_RERANKING", True),
}
"""Option: field, environment name, and what it sets."""
FIELD_OF = {name: field for field, names in VALUES.items() for name in names}


class Arguments(msgspec.Struct, frozen=True):
    """What the child will be told; None where it is not said.

    Args:
        context: Cells of the KV cache over all slots [tokens]; 0 takes the model's own.
        parallel: Slots [1]; None and -1 leave it to the server, which takes four that share one cache.
        batch: Tokens of a batch [1].
        ubatch: Tokens of one pass [1].
        cache_k: Type of the keys.
        cache_v: Type of the values.
        gpu_layers: Blocks on the GPU [1]; None is all.
        flash: ``on``, ``off`` or ``auto``.
        mmproj: Projector's file.
        draft: Draft model's file.
        lora: Adapters' file.
        cpu_experts: Blocks whose experts stay on the processor [1].
        override: Tensor placement by hand.
        load_mode: ``mmap`` and the like.
        swa_full: Keep the whole context in sliding-window blocks too.
        unified: One cache for all slots; None leaves it to the server.
        kv_offload: The cache is on the GPU.
        projector: A projector beside the model is used.
        experts_on_cpu: All experts stay on the processor.
        embedding: An embedding or reranking server.
    """

    context: int = 0
    parallel: int | None = None
    batch: int = 2048
    ubatch: int = 512
    cache_k: str = "f16"
    cache_v: str = "f16"
    gpu_layers: int | None = None
    flash: str = "auto"
    mmproj: str = ""
    draft: str = ""
    lora: str = ""
    cpu_experts: int = 0
    override: str = ""
    load_mode: str = ""
    swa_full: bool = False
    unified: bool | None = None
    kv_offload: bool = True
    projector: bool = True
    experts_on_cpu: bool = False
    embedding: bool = False

    @property
    def slots(self) -> int:
        """Sequences at once [1]."""
        return self.parallel if self.parallel is not None and self.parallel > 0 else 4

    @property
    def one_cache(self) -> bool:
        """All slots share one cache: asked for, or the number of slots is left to the server."""
        return self.unified if self.unified is not None else self.parallel is None or self.parallel < 1


def read_arguments(spec: ModelSpec, env: Mapping[str, str] | None = None) -> Arguments:
    """What counts of a model's arguments and of its child's environment; options win over variables.

    Args:
        spec: The model.
        env: Environment that the child inherits; the model's own is added to it.
    """
    found: dict[str, str | bool] = dict(_from_environment({**(env or {}), **dict(spec.env)}))
    found.update(_from_options((*spec.args, *spec.source_args)))
    known = {field: value for field, raw in found.items() if (value := _typed(field, raw)) is not None}
    return msgspec.structs.replace(Arguments(), **known)


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, str | bool]]:
    for name, field in FIELD_OF.items():
        if name.startswith("LLAMA_ARG_") and env.get(name):
            yield field, env[name]
    for field, name, setting in SWITCHES.values():
        if name and env.get(name, "").lower() in ("1", "true", "on", "enabled"):
            yield field, setting


def _from_options(args: Sequence[str]) -> Iterator[tuple[str, str | bool]]:
    at = 0
    while at < len(args):
        option = args[at]
        at += 1
        if option in FIELD_OF and at < len(args):
            yield FIELD_OF[option], args[at]
            at += 1
        elif option in SWITCHES:
            field, _, setting = SWITCHES[option]
            yield field, setting


def _typed(field: str, raw: str | bool) -> int | str | bool | None:
    """The value as its field wants it; None for what the child will not understand either, or means the default by."""
    if isinstance(raw, bool):
        return raw
    if field not in ("context", "parallel", "batch", "ubatch", "gpu_layers", "cpu_experts"):
        return raw.lower() if field in ("cache_k", "cache_v", "flash") else raw
    try:
        number = int(raw)
    except ValueError:
        return None  # -ngl all and auto: as many as there are
    if field in ("batch", "ubatch"):
        return number if number > 0 else None
    return number if number >= 0 else None
