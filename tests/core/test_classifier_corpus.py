"""Lines that people and source code have shown, and what the classifier must make of each of them.

Facts, as reported: the third field of a positive says where the line is from.
"""

# ruff: noqa: E501, T201 (data: one line each; the counts are printed)

from __future__ import annotations

from collections import Counter

import pytest

from llmtop.children.classify import Classifier, any_worth_a_look, classify
from llmtop.children.text import LineSplitter, safe_text

OOM = "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"

POSITIVE: list[tuple[str, str, str]] = [
    # Metal
    ("metal_oom", f"error: {OOM}", "llama.cpp 27309"),
    ("metal_cb_failed", "0.26.672.359 E ggml_metal_synchronize: error: command buffer 0 failed with status 5", "llama.cpp 27309"),
    ("metal_cb_failed", "ggml_metal_graph_compute: command buffer 3 failed with status 5", "ollama 6257"),
    ("metal_poisoned", "ggml_metal_graph_compute: backend is in error state from a previous command buffer failure - recreate the backend to recover", "ggml"),
    ("decode_failed", "llama_decode: failed to decode, ret = -3", "llama.cpp 27309"),
    ("metal_oom", f"[METAL] Command buffer execution failed: {OOM}", "mlx-serve 44"),
    ("metal_oom", "[METAL] Command buffer execution failed: Insufficient Memory (kIOGPUCommandBufferCallbackErrorOutOfMemory)", "mlx-serve 40"),
    ("metal_oom", f"ggml_metal: error: {OOM}", "public test fixture"),
    ("metal_alloc", "ggml_metal_buffer_init: error: failed to allocate buffer, size = 10922.67 MiB", "public notes"),
    ("load_alloc", "llama_model_load: error loading model: unable to allocate Metal buffer", "public notes"),
    ("metal_alloc", "ggml_metal_add_buffer: buffer 'data' size 18300780544 is larger than buffer maximum of 17179869184", "llama.cpp 1815"),
    ("metal_alloc", "ggml_metal_get_buffer: error: buffer is nil", "h2ogpt 1311"),
    ("metal_alloc", "ggml_backend_metal_buffer_type_alloc_buffer: failed to allocate Metal buffer of 123 bytes (out of memory)", "ggml"),
    ("metal_warn", "ggml_backend_metal_log_allocated_size: warning: current allocated size is greater than the recommended max working set size", "llama.cpp 5206"),
    ("metal_interactivity", "[METAL] Command buffer execution failed: Impacting Interactivity (0000000e:kIOGPUCommandBufferCallbackErrorImpactingInteractivity)", "omlx 1387"),
    ("metal_ignored", "error: Ignored (for causing prior/excessive GPU errors) (00000004:kIOAccelCommandBufferCallbackErrorSubmissionsIgnored)", "llama.cpp 8886"),
    ("metal_victim", "error: Discarded (victim of GPU error/recovery) (00000005:kIOGPUCommandBufferCallbackErrorInnocentVictim)", "Metal"),
    ("metal_timeout", "error: Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)", "Metal"),
    ("metal_hang", "error: Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)", "Metal"),
    ("metal_page_fault", "error: Caused GPU Address Fault Error (0000000b:kIOGPUCommandBufferCallbackErrorPageFault)", "Metal"),
    ("metal_background", "error: not permitted (00000006:kIOGPUCommandBufferCallbackErrorBackgroundExecutionNotPermitted)", "ggml 1545"),
    ("metal_oom", f"Execution of the command buffer was aborted due to an error during execution. {OOM}", "mlx-serve 321"),
    ("jetsam", "last exit reason = OS_REASON_JETSAM", "omlx 2184"),
    ("kernel_panic", 'panic(cpu 8 caller 0xfffffe004ff9b4ac): "completeMemory() prepare count underflow" @IOGPUMemory.cpp:550', "omlx 1265"),
    # CUDA and ROCm
    ("cuda_oom", "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 35533.34 MiB on device 0: cudaMalloc failed: out of memory", "ollama 8447"),
    ("load_alloc", "alloc_tensor_range: failed to allocate CUDA0 buffer of size 151851674624", "llama.cpp 20431"),
    ("load_alloc", "llama_model_load: error loading model: unable to allocate CUDA0 buffer", "llama.cpp 20431"),
    ("load_failed", "llama_model_load_from_file_impl: failed to load model", "ollama 12634"),
    ("load_failed", "llama_load_model_from_file: failed to load model", "ollama 8447"),
    ("cuda_oom", "[34605] 440.59.380.352 E CUDA error: out of memory", "llama.cpp 24372"),
    ("cuda_ctx", "current device: 0, in function alloc build/arch/ollama-rocm-git.git/src/ollama/ml/backend/ggml/ggml/src/ggml-cuda/ggml-cuda.cu:420", "ollama 11713"),
    ("rocm_oom", "ROCm error: out of memory", "ollama 11713"),
    ("compute_alloc", "ggml_gallocr_reserve_n: failed to allocate ROCm0 buffer of size 866125824", "llama.cpp 9352"),
    ("compute_alloc", "llama_new_context_with_model: failed to allocate compute buffers", "llama.cpp 9352"),
    ("ctx_failed", "llama_init_from_model: failed to initialize the context", "public test fixture"),
    ("kv_alloc", "llama_kv_cache_init: failed to allocate buffer for kv cache", "llama.cpp 8101"),
    ("kv_alloc", "llama_init_from_model: llama_kv_cache_init() failed for self-attention cache", "xorbits 2926"),
    ("exit", " ERR [                    main] exiting due to model loading error | tid=\"1\"", "llama.cpp 9352"),
    ("cuda_oom", "RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:163", "vllm 47654"),
    ("gpu_dead", "ggml_cuda_init: failed to initialize CUDA: unknown error", "public test"),
    ("gpu_dead", "NVRM: Xid (PCI:0000:43:00): 154, GPU recovery action changed", "public test"),
    ("gpu_dead", "Unable to determine the device handle for GPU1: 0000:44:00.0: Unknown Error", "public test"),
    ("assert", "/build/ggml-cuda.cu:77: GGML_ASSERT(max_blocks_per_sm > 0) failed", "llama.cpp 24632"),
    ("amd_svm", "amdgpu: SVM mapping failed, exceeds resident system memory limit", "turboquant 350"),
    # Vulkan
    ("vk_alloc", "ggml_vulkan: Device memory allocation of size 369827840 failed.", "llama.cpp 29270"),
    ("vk_oom", "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory", "llama.cpp 29270"),
    ("vk_warn", "ggml_vulkan: Failed to allocate pinned memory.", "llama.cpp 9271"),
    ("vk_lost", "terminate called after throwing an instance of 'vk::DeviceLostError'", "llama.cpp 13248"),
    # CPU and system
    ("cpu_alloc", "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504", "llama.cpp 8101"),
    ("load_alloc", "alloc_tensor_range: failed to allocate CPU buffer of size 437944320", "ollama 12634"),
    ("load_alloc", "llama_model_load: error loading model: unable to allocate CPU buffer", "ollama 12634"),
    ("os_oom", "A process of this unit has been killed by the OOM killer.", "llama.cpp 20509"),
    ("os_oom", "Failed with result 'oom-kill'.", "llama.cpp 20509"),
    ("os_oom", "oom-kill:constraint=CONSTRAINT_NONE", "public test"),
    ("os_oom", "kernel: Out of memory: Killed process 1234", "public test"),
    ("admission", "model requires more system memory (10.2 GiB) than is available (2.9 GiB)", "ollama 11497"),
    ("killed", "llama runner process has terminated: signal: killed", "ollama 8571"),
    ("settle", 'level=WARN source=sched.go:646 msg="gpu VRAM usage didn\'t recover within timeout"', "ollama 9160"),
    # Not memory
    ("arch", "llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma4'", "ollama 15546"),
    ("bad_file", "gguf_init_from_file_impl: invalid magic characters: 'vers', expected 'GGUF'", "ollama 5245"),
    ("bad_file", "gguf_init_from_file: invalid magic number 67676a74", "llama-gpt 119"),
    ("bad_file", "llama_model_load: error loading model: tensor 'blk.3.attn_qkv.weight' data is not within the file bounds, model is corrupted or incomplete", "moly-local 13"),
    ("split", "llama_model_load: error loading model: model must be loaded with the first split", "unsloth 7273"),
    ("config", "main: failed to initialize router models: alias 'A' for model 'B' conflicts with alias of model 'C'", "llama.cpp 20320"),
    ("config", "srv  load: option not recognized in preset", "llama.cpp 25333"),
    ("net", "common_download_file_single_online: HEAD failed, status: 404", "llama.cpp 21677"),
    ("wrong_bin", "subprocess is not enabled on this build", "llama.cpp"),
    ("router_child", "srv  llama_server: starting server in router mode", "am17an 40"),
    ("port", "0.00.006.646 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18124", "build 10434"),
    ("bad_argument", "error: invalid argument: --nonsense", "build 10434"),
    ("bad_file", "0.00.010.270 E read: string length 29 exceeds remaining file size 0 bytes", "build 10434"),
    ("bad_file", "gguf_init_from_file: failed to open GGUF file 'missing.gguf' (No such file or directory)", "build 10434"),
]  # fmt: skip

NEGATIVE: list[str] = [
    "srv  ensure_model: evicting idle LRU name=qwen3.8-27b to make room for name=qwen3.8-27b-uncensored",
    "no room left in the cache",
    "making room",
    "bedroom",
    "0.00.287.233 I common_fit_params: successfully fit params to free device memory",
    "srv    load_model: prompt cache is enabled, size limit: 8192 MiB",
    "W srv    load_model: cache_reuse is not supported by this context, it will be disabled",
    "ggml_metal_rsets_init: creating a residency set collection (keep_alive = 180 s)",
    "ggml_metal_device_init: recommendedMaxWorkingSetSize  = 26800.60 MB",
    "instance name=step37 exited with status 1",
    "srv    operator(): force-killing model instance name=step37 after 10 seconds timeout",
    "srv  cancel_tasks: cancel task, id_task = 0",
    "request: GET /health 127.0.0.1 503",
    "srv  log_server_r: done request: POST /v1/completions 127.0.0.1 500",
]

HINTS_ONLY: list[str] = [
    "W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort",
    "common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort",
    "0.00.009.936 E common_fit_params: encountered an error while trying to fit params to free device memory: failed to load model",
    "compute buffer allocation failed, retrying without pipeline parallelism",
    "failed to find free space in the KV cache, retrying with smaller batch size, off = 0",
]

PREFIXED = ("", "0.12.345.678 E ", "[39015] 0.12.345.678 E ", "W ", "[39015] ")


def _bare(line: str) -> str:
    return line.partition(" E ")[2] if " E " in line else line


@pytest.mark.parametrize(("name", "line", "source"), POSITIVE, ids=[f"{name}-{source}" for name, _, source in POSITIVE])
def test_each_reported_line_has_its_class(name: str, line: str, source: str) -> None:
    verdict = classify(line)
    assert verdict is not None, f"{source}: nothing seen"
    assert verdict.pattern.name == name


@pytest.mark.parametrize(("name", "line", "source"), POSITIVE, ids=[f"{name}-{source}" for name, _, source in POSITIVE])
def test_prefix_colour_and_split_change_nothing(name: str, line: str, source: str) -> None:
    bare = _bare(line)
    for prefix in PREFIXED:
        for colours in ("{}", "\x1b[31m{}\x1b[0m", "\x1b[1;31m{}\x1b[0m\r"):
            raw = colours.format(prefix + bare).encode() + b"\n"
            for cut in (0, len(raw) // 3, len(raw) - 1):
                splitter = LineSplitter()
                lines = [*splitter.feed(raw[:cut]), *splitter.feed(raw[cut:])]
                assert len(lines) == 1
                verdict = Classifier().feed(safe_text(lines[0].decode()))
                assert verdict is not None, (source, prefix)
                assert verdict.pattern.name == name, (source, prefix)


@pytest.mark.parametrize("line", NEGATIVE)
def test_a_line_that_only_looks_like_one_means_nothing(line: str) -> None:
    for prefix in ("", "[39015] ", "0.12.345.678 I ", "\x1b[33m"):
        assert classify(prefix + line) is None


@pytest.mark.parametrize("line", HINTS_ONLY)
def test_a_hint_never_acts_and_is_never_a_cause(line: str) -> None:
    verdict = classify(line)
    assert verdict is None or (
        verdict.pattern.severity in ("warning", "recovers") and not verdict.pattern.acts and not verdict.pattern.oom
    )


@pytest.mark.parametrize(("name", "line", "source"), POSITIVE, ids=[f"{name}-{source}" for name, _, source in POSITIVE])
def test_a_line_quoted_in_a_prompt_means_nothing(name: str, line: str, source: str) -> None:
    del name, source
    quoted = _bare(line).replace('"', '\\"')
    echoes = [
        f'D srv  log_server_r: request: {{"prompt": "why does it say {quoted}?"}}',
        f'srv  log_server_r: request: {{"messages":[{{"role":"user","content":"{quoted}"}}]}}',
        f'{{"prompt": "{quoted}"}}',
        f"0.00.287.233 D slot launch_slot: id  0 | prompt: '{quoted}'",
        f"0.00.287.233 T {quoted}",
        f'srv  params_from_: Chat format: peg, prompt: "{quoted}"',
        f'srv    operator(): http: response: {{"error":{{"code":500,"message":"{quoted}"}}}}',
    ]
    assert [echo for echo in echoes if classify(echo) is not None] == []


def test_lines_of_a_prompt_with_line_breaks_mean_nothing() -> None:
    reader = Classifier()
    assert reader.feed('0.00.287.233 D slot launch: prompt: "look at this log:') is None
    assert reader.feed(f"error: {OOM}") is None
    assert reader.feed("CUDA error: out of memory") is None
    assert reader.feed("0.00.287.300 I slot launch: processing") is None
    verdict = reader.feed(f"error: {OOM}")
    assert verdict is not None
    assert verdict.pattern.name == "metal_oom"


def test_information_is_no_failure_but_for_a_child_that_thinks_it_is_a_router() -> None:
    flagged = [line for _, line, _ in POSITIVE if classify("0.00.000.001 I " + _bare(line)) is not None]
    assert flagged == ["srv  llama_server: starting server in router mode"]


def test_counts_of_the_corpus() -> None:
    right = Counter(name for name, line, _ in POSITIVE if (v := classify(line)) is not None and v.pattern.name == name)
    false = [line for line in NEGATIVE if classify(line) is not None]
    print(
        f"\npositives {sum(right.values())} of {len(POSITIVE)} in {len(right)} classes: {dict(sorted(right.items()))}"
    )
    print(f"negatives {len(NEGATIVE)}, flagged {len(false)}; hints only {len(HINTS_ONLY)}")
    assert sum(right.values()) == len(POSITIVE)
    assert not false


@pytest.mark.parametrize("line", [line for _, line, _ in POSITIVE])
def test_a_line_that_matters_is_seen_among_many(line: str) -> None:
    info = ["0.00.839.706 I srv        update:    - prompt 0x56: 154 tokens, checkpoints: 0, 0.039 MiB"] * 20
    assert not any_worth_a_look("\n".join(info))
    for lines in ([*info, line, *info], [line, *info], [*info, line]):
        assert any_worth_a_look("\n".join(lines))
