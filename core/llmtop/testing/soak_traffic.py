"""The clients of a soak: they ask, listen to the end or leave, and each says how its request ended."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx

from llmtop.testing.soak_house import House

THINK_S = 0.15
HANG_S = 45.0
"""A request that takes longer has been forgotten by llmtop [s]."""

ERRORS = frozenset(
    {
        "all_slots_pinned",
        "insufficient_memory",
        "load_cancelled",
        "load_failed",
        "queue_full",
        "request_cancelled",
        "server_error",
        "slot_stuck",
        "upstream_error",
    }
)
"""Error types that a soak may bring about; ``server_error`` is a sick child's own."""


@dataclass
class Ledger:
    """How requests ended. ``sent`` is the sum of the three ways and of ``wrong``.

    Args:
        sent: Requests begun [1].
        whole: Whole answers [1].
        left: Left by their client [1].
        errors: Error type to how often it was the answer.
        wrong: What no client should ever see, one line each.
        ids: Request ids of all answers whose head was seen.
    """

    sent: int = 0
    whole: int = 0
    left: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    ids: list[str] = field(default_factory=list[str])
    open: int = 0


class Clients:
    """Several clients at work.

    Args:
        house: Whom they ask.
        rng: Chooses models, paths and who leaves.
        count: How many work side by side [1].
    """

    def __init__(self, house: House, rng: random.Random, count: int) -> None:
        self._house = house
        self._rng = rng
        self._count = count
        self._stop = asyncio.Event()
        self.ledger = Ledger()

    async def run(self) -> None:
        """Work until ``stop``, and let what is on its way end."""
        async with self._house.rig.client() as client:
            await asyncio.gather(*[self._work(client) for _ in range(self._count)])

    def stop(self) -> None:
        """Begin nothing new."""
        self._stop.set()

    async def _work(self, client: httpx.AsyncClient) -> None:
        rng, names = self._rng, self._house.names
        while not self._stop.is_set():
            model = rng.choice(names)
            for _ in range(rng.randrange(1, 4)):
                await self._one(client, model)
                await asyncio.sleep(rng.random() * THINK_S)
                if self._stop.is_set():
                    break

    async def _one(self, client: httpx.AsyncClient, model: str) -> None:
        rng, ledger = self._rng, self.ledger
        leave_s = rng.uniform(0.02, 0.6) if rng.random() < 0.2 else None
        stream, chat = rng.random() < 0.5, rng.random() < 0.5
        body: dict[str, Any] = {"model": model, "max_tokens": rng.choice((1, 4, 4, 30)), "stream": stream}
        body |= {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "hi"}
        path = "/v1/chat/completions" if chat else "/v1/completions"
        ledger.sent += 1
        ledger.open += 1
        try:
            end = await asyncio.wait_for(self._listen(client, path, body), leave_s or HANG_S)
        except TimeoutError:
            end = "left" if leave_s else f"wrong: no end within {HANG_S:g} s: {path} {model}"
        finally:
            ledger.open -= 1
        kind, _, text = end.partition(": ")
        if kind == "whole":
            ledger.whole += 1
        elif kind == "left":
            ledger.left += 1
        elif kind == "error":
            ledger.errors[text] += 1
        else:
            ledger.wrong.append(f"{model}: {text}")

    async def _listen(self, client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> str:
        """Ask, and give how it ended: ``whole``, ``error: TYPE`` or ``wrong: WHAT``."""
        data, status, cut = bytearray(), 0, ""
        try:
            async with client.stream("POST", path, json=body) as answer:
                status = answer.status_code
                self.ledger.ids.append(answer.headers.get("x-llmtop-request-id", ""))
                async for part in answer.aiter_raw():
                    data += part
        except httpx.HTTPError as error:
            cut = f"{type(error).__name__} {error}"
        if not status:
            return f"wrong: no answer at all ({cut})"
        if status != 200:
            return _refusal(bytes(data), status, cut)
        return _stream_end(bytes(data), cut) if body["stream"] else _whole_end(bytes(data), body["model"], cut)


def _refusal(data: bytes, status: int, cut: str) -> str:
    try:
        kind = str(json.loads(data)["error"]["type"])
    except (ValueError, KeyError, TypeError):
        return f"wrong: {status} without an error in it ({cut}): {data[:80]!r}"
    return f"error: {kind}" if kind in ERRORS and not cut else f"wrong: {status} {kind} ({cut}) {data[:160]!r}"


def _whole_end(data: bytes, model: str, cut: str) -> str:
    if cut:
        return "error: cut"  # the head had gone out: an aborted connection is all that can be said
    try:
        answer = json.loads(data)
        named = answer["model"]
    except (ValueError, KeyError, TypeError):
        return f"wrong: 200 with half an answer that ended cleanly: {data[-80:]!r}"
    return "whole" if named == model and answer["choices"] else f"wrong: answered by {named}"


def _stream_end(data: bytes, cut: str) -> str:
    events = [line[5:].strip() for line in data.split(b"\n") if line.startswith(b"data:")]
    last = events[-1] if events else b""
    if last == b"[DONE]":
        return "whole" if not cut else f"wrong: broken after [DONE] ({cut})"
    if last.startswith(b"{") and b'"error"' in last:
        kind = str(json.loads(last)["error"]["type"])
        return f"error: {kind}" if kind in ERRORS else f"wrong: error event {kind}"
    return f"wrong: a stream without [DONE] and without an error event ({cut}): {data[-80:]!r}"
