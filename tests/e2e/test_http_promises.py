"""What the field asks of a router's HTTP side, each case played through a whole llmtop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

MARK = "a prompt that nobody else is to read"
NEVER_MS = 600_000
SHOWN = ("/", "/v1/models", "/models/load", "/api/state", "/api/swaps", "/metrics", "/props")


@contextlib.asynccontextmanager
async def asking(
    r: Rig, model: str, path: str = "/v1/completions", **more: Any
) -> AsyncGenerator[asyncio.StreamReader]:
    """A request on a connection of its own; leaving the block is leaving llmtop, in the middle of whatever it does."""
    body = json.dumps({"model": model, "prompt": "x", **more}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
    writer.write(f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
    try:
        yield reader
    finally:
        writer.transport.abort()


async def until_in_flight(r: Rig, model: str, count: int) -> None:
    async def there() -> bool:
        return bool((await r.model(model))["in_flight"] == count)

    await r.until(there, f"{model} has {count} in flight")


async def until_event(r: Rig, model: str, kind: str) -> None:
    async def there() -> bool:
        return bool(r.events(model, kind))

    await r.until(there, f"{model}: {kind}")


@pytest.mark.parametrize(
    ("knobs", "ask", "pieces"),
    [
        ({"prompt_ms": NEVER_MS}, {"stream": True}, 0),
        ({"tok_rate": 20}, {"stream": True, "max_tokens": 5000}, 3),
        ({"prompt_ms": NEVER_MS}, {}, 0),
    ],
    ids=["before the first byte of a stream", "after three pieces", "no stream"],
)
async def test_a_client_that_leaves_frees_the_model_for_the_next_one(
    tmp_path: Path, knobs: dict[str, Any], ask: dict[str, Any], pieces: int
) -> None:
    async with rig(tmp_path, {"A": knobs, "B": {}}, "--models-max", "1") as r, r.client() as c:
        async with asking(r, "A", **ask) as reader:
            await until_in_flight(r, "A", 1)
            await until_event(r, "A", "request")
            for _ in range(pieces):
                await reader.readuntil(b"data: ")
        await until_event(r, "A", "abort")
        await until_in_flight(r, "A", 0)
        assert (await r.ask(c, "B")).status_code == 200
        log = r.folder / "state" / "logs" / "access.log"

        async def logged() -> bool:
            return any(" 499 A /v1/completions queue=" in line for line in log.read_text().splitlines())

        await r.until(logged, "a line that says 499")
        assert stat.S_IMODE(log.stat().st_mode) == 0o600


async def test_a_load_outlives_the_client_that_gave_up_and_the_next_try_is_served(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"load_ms": 1500}}, "--models-max", "1") as r, r.client() as c:
        answer, tries = None, 0
        while answer is None:
            tries += 1
            with contextlib.suppress(httpx.TimeoutException):
                answer = await c.post("/v1/completions", json={"model": "A", "prompt": "x"}, timeout=0.4)
        assert answer.status_code == 200
        assert tries > 1
        assert len(r.events("A", "spawn")) == 1, "no try cost a load"


async def test_a_load_that_nobody_wants_gives_way_and_is_finished_where_nobody_waits(tmp_path: Path) -> None:
    models = {"A": {"load_ms": NEVER_MS}, "B": {}, "C": {"load_ms": 800}}
    async with rig(tmp_path, models, "--models-max", "1") as r, r.client() as c:
        async with asking(r, "A"):
            await until_event(r, "A", "spawn")
        answer = await asyncio.wait_for(r.ask(c, "B"), 20)
        assert answer.status_code == 200
        assert len(r.events("A", "spawn")) == 1
        async with asking(r, "C"):
            await r.until_state("C", "loading")
        await r.until_state("C", "loaded")
        assert not r.events("C", "request"), "who left is not asked for"


async def test_an_answer_is_read_to_its_end_where_the_preset_says_drain(tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text("version = 1\n[A]\non-client-abort = drain\n")
    async with rig(tmp_path, {"A": {"tok_rate": 50}}, "--models-preset", str(preset)) as r:
        async with asking(r, "A", stream=True, max_tokens=40) as reader:
            await reader.readuntil(b"data: ")
        await until_event(r, "A", "response")
        await until_in_flight(r, "A", 0)
        assert not r.events("A", "abort")


async def test_the_list_and_the_questions_by_model_tell_each_state_and_change_none(tmp_path: Path) -> None:
    models: dict[str, dict[str, Any]] = {"A": {}, "B": {"sleep_idle_s": 0.3}, "C": {"load_ms": NEVER_MS}, "D": {}}
    async with rig(tmp_path, models, "--models-max", "3") as r, r.client() as c:
        assert (await r.ask(c, "B")).status_code == 200
        assert (await r.ask(c, "A")).status_code == 200
        await r.say(c, "/models/load", model="C")
        await r.until_state("C", "loading")
        await r.until_state("B", "sleeping")
        want = {"A": "loaded", "B": "sleeping", "C": "loading", "D": "unloaded"}
        for path in ("/models", "/v1/models"):
            listed = {m["id"]: m["status"]["value"] for m in (await c.get(path)).json()["data"]}
            assert listed == want
        for model, state in want.items():
            answer = await c.get("/slots", params={"model": model})
            assert answer.status_code == 409
            assert answer.json()["error"]["type"] == "model_not_loaded"
            assert f"{model} is {state if model != 'A' else 'idle'}" in answer.json()["error"]["message"]
        async with asking(r, "A", max_tokens=5000, stream=True) as reader:
            await reader.readuntil(b"data: ")
            assert any(slot["is_processing"] for slot in (await c.get("/slots?model=A")).json())
        assert (await c.get("/slots?model=nobody")).status_code == 404
        listed = {m["id"]: m["state"] for m in (await r.state())["models"]}
        assert listed == want
        assert not r.events("D")


async def test_keys_of_the_shell_and_of_presets_reach_no_child_and_nobody_sees_them(tmp_path: Path) -> None:
    secrets = ("front-s3cret", "preset-s3cret", "hf_s3cret", "cmd-s3cret", "env-s3cret")
    server = tmp_path / "server.py"
    server.write_text("import sys\nprint('no model here', file=sys.stderr)\nsys.exit(3)\n")
    preset = tmp_path / "p.ini"
    preset.write_text(
        "version = 1\n[A]\napi-key = preset-s3cret\nhf-token = hf_s3cret\nhost = 0.0.0.0\nport = 9000\n"
        "ssl-key-file = /nowhere\ntools = all\n"
        f"[S]\ncmd = {sys.executable} {server} --api-key cmd-s3cret ${{PORT}}\nmemory = 1MiB\nenv = TOKEN=env-s3cret\n"
    )
    keys = tmp_path / "keys"
    keys.write_text("\nfront-s3cret\r\n\n")
    options = ("--models-preset", str(preset), "--api-key-file", str(keys))
    env = {"LLAMA_ARG_MODELS_MAX": "2", "LLAMA_ARG_HOST": "127.0.0.1"}
    async with rig(tmp_path, {"A": {}}, *options, env=env) as r:
        r.key = "front-s3cret"
        async with r.client() as c:
            body = {"model": "A", "prompt": MARK, "max_tokens": 2}
            assert (await c.post("/v1/completions", json=body)).status_code == 200
            failed = await c.post("/v1/completions", json={"model": "S", "prompt": MARK})
            assert (failed.status_code, failed.json()["error"]["type"]) == (503, "load_failed")
            texts = [failed.text, r.log]
            texts += [(await c.get(path)).text for path in (*SHOWN, "/api/models/A/log", "/api/models/S/log")]
        spawn = r.events("A", "spawn")[0]
        argv = spawn["argv"]
        assert argv[argv.index("--host") + 1] == "127.0.0.1"
        assert "9000" not in argv
        assert not {"--ssl-key-file", "--api-key"} & set(argv)
        assert spawn["env"]["LLAMA_API_KEY"] not in ("", *secrets)
        assert not [name for name in spawn["env"] if name.startswith("LLAMA_ARG_MODELS")]
        files = [p for p in (r.folder / "state").rglob("*") if p.is_file()]
        texts += [p.read_bytes().decode("latin1") for p in files]
        for secret in (*secrets, spawn["env"]["LLAMA_API_KEY"]):
            assert not [text[:200] for text in texts if secret in text], secret
        assert not [text[:200] for text in texts if MARK in text], "a prompt was written down"
        assert [p for p in files if stat.S_IMODE(p.stat().st_mode) & 0o077] == []
        assert any("tools" in line for line in r.log.splitlines()), "what opens files or a shell is told at the start"


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(tmp_path: Path) -> None:
    models = {"A": {"load_ms": NEVER_MS}, **{m: {} for m in "BCDE"}}
    async with rig(tmp_path, models, "--models-max", "1", "--max-queue", "1") as r, r.client() as c:
        async with contextlib.AsyncExitStack() as waiting:
            await waiting.enter_async_context(asking(r, "A"))
            await r.until_state("A", "loading")
            await r.say(c, "/models/load", model="A")  # wanted whoever leaves
            for m in "BCD":
                await waiting.enter_async_context(asking(r, m))

            async def four() -> bool:
                return len((await r.state())["requests"]) == 4

            await r.until(four, "four wait")
            for m, said in (("A", "1 requests wait for A"), ("E", "4 requests wait")):
                answer = await r.ask(c, m)
                error = answer.json()["error"]
                assert (answer.status_code, error["type"]) == (503, "queue_full")
                assert said in error["message"]
                assert int(answer.headers["retry-after"]) >= 1
        await r.say(c, "/models/unload", model="A")
        assert (await r.ask(c, "E")).status_code == 200


async def test_names_in_paths_stand_raw_or_encoded_for_every_verb(tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text(f"version = 1\n[org/m:Q4]\nmodel = {tmp_path / 'models' / 'x.gguf'}\nalias = short\n")
    async with rig(tmp_path, {"x": {}}, "--models-preset", str(preset)) as r, r.client() as c:
        for name in ("org/m:Q4", "org%2Fm:Q4", "org%2fm%3AQ4", "short"):
            answer = await c.post(f"/api/models/{name}/load", json={})
            assert answer.json() == {"success": True, "changed": True}
            await r.until_state("org/m:Q4", "loaded")
            assert (await c.get(f"/v1/models/{name}")).json()["id"] == "org/m:Q4"
            assert (await c.get(f"/api/models/{name}/log")).json()["model"] == "org/m:Q4"
            answer = await c.post(f"/upstream/{name}/v1/completions", json={"max_tokens": 1})
            assert answer.status_code == 200
            assert (await c.get(f"/upstream/{name}/v1/models")).status_code == 200
            assert (await c.post(f"/api/models/{name}/kill", json={})).json()["success"] is True
            await r.until_state("org/m:Q4", "unloaded")


async def test_requests_end_by_their_own_number_and_no_other(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {"load_ms": NEVER_MS}}) as r, r.client() as c:
        async with asking(r, "A") as reader:
            await r.until_state("A", "loading")
            (waiting,) = (await r.state())["requests"]
            for wrong in ("0", "999999", "-1", "x", f"{waiting['id']}x", "%1b%5B2J", "%E2%80%AE", "9" * 400):
                answer = await c.delete(f"/api/requests/{wrong}")
                assert (answer.status_code, answer.json()["error"]["type"]) == (404, "not_found")
                assert answer.json()["error"]["message"].isprintable()
                assert len(answer.text) < 300
            assert (await c.delete(f"/api/requests/{waiting['id']}")).json() == {"success": True, "changed": True}
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert f"X-Llmtop-Request-Id: {waiting['id']}\r\n".encode() in head
            assert (await c.delete(f"/api/requests/{waiting['id']}")).status_code == 404
        await r.say(c, "/models/unload", model="A")


FRAGILE = """
import asyncio, os, sys


async def serve(reader, writer):
    head = await reader.readuntil(b"\\r\\n\\r\\n")
    if not head.startswith(b"POST"):
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\n{}")
        return writer.close()
    writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Type: text/event-stream\\r\\n\\r\\ndata: 1\\n\\n")
    while await reader.read(65536):
        pass
    os.kill(os.getpid(), 11)


async def main():
    async with await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1])) as server:
        await server.serve_forever()


asyncio.run(main())
"""
"""A server that does not survive a client that leaves."""


async def test_a_child_that_dies_of_a_client_that_left_is_told_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    preset = tmp_path / "p.ini"
    command = f"cmd = {sys.executable} {tmp_path / 'fragile.py'} ${{PORT}}\nmemory = 1MiB\n"
    preset.write_text(f"version = 1\n[A]\n{command}[B]\n{command}on-client-abort = drain\n")
    async with rig(tmp_path, {"C": {}}, "--models-preset", str(preset)) as r, r.client() as c:
        for m in "AB":
            async with asking(r, m, stream=True) as reader:
                await reader.readuntil(b"data: ")
            if m == "B":
                await c.post("/api/models/B/kill", json={})
            await r.until_state(m, "unloaded")
        lines = [e["text"] for e in (await r.state())["events"] if "on-client-abort" in e["text"]]
        assert len(lines) == 1
        assert lines[0].startswith("A ended ")


STATE: dict[str, set[str]] = {
    "": {
        "version",
        "pid",
        "models_max",
        "models_max_source",
        "hold",
        "models",
        "queue",
        "requests",
        "memory",
        "swaps",
        "oom",
    },
    "models": {
        *("id", "state", "instance", "pid", "port", "pinned", "draining", "sick", "settling", "stuck", "quarantined_s"),
        *(
            "in_flight",
            "waiting",
            "reserved_bytes",
            "footprint_bytes",
            "idle_s",
            "progress",
            "reason",
            "failure",
            "args",
        ),
    },
    "queue": {"model", "position", "waiters", "waited_s", "reason"},
    "requests": {"id", "model", "phase", "age_s", "path", "client"},
    "memory": {"total", "wired", "limit", "budget", "reserved", "available", "sources"},
    "swaps": {"count", "last"},
    "oom": {"count", "last"},
}
SWAP = {"id", "model", "reason", "evicted", "at", "result", "phases", "stops"}
PHASES = {"queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s"}
STOP = {"model", "signal", "footprint_bytes", "returned_bytes", "settle_s"}


async def test_state_and_swaps_hold_what_others_build_on(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}, "B": {"load_ms": NEVER_MS}}, "--models-max", "1") as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        async with asking(r, "B"):
            await r.until_state("B", "loading")
            state = await r.state()
            assert state.keys() >= STATE[""]
            for name in ("memory", "swaps", "oom"):
                assert state[name].keys() >= STATE[name]
            for name in ("models", "queue", "requests"):
                assert state[name]
                for row in state[name]:
                    assert row.keys() >= STATE[name]
            assert (state["queue"][0]["model"], state["queue"][0]["position"]) == ("B", 1)
            assert state["queue"][0]["reason"].startswith("loading")
            assert (state["requests"][0]["phase"], state["requests"][0]["client"]) == ("loading", "127.0.0.1")
            assert (state["models_max"], state["models_max_source"]) == (1, "flag")
        await r.say(c, "/models/unload", model="B")
        assert (await r.ask(c, "A")).status_code == 200
        swaps = (await c.get("/api/swaps")).json()["swaps"]
        assert [s["id"] for s in swaps] == sorted(s["id"] for s in swaps)
        for swap in swaps:
            assert swap.keys() >= SWAP
            assert swap["phases"].keys() == PHASES
            assert all(stop.keys() >= STOP for stop in swap["stops"])
        first = next(s for s in swaps if s["model"] == "B")
        assert first["evicted"] == ["A"]
        assert [stop["model"] for stop in first["stops"]] == ["A"]


async def test_a_load_that_cannot_be_is_refused_by_the_call_itself_and_names_of_strangers_are_no_labels(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, {"A": {}, "B": {}}, "--models-max", "1") as r, r.client() as c:
        (r.models / "bad.gguf").write_bytes(b"this is no model")
        await c.get("/models?reload=1")
        await c.post("/api/models/A/pin", json={})
        await r.ask(c, "A")
        for path, body in (("/models/load", {"model": "bad"}), ("/api/models/bad/load", {})):
            answer = await c.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "load_failed")
        for path, body in (("/models/load", {"model": "B"}), ("/api/models/B/load", {})):
            answer = await c.post(path, json=body)
            assert (answer.status_code, answer.json()["error"]["type"]) == (503, "all_slots_pinned")
        assert len(r.events("A", "spawn")) == 1
        for name in ("nobody-there", 'x"} 1\nevil{a="'):
            assert (await r.ask(c, name)).status_code == 404
        text = (await c.get("/metrics")).text
        assert "nobody-there" not in text
        assert "evil" not in text
        assert 'model="A"' in text
