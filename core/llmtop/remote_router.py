"""llama.cpp's own router, for a view: what it tells of its models, and the two verbs it knows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import httpx
import msgspec

from llmtop.children.text import safe_text
from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.errors import Refusal, StartError
from llmtop.remote import TIMEOUT_S, Missing, RemoteClient, bearer, words
from llmtop.snapshot import EventLine, Failure, LogLine, Memory, Model, Progress, Snapshot, State

KEPT_EVENTS = 200
LOOK_S = 5.0
"""Between two looks while the feed says nothing [s]: what it lost, and a router that hangs, are seen then."""
BREATH_S = 0.25
"""At least that long between two looks [s]: a load tells its progress many times a second."""
NOT_TOLD = "llama.cpp's router does not tell"
_STATES: Mapping[str, State] = {
    "unloaded": "unloaded",
    "loading": "loading",
    "downloading": "loading",
    "loaded": "loaded",
    "sleeping": "sleeping",
    "stopping": "stopping",
}
_KINDS: Mapping[State, str] = {
    "unloaded": "exit",
    "loading": "load",
    "loaded": "ready",
    "sleeping": "note",
    "stopping": "stop",
}
_TOLD: Mapping[State, str] = {
    "unloaded": "is not running any more",
    "loading": "is being loaded",
    "loaded": "is ready",
    "sleeping": "went to sleep",
    "stopping": "is being stopped",
}
_CANNOT: Mapping[str, str] = {
    "pin": "pin a model",
    "unpin": "unpin a model",
    "kill": "force-kill a model: evict it",
    "hold": "hold its queue",
    "resume": "hold its queue, so there is nothing to resume",
    "step": "let one swap through",
}


class _Status(msgspec.Struct):
    value: str
    args: tuple[str, ...] = ()
    failed: bool = False
    exit_code: int | None = None
    progress: Any = None


class _Entry(msgspec.Struct):
    id: str
    status: _Status
    aliases: tuple[str, ...] = ()


class _Models(msgspec.Struct):
    data: tuple[_Entry, ...]


class _Props(msgspec.Struct):
    role: str = ""
    max_instances: int = 0
    build_info: str = ""


def is_router(url: str, key: str = "", transport: httpx.BaseTransport | None = None) -> bool:
    """llama.cpp's own router listens there, and no llmtop (which tells its models in the same shape).

    Args:
        url: Where to look.
        key: Its key, empty for none.
        transport: For tests; the network if None.
    """
    try:
        with httpx.Client(
            base_url=url, headers=bearer(key), timeout=TIMEOUT_S, trust_env=False, transport=transport
        ) as http:
            if http.get("/api/state").status_code != 404:
                return False
            answer = http.get("/models")
            msgspec.json.decode(answer.raise_for_status().content, type=_Models)
    except (httpx.HTTPError, msgspec.MsgspecError):
        return False
    return True


class RouterClient(RemoteClient):
    """A router as a core. Nothing is known of its memory, its queue and its requests; it can load and unload.

    Takes the arguments of ``RemoteClient``.
    """

    kind = "router"
    """What a view calls this core."""

    _props: _Props | None = None
    _states: dict[str, State] | None = None
    _events: tuple[EventLine, ...] = ()
    _seq = 0

    async def _listen(self) -> None:
        """Look whenever the feed says that a model changed, each second where there is none.

        And now and then anyway: it sends no heartbeat, not even the head of its answer before the first event.
        """
        self._props = None  # another router may answer there by now
        changed = asyncio.Event()
        hearing = asyncio.create_task(self._hear_changes(changed), name="hear the router")
        try:
            while True:
                self._take(await self._fetch())
                await asyncio.sleep(BREATH_S)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._poll_s if hearing.done() else LOOK_S):
                        await changed.wait()
                changed.clear()
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)

    async def _hear_changes(self, changed: asyncio.Event) -> None:
        """Say when there is something new to look at; ends where the router has no feed."""
        while True:
            try:
                with words():
                    async with self._feed("/models/sse") as events:
                        async for event in events:
                            if event.data:
                                changed.set()
            except Missing:
                return
            except StartError:
                pass  # the next look tells what is wrong, if anything is
            changed.set()
            await asyncio.sleep(self._poll_s)

    async def _fetch(self) -> Snapshot:
        """Its list of models, as a picture."""
        if self._props is None:
            self._props = msgspec.json.decode(await self._get("/props"), type=_Props)
        told = msgspec.json.decode(await self._get("/models"), type=_Models)
        return self._picture(told, self._props, time.time())

    def _picture(self, told: _Models, props: _Props, now: float) -> Snapshot:
        models = tuple(_model(entry) for entry in told.data)
        self._note(models, now)
        build = safe_text(props.build_info)
        return Snapshot(
            version="",
            pid=os.getpid(),
            at=now,
            url=self._url,
            models_max=props.max_instances,
            models_max_source="router",
            running=sum(model.state != "unloaded" for model in models),
            server=f"llama.cpp router {build}".rstrip(),
            models=models,
            memory=Memory(sources={"used": NOT_TOLD}),
            events=self._events,
        )

    def _note(self, models: tuple[Model, ...], now: float) -> None:
        """Tell as events what changed since the last look."""
        before = self._states
        now_is: dict[str, State] = {model.id: model.state for model in models}
        self._states = now_is
        if before is None:
            return
        for model in models:
            if before.get(model.id, "unloaded") != model.state:
                self._seq += 1
                failed = model.state == "unloaded" and model.failure is not None
                kind = "fail" if failed else _KINDS[model.state]
                text = model.failure.message if failed and model.failure else _TOLD[model.state]
                self._events = (*self._events, EventLine(self._seq, now, kind, model.id, text))[-KEPT_EVENTS:]

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Load, or evict, which the router calls unload; it knows no other verb."""
        if verb == "load":
            return await self._do("load", model)
        if verb == "evict":
            return await self._do("unload", model)
        return _cannot(_CANNOT[verb])

    async def _do(self, verb: str, model: str) -> Reply:
        try:
            status, answer = await self._send("POST", f"/models/{verb}", {"model": model})
        except StartError as error:
            return _refused(f"{self._url} {error}")
        if status < 400:
            return Reply(True, True)
        try:
            error_body: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, dict[str, Any]])["error"]
            return _refused(f"llama.cpp's router says: {safe_text(str(error_body['message']))}", status)
        except (msgspec.MsgspecError, KeyError):
            return _refused(f"{self._url} answers {status}", status)

    async def queue(self, verb: QueueVerb) -> Reply:
        """Refuse."""
        return _cannot(_CANNOT[verb])

    async def cancel(self, request: str) -> Reply:
        """Refuse."""
        return _cannot("cancel a request")

    async def acknowledge_oom(self) -> Reply:
        """Refuse."""
        return _cannot("tell of memory, so there is no line to clear")

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """Nothing: its children write to its own output."""
        return ()


def _model(entry: _Entry) -> Model:
    status = entry.status
    state = _STATES.get(status.value, "unloaded")
    failure = None
    if status.failed:
        failure = Failure("crash", f"the child ended with exit code {status.exit_code}", exit_code=status.exit_code)
    return Model(
        id=safe_text(entry.id),
        state=state,
        port=_port(status.args) if state != "unloaded" else None,
        progress=_progress(status.progress) if state == "loading" else None,
        reason="downloading" if status.value == "downloading" else "",
        failure=failure if state == "unloaded" else None,
        args=tuple(safe_text(word) for word in status.args),
        aliases=tuple(safe_text(name) for name in entry.aliases),
    )


def _port(args: tuple[str, ...]) -> int | None:
    """The child's port, which the router puts into its arguments."""
    for name, value in pairwise(args):
        if name == "--port" and value.isdigit() and value != "0":
            return int(value)
    return None


def _progress(told: object) -> Progress:
    if isinstance(told, dict):
        parts = cast("dict[str, object]", told)
        value, phase = parts.get("value"), parts.get("current")
        return Progress(
            safe_text(phase) if isinstance(phase, str) else "",
            float(value) if isinstance(value, int | float) else None,
        )
    return Progress(value=float(told) if isinstance(told, int | float) else None)


def _cannot(what: str) -> Reply:
    return Reply(False, refusal=Refusal("not_implemented", f"llama.cpp's router cannot {what}"))


def _refused(message: str, status: int = 0) -> Reply:
    return Reply(False, refusal=Refusal("upstream_error", message, status=status))
