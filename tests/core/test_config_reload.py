"""A preset file that changes under a running llmtop: only what changed is touched, a broken file changes nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.models import read_events, write_model
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def sections(tmp_path: Path, names: Iterable[str], **more: str) -> str:
    """A preset of models that lie outside the models folder, so that each is there by its section alone."""
    return "".join(f"[{n}]\nmodel = {tmp_path / 'elsewhere' / n}.gguf\n{more.get(n, '')}\n" for n in names)


async def stream(r: Rig, client: httpx.AsyncClient, model: str, tokens: int) -> str:
    """A whole streamed answer."""
    body = {"model": model, "prompt": "x", "max_tokens": tokens, "stream": True}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        return "".join([text async for text in answer.aiter_text()])


async def test_only_what_changed_is_touched_and_a_broken_file_changes_nothing(tmp_path: Path) -> None:
    for name in "ABCD":
        knobs: dict[str, Any] = {"load_ms": 50, "tokens": 400, "tok_rate": 50}
        write_model(tmp_path / "elsewhere", name, **knobs)
    (tmp_path / "models").mkdir()
    preset = tmp_path / "p.ini"
    preset.write_text(sections(tmp_path, "ABC", C="c = 512"))

    def pids() -> dict[str, int]:
        return {n: read_events(tmp_path / "elsewhere" / f"{n}.gguf", "spawn")[-1]["pid"] for n in "ABC"}

    async with (
        rig(tmp_path, None, "--models-preset", str(preset), "--models-max", "0", "--no-watch") as r,
        r.client() as c,
    ):

        async def ids() -> set[str]:
            return {m["id"] for m in (await r.state())["models"]}

        async def told(text: str) -> None:
            async def there() -> bool:
                return any(text in event["text"] for event in (await r.state())["events"])

            await r.until(there, text)

        def hang_up(text: str) -> None:
            preset.write_text(text)
            os.kill(r.process.pid, signal.SIGHUP)

        for name in "ABC":
            assert (await r.ask(c, name, tokens=1)).status_code == 200
        born = pids()
        reading = asyncio.create_task(stream(r, c, "A", 400))
        await asyncio.sleep(0.3)

        hang_up(sections(tmp_path, "ABCD", C="c = 512"))

        async def added() -> bool:
            return "D" in await ids()

        await r.until(added, "D is there")

        hang_up(sections(tmp_path, "ABCD", C="c = 1024"))
        await told("C: args changed")
        assert pids() == born, "a change of settings ends nobody"
        assert [m["id"] for m in (await r.state())["models"] if m["stale_config"]] == ["C"]

        for broken in ("[A\n", sections(tmp_path, "A") + "nonsense\n", sections(tmp_path, "A", A="pin = so")):
            before = len([e for e in (await r.state())["events"] if "not reloaded" in e["text"]])
            hang_up(broken)

            async def refused(before: int = before) -> bool:
                return len([e for e in (await r.state())["events"] if "not reloaded" in e["text"]]) > before

            await r.until(refused, f"{broken!r} is refused")
            assert await ids() == set("ABCD")
            assert pids() == born

        hang_up(sections(tmp_path, "ACD", C="c = 1024"))

        async def removed() -> bool:
            return "B" not in await ids()

        await r.until(removed, "B is gone")
        assert [e["event"] for e in read_events(tmp_path / "elsewhere" / "B.gguf")][-1] == "exit"
        assert {n: p for n, p in pids().items() if n != "B"} == {n: p for n, p in born.items() if n != "B"}

        assert "[DONE]" in await reading, "A's stream never stopped"
        assert (await r.model("A"))["pid"] == born["A"]
        assert (await r.say(c, "/api/models/C/evict")).status_code == 200
        await r.until_state("C", "unloaded")
        assert (await r.ask(c, "C", tokens=1)).status_code == 200
        argv = read_events(tmp_path / "elsewhere" / "C.gguf", "spawn")[-1]["argv"]
        assert "1024" in argv, "the new setting holds from the next load on"
        assert not (await r.model("C"))["stale_config"]


async def test_a_reload_by_a_request_tells_the_fault(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "A", load_ms=50)
    preset = tmp_path / "p.ini"
    preset.write_text("[A]\nc = 512\n")
    async with rig(tmp_path, None, "--models-preset", str(preset), "--no-watch") as r, r.client() as c:
        preset.write_text("[A]\nc = 512\nwhat\n")
        answer = await c.get("/v1/models?reload=1")
        assert answer.status_code == 400
        assert f"{preset}:3: 'what' is not followed by = value; write KEY = VALUE" in answer.json()["error"]["message"]
        preset.write_text("[A]\nc = 512\nalias = a\n")
        answer = await c.get("/v1/models?reload=1")
        assert answer.status_code == 200
        assert answer.json()["data"][0]["aliases"] == ["a"]
