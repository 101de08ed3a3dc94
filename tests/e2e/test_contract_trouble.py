"""Children that run out of memory, fall sick, die in mid-answer or never come up: told once, and replaced."""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

METAL_OOM = "E error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)"
OOM = ["E ggml_metal_synchronize: error: command buffer 0 failed with status 5", METAL_OOM]
HARMLESS = [
    "srv  ensure_model: evicting idle LRU name=a to make room for name=b",
    "no room left in the cache",
    "I common_fit_params: successfully fit params to free device memory",
    "W common_fit_params: failed to fit params to free device memory: n_gpu_layers already set by user to 99, abort",
    "srv    load_model: prompt cache is enabled, size limit: 8192 MiB",
    "ggml_metal_device_init: recommendedMaxWorkingSetSize  = 26800.60 MB",
    'D srv  log_server_r: request: {"prompt": "kIOGPUCommandBufferCallbackErrorOutOfMemory? out of memory?"}',
]


async def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, f"{answer.status_code} {answer.text[:300]}"
    error: dict[str, Any] = answer.json()["error"]
    assert error["code"] == status
    return error


async def until_replaced(r: Rig, model: str, pid: int, timeout_s: float = 10) -> None:
    async def gone() -> bool:
        return pid not in [child.pid for child in r.children()]

    await r.until(gone, f"the child {pid} of {model} is gone", timeout_s)


async def test_a_load_that_runs_out_of_memory_fails_with_its_line_though_health_says_ok(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "early": {"load_lines": OOM * 3, "fail_after": 0},
        "buried": {"load_lines": [METAL_OOM, *[f"{n} ?? 0x0000" for n in range(60)]], "exit_at_load": 1},
    }
    async with rig(tmp_path, models, "--stop-timeout", "1") as r, r.client() as c:
        for name in models:
            answer = await r.ask(c, name)
            error = await error_of(answer, 503)
            assert error["type"] == "insufficient_memory"
            assert "kIOGPUCommandBufferCallbackErrorOutOfMemory" in error["message"], "the cause, not the last line"
            assert (await r.model(name))["failure"]["kind"] == "oom"
            again = await r.ask(c, name)  # quarantined: the same at once
            assert (await error_of(again, 503))["type"] == "insufficient_memory"
            assert 1 <= int(again.headers["retry-after"]) <= 60
            assert len(r.events(name, "spawn")) == 1, "a failed load was tried again within its quarantine"
        oom = (await r.state())["oom"]
        assert oom["count"] >= 2
        assert "OutOfMemory" in oom["last"]["text"]


async def test_a_child_that_falls_sick_in_service_is_replaced_and_the_next_request_is_answered(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "poisoned": {"fail_after": 2, "fail_lines": OOM, "ignore_term": True, "ignore_stdin": True},
        "mute": {"fail_after": 1},
    }
    async with rig(tmp_path, models, "--stop-timeout", "0.6") as r, r.client() as c:
        for _ in range(2):
            assert (await r.ask(c, "poisoned")).status_code == 200
        assert (await r.ask(c, "poisoned")).status_code == 500, "the child's own answer goes through as it is"
        await until_replaced(r, "poisoned", r.events("poisoned", "spawn")[0]["pid"])
        assert (await r.ask(c, "poisoned")).status_code == 200
        assert len(r.events("poisoned", "spawn")) == 2
        # no line tells of this one
        codes = [(await r.ask(c, "mute")).status_code]
        while len(r.events("mute", "spawn")) == 1 and len(codes) < 8:
            codes.append((await r.ask(c, "mute")).status_code)
            await asyncio.sleep(0.2)
        assert codes[:2] == [200, 500]
        assert codes[-1] == 200
        assert codes.count(500) <= 3


async def test_lines_that_only_look_like_a_failure_cost_nothing(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"load_lines": HARMLESS, "answer_lines": HARMLESS}}) as r, r.client() as c:
        for _ in range(3):
            assert (await r.ask(c, "A")).status_code == 200
            await asyncio.sleep(0.1)
        state = await r.state()
        assert state["oom"]["count"] == 0
        assert not state["models"][0]["sick"]
        assert len(r.events("A", "spawn")) == 1


async def test_a_cut_answer_never_ends_cleanly_and_the_child_hears_of_a_client_that_left(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "A": {"crash_after": 1, "tok_rate": 100},
        "B": {"tok_rate": 25},
        "D": {"crash_after": 1, "crash_signal": 6},
    }
    async with rig(tmp_path, models, "--models-max", "3") as r, r.client() as c:
        await r.ask(c, "A")
        body, broken = bytearray(), False
        chat = {"model": "A", "stream": True, "max_tokens": 40, "messages": []}
        try:
            async with c.stream("POST", "/v1/chat/completions", json=chat) as answer:
                async for part in answer.aiter_raw():
                    body += part
        except httpx.HTTPError:
            broken = True
        events = [line for line in bytes(body).split(b"\n") if line.startswith(b"data:")]
        assert len(events) > 5, "tokens go out as they come"
        assert b'"error"' in events[-1]
        assert b"[DONE]" not in body
        assert broken, "the connection is aborted"
        await r.until_state("A", "unloaded", 5)
        failure = (await r.model("A"))["failure"]
        assert (failure["kind"], failure["signal"]) == ("killed", 9)
        assert (await r.ask(c, "D", tokens=1)).status_code == 200
        assert (await error_of(await r.ask(c, "D", tokens=40), 502))["type"] == "upstream_error"
        await r.ask(c, "B", tokens=1)
        with contextlib.suppress(httpx.TimeoutException):
            await c.post("/v1/completions", json={"model": "B", "max_tokens": 500}, timeout=0.4)

        async def told() -> bool:
            return bool(r.events("B", "abort")) and (await r.model("B"))["in_flight"] == 0

        await r.until(told, "the child of B hears that its client left", 4)
        first, begin = 0.0, time.monotonic()
        body_b = {"model": "B", "stream": True, "max_tokens": 30}
        async with c.stream("POST", "/v1/completions", json=body_b) as answer:
            async for _ in answer.aiter_raw():
                first = first or time.monotonic() - begin
        assert first < (time.monotonic() - begin) / 2, "the first token waited for the last"


async def test_a_child_that_ends_at_once_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "arch": {
            "load_lines": ["llama_model_load: error loading model: unknown model architecture: 'quokka'"],
            "exit_at_load": 1,
        },
        "silent": {"exit_at_load": 3},
        "well": {},
    }
    async with rig(tmp_path, models, "--models-max", "1") as r, r.client() as c:
        await r.ask(c, "well")
        both = await asyncio.gather(r.ask(c, "arch"), r.ask(c, "arch"))
        for answer in both:
            error = await error_of(answer, 503)
            assert error["type"] == "load_failed"
            assert "quokka" in error["message"]
        assert len(r.events("arch", "spawn")) == 1, "all who wait for a load share its failure"
        assert (await error_of(await r.ask(c, "silent"), 503))["type"] == "load_failed"
        failure = (await r.model("silent"))["failure"]
        assert failure["exit_code"] == 3
        listed = {m["id"]: m["status"] for m in (await c.get("/v1/models")).json()["data"]}
        assert (listed["silent"]["value"], listed["silent"]["failed"]) == ("unloaded", True)
        assert listed["silent"]["exit_code"] == 3
        assert not listed["well"].get("failed")
        assert (await r.ask(c, "well")).status_code == 200, "a failed load leaves the slot free"
