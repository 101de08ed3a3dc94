"""The memory's part: bytes are reserved, waited for and counted; the prompt cache is one budget."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from llmtop.config.spec import GIB
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Machine:
    """A made-up memory that llmtop reads from a file."""

    def __init__(self, folder: Path, sizes: dict[str, int]) -> None:
        self.file = folder / "memory.json"
        self.preset = folder / "preset.ini"
        self.preset.write_text("".join(f"[{m}]\nmemory = {gib}GiB\n" for m, gib in sizes.items()))
        self.sizes = {m: gib * GIB for m, gib in sizes.items()}
        self.env = {"LLMTOP_MEMORY_SOURCE": f"file:{self.file}"}
        self.use(0)

    def use(self, gib: float) -> None:
        """So much is wired besides the system's 6 GiB."""
        wired = int((6 + gib) * GIB)
        content = {"total": 128 * GIB, "wired": wired, "available": 122 * GIB - wired, "gpu_limit": 96 * GIB}
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(content | {"models": self.sizes}))
        new.replace(self.file)

    async def follow(self, r: Rig, peaks: dict[str, int]) -> None:
        """Let the memory be what the living children hold, and note the peaks of what is reserved and of children."""
        while True:
            alive = {child.pid for child in r.children()}
            held = [m for m in self.sizes for e in r.events(m, "spawn") if e["pid"] in alive]
            self.use(sum(self.sizes[m] for m in held) / GIB)
            peaks["reserved"] = max(peaks["reserved"], (await r.state())["memory"]["reserved"] // GIB)
            peaks["children"] = max(peaks["children"], len(alive))
            await asyncio.sleep(0.05)


async def test_bytes_are_reserved_at_the_claim_and_all_victims_go_that_one_model_needs(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"A": 42, "B": 32, "C": 20, "D": 20, "E": 90})
    options = ["--memory-budget", "60GiB", "--models-preset", str(machine.preset)]
    models: dict[str, dict[str, Any]] = {m: {"load_ms": 200} for m in machine.sizes}
    async with rig(tmp_path, models, *options, env=machine.env) as r, r.client() as c:
        peaks = {"reserved": 0, "children": 0}
        follower = asyncio.create_task(machine.follow(r, peaks))
        both = await asyncio.gather(r.ask(c, "A"), r.ask(c, "B"))
        assert [a.status_code for a in both] == [200, 200]
        assert peaks["children"] == 1, "42 and 32 GiB are never up side by side in 60"
        for m in "CD":
            assert (await r.ask(c, m)).status_code == 200
        busy = asyncio.create_task(r.ask(c, "C", tokens=250))
        await asyncio.sleep(0.3)
        waiting = asyncio.create_task(r.ask(c, "A"))
        await asyncio.sleep(0.4)
        head = (await r.state())["queue"][0]
        assert head["model"] == "A"
        assert head["reason"]
        assert (await busy).status_code == 200, "nothing is cut off for bytes"
        assert (await waiting).status_code == 200
        states = {m["id"]: m["state"] for m in (await r.state())["models"]}
        assert {m for m, s in states.items() if s == "loaded"} == {"A"}, "C and D go together, one is not enough"
        refused = await asyncio.wait_for(r.ask(c, "E"), 5)
        assert (refused.status_code, refused.json()["error"]["type"]) == (503, "model_too_large")
        assert "90" in refused.text
        assert "60" in refused.text
        assert not r.events("E")
        assert not follower.done()
        follower.cancel()
        assert 42 <= peaks["reserved"] <= 60


async def test_a_spawn_waits_for_the_memory_of_the_child_before_and_no_longer_than_it_must(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"A": 30, "B": 30})
    options = ["--models-max", "1", "--memory-budget", "48GiB", "--models-preset", str(machine.preset)]
    async with rig(tmp_path, {m: {} for m in "AB"}, *options, env=machine.env) as r, r.client() as c:

        async def swap(new: str, old: str) -> tuple[asyncio.Task[Any], float]:
            """Ask for another model; gives the task and when the old child went."""
            machine.use(30)
            await asyncio.sleep(1.3)
            task = asyncio.create_task(r.ask(c, new))

            async def gone() -> bool:
                return len(r.events(old, "exit")) == len(r.events(old, "spawn"))

            await r.until(gone, f"{old} exits", 8)
            return task, time.time()

        await r.ask(c, "A")
        task, gone_at = await swap("B", "A")
        settling = 0
        for step in range(15):
            machine.use(30 - 2 * (step + 1))
            settling += (await r.model("A"))["settling"]
            await asyncio.sleep(0.1)
        assert (await asyncio.wait_for(task, 20)).status_code == 200
        waited = r.events("B", "spawn")[0]["t"] - gone_at
        assert 0.7 < waited < 6, f"{waited:.2f} s, the memory was back after 1.5 s"
        assert settling, "the state shows that A's memory is out"
        last = (await c.get("/api/swaps")).json()["swaps"][-1]
        assert last["phases"]["settle_s"] > 0.5
        assert last["stops"][0]["returned_bytes"] >= 26 * GIB
        # 8 GiB stay out for good; the next model fits beside them
        task, gone_at = await swap("A", "B")
        machine.use(8)
        assert (await asyncio.wait_for(task, 40)).status_code == 200
        assert 0.9 < r.events("A", "spawn")[-1]["t"] - gone_at < 31
        memory = (await r.state())["memory"]
        assert memory["stranded"] >= 2 * GIB, "what never returned is told"


async def test_the_prompt_cache_is_shared_out_once(tmp_path: Path) -> None:
    def share(r: Rig, model: str) -> int:
        argv = r.events(model, "spawn")[-1]["argv"]
        return int(argv[argv.index("--cache-ram") + 1])

    preset = tmp_path / "preset.ini"
    preset.write_text("[C]\ncache-ram = 3000\n")
    options = ["--models-max", "2", "--cache-ram", "15000", "--models-preset", str(preset)]
    async with rig(tmp_path / "capped", {m: {} for m in "ABC"}, *options) as r, r.client() as c:
        for m in "CBA":
            assert (await r.ask(c, m)).status_code == 200
        assert [share(r, m) for m in "ABC"] == [6000, 6000, 3000], "C's own comes off first, the rest goes by the cap"
        listed = (await c.get("/v1/models")).json()["data"]
        assert "6000" in next(m for m in listed if m["id"] == "A")["status"]["args"]
    options = ["--models-max", "0", "--cache-ram", "9000"]
    async with rig(tmp_path / "open", {m: {} for m in "ABC"}, *options) as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        assert share(r, "A") == 3000
