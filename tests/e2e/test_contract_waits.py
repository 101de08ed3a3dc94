"""Waits of no length at all: what is due at once is done, and forgets nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from llmtop.testing.rig import rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_a_burst_into_a_wait_that_is_due_at_once_is_answered_whole(tmp_path: Path) -> None:
    """A loop may hand out a timer that is due now as something that has no time."""
    options = ["--models-max", "1", "--max-wait", "0.0004"]
    async with rig(tmp_path, {m: {} for m in "ABC"}, *options) as r, r.client() as c:
        await r.ask(c, "A")
        for round_ in range(3):
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
