"""The queue at work with real processes: order, caps, drains, leavers, stops; all seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.rig import rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_burst_for_five_models_never_has_more_children_than_the_cap(tmp_path: Path) -> None:
    rng = random.Random(1)
    models = {f"M{n}": {"load_ms": rng.randrange(0, 300), "stop_ms": rng.choice([0, 50, 150])} for n in range(5)}
    async with rig(tmp_path, models, "--models-max", "2") as r, r.client() as c:
        peak = 0

        async def watch() -> None:
            nonlocal peak
            while True:
                peak = max(peak, len(r.children()))
                await asyncio.sleep(0.01)

        watcher = asyncio.create_task(watch())
        answers = await asyncio.gather(*[r.ask(c, m) for m in models])
        watcher.cancel()
        assert [a.status_code for a in answers] == [200] * 5
        assert [a.json()["model"] for a in answers] == list(models), "answered by the wrong child"
        assert peak == 2
        assert sum(len(r.events(m, "spawn")) for m in models) == 5


async def test_the_next_child_is_spawned_only_after_the_exit_of_the_one_before(tmp_path: Path) -> None:
    models = {m: {"load_ms": 50, "stop_ms": 150} for m in "AB"}
    async with rig(tmp_path, models, "--models-max", "1") as r, r.client() as c:
        for m in "ABABA":
            answer = await r.ask(c, m)
            assert answer.status_code == 200
            assert {"x-llmtop-queue-ms", "x-llmtop-load-ms", "x-llmtop-request-id"} <= set(answer.headers)
        spawns = sorted((e for m in "AB" for e in r.events(m, "spawn")), key=lambda e: e["t"])
        ends = {e["pid"]: e["t"] for m in "AB" for e in r.events(m, "exit")}
        assert len(spawns) == 5
        for old, new in itertools.pairwise(spawns):
            assert ends[old["pid"]] <= new["t"]
        swaps = (await c.get("/api/swaps")).json()["swaps"]
        assert [s["evicted"] for s in swaps] == [[], ["A"], ["B"], ["A"], ["B"]]
        assert all(s["result"] == "ok" and s["phases"]["load_s"] is not None for s in swaps)


async def test_requests_for_one_missing_model_share_one_entry_one_load_and_one_eviction(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABC"}, "--models-max", "2") as r, r.client() as c:
        for m in "AB":
            await r.ask(c, m)
        busy = asyncio.create_task(r.ask(c, "A", tokens=400))
        other = asyncio.create_task(r.ask(c, "B", tokens=120))
        await asyncio.sleep(0.2)
        waiters = [asyncio.create_task(r.ask(c, "C")) for _ in range(4)]
        await asyncio.sleep(0.2)
        queue = (await r.state())["queue"]
        assert [(q["model"], q["waiters"]) for q in queue] == [("C", 4)]
        assert "B" in queue[0]["reason"]
        assert [(await w).status_code for w in waiters] == [200] * 4
        assert not busy.done(), "C waited for A though B was idle before"
        assert [(await t).status_code for t in (busy, other)] == [200, 200]
        assert len(r.events("C", "spawn")) == 1


async def test_the_queue_is_served_in_order_of_arrival(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABCD"}, "--models-max", "1") as r, r.client() as c:
        await r.ask(c, "A")
        done: list[str] = []

        async def ask(m: str, tokens: int = 2) -> None:
            assert (await r.ask(c, m, tokens)).status_code == 200
            done.append(m)

        tasks = [asyncio.create_task(ask("A", 150))]
        for m in "DBC":
            await asyncio.sleep(0.1)
            tasks.append(asyncio.create_task(ask(m)))
        await asyncio.gather(*tasks)
        assert done == ["A", "D", "B", "C"]


async def test_a_model_that_is_never_idle_is_drained_after_max_wait_and_loses_no_answer(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "AB"}, "--models-max", "1", "--max-wait", "1") as r, r.client() as c:
        await r.ask(c, "A")
        stop, codes = False, []

        async def hog(n: int) -> None:
            while not stop:
                codes.append((await r.ask(c, "A", tokens=60 + 13 * n)).status_code)

        hogs = [asyncio.create_task(hog(n)) for n in range(4)]
        await asyncio.sleep(0.3)
        start = time.monotonic()
        answer = await asyncio.wait_for(r.ask(c, "B"), 20)
        waited = time.monotonic() - start
        stop = True
        await asyncio.gather(*hogs)
        assert answer.status_code == 200
        assert set(codes) == {200}
        assert waited > 0.95, "a busy model keeps its requests until the head has waited max-wait"


async def test_interleaved_requests_for_three_models_cost_three_loads(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {"load_ms": 200} for m in "ABC"}, "--models-max", "1") as r, r.client() as c:
        tasks = []
        for m in "ABAACABC":
            tasks.append(asyncio.create_task(r.ask(c, m)))
            await asyncio.sleep(0.01)
        assert [(await t).status_code for t in tasks] == [200] * 8
        assert sum(len(r.events(m, "spawn")) for m in "ABC") == 3


async def test_a_child_that_ignores_every_polite_stop_is_killed_and_replaced(tmp_path: Path) -> None:
    models = {"A": {"ignore_stdin": True, "ignore_term": True}, "B": {}}
    async with rig(tmp_path, models, "--models-max", "1", "--stop-timeout", "0.7") as r, r.client() as c:
        await r.ask(c, "A")
        start = time.monotonic()
        b = asyncio.create_task(r.ask(c, "B"))
        await asyncio.sleep(0.3)
        a = await r.model("A")
        assert a["state"] == "stopping"
        assert 0 < a["kill_in_s"] < 0.7
        assert (await b).status_code == 200
        assert 0.65 < time.monotonic() - start < 4


async def test_unloading_a_loading_model_ends_it_at_once_and_tells_its_waiters(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"A": {"load_ms": 20000, "stdin_after_load": True, "ignore_term": True}}
    async with rig(tmp_path, models, "--stop-timeout", "8") as r, r.client() as c:
        waiter = asyncio.create_task(r.ask(c, "A"))
        await r.until_state("A", "loading")
        assert (await r.say(c, "/models/unload", model="A")).status_code == 200
        took = await r.until_state("A", "unloaded", 5)
        answer = await waiter
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "load_cancelled")
        assert took < 2


async def test_a_client_that_leaves_the_queue_costs_nobody_a_slot(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {m: {} for m in "ABC"} | {"S": {"load_ms": 9000}, "T": {"load_ms": 700}}
    async with rig(tmp_path, models, "--models-max", "1") as r, r.client() as c:
        await r.ask(c, "A")
        busy = asyncio.create_task(r.ask(c, "A", tokens=200))
        await asyncio.sleep(0.1)
        with contextlib.suppress(httpx.TimeoutException):
            await c.post("/v1/completions", json={"model": "B", "prompt": "x"}, timeout=0.3)

        async def forgotten() -> bool:
            return not (await r.state())["queue"]

        await r.until(forgotten, "the queue forgets B", 1)
        leaver = asyncio.create_task(r.ask(c, "B"))
        await asyncio.sleep(0.1)
        behind = asyncio.create_task(r.ask(c, "C"))
        await asyncio.sleep(0.1)
        leaver.cancel()
        assert (await behind).status_code == 200
        assert (await busy).status_code == 200
        assert not r.events("B"), "B was loaded for nobody"
        leaver = asyncio.create_task(r.ask(c, "S"))  # a load that nobody wants any more, and somebody waits
        await r.until_state("S", "loading")
        behind = asyncio.create_task(r.ask(c, "C"))
        await asyncio.sleep(0.2)
        leaver.cancel()
        assert (await asyncio.wait_for(behind, 5)).status_code == 200
        leaver = asyncio.create_task(r.ask(c, "T"))  # nobody waits: it is finished
        await r.until_state("T", "loading")
        leaver.cancel()
        await r.until_state("T", "loaded", 5)
