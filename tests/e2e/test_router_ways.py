"""What users of llama.cpp's own router rely on: its queue's promises and its management calls."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.models import write_model
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def queued(r: Rig, model: str, waiters: int = 1) -> None:
    """Wait until so many requests wait for a model."""

    async def there() -> bool:
        return any(q["model"] == model and q["waiters"] == waiters for q in (await r.state())["queue"])

    await r.until(there, f"{waiters} wait for {model}")


async def running(r: Rig, model: str, count: int = 1) -> None:
    """Wait until a model has so many requests in flight."""

    async def there() -> bool:
        return bool((await r.model(model))["in_flight"] == count)

    await r.until(there, f"{model} has {count} in flight")


def times(r: Rig, model: str, kind: str) -> list[float]:
    return [e["t"] for e in r.events(model, kind)]


async def test_a_queued_request_never_evicts_a_busy_model(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "AB"}, "--models-max", "1") as r, r.client() as c:
        long = asyncio.create_task(r.ask(c, "A", tokens=300))
        await running(r, "A")
        short = asyncio.create_task(r.ask(c, "B"))
        await queued(r, "B")
        also = await r.ask(c, "A")
        assert also.status_code == 200, "a busy model goes on serving while another one waits"
        assert [(await t).status_code for t in (long, short)] == [200, 200]
        assert len(json.loads((await long).content)["choices"][0]["text"]) >= 300, "the long answer is whole"
        assert times(r, "A", "response")[-1] <= times(r, "A", "exit")[0] <= times(r, "B", "spawn")[0]
        assert len(r.events("A", "spawn")) == 1


async def test_a_busy_model_is_passed_over_for_an_idle_one(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABC"}, "--models-max", "2") as r, r.client() as c:
        await r.ask(c, "B")
        busy = asyncio.create_task(r.ask(c, "A", tokens=300))  # used longest ago in no sense: it is at work
        await running(r, "A")
        await r.ask(c, "B")
        assert (await r.ask(c, "C")).status_code == 200
        assert not busy.done()
        assert (await busy).status_code == 200
        assert (len(r.events("A", "exit")), len(r.events("B", "exit"))) == (0, 1)


async def test_three_requests_for_one_missing_model_cost_one_eviction(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {"load_ms": 200} for m in "ABC"}, "--models-max", "2") as r, r.client() as c:
        for m in "AB":
            await r.ask(c, m)
        answers = await asyncio.gather(*[r.ask(c, "C") for _ in range(3)])
        assert [a.status_code for a in answers] == [200] * 3
        assert len(r.events("C", "spawn")) == 1
        assert [len(r.events(m, "exit")) for m in "AB"] == [1, 0], "the one used longest ago, and it alone"


async def test_two_waiters_that_see_one_idle_victim_are_both_served(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {"load_ms": 100} for m in "ABC"}, "--models-max", "1") as r, r.client() as c:
        for _ in range(3):
            await r.ask(c, "A")
            spawns = sum(len(r.events(m, "spawn")) for m in "BC")
            both = await asyncio.wait_for(asyncio.gather(r.ask(c, "B"), r.ask(c, "C")), 15)
            assert [a.status_code for a in both] == [200, 200]
            assert sum(len(r.events(m, "spawn")) for m in "BC") == spawns + 2


async def test_waiters_are_served_in_the_order_of_their_arrival_also_past_a_leaver(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABCD"}, "--models-max", "1") as r, r.client() as c:
        busy = asyncio.create_task(r.ask(c, "A", tokens=250))
        await running(r, "A")
        waiters = {}
        for m in "DBC":
            waiters[m] = asyncio.create_task(r.ask(c, m))
            await queued(r, m)
        waiters.pop("B").cancel()
        assert [(await t).status_code for t in (busy, *waiters.values())] == [200] * 3
        assert times(r, "D", "spawn")[0] < times(r, "C", "spawn")[0]
        assert not r.events("B", "spawn"), "the leaver cost nobody a slot"


async def test_load_and_unload_answer_at_once_and_say_what_is_wrong(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"load_ms": 300}}, "--no-models-autoload") as r, r.client() as c:
        answer = await r.ask(c, "A")
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "model_not_loaded")
        assert not r.events("A", "spawn")
        assert (await r.say(c, "/models/load", model="A")).json()["success"] is True
        assert (await status(c, "A"))["value"] == "loading", "the answer does not wait for the load"
        await r.until_state("A", "loaded")
        assert (await r.say(c, "/models/load", model="A")).json() == {"success": True, "changed": False}
        assert (await r.ask(c, "A")).status_code == 200
        assert (await r.say(c, "/models/unload", model="A")).json()["success"] is True
        await r.until_state("A", "unloaded")
        assert (await r.say(c, "/models/unload", model="A")).json() == {"success": True, "changed": False}
        for verb in ("load", "unload"):
            assert (await r.say(c, f"/models/{verb}", model="nobody")).status_code == 404
            assert (await c.post(f"/models/{verb}", json={})).status_code == 400
            assert (await c.get(f"/models/{verb}")).status_code == 405
        answer = await c.post("/v1/completions?autoload=true", json={"model": "A", "prompt": "x"})
        assert answer.status_code == 200, "one request may load where others may not"
        props = (await c.get("/props")).json()
        assert (props["role"], props["models_autoload"], props["max_instances"]) == ("router", False, 4)


async def test_an_open_tab_and_other_onlookers_load_and_wake_nothing(tmp_path: Path) -> None:
    looks = (
        *(("GET", f"/upstream/B/{path}") for path in ("sw.js", "", "v1/models", "slots")),
        *(("GET", f"/{path}?model=B") for path in ("slots", "props", "metrics", "lora-adapters")),
        *(("HEAD", "/upstream/B/"), ("OPTIONS", "/upstream/B/v1/chat/completions")),
        *(("GET", "/favicon.ico"), ("HEAD", "/"), ("OPTIONS", "/v1/chat/completions"), ("GET", "/v1/chat/completions")),
    )
    async with rig(tmp_path, {"A": {}, "B": {}}, "--models-max", "1") as r, r.client() as c:
        await r.ask(c, "A")
        for method, path in looks:
            answer = await c.request(method, path)
            assert answer.status_code in (200, 404, 405, 409), f"{method} {path}: {answer.status_code}"
            assert ("B" in path) == (answer.status_code == 409), f"{method} {path}: {answer.status_code}"
        state = await r.state()
        assert not state["queue"]
        assert state["requests_total"] == 1
        assert not r.events("B", "spawn")
        assert (await r.model("A"))["state"] == "loaded"


async def test_autoload_can_be_switched_off_for_one_request(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}}) as r, r.client() as c:
        answer = await c.post("/v1/completions?autoload=0", json={"model": "A", "prompt": "x"})
        assert (answer.status_code, answer.json()["error"]["type"]) == (400, "model_not_loaded")
        assert not (await r.state())["queue"]
        await r.ask(c, "A")
        assert (await c.post("/v1/completions?autoload=0", json={"model": "A", "prompt": "x"})).status_code == 200


async def status(c: httpx.AsyncClient, model: str) -> dict[str, Any]:
    data = (await c.get("/v1/models")).json()["data"]
    found: dict[str, Any] = next(m for m in data if m["id"] == model)["status"]
    return found


async def feed(r: Rig, c: httpx.AsyncClient, seen: list[dict[str, Any]]) -> None:
    """Read ``/models/sse`` into a list."""
    async with c.stream("GET", "/models/sse") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        async for line in stream.aiter_lines():
            seen.extend([json.loads(line[5:])] if line.startswith("data:") else [])


async def test_the_feed_of_models_tells_each_state_on_its_way(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"load_ms": 400, "stop_ms": 600}, "B": {}}) as r, r.client() as c:
        seen: list[dict[str, Any]] = []
        reader = asyncio.create_task(feed(r, c, seen))

        def states(model: str) -> list[str]:
            found = [e["data"]["status"] for e in seen if e["event"] == "model_status" and e["model"] == model]
            return [s for n, s in enumerate(found) if n == 0 or found[n - 1] != s]

        async def told(*want: str) -> None:
            async def there() -> bool:
                return tuple(states("A")) == want

            await r.until(there, f"the feed tells of {want}")

        await told("unloaded")
        await r.ask(c, "A")
        await told("unloaded", "loading", "loaded")
        await r.say(c, "/models/unload", model="A")
        await told("unloaded", "loading", "loaded", "stopping", "unloaded")
        assert states("B") == ["unloaded"]
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)


async def test_a_reload_by_request_tells_the_feed_and_touches_only_what_changed(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}, "B": {}}, "--models-max", "2", "--no-watch") as r, r.client() as c:
        for m in "AB":
            await r.ask(c, m)
        born = [r.events(m, "spawn") for m in "AB"]
        seen: list[dict[str, Any]] = []
        reader = asyncio.create_task(feed(r, c, seen))

        async def told(*want: tuple[str, str]) -> None:
            async def there() -> bool:
                return {(e["event"], e["model"]) for e in seen} >= set(want)

            await r.until(there, f"the feed tells of {want}")

        await told(("model_status", "A"), ("model_status", "B"))
        write_model(r.models, "C", load_ms=50)
        ids = [m["id"] for m in (await c.get("/v1/models")).json()["data"]]
        assert ids == ["A", "B"], "not before it is asked for"
        ids = [m["id"] for m in (await c.get("/v1/models?reload=1")).json()["data"]]
        assert ids == ["A", "B", "C"]
        await told(("models_reload", "*"), ("model_status", "C"))
        (r.models / "C.gguf").unlink()
        assert [m["id"] for m in (await c.get("/models?reload=true")).json()["data"]] == ["A", "B"]
        await told(("model_remove", "C"))
        assert [r.events(m, "spawn") for m in "AB"] == born
        assert [(await r.model(m))["state"] for m in "AB"] == ["loaded", "loaded"]
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
