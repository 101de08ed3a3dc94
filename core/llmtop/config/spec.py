"""What the configuration comes down to: settings of the whole, and one specification a model."""

from __future__ import annotations

import msgspec

MIB = 2**20
GIB = 2**30


class ModelSpec(msgspec.Struct, frozen=True):
    """One model as configured and found. Sizes are bytes, times seconds; None means "not said here".

    Args:
        id: The name that clients use: file name without ``.gguf``, folder name, section name or cache name.
        path: The GGUF file to load (first shard); empty for ``hf-repo`` and ``cmd`` models.
        files: All files that belong to it: shards, projector, draft. Used for pre-flight checks and estimates.
        aliases: Other names that clients may use; unique over all models.
        args: Arguments of the child from ``[*]``, the section and after ``--``, in that order of growing precedence,
            resolved to one list; without ``--cache-ram`` and what llmtop owns (host, port, alias, keys, TLS, ``-m``).
        source_args: The arguments that name the model (``-m PATH``, ``--mmproj PATH``, ``-hf REPO`` …).
        cache_ram_mib: Prompt cache that the section sets for itself [MiB]; None takes its share of the whole.
        memory: Declared footprint, everything included [bytes].
        pin: Pinned in the preset.
        load_on_startup: Loaded at the start.
        stop_timeout_s: Seconds between the polite stop and SIGKILL [s].
        idle_unload_s: Stop the child after that much idleness [s].
        evict_on_sleep: Stop the child when it goes to sleep.
        sleep_idle_s: Passed to the child as ``--sleep-idle-seconds`` [s], never for a model pinned in the preset.
        on_client_abort: ``cancel`` closes the child's connection when the client leaves, ``drain`` reads the answer
            to its end.
        cmd: Another server's command line with ``${PORT}``; empty for a llama-server.
        stop_cmd: Run instead of SIGTERM to stop a ``cmd`` server.
        health: Path of the readiness check of a ``cmd`` server.
        env: More environment variables of the child.
        source: ``dir``, ``cache`` or ``preset``.
        problem: Why it cannot be loaded, in one line; empty when it can.
        problem_kind: ``bad_file``, ``bad_argument`` or ``not_found``, with ``problem``.
    """

    id: str
    path: str = ""
    files: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    source_args: tuple[str, ...] = ()
    cache_ram_mib: int | None = None
    memory: int | None = None
    pin: bool = False
    load_on_startup: bool = False
    stop_timeout_s: float | None = None
    idle_unload_s: float | None = None
    evict_on_sleep: bool = False
    sleep_idle_s: float | None = None
    on_client_abort: str = "cancel"
    cmd: str = ""
    stop_cmd: str = ""
    health: str = "/health"
    env: tuple[tuple[str, str], ...] = ()
    source: str = "dir"
    problem: str = ""
    problem_kind: str = "bad_file"

    def starts_like(self, other: ModelSpec) -> bool:
        """A child is started in the same way for both; what they may differ in holds for a running child at once."""
        return all(getattr(self, name) == getattr(other, name) for name in _AT_THE_START)


_AT_THE_START = ("path", "files", "args", "source_args", "cache_ram_mib", "sleep_idle_s", "cmd", "health", "env")
"""What only a start of the child takes in."""


class Settings(msgspec.Struct, frozen=True):
    """Every option, resolved (flag, then environment, then preset, then default). Times are seconds, None is "off".

    Args:
        budget: ``auto``, ``off`` or bytes as a decimal string (already parsed from ``48GiB``).
        cache_ram_mib: Total prompt cache of all children [MiB]; 0 off, -1 no limit.
        max_queue: Requests that may wait for one model [1]; 0 = no limit. Four times that for all models together.
        child_args: Arguments after ``--``, for every child.
        watch: Read the configuration again when it changes: True for preset file and models folder, None for the preset
            file alone, False for neither.
        warnings: What the configuration got wrong without being refused, one line each; told at the start.
    """

    models_dir: str = ""
    models_preset: str = ""
    models_max: int = 4
    models_max_source: str = "default"
    autoload: bool = True
    host: str = "127.0.0.1"
    port: int = 8080
    api_keys: tuple[str, ...] = ()
    llama_server: str = ""
    cache_ram_mib: int = 8192
    budget: str = "auto"
    max_wait_s: float | None = 15.0
    stop_timeout_s: float | None = None
    load_timeout_s: float | None = 600.0
    idle_unload_s: float | None = None
    sleep_idle_s: float | None = None
    max_queue: int = 512
    client_stall_s: float | None = 60.0
    drain_timeout_s: float | None = None
    heartbeat_s: float = 15.0
    max_body: int = 256 * MIB
    allow_hosts: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    insecure: bool = False
    readonly: bool = False
    state_dir: str = ""
    record: str = ""
    watch: bool | None = None
    child_args: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
