"""A core that runs elsewhere, for a view: ``client.CoreClient`` over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import httpx
import msgspec

from llmtop.client import ModelVerb, QueueVerb, Reply
from llmtop.errors import Refusal, StartError
from llmtop.snapshot import LogLine, Snapshot

POLL_S = 1.0
TIMEOUT_S = 5.0
BACK_OFF_S = (0.5, 1.0, 2.0, 5.0)


class _Log(msgspec.Struct):
    lines: tuple[LogLine, ...]


class RemoteClient:
    """Talks to one core.

    A core that goes away does not end a view: ``latest`` stays what was seen last, ``stale_s`` says for how long,
    ``fault`` why, and the connection is tried again, less and less often.

    Args:
        url: Where its front door is.
        key: Its key, empty for none.
        poll_s: Between two looks [s].
        transport: For tests; the network if None.
        seen: Called with each snapshot, for a recording.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        poll_s: float = POLL_S,
        transport: httpx.AsyncBaseTransport | None = None,
        seen: Callable[[Snapshot], None] | None = None,
    ) -> None:
        self._seen = seen
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http = httpx.AsyncClient(
            base_url=self._url, headers=headers, timeout=TIMEOUT_S, trust_env=False, transport=transport
        )
        self._poll_s = poll_s
        self._latest: Snapshot | None = None
        self._seen_at = time.monotonic()
        self._misses = 0
        self._fault = ""

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
        """Age of the newest snapshot while the core cannot be reached [s]; 0 while it can."""
        return time.monotonic() - self._seen_at if self._misses else 0.0

    @property
    def fault(self) -> str:
        """Why the core cannot be reached; empty while it can."""
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
            answer = await self._http.get("/api/state")
            if answer.status_code == 401:
                raise StartError(f"{self._url} wants its key: give --api-key, or set LLAMA_API_KEY")
            answer.raise_for_status()
            snapshot = msgspec.json.decode(answer.content, type=Snapshot)
        except httpx.HTTPStatusError as error:
            raise self._missed(f"{self._url} answers {error.response.status_code}") from None
        except httpx.HTTPError as error:
            raise self._missed(f"{self._url} cannot be reached: {str(error) or type(error).__name__}") from None
        except msgspec.MsgspecError as error:
            raise self._missed(f"{self._url} is another version, or no llmtop: {error}") from None
        except StartError as error:
            raise self._missed(str(error)) from None
        self._latest, self._seen_at, self._misses, self._fault = snapshot, time.monotonic(), 0, ""
        if self._seen is not None:
            self._seen(snapshot)
        return snapshot

    def _missed(self, fault: str) -> StartError:
        self._misses += 1
        self._fault = fault
        return StartError(fault)

    async def changes(self) -> AsyncIterator[Snapshot]:
        """Yield a snapshot each second. While the core cannot be reached nothing comes, and it is tried again."""
        while True:
            started = time.monotonic()
            try:
                snapshot = await self.refresh()
            except StartError:
                await asyncio.sleep(BACK_OFF_S[min(self._misses, len(BACK_OFF_S)) - 1])
                continue
            yield snapshot
            await asyncio.sleep(max(0.0, self._poll_s - (time.monotonic() - started)))

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
            answer = await self._http.get(f"/api/models/{quote(model, safe='')}/log")
            answer.raise_for_status()
            return msgspec.json.decode(answer.content, type=_Log).lines
        except (httpx.HTTPError, msgspec.MsgspecError):
            return ()

    async def _say(self, method: str, path: str, body: dict[str, Any] | None) -> Reply:
        try:
            answer = await self._http.request(method, path, json=body)
        except httpx.HTTPError as error:
            return _failed("upstream_error", f"{self._url} cannot be reached: {str(error) or type(error).__name__}")
        try:
            told: dict[str, Any] = msgspec.json.decode(answer.content, type=dict[str, Any])
            if answer.status_code < 400:
                return Reply(bool(told["success"]), bool(told.get("changed", False)))
            refused = msgspec.convert(told["error"], dict[str, Any])
            details = {name: value for name, value in refused.items() if name not in {"type", "message", "code"}}
            kind, message = str(refused["type"]), str(refused["message"])
            return Reply(False, refusal=Refusal(kind, message, status=answer.status_code, details=details))
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError):
            return _failed("upstream_error", f"{self._url} answers {answer.status_code} to {method} {path}")


def _failed(kind: str, message: str) -> Reply:
    return Reply(False, refusal=Refusal(kind, message))
