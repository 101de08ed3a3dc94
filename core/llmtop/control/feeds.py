"""The event streams. Each is pulled by its reader, so a slow one skips snapshots and costs a fixed amount of memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

import msgspec
from anyio import CancelScope

from llmtop.control.listing import status_data
from llmtop.control.port import ControlPort
from llmtop.snapshot import Memory, Snapshot

HEARTBEAT = b": still here\n\n"
MEMORY_STEP = 32 * 2**20
"""Measured memory that moved by less is not worth a snapshot [bytes]: views show tenths of GiB."""

_MEASURED = ("wired", "available", "used", "ours", "others", "budget")

_encode = msgspec.json.encode


class Pace(msgspec.Struct, frozen=True):
    """How often a stream says something.

    Args:
        heartbeat_s: A comment after that long without anything else [s].
        snapshot_s: At least so long between two snapshots [s].
    """

    heartbeat_s: float = 15.0
    snapshot_s: float = 1.0


class Over(Exception):
    """The core or the server ends."""


class Changes:
    """Tells that the core has a newer snapshot, waited for with a timeout, without losing one to the timeout."""

    def __init__(self, core: ControlPort, closing: asyncio.Event) -> None:
        self._source = core.subscribe()
        self._closing = asyncio.ensure_future(closing.wait())
        self._next = asyncio.ensure_future(anext(self._source))

    async def __aenter__(self) -> Changes:
        try:
            await asyncio.sleep(0)  # lets the subscription begin: what changes from here on is told
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()

    async def _end(self) -> None:
        waiting: list[asyncio.Future[Any]] = [self._next, self._closing]
        for task in waiting:
            task.cancel()
        with CancelScope(shield=True):  # a reader that has left must not leave its subscription behind
            await asyncio.gather(*waiting, return_exceptions=True)
            aclose = getattr(self._source, "aclose", None)
            if aclose is not None:
                await aclose()

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a change.

        Args:
            timeout_s: At most so long [s].

        Returns:
            There was one.

        Raises:
            Over: There will be no more.
        """
        await asyncio.wait((self._next, self._closing), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if self._closing.done():
            raise Over
        if not self._next.done():
            return False
        if self._next.exception() is not None:
            raise Over from self._next.exception()
        self._next = asyncio.ensure_future(anext(self._source))
        return True


def frame(kind: str, value: Any, seq: int | None = None) -> bytes:
    """One server-sent event. JSON holds no line breaks, so one ``data`` line is enough."""
    number = b"" if seq is None else b"id: %d\n" % seq
    return b"event: %s\n%bdata: %b\n\n" % (kind.encode(), number, _encode(value))


def still(snapshot: Snapshot) -> Snapshot:
    """The snapshot without what a clock alone moves, and without measured memory, which is never at rest."""
    models = tuple(msgspec.structs.replace(model, idle_s=None) for model in snapshot.models)
    memory = msgspec.structs.replace(snapshot.memory, **dict.fromkeys(_MEASURED))
    return msgspec.structs.replace(snapshot, at=0.0, uptime_s=0.0, models=models, memory=memory)


def moved(before: Memory, now: Memory) -> bool:
    """A measured figure moved far enough to be seen on a screen, or came or went."""
    pairs = ((getattr(before, name), getattr(now, name)) for name in _MEASURED)
    return any(abs(a - b) >= MEMORY_STEP if a is not None and b is not None else a is not b for a, b in pairs)


def last_seq(core: ControlPort) -> int:
    """Number of the newest journal line, 0 before the first."""
    lines = core.events_since(-1)
    return lines[-1].seq if lines else 0


async def state_feed(core: ControlPort, after: int | None, closing: asyncio.Event, pace: Pace) -> AsyncGenerator[bytes]:
    """``GET /api/events``: ``snapshot`` first and while something changes, ``journal`` for each record.

    Args:
        core: Whose.
        after: ``Last-Event-ID`` of a reader that comes back; None for a new one, who gets what happens from now on.
        closing: Set when the server ends.
        pace: How often.
    """
    loop = asyncio.get_running_loop()
    newest_seq = last_seq(core)
    # A number beyond ours is from a core that lived before this one: the snapshot stands for what is gone with it.
    seq = newest_seq if after is None or after > newest_seq else after
    async with Changes(core, closing) as changes:
        current = core.snapshot()
        sent, memory, due = still(current), current.memory, loop.time() + pace.snapshot_s
        yield frame("snapshot", current)
        spoke = loop.time()
        changed = False
        while True:
            lines = core.events_since(seq)
            missed = bool(lines) and lines[0].seq != seq + 1  # the ring has dropped some: a snapshot makes up for them
            if missed or (changed and loop.time() >= due):
                changed = False
                current = core.snapshot()
                if missed or moved(memory, current.memory) or still(current) != sent:
                    sent, memory, due = still(current), current.memory, loop.time() + pace.snapshot_s
                    yield frame("snapshot", current)
                    spoke = loop.time()
            for line in lines:
                seq = line.seq
                yield frame("journal", line, seq)
                spoke = loop.time()
            if loop.time() >= spoke + pace.heartbeat_s:
                yield HEARTBEAT
                spoke = loop.time()
            silence_ends = spoke + pace.heartbeat_s
            wake = min(due, silence_ends) if changed else silence_ends
            try:
                changed |= await changes.wait(max(0.0, wake - loop.time()))
            except Over:
                return


def model_event(model: str, event: str, data: dict[str, Any]) -> bytes:
    """One event of ``/models/sse``: the kind is inside the data, as llama.cpp's router has it."""
    return b"data: %b\n\n" % _encode({"model": model, "event": event, "data": data})


async def model_feed(core: ControlPort, closing: asyncio.Event, pace: Pace) -> AsyncGenerator[bytes]:
    """``GET /models/sse``: the status of all models first, then each change; ``models_reload`` when the list changes.

    Args:
        core: Whose.
        closing: Set when the server ends.
        pace: How often.
    """
    async with Changes(core, closing) as changes:
        known: dict[str, dict[str, Any]] = {}
        names: set[tuple[str, tuple[str, ...]]] | None = None
        while True:
            snapshot = core.snapshot()
            listed = {(model.id, model.aliases) for model in snapshot.models}
            for gone in known.keys() - {model.id for model in snapshot.models}:
                del known[gone]
                yield model_event(gone, "model_remove", {})
            if names is not None and names != listed:
                yield model_event("*", "models_reload", {})
            names = listed
            for model in snapshot.models:
                data = status_data(model)
                if known.get(model.id) != data:
                    known[model.id] = data
                    yield model_event(model.id, "model_status", data)
            try:
                while not await changes.wait(pace.heartbeat_s):
                    yield HEARTBEAT
            except Over:
                return
