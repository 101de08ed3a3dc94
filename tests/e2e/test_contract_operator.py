"""The operator's verbs in every state, and sleep: seen, kept in its slot, ended by requests only."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def do(c: httpx.AsyncClient, model: str, verb: str, want: int = 200, **body: Any) -> dict[str, Any]:
    answer = await c.post(f"/api/models/{model}/{verb}", json=body)
    assert answer.status_code == want, f"{verb} {model}: {answer.status_code} {answer.text}"
    found: dict[str, Any] = answer.json()
    return found


def kind(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["type"]


async def test_a_pin_protects_and_two_pins_at_cap_two_refuse_the_third_model_at_once(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABC"}, "--models-max", "2") as r, r.client() as c:
        assert await do(c, "A", "load") == {"success": True, "changed": True}
        await r.until_state("A", "loaded")
        assert (await do(c, "A", "pin"))["changed"]
        assert not (await do(c, "A", "pin"))["changed"], "verbs are idempotent"
        for m in "BC":
            assert (await r.ask(c, m)).status_code == 200
        assert (await r.model("A"))["state"] == "loaded"
        assert (await r.model("B"))["state"] == "unloaded"
        await do(c, "C", "pin")
        assert kind(await asyncio.wait_for(r.ask(c, "B"), 3)) == (503, "all_slots_pinned")
        await do(c, "C", "unpin")
        assert (await r.ask(c, "B")).status_code == 200
        await do(c, "nobody", "evict", 404)


async def test_evict_lets_requests_finish_and_kill_cuts_them_off_whatever_the_child_ignores(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {
        "A": {},
        "deaf": {"ignore_term": True, "ignore_stdin": True},
        "slow": {"load_ms": 15000, "ignore_term": True},
    }
    async with rig(tmp_path, models, "--models-max", "2", "--stop-timeout", "8") as r, r.client() as c:
        await r.ask(c, "A")
        long = asyncio.create_task(r.ask(c, "A", tokens=160))
        await asyncio.sleep(0.2)
        await do(c, "A", "evict")
        assert (await r.model("A"))["draining"]
        assert (await long).status_code == 200
        await r.until_state("A", "unloaded", 5)
        await r.ask(c, "deaf")
        deaf = await r.model("deaf")
        await do(c, "deaf", "kill", 409, instance=deaf["instance"] + 1)
        cut = asyncio.create_task(r.ask(c, "deaf", tokens=4000))
        await asyncio.sleep(0.3)
        begin = time.monotonic()
        await do(c, "deaf", "kill", instance=deaf["instance"])
        await r.until_state("deaf", "unloaded", 5)
        assert time.monotonic() - begin < 2, "a kill does not wait for the stop timeout"
        assert kind(await asyncio.wait_for(cut, 3)) == (502, "upstream_error")
        assert deaf["pid"] not in [child.pid for child in r.children()]
        waiter = asyncio.create_task(r.ask(c, "slow"))
        await r.until_state("slow", "loading")
        await do(c, "slow", "kill")
        await r.until_state("slow", "unloaded", 3)
        assert (await asyncio.wait_for(waiter, 3)).status_code == 503


async def test_a_held_queue_lets_residents_go_on_and_step_lets_one_swap_through(tmp_path: Path) -> None:
    async def post(c: httpx.AsyncClient, verb: str, want: int = 200) -> None:
        assert (await c.post(f"/api/queue/{verb}", json={})).status_code == want

    async with rig(tmp_path, {m: {} for m in "ABCD"}, "--models-max", "2") as r, r.client() as c:
        await r.ask(c, "A")
        await post(c, "step", 409)
        await post(c, "hold")
        waiting: dict[str, asyncio.Task[httpx.Response]] = {}
        for m in "BCD":
            waiting[m] = asyncio.create_task(r.ask(c, m))
            await asyncio.sleep(0.15)
        state = await r.state()
        assert state["hold"]
        assert [q["model"] for q in state["queue"]] == ["B", "C", "D"]
        assert (await r.ask(c, "A")).status_code == 200
        listed = next(q["id"] for q in state["requests"] if q["model"] == "D")
        assert (await c.delete(f"/api/requests/{listed}")).status_code == 200
        assert kind(await asyncio.wait_for(waiting["D"], 3)) == (503, "request_cancelled")
        await post(c, "step")
        assert (await asyncio.wait_for(waiting["B"], 5)).status_code == 200
        await asyncio.sleep(0.4)
        assert not waiting["C"].done(), "one step, one swap"
        await post(c, "resume")
        assert (await asyncio.wait_for(waiting["C"], 5)).status_code == 200


async def polled(r: Rig, c: httpx.AsyncClient, model: str) -> None:
    while True:
        for path in ("/metrics", "/slots", "/props"):
            answer = await c.get(path, params={"model": model})
            assert answer.status_code in (200, 409), f"{path}: {answer.status_code}"
        await asyncio.sleep(0.15)


async def test_sleep_is_seen_kept_by_polling_ended_by_requests_and_gives_its_slot_when_needed(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"sleep_idle_s": 0.8}, "B": {}}, "--models-max", "1") as r, r.client() as c:
        await r.ask(c, "A")
        poller = asyncio.create_task(polled(r, c, "A"))
        await r.until_state("A", "sleeping", 4)
        await asyncio.sleep(0.5)
        assert not poller.done(), "a GET by model broke"
        poller.cancel()
        assert (await r.model("A"))["state"] == "sleeping"
        assert not r.events("A", "wake"), "monitoring woke it"
        for path in ("/slots", "/metrics", "/props"):
            answer = await c.get(path, params={"model": "B"})
            assert kind(answer) == (409, "model_not_loaded")
        assert not r.events("B"), "monitoring loaded it"
        assert (await r.ask(c, "A")).status_code == 200
        await r.until_state("A", "loaded", 3)
        assert len(r.events("A", "spawn")) == 1, "a wake is no load"
        await r.until_state("A", "sleeping", 4)
        assert (await r.ask(c, "B")).status_code == 200
        assert (await r.model("A"))["state"] == "unloaded"
        assert len(r.children()) == 1
