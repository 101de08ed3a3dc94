"""A core that runs elsewhere, for a view: ``client.CoreClient`` over HTTP.

The core tells what changes as server-sent events (``GET /api/events``); one that has no such feed is asked each second.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from llmtop import sse
from llmtop.children.text import safe_text
from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.errors import Refusal, StartError
from llmtop.snapshot import EventLine, LogLine, Snapshot

POLL_S = 1.0
TIMEOUT_S = 5.0
SILENCE_S = 20.0
"""A feed says something every 15 s at least; one that is silent for longer than this is dead [s]."""
QUIET_S, CLOCK_S = 1.5, 1.0
"""A core that has nothing to tell gets its clock moved on after the first, and then each second one [s]."""
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)
"""Longest pause before the next attempt [s]; the real one is half of it or more, so that views come back apart."""
ANSWER_MAX = sse.EVENT_MAX
"""Most bytes of an answer that are read."""
EVENTS_KEPT = 60
"""Journal lines of a picture, as many as a core shows itself."""


class _Log(msgspec.Struct):
    lines: tuple[LogLine, ...]


class Missing(Exception):
    """There is no such route: an older core, or another server."""


class RemoteClient:
    """Talks to one core.

    A core that goes away does not end a view: ``latest`` stays what was seen last, ``stale_s`` says for how long,
    ``fault`` why, and the connection is tried again, less and less often.

    Args:
        url: Where its front door is.
        key: Its key, empty for none.
        poll_s: Between two looks at a core that has no feed [s].
        silence_s: A feed that is silent for so long is dead [s].
        transport: For tests; the network if None.
        seen: Called with each snapshot, for a recording.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        poll_s: float = POLL_S,
        silence_s: float = SILENCE_S,
        transport: httpx.AsyncBaseTransport | None = None,
        seen: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._seen = seen
        self._url = url.rstrip("/")
        # Uncompressed, so that the bound on what is read is one on what is kept.
        headers = {b"Accept-Encoding": b"identity", **bearer(key)}
        self._http = httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=transport
        )
        self._keyed = bool(key)
        self._poll_s, self._silence_s = poll_s, silence_s
        self._latest: Snapshot | None = None
        self._taken_at = self._heard_at = time.monotonic()
        self._misses = 0
        self._fault = ""
        self._news = asyncio.Event()

    @property
    def url(self) -> str:
        """Where the front door listens."""
        return self._url

    @property
    def embedded(self) -> bool:
        """The core does not end with this process."""
        return False

    @property
    def latest(self) -> Snapshot | None:
        """Newest snapshot, kept while the core cannot be reached; None before the first."""
        return self._latest

    @property
    def stale_s(self) -> float:
        """Time since the core was last heard, while it cannot be reached [s]; 0 while it can."""
        return time.monotonic() - self._heard_at if self._fault else 0.0

    @property
    def fault(self) -> str:
        """Why the core cannot be reached, in words that follow its address; empty while it can."""
        return self._fault

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def refresh(self) -> Snapshot:
        """Get the core's picture of now.

        Raises:
            StartError: It cannot be reached, wants another key, or is no llmtop.
        """
        try:
            with words():
                snapshot = await self._fetch()
        except StartError as error:
            raise StartError(f"{self._url} {error}") from None
        self._take(snapshot)
        return snapshot

    async def changes(self) -> AsyncGenerator[Snapshot]:
        """Yield the newest snapshot, each second at least. While the core cannot be reached nothing comes.

        The feed is read on whatever the pace of the reader is: what waits in a socket's buffer would be old news.
        """
        following = asyncio.create_task(self._follow(), name="follow the core")
        following.add_done_callback(lambda _: self._news.set())
        quiet = False
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOCK_S if quiet else QUIET_S):
                        await self._news.wait()
                if following.done():
                    following.result()
                quiet = not self._news.is_set()
                self._news.clear()
                if self._latest is not None and not self._fault:
                    yield aged(self._latest, time.monotonic() - self._taken_at)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        """Listen for ever; after a fault again, less and less often."""
        while True:
            try:
                with words():
                    await self._listen()
            except StartError as error:
                self._misses += 1
                self._fault = str(error)
            await asyncio.sleep(BACK_OFF_S[min(self._misses, len(BACK_OFF_S)) - 1] * random.uniform(0.5, 1.0))

    async def _listen(self) -> None:
        """Take what the core tells until it tells no more."""
        try:
            await self._hear()
        except Missing:
            while True:
                self._take(await self._fetch())
                await asyncio.sleep(self._poll_s)

    async def _hear(self) -> None:
        """Take what the feed says. Snapshots come whole, so that what was missed needs no mending."""
        clock = asyncio.get_running_loop().time
        headers: dict[str, str] = {}
        if self._latest is not None and self._latest.events:
            headers["Last-Event-ID"] = str(self._latest.events[-1].seq)
        fresh = False
        async with asyncio.timeout(TIMEOUT_S) as limit, self._feed("/api/events", headers) as events:
            async for event in events:
                if event.kind == "snapshot":
                    fresh = True
                    self._take(msgspec.json.decode(event.data, type=Snapshot))
                elif not fresh:
                    continue
                elif event.kind == "journal":
                    self._add(msgspec.json.decode(event.data, type=EventLine))
                self._heard_at = time.monotonic()
                limit.reschedule(clock() + self._silence_s)
        raise StartError("has ended its feed")

    @contextlib.asynccontextmanager
    async def _feed(
        self, path: str, headers: dict[str, str] | None = None
    ) -> AsyncGenerator[AsyncGenerator[sse.Event]]:
        """A feed's events. How long it may be silent is the caller's to say."""
        headers = {"Accept": "text/event-stream", **(headers or {})}
        timeout = httpx.Timeout(TIMEOUT_S, read=None)
        async with self._http.stream("GET", path, headers=headers, timeout=timeout) as answer:
            if answer.status_code in (404, 405):
                raise Missing
            await self._check(answer)
            kind = answer.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise StartError(f"is another version, or no llmtop: {path} is {safe_text(kind, 60)}")
            async with contextlib.aclosing(_read(answer)) as events:
                yield events

    async def _fetch(self) -> Snapshot:
        """The picture of now, asked for."""
        return msgspec.json.decode(await self._get("/api/state"), type=Snapshot)

    async def _get(self, path: str) -> bytes:
        """The body of a good answer."""
        async with self._http.stream("GET", path) as answer:
            await self._check(answer)
            return await _body(answer)

    async def _check(self, answer: httpx.Response) -> None:
        """Say what an answer's status means.

        Raises:
            StartError: It is no good one.
        """
        status = answer.status_code
        if status < 300:
            return
        if status == 401:
            wants = "takes another key" if self._keyed else "wants its key"
            raise StartError(f"{wants}: give --api-key, or set LLAMA_API_KEY")
        said = ""
        if status != 404:
            with contextlib.suppress(msgspec.MsgspecError, KeyError, TypeError):
                said = str(msgspec.json.decode(await _body(answer))["error"]["message"])
        what = f": {safe_text(said, 200)}" if said else ", so it is no llmtop" if status == 404 else ""
        raise StartError(f"answers {status}{what}")

    def _take(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        self._taken_at = self._heard_at = time.monotonic()
        self._misses, self._fault = 0, ""
        if self._seen is not None:
            self._seen(snapshot)
        self._news.set()

    def _add(self, line: EventLine) -> None:
        """Show a journal line before the snapshot that will have it too; an older one is in the picture already."""
        latest = self._latest
        if latest is not None and (not latest.events or line.seq > latest.events[-1].seq):
            self._latest = msgspec.structs.replace(latest, events=(*latest.events, line)[-EVENTS_KEPT:])
            self._news.set()

    async def model(self, verb: ModelVerb, model: str, instance: int | None = None) -> Reply:
        """Say a verb to a model; ``instance`` refuses it when another child of that name runs by now."""
        return await self._say(
            "POST", f"/api/models/{quote(model, safe='')}/{verb}", {} if instance is None else {"instance": instance}
        )

    async def queue(self, verb: QueueVerb) -> Reply:
        """Hold, resume or step the queue."""
        return await self._say("POST", f"/api/queue/{verb}", {})

    async def cancel(self, request: str) -> Reply:
        """Cancel a queued or running request."""
        return await self._say("DELETE", f"/api/requests/{quote(request, safe='')}", None)

    async def acknowledge_oom(self) -> Reply:
        """Take the sticky out-of-memory line off every screen."""
        return await self._say("POST", "/api/oom/acknowledge", {})

    async def log(self, model: str) -> tuple[LogLine, ...]:
        """Lines of the model's last child that are still kept, oldest first; none while the core cannot be reached."""
        try:
            with words():
                found = await self._get(f"/api/models/{quote(model, safe='')}/log")
                return msgspec.json.decode(found, type=_Log).lines
        except StartError:
            return ()

    async def _send(self, method: str, path: str, body: dict[str, Any] | None) -> tuple[int, bytes]:
        """Status and body of whatever is answered.

        Raises:
            StartError: Nothing is.
        """
        with words():
            async with self._http.stream(method, path, json=body) as answer:
                return answer.status_code, await _body(answer)

    async def _say(self, method: str, path: str, body: dict[str, Any] | None) -> Reply:
        try:
            status, answer = await self._send(method, path, body)
        except StartError as error:
            return _failed("upstream_error", f"{self._url} {error}")
        try:
            told: dict[str, Any] = msgspec.json.decode(answer, type=dict[str, Any])
            if status < 400:
                return Reply(bool(told["success"]), bool(told.get("changed", False)))
            refused = msgspec.convert(told["error"], dict[str, Any])
            details = {name: value for name, value in refused.items() if name not in {"type", "message", "code"}}
            kind, message = str(refused["type"]), str(refused["message"])
            return Reply(False, refusal=Refusal(kind, message, status=status, details=details))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return _failed("upstream_error", f"{self._url} answers {status} to {method} {path}")


def _failed(kind: str, message: str) -> Reply:
    return Reply(False, refusal=Refusal(kind, message))


@contextlib.contextmanager
def words() -> Generator[None]:
    """Put whatever goes wrong in a few words, to follow the core's address.

    Raises:
        StartError: Something did.
    """
    try:
        yield
    except httpx.HTTPError as error:
        raise StartError(unreachable(error)) from None
    except TimeoutError:
        raise StartError("has fallen silent") from None
    except (msgspec.MsgspecError, UnicodeError, RecursionError, sse.TooLong) as error:
        raise StartError(f"is another version, or no llmtop: {safe_text(str(error), 200)}") from None


def bearer(key: str) -> dict[bytes, bytes]:
    """The header that carries a key, none for an empty one."""
    return {b"Authorization": b"Bearer " + key.encode()} if key else {}


async def _read(answer: httpx.Response) -> AsyncGenerator[sse.Event]:
    reader = sse.Reader()
    async for chunk in answer.aiter_raw():
        for event in reader.feed(chunk):
            yield event


async def _body(answer: httpx.Response) -> bytes:
    """The whole of an answer.

    Raises:
        sse.TooLong: There is too much of it.
    """
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > ANSWER_MAX:
            raise sse.TooLong(f"an answer of more than {ANSWER_MAX >> 20} MiB")
    return bytes(body)


def aged(snapshot: Snapshot, by_s: float) -> Snapshot:
    """The picture so much later, when nothing has come: only what a clock alone moves differs."""
    if by_s < CLOCK_S / 2:
        return snapshot
    models = tuple(
        model if model.idle_s is None else msgspec.structs.replace(model, idle_s=model.idle_s + by_s)
        for model in snapshot.models
    )
    uptime_s = snapshot.uptime_s and snapshot.uptime_s + by_s  # 0 where it is not told
    return msgspec.structs.replace(snapshot, at=snapshot.at + by_s, uptime_s=uptime_s, models=models)


def unreachable(error: httpx.HTTPError) -> str:
    """Why nobody answers there, in a few words: what the system says, where it said something."""
    if isinstance(error, httpx.TimeoutException):
        return f"does not answer within {TIMEOUT_S:g} s"
    if isinstance(error, httpx.RemoteProtocolError):
        gone = "closed" in str(error) or "disconnected" in str(error)
        return "has closed the connection" if gone else "speaks no HTTP"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ConnectionRefusedError):
            return "refuses connections: nothing runs there"
        if isinstance(cause, OSError) and cause.strerror:
            return f"cannot be reached: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__
    return f"cannot be reached: {safe_text(str(error), 200) or type(error).__name__}"
