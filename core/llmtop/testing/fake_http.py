"""The HTTP side of the simulated llama-server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Any

from llmtop.testing.fake_model import Model, option, say

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
}
_OPEN = ("/health", "/v1/health", "/models", "/v1/models")


class Gone(Exception):
    """The client has left."""


class Front:
    """Listens for one model.

    Args:
        model: Which.
        wake: Makes it be awake.
    """

    def __init__(self, model: Model, wake: Callable[[], Awaitable[None]]) -> None:
        self.model = model
        self.wake = wake
        self.knobs = model.knobs
        self.key = option(("--api-key",), "LLAMA_API_KEY")

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, version = head[0].split(" ")
                fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:])}
                body = await self.body(reader, writer, fields)
                await Exchange(self, reader, writer).answer(method, target.partition("?")[0], fields, body)
                if (
                    self.knobs["close_keepalive"]
                    or version == "HTTP/1.0"
                    or fields.get("connection", "").lower() == "close"
                ):
                    return
        except (Gone, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fields: dict[str, str]) -> bytes:
        """The request's body, by length or in chunks."""
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if "chunked" not in fields.get("transfer-encoding", ""):
            return await reader.readexactly(int(fields.get("content-length", "0")))
        parts: list[bytes] = []
        while size := int((await reader.readline()).partition(b";")[0], 16):
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(parts)


class Exchange:
    """One request and its answer."""

    def __init__(self, front: Front, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.front, self.model, self.knobs = front, front.model, front.knobs
        self.reader, self.writer = reader, writer

    async def answer(self, method: str, path: str, fields: dict[str, str], body: bytes) -> None:
        """Route it."""
        model = self.model
        if path.endswith("/health"):
            mode = self.knobs["health"]
            if mode == "ok" or (mode == "auto" and model.state != "loading"):
                return await self.send(200, {"status": "ok"})
            return await self.error(503, "Loading model", "unavailable_error")
        if self.front.key and path not in _OPEN and fields.get("authorization") != f"Bearer {self.front.key}":
            return await self.error(401, "Invalid API Key", "authentication_error")
        if model.state == "loading":
            return await self.error(503, "Loading model", "unavailable_error")
        if method == "GET":
            return await self.get(path)
        request: dict[str, Any] = json.loads(body) if body[:1] == b"{" else {}
        model.busy += 1
        model.note("request", path=path)
        try:
            await self.post(path, request)
        except (Gone, ConnectionError):
            model.note("abort", path=path)
            raise
        finally:
            model.busy -= 1
            model.used = time.monotonic()
        return None

    async def get(self, path: str) -> None:
        """Questions about the server itself."""
        model = self.model
        if path == "/props":
            asleep = model.state == "sleeping"
            return await self.send(
                200, {"total_slots": self.knobs["slots"], "is_sleeping": asleep, "model_path": str(model.path)}
            )
        if path in _OPEN:
            return await self.send(
                200, {"object": "list", "data": [{"id": model.alias, "object": "model", "meta": {"n_ctx": 4096}}]}
            )
        if path == "/metrics":
            return await self.send(200, f"llamacpp:requests_processing {model.busy}\n", "text/plain; version=0.0.4")
        if path in ("/slots", "/lora-adapters"):
            await self.front.wake()
            model.used = time.monotonic()
            return await self.send(
                200, [{"id": i, "is_processing": i < model.busy} for i in range(self.knobs["slots"])]
            )
        return await self.error(404, "File Not Found", "not_found_error")

    async def post(self, path: str, request: dict[str, Any]) -> None:
        """Work."""
        model, knobs = self.model, self.knobs
        await self.front.wake()
        for line in knobs["answer_lines"]:
            say(line)
        if knobs["fail_after"] is not None and model.answers >= knobs["fail_after"]:
            if not model.failing:
                for line in knobs["fail_lines"]:
                    say(line)
            model.failing = True
            await self.error(knobs["fail_status"], "Compute error.", "server_error")
            return
        await self.nap(knobs["prompt_ms"] / 1000)
        if "tokenize" in path:
            await self.send(200, {"tokens": [1, 2, 3], "content": "abc"})
        elif "embedding" in path or "rerank" in path:
            await self.send(
                200, {"object": "list", "model": model.alias, "data": [{"index": 0, "embedding": [0.1, 0.2, 0.3]}]}
            )
        elif "count_tokens" in path:
            await self.send(200, {"input_tokens": 3})
        elif request.get("stream"):
            await self.stream("chat" in path, request)
        else:
            await self.whole("chat" in path, request)
        model.answers += 1
        model.note("response", path=path)

    def plan(self, request: dict[str, Any]) -> tuple[int, float, int | None]:
        """How many tokens, the time between them [s], and before which one to crash."""
        count = int(
            request.get("max_tokens")
            or request.get("max_completion_tokens")
            or request.get("n_predict")
            or self.knobs["tokens"]
        )
        after = self.knobs["crash_after"]
        return (
            max(count, 1),
            1 / self.knobs["tok_rate"],
            count // 2 if after is not None and self.model.answers >= after else None,
        )

    def crash(self) -> None:
        """Die as by a fault."""
        self.model.note("crash")
        if self.knobs["crash_signal"] != signal.SIGKILL:
            signal.signal(self.knobs["crash_signal"], signal.SIG_DFL)
        os.kill(os.getpid(), self.knobs["crash_signal"])

    async def stream(self, chat: bool, request: dict[str, Any]) -> None:
        """Server-sent events, one a token."""
        count, gap_s, crash_at = self.plan(request)
        self.writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for i in range(count):
            await self.nap(gap_s)
            if i == crash_at:
                self.crash()
            piece = {"delta": {"content": letter(i)}} if chat else {"text": letter(i)}
            await self.chunk({"model": self.model.alias, "choices": [{"index": 0, "finish_reason": None, **piece}]})
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        timings = {"predicted_n": count, "predicted_per_second": 1 / gap_s}
        await self.chunk(
            {
                "model": self.model.alias,
                "choices": [{"index": 0, "finish_reason": "length", **last}],
                "timings": timings,
            }
        )
        self.writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        await self.writer.drain()

    async def whole(self, chat: bool, request: dict[str, Any]) -> None:
        """The answer in one piece."""
        count, gap_s, crash_at = self.plan(request)
        await self.nap(gap_s * count)
        if crash_at is not None:
            self.crash()
        text = "".join(letter(i) for i in range(count))
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        usage = {"prompt_tokens": 3, "completion_tokens": count, "total_tokens": count + 3}
        timings = {"predicted_n": count, "predicted_per_second": 1 / gap_s}
        choices = [{"index": 0, "finish_reason": "length", **choice}]
        await self.send(200, {"model": self.model.alias, "choices": choices, "usage": usage, "timings": timings})

    async def chunk(self, event: object) -> None:
        """Send one event."""
        data = f"data: {json.dumps(event)}\n\n".encode()
        self.writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await self.writer.drain()

    async def nap(self, seconds: float) -> None:
        """Wait, unless the client has left (the end of its side counts)."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 0.02))
            if self.reader.at_eof() or self.writer.transport.is_closing():
                raise Gone
        if self.reader.at_eof():
            raise Gone

    async def send(self, status: int, content: object, kind: str = "application/json") -> None:
        """Send a whole answer."""
        data = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}\r\nContent-Type: {kind}\r\n"
        head += f"Content-Length: {len(data)}\r\n\r\n"
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def error(self, status: int, message: str, kind: str) -> None:
        """Send an error as llama-server words it."""
        await self.send(status, {"error": {"code": status, "message": message, "type": kind}})


def letter(i: int) -> str:
    """The i-th token: letters, a blank now and then."""
    return chr(ord("a") + i * 7 % 26) + (" " if i % 5 == 4 else "")
