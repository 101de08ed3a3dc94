"""A little traffic for the demo: two clients that ask the models, so that loads, swaps and waits can be seen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx

PAUSE_S = (0.3, 1.2)
READY_S = 30.0
_PROMPTS = ("Say something.", "Tell me a story about a queue.", "What is a swap?", "Count the letters.", "Hello there.")


@dataclass
class Tally:
    """What came of it.

    Args:
        answers: Whole answers.
        failures: Errors, by type.
        swaps: Swaps as ``/api/swaps`` tells them, by id.
    """

    answers: int = 0
    failures: dict[str, int] = field(default_factory=dict[str, int])
    swaps: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])

    def summary(self) -> str:
        """One closing line: answers, errors, swaps, the slowest swap."""
        parts = [
            _counted(self.answers, "answer"),
            _counted(sum(self.failures.values()), "error"),
            _counted(len(self.swaps), "swap"),
        ]
        if self.failures:
            parts[1] += f" ({', '.join(f'{count} {name}' for name, count in sorted(self.failures.items()))})"
        slowest = max(self.swaps.values(), key=took_s, default=None)
        if slowest is not None:
            parts.append(f"slowest swap {slowest['model']} in {took_s(slowest):.2f} s")
        return ", ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def took_s(swap: dict[str, Any]) -> float:
    """How long a swap took once it was its turn: everything but the wait in the queue [s]."""
    return sum(float(value) for phase, value in swap["phases"].items() if phase != "queued_s" and value is not None)


def describe(swap: dict[str, Any]) -> str:
    """A swap in one line."""
    phases = ", ".join(
        f"{phase.removesuffix('_s')} {value:.2f}" for phase, value in swap["phases"].items() if value is not None
    )
    evicted = f", evicted {', '.join(swap['evicted'])}" if swap["evicted"] else ""
    return f"{swap['model']} {swap['result']}{evicted} ({phases})"


class Traffic:
    """Runs on a thread and an event loop of its own, so that it disturbs neither core nor view.

    Args:
        url: The front door.
        key: Its key, empty for none.
        models: Ids to ask.
        told: Called, on this thread, with a line for each swap that is over.
        asks: Ask the models; else only watch.
        tokens: How long an answer is, about [tokens].
        seconds: End by itself after that long [s]; None goes on until ``stop``.
        over: Called, on this thread, when the time is up.
    """

    def __init__(
        self,
        url: str,
        key: str,
        models: Sequence[str],
        *,
        told: Callable[[str], None] | None = None,
        asks: bool = True,
        tokens: int = 150,
        seconds: float | None = None,
        over: Callable[[], None] | None = None,
    ) -> None:
        self.tally = Tally()
        self._url, self._key, self._models = url, key, tuple(models)
        self._told, self._asks, self._tokens, self._seconds, self._over = told, asks, tokens, seconds, over
        self._leave = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="demo-traffic", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for the thread."""
        self._leave.set()
        self.join(5)

    def join(self, timeout_s: float) -> bool:
        """Wait for the end; it has come, or not within the time [s]."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    async def _run(self) -> None:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        async with httpx.AsyncClient(base_url=self._url, headers=headers, timeout=None, trust_env=False) as client:
            tasks = [asyncio.create_task(self._watch(client))]
            if self._asks:
                tasks.append(asyncio.create_task(self._clients(client)))
            await asyncio.to_thread(self._leave.wait, self._seconds)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._look(client)
        if self._over is not None and not self._leave.is_set():
            self._over()

    async def _clients(self, client: httpx.AsyncClient) -> None:
        if await self._ready(client):
            await asyncio.gather(self._in_turn(client), self._at_random(client))

    async def _ready(self, client: httpx.AsyncClient) -> bool:
        end = asyncio.get_running_loop().time() + READY_S
        while asyncio.get_running_loop().time() < end:
            try:
                if (await client.get("/health", timeout=2)).status_code == 200:
                    return True
            except httpx.HTTPError:
                pass
            await asyncio.sleep(0.1)
        return False

    async def _in_turn(self, client: httpx.AsyncClient) -> None:
        """A client with one favourite after the other."""
        random = Random(1)
        while True:
            for model in self._models:
                for _ in range(2):
                    await self._ask(client, model, random)
                    await asyncio.sleep(random.uniform(*PAUSE_S))

    async def _at_random(self, client: httpx.AsyncClient) -> None:
        """A client that wants whatever comes to its mind, now and then two at once."""
        random = Random(2)
        while True:
            wanted = random.sample(self._models, min(len(self._models), random.choice((1, 1, 2))))
            await asyncio.gather(*(self._ask(client, model, random) for model in wanted))
            await asyncio.sleep(random.uniform(*PAUSE_S) * 2)

    async def _ask(self, client: httpx.AsyncClient, model: str, random: Random) -> None:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": random.choice(_PROMPTS)}],
            "max_tokens": int(self._tokens * random.uniform(0.5, 2.0)),
            "stream": random.random() < 0.5,
        }
        try:
            answer = await client.post("/v1/chat/completions", json=body)
            kind = "" if answer.status_code == 200 else str(answer.json()["error"]["type"])
        except httpx.HTTPError as error:
            kind = type(error).__name__
        except (ValueError, KeyError, TypeError):
            kind = "unreadable"
        if kind:
            self.tally.failures[kind] = self.tally.failures.get(kind, 0) + 1
            await asyncio.sleep(1)
        else:
            self.tally.answers += 1

    async def _watch(self, client: httpx.AsyncClient) -> None:
        while True:
            await self._look(client)
            await asyncio.sleep(0.5)

    async def _look(self, client: httpx.AsyncClient) -> None:
        try:
            swaps = (await client.get("/api/swaps", timeout=2)).json()["swaps"]
        except (httpx.HTTPError, ValueError, KeyError):
            return
        for swap in swaps:
            if swap["result"] and swap["id"] not in self.tally.swaps:
                self.tally.swaps[swap["id"]] = swap
                if self._told is not None:
                    self._told(describe(swap))
