"""Sets the demo up: a temporary folder, tiny models in it, a free port, and a llama-server or what stands in for it."""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from llmtop.children.ports import free_port
from llmtop.config.resolve import Configuration, DemoInfo, resolve
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.errors import StartError

MODELS = {"tiny-amber": 0, "tiny-birch": 8, "tiny-cedar": 16, "tiny-dune": 32}
"""The models, and how big their padding is [MiB]."""

_KEPT = ("LLMTOP_LLAMA_SERVER", "LLMTOP_MEMORY_SOURCE", "LLMTOP_DEBUG")
_REAL_ARGS = ("-c", "4096", "-np", "2", "--no-warmup")


@contextmanager
def stage(flags: Mapping[str, object], env: Mapping[str, str], *, simulated: bool) -> Generator[Configuration]:
    """Make a demo's configuration, and clear its folder away afterwards.

    Args:
        flags: What the command line said; the demo's own choices stand where it said nothing.
        env: Environment; settings of the user's own llmtop are left out.
        simulated: Take simulated children even where a llama-server is found.

    Yields:
        The configuration.

    Raises:
        StartError: A llama-server was named that cannot be run.
    """
    folder = Path(tempfile.mkdtemp(prefix="llmtop-demo-"))
    try:
        models = folder / "models"
        models.mkdir()
        for seed, (name, pad_mib) in enumerate(MODELS.items()):
            write_tiny(models / f"{name}.gguf", seed=seed, pad_mib=pad_mib)
        kept = {k: v for k, v in env.items() if not k.startswith(("LLMTOP_", "LLAMA_ARG_")) or k in _KEPT}
        server, real = _server(
            folder, str(flags.get("llama_server") or kept.get("LLMTOP_LLAMA_SERVER") or ""), simulated
        )
        own = {
            "models_dir": str(models),
            "models_max": "2",
            "port": str(free_port()),
            "state_dir": str(folder / "state"),
            "max_wait": "5",
            "llama_server": server,
        }
        said = {name: value for name, value in flags.items() if value is not None and name != "llama_server"}
        configuration = resolve(own | said, kept, _REAL_ARGS if real else ())
        why = "as asked" if simulated else "no llama-server was found"
        words = f"real llama-servers, {server}" if real else f"simulated children, {why}"
        yield replace(configuration, demo=DemoInfo(str(folder), real, words))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _server(folder: Path, named: str, simulated: bool) -> tuple[str, bool]:
    """The server to run, and whether it is a real one."""
    from llmtop.children.binary import find_llama_server

    if not simulated:
        try:
            return find_llama_server(named), True
        except StartError:
            if named:
                raise
    from llmtop.testing import fake_server

    script = folder / "llama-server"
    command = shlex.join([sys.executable, "-IS", str(fake_server.__file__)])  # without site packages it starts sooner
    script.write_text(f'#!/bin/sh\nexec {command} "$@"\n', "utf-8")
    script.chmod(0o755)
    return str(script), False
