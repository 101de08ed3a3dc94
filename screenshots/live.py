"""A real core at work: one model busy, one loading, one stopping, two waited for."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx

from llmtop.core import Core
from llmtop.demo.stage import MODELS, stage
from llmtop.remote import RemoteClient
from llmtop.snapshot import Snapshot

BUSY, LOADING, STOPPING, WAITING = MODELS
KNOBS = {
    BUSY: {"load_ms": 300, "tok_rate": 40, "sizes": True},
    LOADING: {"load_ms": 8000, "sizes": True},
    STOPPING: {"load_ms": 300, "stop_ms": 6000, "sizes": True},
    WAITING: {"load_ms": 3000, "sizes": True},
}
"""Simulated children: real ones of this size load and stop too fast to be seen."""

GIB = 2**30
SIZES_GIB = {BUSY: 10.9, LOADING: 5.1, STOPPING: 4.4, WAITING: 8.2}
"""Made up, as the children are: tiny models would leave the gauge empty."""

PATIENCE_S = 20.0


@contextmanager
def running_core() -> Iterator[str]:
    """A core on simulated children, in a folder and on a port of its own; gives its address."""
    with stage({"models_max": "3", "memory_budget": "off"}, os.environ, simulated=True) as configuration:
        source = Path(configuration.settings.models_dir).parent / "memory.json"
        source.write_text(json.dumps(_memory()), "utf-8")
        os.environ["LLMTOP_MEMORY_SOURCE"] = f"file:{source.name}"
        before = Path.cwd()
        os.chdir(source.parent)  # the picture shows where a number comes from, and that is to be nobody's folder
        for name, knobs in KNOBS.items():
            file = Path(configuration.settings.models_dir, f"{name}.json")
            file.write_text(json.dumps(knobs), "utf-8")
        core = Core(configuration)
        core.start()
        try:
            yield core.house.url
        finally:
            core.stop()
            core.stop()  # at once: nobody waits for these answers
            core.join()
            del os.environ["LLMTOP_MEMORY_SOURCE"]
            os.chdir(before)


def _memory() -> dict[str, object]:
    """The memory of a machine on which the three that run take what they are said to."""
    wired = 3.2 + sum(SIZES_GIB[name] for name in (BUSY, LOADING, STOPPING))
    numbers = {"total": 32.0, "wired": wired, "available": 31.0 - wired, "gpu_limit": 26.0}
    sizes = {name: int(size * GIB) for name, size in SIZES_GIB.items()}
    return {name: int(size * GIB) for name, size in numbers.items()} | {"models": sizes}


async def _ask(http: httpx.AsyncClient, model: str, tokens: int) -> None:
    body = {"model": model, "prompt": "Tell me a story about a queue.", "max_tokens": tokens, "stream": True}
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for _ in answer.aiter_raw():
            pass


async def _until_seen(client: RemoteClient) -> None:
    for _ in range(int(PATIENCE_S / 0.1)):
        if _tells_all(await client.refresh()):
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"a busy, a loading and a stopping model were not seen together within {PATIENCE_S:g} s")


def _tells_all(snapshot: Snapshot) -> bool:
    rows = {model.id: model for model in snapshot.models}
    loading = rows[LOADING].progress
    return (
        rows[BUSY].in_flight > 0
        and rows[LOADING].state == "loading"
        and (loading is not None and (loading.value or 0) > 0.2)
        and rows[STOPPING].state == "stopping"
        and len(snapshot.queue) > 1
    )


@asynccontextmanager
async def at_work(url: str) -> AsyncIterator[RemoteClient]:
    """Drive a core until the picture is there; gives a client to show it with."""
    client = RemoteClient(url)
    async with httpx.AsyncClient(base_url=url, timeout=None, trust_env=False) as http:
        await _ask(http, STOPPING, 5)
        await _ask(http, BUSY, 5)
        requests = [asyncio.create_task(_ask(http, BUSY, 2000)) for _ in range(2)]
        requests += [asyncio.create_task(_ask(http, LOADING, 50)) for _ in range(3)]
        await asyncio.sleep(0.5)
        requests.append(asyncio.create_task(_ask(http, WAITING, 50)))
        try:
            await _until_seen(client)
            yield client
        finally:
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            await client.aclose()
