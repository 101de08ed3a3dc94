"""The model that the simulated llama-server serves.

Its knobs, its options, its state and the record of what happened to it.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

KNOBS: dict[str, Any] = {
    "load_ms": 100,  # time spent loading
    "load_lines": [],  # lines on stderr meanwhile
    "exit_at_load": None,  # exit status instead of becoming ready
    "health": "auto",  # "auto", "ok" or "never", whatever the load does
    "tokens": 8,  # tokens in an answer
    "tok_rate": 200,  # tokens a second
    "prompt_ms": 0,  # silence before the first byte of an answer
    "fail_after": None,  # after so many answers, every one is fail_status ...
    "fail_status": 500,
    "fail_lines": [],  # ... and these lines are printed once
    "answer_lines": [],  # lines printed with every answer
    "crash_after": None,  # after so many answers, SIGKILL itself in the middle of the next
    "crash_signal": 9,
    "stop_ms": 0,  # from the stop to the exit
    "ignore_stdin": False,
    "ignore_term": False,
    "stdin_after_load": True,  # False: reads commands while loading too
    "sleep_idle_s": None,  # seconds of idleness before sleep
    "wake_ms": 50,
    "close_keepalive": False,  # close the connection after each answer
    "flood": 0,  # lines a second on stderr
    "protocol": True,  # speak child mode at all
    "fork_holder": False,  # a grandchild keeps the pipes; "session": from a session of its own
    "binary": False,  # print bytes that are no text
    "long_line": 0,  # print so many bytes without a line end
    "close_stdout": False,
    "sizes": False,  # print size lines, made up from the size of the file
    "slots": 4,
}

PLEASANT = {"load_ms": 1500, "tok_rate": 40, "tokens": 120, "sizes": True}

HELP = """\
----- common params -----

-h,    --help, --usage                  print usage and exit
--version                               show version and build info
-t,    --threads N                      number of CPU threads (default: -1)
                                        (env: LLAMA_ARG_THREADS)
-c,    --ctx-size N                     size of the prompt context (default: 0)
                                        (env: LLAMA_ARG_CTX_SIZE)
-n,    --predict, --n-predict N         number of tokens to predict (default: -1)
                                        (env: LLAMA_ARG_N_PREDICT)
-b,    --batch-size N                   logical maximum batch size (default: 2048)
                                        (env: LLAMA_ARG_BATCH)
-ub,   --ubatch-size N                  physical maximum batch size (default: 512)
                                        (env: LLAMA_ARG_UBATCH)
-fa,   --flash-attn [on|off|auto]       set Flash Attention use (default: 'auto')
                                        (env: LLAMA_ARG_FLASH_ATTN)
-ctk,  --cache-type-k TYPE              KV cache data type for K (default: f16)
                                        (env: LLAMA_ARG_CACHE_TYPE_K)
-ctv,  --cache-type-v TYPE              KV cache data type for V (default: f16)
                                        (env: LLAMA_ARG_CACHE_TYPE_V)
--mlock                                 keep the model in RAM
                                        (env: LLAMA_ARG_MLOCK)
--mmap, --no-mmap                       whether to memory-map model (default: enabled)
                                        (env: LLAMA_ARG_MMAP)
--list-devices                          print list of available devices and exit
-ngl,  --gpu-layers, --n-gpu-layers N   max. number of layers to store in VRAM
                                        (env: LLAMA_ARG_N_GPU_LAYERS)
-m,    --model FNAME                    model path to load
                                        (env: LLAMA_ARG_MODEL)
-hf,   -hfr, --hf-repo <user>/<model>[:quant]
                                        Hugging Face model repository
                                        (env: LLAMA_ARG_HF_REPO)
-lv,   --verbosity, --log-verbosity N   set the verbosity threshold
                                        (env: LLAMA_ARG_LOG_VERBOSITY)

----- sampling params -----

-s,    --seed SEED                      RNG seed (default: -1)
--temp N                                temperature (default: 0.80)
--top-k N                               top-k sampling (default: 40)
                                        (env: LLAMA_ARG_TOP_K)
--top-p N                               top-p sampling (default: 0.95)

----- example-specific params -----

-cram, --cache-ram N                    set the maximum cache size in MiB (default: 8192, -1 - no limit, 0 -
                                        disable)
                                        (env: LLAMA_ARG_CACHE_RAM)
--warmup, --no-warmup                   whether to perform warmup with an empty run (default: enabled)
-mm,   --mmproj FILE                    path to a multimodal projector file
                                        (env: LLAMA_ARG_MMPROJ)
-np,   --parallel N                     number of server slots (default: -1, -1 = auto)
                                        (env: LLAMA_ARG_N_PARALLEL)
-a,    --alias STRING                   set model name aliases, comma-separated (to be used by API)
                                        (env: LLAMA_ARG_ALIAS)
--host HOST                             ip address to listen (default: 127.0.0.1)
                                        (env: LLAMA_ARG_HOST)
--port PORT                             port to listen (default: 8080)
                                        (env: LLAMA_ARG_PORT)
--embedding, --embeddings               restrict to only support embedding use case (default: disabled)
                                        (env: LLAMA_ARG_EMBEDDINGS)
--api-key KEY                           API key to use for authentication (default: none)
                                        (env: LLAMA_API_KEY)
--metrics                               enable prometheus compatible metrics endpoint (default: disabled)
                                        (env: LLAMA_ARG_ENDPOINT_METRICS)
--jinja, --no-jinja                     whether to use jinja template engine for chat (default: enabled)
                                        (env: LLAMA_ARG_JINJA)
--slot-save-path PATH                   path to save slot kv cache (default: disabled)
--sleep-idle-seconds SECONDS            number of seconds of idleness after which the server will sleep
                                        (default: -1; -1 = disabled)
"""


def option(names: tuple[str, ...], env: str, default: str = "") -> str:
    """The value of an option, from the command line or its environment variable."""
    argv = sys.argv[1:]
    for i, arg in enumerate(argv):
        name, equals, value = arg.partition("=")
        if name in names and (equals or i + 1 < len(argv)):
            return value if equals else argv[i + 1]
    return os.environ.get(env, default)


def say(text: str) -> None:
    """Print a log line as llama-server does: to stderr."""
    with contextlib.suppress(OSError):  # nobody reads any more
        os.write(2, text.encode() + b"\n")


class Model:
    """The model that is simulated: its knobs, its state, and the file of its events."""

    def __init__(self) -> None:
        self.path = Path(option(("-m", "--model"), "LLAMA_ARG_MODEL") or "hf/model.gguf")
        self.alias = option(("-a", "--alias"), "LLAMA_ARG_ALIAS", self.path.stem)
        sidecar = self.path.with_suffix(".json")
        given = json.loads(sidecar.read_text()) if sidecar.exists() else PLEASANT
        self.knobs: dict[str, Any] = KNOBS | given
        asked = float(option(("--sleep-idle-seconds",), "LLAMA_ARG_SLEEP_IDLE_SECONDS", "-1"))
        if self.knobs["sleep_idle_s"] is None and asked > 0:
            self.knobs["sleep_idle_s"] = asked
        folder = os.environ.get("LLMTOP_FAKE_EVENTS", str(self.path.parent))
        self.events = Path(folder) / f"{self.path.stem}.events.jsonl"
        self.child_mode = "LLAMA_SERVER_ROUTER_PORT" in os.environ and bool(self.knobs["protocol"])
        self.state = "loading"
        self.answers = 0
        self.failing = False
        self.busy = 0
        self.used = time.monotonic()

    def note(self, event: str, **more: object) -> None:
        """Append an event in one write, so that two processes never mix theirs."""
        line = json.dumps({"t": time.time(), "event": event, "pid": os.getpid(), **more}).encode() + b"\n"
        try:
            fd = os.open(self.events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        except OSError:
            return
        os.write(fd, line)
        os.close(fd)

    def tell(self, state: str, payload: object = None) -> None:
        """Say the state to the parent."""
        if self.child_mode:
            text = json.dumps({"state": state, "payload": payload}, separators=(",", ":"))
            with contextlib.suppress(OSError):
                os.write(1, f"cmd_child_to_router:state:{text}\n".encode())

    def exit(self, code: int) -> None:
        """End at once."""
        self.note("exit", code=code)
        os._exit(code)

    def problem(self) -> str:
        """Why the file cannot be loaded, as llama-server says it; empty when it can."""
        if option(("-hf", "--hf-repo", "-hfr"), "LLAMA_ARG_HF_REPO"):
            return ""
        try:
            magic = self.path.open("rb").read(4)
        except OSError as e:
            return f"gguf_init_from_file: failed to open GGUF file '{self.path}' ({e.strerror})"
        if magic != b"GGUF":
            return f"gguf_init_from_reader: invalid magic characters: '{magic.decode('latin-1')}', expected 'GGUF'"
        return ""

    def size_lines(self) -> list[str]:
        """Size lines for a file of this size."""
        mib = self.path.stat().st_size / 2**20 if self.path.exists() else 100.0
        return [
            "load_tensors: loading model tensors, this can take a while... (load_mode = mmap)",
            f"load_tensors:   CPU_Mapped model buffer size = {mib:8.2f} MiB",
            f"llama_context:        CPU  output buffer size = {0.5:8.2f} MiB",
            f"llama_kv_cache:        CPU KV buffer size = {max(1.0, mib / 16):8.2f} MiB",
            f"sched_reserve:        CPU compute buffer size = {max(1.0, mib / 32):8.2f} MiB",
        ]
