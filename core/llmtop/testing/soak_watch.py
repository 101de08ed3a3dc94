"""What a soak sees of llmtop from outside: its children at every moment, its memory, its descriptors, its logs."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from llmtop.testing.rig import Rig
from llmtop.testing.soak_house import House

SAMPLE_S = 0.05
ZOMBIE_S = 1.0
"""A child that is dead longer than that and not reaped counts as a zombie [s]."""

_SUSPICIOUS = re.compile(r"Traceback|never retrieved|never awaited|Unclosed|Task was destroyed")


@dataclass(frozen=True)
class Measure:
    """Llmtop at rest with its residents loaded.

    Args:
        rss: Resident memory [bytes].
        pss: Its proportional share [bytes], None where the system does not tell.
        descriptors: Open ones [1].
        threads: Threads [1].
    """

    rss: int
    pss: int | None
    descriptors: int
    threads: int


@dataclass
class Watch:
    """Looks at the children ``1 / SAMPLE_S`` times a second.

    Args:
        rig: Whose.
        peak: Most children alive at once [1].
        samples: How often it looked [1].
        zombies: Pids that stayed unreaped.
    """

    rig: Rig
    peak: int = 0
    samples: int = 0
    zombies: set[int] = field(default_factory=set[int])
    _dead: dict[int, float] = field(default_factory=dict[int, float])

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(SAMPLE_S)

    def look(self) -> None:
        """One sample."""
        self.samples += 1
        # What a child has forked itself looks like one more of its kind, and is none of llmtop's.
        own = [child for child in self.rig.children() if _parent(child) == self.rig.process.pid]
        self.peak = max(self.peak, len(own))
        dead: dict[int, float] = {}
        with contextlib.suppress(psutil.Error):
            for child in psutil.Process(self.rig.process.pid).children():
                with contextlib.suppress(psutil.Error):
                    if child.status() == psutil.STATUS_ZOMBIE:
                        dead[child.pid] = self._dead.get(child.pid, time.monotonic())
        self._dead = dead
        self.zombies |= {pid for pid, since in dead.items() if time.monotonic() - since > ZOMBIE_S}


def _parent(process: psutil.Process) -> int | None:
    with contextlib.suppress(psutil.Error):
        return process.ppid()
    return None


async def at_rest(house: House, client: httpx.AsyncClient, timeout_s: float = 30.0) -> Measure:
    """Have the two residents loaded and nothing else, wait until all is quiet, and measure.

    Raises:
        AssertionError: It does not come to rest.
    """
    end = time.monotonic() + timeout_s
    for name in house.names:
        if name not in house.residents:
            await client.post(f"/api/models/{name}/evict", json={})
    while True:
        state = (await client.get("/api/state")).json()
        models = {model["id"]: model for model in state["models"]}
        up = {name for name, model in models.items() if model["state"] in ("loaded", "sleeping")}
        if up == set(house.residents) and not state["queue"] and state["running"] == len(up):
            break
        for name in house.residents:
            if models[name]["state"] == "unloaded":
                await client.post(f"/api/models/{name}/load", json={})
        assert time.monotonic() < end, f"not at rest: {brief(state)}"
        await asyncio.sleep(0.1)
    await asyncio.sleep(2.5)  # connections that wait for more are closed by then
    return measure(house.rig.process.pid)


def measure(pid: int) -> Measure:
    """Look at a process now."""
    process = psutil.Process(pid)
    with process.oneshot():
        full: Any = process.memory_full_info()
        return Measure(full.rss, getattr(full, "pss", None), process.num_fds(), process.num_threads())


def open_files(pid: int) -> Counter[str]:
    """What the descriptors of a process stand for, sockets with their ends; empty where there is no /proc."""
    kinds: Counter[str] = Counter()
    with contextlib.suppress(OSError, psutil.Error):
        ends = {c.fd: f"{c.laddr or 'unix'} to {c.raddr or 'nobody'} {c.status}" for c in _sockets(pid)}
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                kind = re.sub(r"\[\d+\]", "", str(link.readlink()))
                kinds[f"{kind} {ends.get(int(link.name), '')}".strip()] += 1
    return kinds


def _sockets(pid: int) -> list[Any]:
    return list(psutil.Process(pid).net_connections("all"))


def brief(state: dict[str, Any]) -> str:
    """A state in a line."""
    models = ", ".join(f"{m['id']} {m['state']} ({m['in_flight']})" for m in state["models"] if m["instance"])
    return f"{models or 'nothing up'}; queue {[q['model'] for q in state['queue']]}; {len(state['requests'])} requests"


def suspicious(rig: Rig) -> list[str]:
    """Lines of llmtop's own logs that must never be there."""
    logs = [rig.folder / "llmtop.log", *(rig.folder / "state" / "logs").glob("llmtop.log*")]
    return [
        f"{path.name}: {line[:160]}"
        for path in logs
        if path.exists()
        for line in path.read_text(errors="replace").splitlines()
        if _SUSPICIOUS.search(line)
    ]


def answered(rig: Rig) -> Counter[str]:
    """Request id to how many lines the access log has of it."""
    found: Counter[str] = Counter()
    for path in (rig.folder / "state" / "logs").glob("access.log*"):
        found.update(
            line.split(" ")[1] for line in path.read_text(errors="replace").splitlines() if line.count(" ") > 3
        )
    return found
