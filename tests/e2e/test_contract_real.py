"""The same with the real llama-server, where one is installed: three models, cap two, all through llmtop."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from llmtop.children.binary import wheel_binary
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing.rig import rig

STEADY: dict[str, Any] = {"temperature": 0, "ignore_eos": True}
"""A random model may well end its answer with the first token that is drawn."""

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

NAMES = ("ash", "elm", "oak")


@pytest.fixture
def real() -> str:
    path = wheel_binary()
    if path is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    return path


async def test_three_real_models_at_cap_two_chat_stream_sleep_wake_and_swap(tmp_path: Path, real: str) -> None:
    (tmp_path / "models").mkdir()
    for seed, name in enumerate(NAMES):
        write_tiny(tmp_path / "models" / f"{name}.gguf", seed=seed)
    options = ["--models-max", "2", "--sleep-idle-seconds", "2", "--", "-c", "512", "--no-warmup"]
    async with rig(tmp_path, None, *options, server=real) as r, r.client() as c:
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, len(r.children()))
                await asyncio.sleep(0.02)

        async def chat(model: str) -> dict[str, Any]:
            body = {"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], **STEADY}
            answer = await c.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            found: dict[str, Any] = answer.json()
            return found

        watcher = asyncio.create_task(watch())
        answers = await asyncio.gather(*[chat(m) for m in NAMES])
        assert all(a["choices"][0]["message"]["content"] for a in answers)
        text = b""
        body: dict[str, Any] = {"model": "ash", "stream": True, "max_tokens": 20, **STEADY}
        body["messages"] = [{"role": "user", "content": "hi"}]
        async with c.stream("POST", "/v1/chat/completions", json=body) as stream:
            async for part in stream.aiter_raw():
                text += part
        assert text.count(b"data:") > 10
        assert text.rstrip().endswith(b"data: [DONE]")
        told = await c.post("/tokenize", json={"model": "elm", "content": "abc"})
        assert told.json()["tokens"]
        await r.until_state("elm", "sleeping", 10)
        assert (await r.ask(c, "elm", tokens=2)).status_code == 200
        await r.until_state("elm", "loaded", 5)
        before = (await r.state())["swaps"]["count"]
        for m in (*NAMES, *NAMES):
            assert (await r.ask(c, m, tokens=1)).status_code == 200
        state = await r.state()
        assert state["swaps"]["count"] - before >= 3, "three models, two slots, taken in turn"
        assert state["faults"] == []
        assert peak == 2
        watcher.cancel()

        async def measured() -> bool:
            up = [m for m in (await r.state())["models"] if m["state"] in ("loaded", "sleeping")]
            return bool(up) and all(m["footprint_bytes"] for m in up)

        await r.until(measured, "a living child has a footprint", 5)
