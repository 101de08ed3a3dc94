"""What goes wrong in a soak, and what the operator does meanwhile: chosen at random, from a seed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable

import httpx
import psutil

from llmtop.testing.soak_house import House

PAUSE_S = (0.05, 0.6)
FROZEN_S = 0.8
HELD_S = 0.3
PINNED_S = 1.0


class Faults:
    """Kills, freezes and verbs.

    Args:
        house: Whose children suffer.
        rng: Chooses what and when.
    """

    def __init__(self, house: House, rng: random.Random) -> None:
        self._house = house
        self._rng = rng
        self._stop = asyncio.Event()
        self._later: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._table: tuple[tuple[int, str, Callable[[httpx.AsyncClient], Awaitable[bool]]], ...] = (
            (4, "kill -9 a child", lambda _: self._signal(1, signal.SIGKILL)),
            (1, "kill -9 two at once", lambda _: self._signal(2, signal.SIGKILL)),
            (1, "SIGTERM from outside", lambda _: self._signal(1, signal.SIGTERM)),
            (1, "freeze a child", lambda _: self._freeze()),
            (2, "kill -9 a loading child", lambda _: self._signal_loading()),
            (3, "another temper", lambda _: self._temper()),
            (3, "evict", lambda c: self._verb(c, "evict")),
            (2, "kill", lambda c: self._verb(c, "kill")),
            (2, "load", lambda c: self._verb(c, "load")),
            (2, "pin", self._pin),
            (1, "hold, step, resume", self._hold),
            (2, "cancel a request", self._cancel),
            (1, "read the configuration again", lambda _: self._reload()),
        )

    async def run(self) -> None:
        """Do harm until ``stop``; then undo what lasts."""
        weights = [weight for weight, _, _ in self._table]
        async with self._house.rig.client() as client:
            while not self._stop.is_set():
                _, name, work = self._rng.choices(self._table, weights)[0]
                if await work(client):
                    self.done[name] += 1
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), self._rng.uniform(*PAUSE_S))
            await asyncio.gather(*self._later)
            for name in self._house.names:
                await self._post(client, f"/api/models/{name}/unpin")
            await self._post(client, "/api/queue/resume")

    def stop(self) -> None:
        """Enough."""
        self._stop.set()

    def _afterwards(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._later.add(task)
        task.add_done_callback(self._later.discard)

    async def _signal(self, count: int, signum: int) -> bool:
        children = self._house.rig.children()
        if len(children) < count:
            return False
        for child in self._rng.sample(children, count):
            with contextlib.suppress(psutil.Error):
                child.send_signal(signum)
        return True

    async def _signal_loading(self) -> bool:
        """Wait for the next child to appear, and kill it before it can be ready."""
        known = {child.pid for child in self._house.rig.children()}
        for _ in range(50):
            await asyncio.sleep(0.01)
            for child in self._house.rig.children():
                if child.pid not in known:
                    with contextlib.suppress(psutil.Error):
                        child.kill()
                    return True
        return False

    async def _freeze(self) -> bool:
        children = self._house.rig.children()
        if not children:
            return False
        child = self._rng.choice(children)

        async def thaw() -> None:
            await asyncio.sleep(FROZEN_S)
            with contextlib.suppress(psutil.Error):
                child.send_signal(signal.SIGCONT)

        with contextlib.suppress(psutil.Error):
            child.send_signal(signal.SIGSTOP)
            self._afterwards(thaw())
        return True

    async def _temper(self) -> bool:
        self._house.change_temper(self._rng)
        return True

    async def _verb(self, client: httpx.AsyncClient, verb: str) -> bool:
        return await self._post(client, f"/api/models/{self._rng.choice(self._house.names)}/{verb}")

    async def _pin(self, client: httpx.AsyncClient) -> bool:
        name = self._rng.choice(self._house.names)

        async def unpin() -> None:
            await asyncio.sleep(PINNED_S)
            await self._post(client, f"/api/models/{name}/unpin")

        self._afterwards(unpin())
        return await self._post(client, f"/api/models/{name}/pin")

    async def _hold(self, client: httpx.AsyncClient) -> bool:
        held = await self._post(client, "/api/queue/hold")
        await asyncio.sleep(HELD_S)
        stepped = await self._post(client, "/api/queue/step")
        await asyncio.sleep(HELD_S)
        return await self._post(client, "/api/queue/resume") and held and stepped

    async def _cancel(self, client: httpx.AsyncClient) -> bool:
        state = (await client.get("/api/state")).json()
        if not state["requests"]:
            return False
        one = self._rng.choice(state["requests"])["id"]
        answer = await client.delete(f"/api/requests/{one}")
        return self._judge(answer, f"DELETE /api/requests/{one}", 404)

    async def _reload(self) -> bool:
        os.kill(self._house.rig.process.pid, signal.SIGHUP)
        return True

    async def _post(self, client: httpx.AsyncClient, path: str) -> bool:
        return self._judge(await client.post(path, json={}), path, 503)

    def _judge(self, answer: httpx.Response, path: str, also: int) -> bool:
        """A verb answers 200; a load may be refused with 503, a request may be over (404)."""
        if answer.status_code not in (200, also):
            self.wrong.append(f"{path}: {answer.status_code} {answer.text[:120]}")
        return answer.status_code == 200
