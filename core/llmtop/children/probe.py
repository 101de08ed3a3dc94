"""Questions to a child over HTTP.

Is it ready, is it ours that answers, how many slots, does it sleep, can it still answer at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import httpx
import msgspec

from llmtop.children.process import listener_in_group

T = TypeVar("T")
_WRONG_KEY = "not-the-key"
_QUICK_S = 2.0
_VERIFY_S = 30.0
_NO_ANSWER = (httpx.HTTPError, AttributeError)
"""What a broken exchange raises; the latter is what anyio makes of a connection that uvloop closed as it was made."""


def make_client() -> httpx.AsyncClient:
    """A client for loopback children: no proxies of the environment, no certificates to load.

    It keeps no connection: a llama-server that is told to stop waits 100 ms for one that is open and idle.
    """
    return httpx.AsyncClient(
        verify=False,
        trust_env=False,
        timeout=_QUICK_S,
        limits=httpx.Limits(max_keepalive_connections=0),
        headers={"Connection": "close"},
    )


class Probe:
    """Asks one child. Only routes that neither wake it nor count as use, ``verify`` apart.

    Args:
        client: Shared by all children.
        port: The child's.
        api_key: The child's, empty for a ``cmd`` server.
        pgid: Its process group.
        health: Path of its readiness check.
    """

    def __init__(self, client: httpx.AsyncClient, *, port: int, api_key: str, pgid: int, health: str) -> None:
        self._client = client
        self._base = f"http://127.0.0.1:{port}"
        self._port = port
        self._key = api_key
        self._pgid = pgid
        self._running: set[asyncio.Task[Any]] = set()
        self._health = health if health.startswith("/") else f"/{health}"

    async def healthy(self) -> bool:
        """Something on the port says that it is ready. It is not told the key: it may be anybody."""
        return await self._status(self._health, "") == 200

    async def ours(self) -> bool:
        """It is the child that answers there.

        The socket belongs to its group, or it knows the key and refuses another.
        """
        owned = await asyncio.to_thread(listener_in_group, self._port, self._pgid)
        if owned is not None or not self._key:
            return owned is not False
        return await self._status("/props", _WRONG_KEY) == 401 and await self._status("/props", self._key) == 200

    async def props(self) -> dict[str, Any] | None:
        """Its ``/props``, None if it gives none."""
        return await self._whole(self._props())

    async def _props(self) -> dict[str, Any] | None:
        try:
            answer = await self._client.get(f"{self._base}/props", headers=self._headers(self._key))
            if answer.status_code == 200:
                return msgspec.json.decode(answer.content, type=dict[str, Any])
        except (*_NO_ANSWER, msgspec.MsgspecError):
            pass
        return None

    async def sick(self) -> str:
        """Ask for one token; say what went wrong if that shows a sick child, else give an empty text.

        A refusal (400, 404, 501, 503) is an answer of a well child. So is no answer in time: it may be busy.
        """
        return await self._whole(self._sick())

    async def _sick(self) -> str:
        body = {"prompt": "a", "max_tokens": 1, "n_predict": 1, "stream": False, "cache_prompt": False}
        try:
            answer = await self._client.post(
                f"{self._base}/v1/completions", json=body, headers=self._headers(self._key), timeout=_VERIFY_S
            )
        except httpx.TimeoutException:
            return ""
        except _NO_ANSWER as e:
            return f"does not answer ({type(e).__name__})"
        if answer.status_code < 500 or answer.status_code in (501, 503):
            return ""
        return f"answers {answer.status_code}: {answer.text[:200]}"

    async def _status(self, path: str, key: str) -> int:
        return await self._whole(self._status_of(path, key))

    async def _status_of(self, path: str, key: str) -> int:
        try:
            async with self._client.stream("GET", f"{self._base}{path}", headers=self._headers(key)) as answer:
                return answer.status_code
        except (*_NO_ANSWER, httpx.InvalidURL):
            return 0

    async def _whole(self, exchange: Coroutine[Any, Any, T]) -> T:
        """Let an exchange, which raises nothing, come to its own end, whoever waits for it.

        Cancelled at the moment in which it connects, the client would lose a descriptor that stays open for good.
        """
        task = asyncio.get_running_loop().create_task(exchange)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    @staticmethod
    def _headers(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"} if key else {}
