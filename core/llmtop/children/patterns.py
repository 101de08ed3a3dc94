"""The one table of lines that mean something is wrong, what they mean, and what to do about it.

Lines of llama.cpp (builds up to 11434), of its backends, of MLX servers and of the operating system. A pattern is tried on a line
without its prefix; the first that matches names the line.
"""

# ruff: noqa: E501 (a table: one row a line)

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["fatal", "sick", "recovers", "warning"]
"""``fatal``: the process is gone or will be. ``sick``: it lives and will only fail. ``recovers``: it helps itself. ``warning``: a hint."""

Acts = Literal["", "load", "always"]
"""Whether the line alone changes the child's state: never, while it loads, or always."""

SMALLER = "give it a smaller context (-c), batch (-ub) or quantization, or let fewer models stay (--models-max, --memory-budget)"
RESTART = "the GPU was reset under it; a fresh start mends it, and so may fewer programs on the GPU"
SHORTER = "a GPU command took too long: try a smaller -ub, and look whether the machine swaps"
DOWNLOAD = "download the file again, and check that it is a whole GGUF file"
UPDATE = "update llama.cpp"


@dataclass(frozen=True)
class Pattern:
    """One kind of line.

    Args:
        name: Its class.
        severity: See ``Severity``.
        kind: ``Failure.kind`` when this line is the cause; empty for one that is only a hint.
        rank: How much it tells about a cause [1], 100 names it and 0 says no more than that there was one.
        regex: Searched in the line without prefix.
        acts: See ``Acts``.
        info: It also counts when the child calls the line information.
        hint: What to do.
        needles: Plain text, one of which is in every matching line: looking for it first spares nearly all searches.
    """

    name: str
    severity: Severity
    kind: str
    rank: int
    regex: re.Pattern[str]
    acts: Acts = ""
    info: bool = False
    hint: str = ""
    needles: tuple[str, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "needles", needles(self.regex.pattern))

    @property
    def oom(self) -> bool:
        """The line says that memory ran out."""
        return self.kind == "oom" and self.severity in ("fatal", "sick")


def needles(regex: str) -> tuple[str, ...]:
    """The longest plain text of each alternative of a simple regular expression; empty when one has none of three letters."""
    found: list[str] = []
    best = run = ""
    depth = i = 0
    while i <= len(regex):
        char = regex[i : i + 1]
        plain = regex[i + 1 : i + 2] if char == "\\" else char
        escaped = char == "\\"
        literal = depth == 0 and char != "" and (not plain.isalnum() if escaped else char not in "()[]{}|?*+.^$")
        if literal:
            run += plain
        else:
            if char in ("?", "*", "{") and depth == 0:
                run = run[:-1]  # the letter before may be missing
            best, run = max(best, run, key=len), ""
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(char, 0)
            if char == "" or (char == "|" and depth == 0):
                found.append(best)
                best = ""
        i += 2 if escaped else 1
    return tuple(found) if all(len(text) >= 3 for text in found) else ()


def _row(
    name: str,
    severity: Severity,
    kind: str,
    rank: int,
    regex: str,
    hint: str = "",
    acts: Acts = "",
    *,
    info: bool = False,
) -> Pattern:
    return Pattern(name, severity, kind, rank, re.compile(regex), acts, info, hint)


_CALLBACK = r"kIO(?:GPU|Accel)CommandBufferCallbackError"

PATTERNS: tuple[Pattern, ...] = (
    # Helped itself, or only warned: before the rows that share words with these.
    _row("retry", "recovers", "", 0, r"retrying (?:without pipeline parallelism|with smaller batch size)"),
    _row("fit_warning", "warning", "", 0, r"failed to fit params to free device memory|error while trying to fit params"),
    _row("metal_warn", "warning", "", 5, r"current allocated size is greater than the recommended max working set size"),
    _row("vk_warn", "warning", "", 5, r"ailed to allocate (?:[\d.]+ MB of )?pinned memory"),
    _row("mlock", "warning", "", 0, r"failed to mlock \d+-byte buffer"),
    _row("prompt_cache", "warning", "", 5, r"failed to allocate memory for prompt cache state"),
    _row("output_alloc", "warning", "", 5, r"failed to allocate output buffer of size"),
    _row("request_limit", "recovers", "", 0, r"Context size has been exceeded|Invalid input batch"),
    _row("settle", "warning", "", 0, r"VRAM usage didn't recover within timeout"),
    # Metal: the command buffer failed. The process lives on and answers 500 from then on.
    _row("metal_oom", "sick", "oom", 100, rf"Insufficient Memory \((?:[0-9a-f]{{8}}:)?{_CALLBACK}OutOfMemory\)", SMALLER, "always"),
    _row("metal_oom", "sick", "oom", 99, rf"{_CALLBACK}OutOfMemory", SMALLER, "always"),
    _row("metal_victim", "sick", "sick", 90, rf"{_CALLBACK}InnocentVictim", RESTART, "always"),
    _row("metal_interactivity", "sick", "sick", 90, rf"{_CALLBACK}ImpactingInteractivity", SHORTER, "always"),
    _row("metal_timeout", "sick", "sick", 90, rf"{_CALLBACK}Timeout", SHORTER, "always"),
    _row("metal_hang", "sick", "sick", 90, rf"{_CALLBACK}Hang", RESTART, "always"),
    _row("metal_ignored", "sick", "sick", 90, rf"{_CALLBACK}SubmissionsIgnored", RESTART, "always"),
    _row("metal_page_fault", "sick", "sick", 90, rf"{_CALLBACK}PageFault", RESTART, "always"),
    _row("metal_background", "sick", "sick", 90, rf"{_CALLBACK}BackgroundExecutionNotPermitted", "", "always"),
    _row("metal_error", "sick", "sick", 85, rf"{_CALLBACK}\w+", RESTART, "always"),
    _row("metal_poisoned", "sick", "sick", 60, r"backend is in error state from a previous command buffer failure", RESTART, "always"),
    _row("metal_cb_failed", "sick", "sick", 55, r"command buffer \d+ failed with status \d+", RESTART, "always"),
    _row("metal_wait", "fatal", "crash", 60, r"^ggml_metal\w*: .*failed to wait for event", SHORTER),
    # Metal: an allocation failed.
    _row("metal_alloc", "fatal", "oom", 95, r"^ggml_metal\w*: (?:error: )?failed to allocate buffer, size", SMALLER, "load"),
    _row("metal_alloc", "fatal", "oom", 94, r"failed to allocate Metal buffer of \d+ bytes", SMALLER, "load"),
    _row("metal_alloc", "fatal", "oom", 93, r"^ggml_metal\w*: (?:error: )?(?:vm_allocate failed|failed to initialize residency set)", SMALLER),
    _row("metal_alloc", "fatal", "oom", 92, r"^ggml_metal\w*: buffer '.*' size \d+ is larger than buffer maximum", SMALLER),
    _row("metal_alloc", "fatal", "oom", 50, r"^ggml_metal\w*: (?:error: )?buffer is nil", SMALLER),
    _row("metal_setup", "fatal", "crash", 50, r"error: failed to create (?:command queue|library)", UPDATE),
    # CUDA, ROCm, MUSA.
    _row("rocm_oom", "fatal", "oom", 98, r"^(?:ROCm|HIP) error: out of memory", SMALLER, "always"),
    _row("cuda_oom", "fatal", "oom", 98, r"^(?:CUDA|MUSA) error: out of memory", SMALLER, "always"),
    _row("cuda_oom", "fatal", "oom", 97, r"(?:cuda|hip|musa)Malloc\w* failed: out of memory", SMALLER),
    _row("cuda_oom", "fatal", "oom", 96, r"RuntimeError: (?:CUDA|HIP) [Ee]rror: out of memory|OutOfMemoryError: CUDA out of memory", SMALLER),
    _row("cuda_error", "fatal", "crash", 80, r"^(?:CUDA|ROCm|HIP|MUSA) error: ", RESTART),
    _row("cuda_ctx", "fatal", "crash", 20, r"current device: \d+, in function \w+ (?:at )?\S+:\d+"),
    _row("gpu_dead", "fatal", "crash", 70, r"failed to initialize (?:CUDA|ROCm): ", "check the GPU driver (nvidia-smi, rocm-smi)"),
    _row("gpu_dead", "fatal", "crash", 70, r"NVRM: Xid \(|Unable to determine the device handle for GPU", "check the GPU driver; a reboot may be due"),
    _row("amd_svm", "fatal", "oom", 70, r"amdgpu: SVM mapping failed, exceeds resident system memory limit", SMALLER),
    _row("amd_pin", "fatal", "crash", 60, r"amdgpu: .*Failed to pin framebuffer with error -\d+", RESTART),
    # Vulkan (C++ streams, without prefix).
    _row("vk_oom", "fatal", "oom", 95, r"ErrorOutOf(?:Device|Host)Memory|VK_ERROR_OUT_OF_(?:DEVICE|HOST)_MEMORY", SMALLER),
    _row("vk_alloc", "fatal", "oom", 94, r"^ggml_vulkan: Device memory allocation of size \d+ failed", SMALLER),
    _row("vk_alloc", "fatal", "oom", 90, r"Requested buffer size exceeds device (?:buffer size|memory allocation) limit|No suitable memory type found", SMALLER),
    _row("vk_lost", "fatal", "crash", 85, r"vk::DeviceLostError|ggml_vulkan: device lost|ErrorDeviceLost", RESTART),
    # Any backend: buffers that could not be had.
    _row("kv_alloc", "fatal", "oom", 88, r"failed to allocate buffer for (?:kv|rs) cache", SMALLER),
    _row("kv_alloc", "fatal", "oom", 87, r"llama_kv_cache_init\(\) failed for self-attention cache", SMALLER),
    _row("cpu_alloc", "fatal", "oom", 92, r"^ggml_aligned_malloc: insufficient memory", SMALLER),
    _row("cpu_alloc", "fatal", "oom", 91, r"^ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size", SMALLER),
    _row("compute_alloc", "fatal", "oom", 86, r"^ggml_gallocr_reserve_n\w*: failed to allocate \S+ buffer of size", SMALLER),
    _row("compute_alloc", "fatal", "oom", 85, r"failed to allocate compute (?:pp )?buffers", SMALLER),
    _row("load_alloc", "fatal", "oom", 84, r"^(?:alloc_tensor_range|ggml_backend_\w+): failed to allocate \S+ buffer of size", SMALLER),
    _row("load_alloc", "fatal", "oom", 83, r"unable to allocate \S+ buffer", SMALLER),
    _row("admission", "fatal", "oom", 80, r"model requires more system memory \(.*\) than is available", SMALLER),
    _row("cpp_alloc", "fatal", "oom", 75, r"std::bad_alloc|mlx.*: \[malloc_or_wait\] Unable to allocate", SMALLER),
    # The operating system.
    _row("os_oom", "fatal", "killed", 95, r"killed by the OOM killer|Failed with result 'oom-kill'|oom-kill:constraint=|[Oo]ut of memory: Killed process", SMALLER),
    _row("jetsam", "fatal", "killed", 95, r"OS_REASON_JETSAM", SMALLER),
    _row("killed", "fatal", "killed", 50, r"process has terminated: signal: killed", SMALLER),
    _row("kernel_panic", "fatal", "crash", 90, r"completeMemory\(\) prepare count underflow"),
    # A load that memory has no part in.
    _row("arch", "fatal", "bad_file", 95, r"unknown model architecture: '", UPDATE),
    _row("bad_file", "fatal", "bad_file", 94, r"invalid magic (?:characters|number)", DOWNLOAD),
    _row("bad_file", "fatal", "bad_file", 94, r"data is not within the file bounds|model is corrupted or incomplete", DOWNLOAD),
    _row("bad_file", "fatal", "bad_file", 93, r"failed to open GGUF file '", "check the path and who may read it"),
    _row("bad_file", "fatal", "bad_file", 92, r"^gguf_init_from_\w+: failed to read|^read: string length \d+ exceeds remaining file size|wrong number of tensors", DOWNLOAD),
    _row("split", "fatal", "bad_file", 94, r"model must be loaded with the first split|illegal split file|missing split", "name the first shard, and keep all of them together"),
    _row("bad_argument", "fatal", "bad_argument", 95, r"^error: (?:invalid|unknown) argument: |^error while handling argument \"", "remove the option from the preset or from what follows --"),
    _row("config", "fatal", "bad_argument", 90, r"failed to initialize router models: |option not recognized in preset", "correct the preset"),
    _row("router_child", "fatal", "bad_argument", 96, r"starting server in router mode", "the child was given no model: name one (model, hf-repo) in its section", info=True),
    _row("wrong_bin", "fatal", "bad_argument", 90, r"subprocess is not enabled on this build", "use another llama-server (--llama-server PATH)"),
    _row("wrong_bin", "fatal", "bad_argument", 90, r"error while loading shared libraries: |dyld\[\d+\]: Library not loaded|[Ee]xec format error", "use another llama-server (--llama-server PATH)"),
    _row("net", "fatal", "bad_file", 80, r"HEAD failed, status: \d+|common_download_\w+: .*failed|failed to download", "check the repository's name, the network and HF_TOKEN"),
    _row("port", "fatal", "port", 96, r"couldn't bind HTTP server socket|[Aa]ddress already in use"),
    _row("wake", "fatal", "crash", 85, r"failed to reload model after sleeping", SMALLER),
    # Says that, not why.
    _row("assert", "fatal", "crash", 60, r"GGML_ASSERT\(.*\)|GGML_ABORT", UPDATE),
    _row("terminated", "fatal", "crash", 30, r"^(?:libc\+\+abi: terminating|terminate called after throwing)"),
    _row("decode_failed", "warning", "sick", 40, r"failed to decode, ret = -\d|failed to compute graph, compute status: -\d|graph_compute_async failed with error -\d"),
    _row("decode_failed", "warning", "sick", 39, r"\bCompute error\."),
    _row("ctx_failed", "fatal", "crash", 25, r"failed to initialize the context|failed to create_context with model|failed to create context with model"),
    _row("load_failed", "fatal", "bad_file", 20, r"error loading model: ", DOWNLOAD),
    _row("load_failed", "fatal", "crash", 15, r"llama_(?:model_load_from_file_impl|load_model_from_file): failed to load model"),
    _row("load_failed", "fatal", "crash", 10, r"(?:common_init_: |load_model: )failed to load model"),
    _row("exit", "fatal", "crash", 5, r"exiting due to (?:model loading|HTTP server) error"),
)  # fmt: skip
"""In order of trial: what recovers or only warns first, then from telling to vague."""

TRIGGERS = (
    "error",
    "fail",
    "memory",
    "cannot",
    "couldn't",
    "unable",
    "invalid",
    "unknown",
    "assert",
    "abort",
    "bounds",
    "terminat",
    "larger than",
    "is nil",
    "kill",
    "jetsam",
    "underflow",
    "split",
    "router mode",
    "not enabled",
    "not loaded",
    "not recognized",
    "already in use",
    "in function",
    "bad_alloc",
    "device handle",
    "exceed",
    "lost",
    "xid",
    "retrying",
    "recover",
    "greater than",
    "wrong number",
)
"""Lower-case words, one of which is in every line that a pattern matches: most lines are let go without trying a pattern."""
