"""What the scenes are made of: models in all states, a queue, swaps, events, a log."""

from __future__ import annotations

from llmtop.snapshot import (
    EventLine,
    Failure,
    LogLine,
    Memory,
    Model,
    Oom,
    OomLine,
    Phases,
    Progress,
    QueueEntry,
    Request,
    Snapshot,
    Stop,
    Swap,
    Swaps,
)

AT = 1_790_000_000.0
"""The moment of all scenes [s since the epoch]."""
URL = "http://127.0.0.1:8080"


def gib(size: float) -> int:
    """GiB in bytes."""
    return int(size * (1 << 30))


ARGS = (
    "llama-server",
    "--model",
    "/models/qwen3-14b-instruct-q5_k_m.gguf",
    "--ctx-size",
    "32768",
    "--parallel",
    "2",
    "--host",
    "127.0.0.1",
)
QWEN = Model(
    "qwen3-14b-instruct-q5_k_m",
    "loaded",
    7,
    48812,
    9101,
    pinned=True,
    pinned_by="operator",
    in_flight=1,
    idle_s=0.0,
    slots=2,
    reserved_bytes=gib(11.1),
    footprint_bytes=gib(10.9),
    estimate_bytes=gib(11.4),
    args=ARGS,
    loads=4,
)
GEMMA = Model(
    "gemma3-4b-it-q8_0",
    "loading",
    9,
    49102,
    9102,
    waiting=3,
    reserved_bytes=gib(5.1),
    footprint_bytes=gib(3.1),
    slots=2,
    estimate_bytes=gib(5.0),
    progress=Progress("text_model", 0.61, 8.2, 13.4),
    reason="loading 61 %",
    loads=9,
)
NOMIC = Model(
    "nomic-embed-text-v2-f16",
    "sleeping",
    5,
    48900,
    9103,
    reserved_bytes=gib(0.6),
    footprint_bytes=gib(0.6),
    slots=4,
    idle_s=184.0,
    estimate_bytes=gib(0.6),
    reason="",
    loads=1,
)
LLAMA = Model(
    "llama-3.1-8b-instruct-q4_k_m",
    "loaded",
    8,
    48955,
    9104,
    draining=True,
    in_flight=1,
    reserved_bytes=gib(4.6),
    slots=1,
    idle_s=0.0,
    footprint_bytes=gib(4.4),
    estimate_bytes=gib(4.6),
    reason="draining for phi-4-mini-instruct-q8_0: 1 request",
    loads=2,
)
PHI = Model(
    "phi-4-mini-instruct-q8_0",
    waiting=1,
    estimate_bytes=gib(4.0),
    reason="needs 4.0 GiB, 2.1 free: draining llama-3.1-8b-instruct-q4_k_m (1 request)",
    idle_s=2460.0,
)
MISTRAL = Model(
    "mistral-small-24b-q4_k_m",
    estimate_bytes=gib(14.8),
    quarantined_s=44.2,
    loads=3,
    failure=Failure(
        "oom",
        "out of memory on Metal while allocating the KV cache",
        exit_code=1,
        at=AT - 204,
        lines=(
            "llama_kv_cache: size = 5120.00 MiB (32768 cells, 40 layers, 1/1 seqs)",
            "ggml_metal_synchronize: error: command buffer 0 failed with status 5",
            "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
        ),
        hint="a smaller context (-c 16384) or fewer layers on the GPU",
    ),
)

MEMORY = Memory(
    total=gib(32),
    wired=gib(21.4),
    available=gib(8.1),
    limit=gib(24),
    budget=gib(23.5),
    reserved=gib(21.4),
    label="WIRED",
    used=gib(21.4),
    ours=gib(19.0),
    others=gib(2.4),
    pressure="normal",
    sources={"limit": "iogpu.wired_limit_mb", "wired": "host_statistics64"},
)
SWAPS = (
    Swap(76, "llama-3.1-8b-instruct-q4_k_m", "bytes", AT - 498, (), "ok", Phases(0.2, None, None, None, 0.1, 6.2)),
    Swap(
        77,
        "mistral-small-24b-q4_k_m",
        "bytes",
        AT - 240,
        ("qwen2.5-7b-q6_k",),
        "failed",
        Phases(1.4, None, 0.9, 0.7, 0.1, 31.5),
        (Stop("qwen2.5-7b-q6_k", "exit line", gib(5.4), gib(5.4), 0.7),),
    ),
    Swap(
        78,
        "gemma3-4b-it-q8_0",
        "cap",
        AT - 8.3,
        ("qwen2.5-7b-q6_k",),
        "",
        Phases(0.4, 2.6, 1.9, 0.7, 0.1, 8.2),
        (Stop("qwen2.5-7b-q6_k", "exit line", gib(5.4), gib(5.3), 0.7),),
    ),
)
EVENTS = (
    EventLine(1, AT - 1290, "pin", "qwen3-14b-instruct-q5_k_m", "pinned by the operator"),
    EventLine(2, AT - 491, "ready", "llama-3.1-8b-instruct-q4_k_m", "ready after 6.2 s, 4.4 GiB"),
    EventLine(3, AT - 204, "fail", "mistral-small-24b-q4_k_m", "out of memory on Metal, next try in 60 s"),
    EventLine(4, AT - 13.5, "drain", "qwen2.5-7b-q6_k", "1 request to finish, for gemma3-4b-it-q8_0 (max-wait)"),
    EventLine(5, AT - 9, "exit", "qwen2.5-7b-q6_k", "exit 0 after 1.9 s, 5.3 of 5.4 GiB back"),
    EventLine(6, AT - 8.2, "load", "gemma3-4b-it-q8_0", "started, pid 49102, port 9102"),
)
LOG = tuple(
    LogLine(seq, AT - back, model, text)
    for seq, (back, model, text) in enumerate(
        (
            (9.0, "qwen3-14b-instruct-q5_k_m", "slot launch_slot_: id  0 | task 88 | processing task"),
            (
                8.1,
                "gemma3-4b-it-q8_0",
                "llama_model_loader: loaded meta data with 40 key-value pairs and 444 tensors from gemma3-4b-it.gguf",
            ),
            (7.7, "gemma3-4b-it-q8_0", "print_info: file type   = Q8_0"),
            (
                7.0,
                "qwen3-14b-instruct-q5_k_m",
                "slot update_slots: id  0 | task 88 | prompt processing progress, n_past = 4096, progress = 0.99",
            ),
            (6.1, "gemma3-4b-it-q8_0", "load_tensors: offloaded 35/35 layers to GPU"),
            (5.9, "gemma3-4b-it-q8_0", "load_tensors:        Metal model buffer size =  4131.52 MiB"),
            (
                4.0,
                "llama-3.1-8b-instruct-q4_k_m",
                "slot print_timing: id  0 | task 41 | eval time = 5312 ms / 64 tokens (12.0 tokens per second)",
            ),
            (3.0, "nomic-embed-text-v2-f16", "que    start_loop: entering sleeping state"),
            (
                2.2,
                "qwen3-14b-instruct-q5_k_m",
                "slot print_timing: id  0 | task 88 | eval time = 6120 ms / 255 tokens (41.7 tokens per second)",
            ),
            (1.0, "gemma3-4b-it-q8_0", "llama_kv_cache:      Metal KV buffer size =   816.00 MiB"),
            (
                0.4,
                "gemma3-4b-it-q8_0",
                "llama_context: n_ctx_per_seq (8192) < n_ctx_train (131072) [the full capacity is not used]",
            ),
        ),
        start=100,
    )
)
REQUESTS = (
    Request("r-88", "qwen3-14b-instruct-q5_k_m", "running", 7.2, "/v1/chat/completions", "127.0.0.1", stream=True),
    Request("r-91", "llama-3.1-8b-instruct-q4_k_m", "running", 5.4, "/v1/chat/completions", "192.168.1.7", stream=True),
    Request("r-92", "gemma3-4b-it-q8_0", "loading", 12.3, "/v1/chat/completions", "127.0.0.1", stream=True),
    Request("r-93", "gemma3-4b-it-q8_0", "loading", 11.1, "/v1/chat/completions", "127.0.0.1", stream=True),
    Request("r-94", "gemma3-4b-it-q8_0", "loading", 9.0, "/v1/embeddings", "192.168.1.7"),
    Request("r-95", "phi-4-mini-instruct-q8_0", "queued", 38.4, "/v1/chat/completions", "127.0.0.1"),
)
QUEUE = (
    QueueEntry("gemma3-4b-it-q8_0", 1, 3, 12.3, "loading 61 %", 5.2),
    QueueEntry(
        "phi-4-mini-instruct-q8_0",
        2,
        1,
        38.4,
        "needs 4.0 GiB, 2.1 free: draining llama-3.1-8b-instruct-q4_k_m (1 request)",
        11.0,
    ),
)
BASE = Snapshot(
    version="0.1.0",
    pid=4242,
    at=AT,
    url=URL,
    uptime_s=267_000.0,
    models_max=4,
    models_max_source="flag",
    running=4,
    server="llama-server b10434",
    requests_total=1204,
    errors_total=3,
    memory=MEMORY,
    swaps=Swaps(78, SWAPS[-1], SWAPS),
    events=EVENTS,
    log=LOG,
)
OOM = Oom(
    14,
    OomLine(
        AT - 204, MISTRAL.id, "error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)", 14
    ),
)
