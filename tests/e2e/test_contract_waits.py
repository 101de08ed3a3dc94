"""Waits of no length at all: what is due at once is done, and forgets nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmtop.testing.rig import rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_max_wait_zero_drains_at_once_and_a_burst_into_it_is_answered_whole(tmp_path: Path) -> None:
    async with rig(tmp_path, {m: {} for m in "ABC"}, "--models-max", "1", "--max-wait", "0") as r, r.client() as c:
        await r.ask(c, "A")
        for round_ in range(4):
            busy = [asyncio.create_task(r.ask(c, "CAB"[round_ % 3], tokens=30)) for _ in range(6)]
            await asyncio.sleep(0.15)
            burst = [asyncio.create_task(r.ask(c, m)) for _ in range(8) for m in "ABC"]
            codes = [(await task).status_code for task in (*busy, *burst)]
            assert set(codes) == {200}, codes
        state = await r.state()
        assert not state["requests"], "a request that is over is still in flight"
        assert not state["queue"]
        assert not state["faults"]
        assert "Traceback" not in r.log


async def test_a_stop_timeout_of_zero_kills_at_once_and_nothing_breaks(tmp_path: Path) -> None:
    deaf = {"ignore_stdin": True, "ignore_term": True}
    models = {"A": deaf, "B": deaf}
    async with rig(tmp_path, models, "--models-max", "1", "--stop-timeout", "0") as r, r.client() as c:
        for m in "ABABAB":
            assert (await asyncio.wait_for(r.ask(c, m), 10)).status_code == 200
        assert "Traceback" not in r.log
