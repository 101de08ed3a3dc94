"""Who gets in, and what malformed and hostile requests get: a clear error, and a llmtop as it was before."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest

from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "sesame-open-1"
BODY = b'{"model": "A", "prompt": "x"}'
WAYS_IN = (
    *("/", "/models", "/v1/models", "/v1/models/A", "/v1/models?reload=1", "/models/load", "/models/sse", "/metrics"),
    *("/props", "/slots?model=A", "/metrics?model=A", "/api/state", "/api/events", "/api/swaps", "/api/models/A/log"),
    *("/api/models/A/kill", "/api/queue/hold", "/api/requests/1", "/v1/completions", "/v1/chat/completions"),
    *("/v1/messages", "/tokenize", "/v1/audio/transcriptions", "/upstream/A/v1/completions", "/upstream/A/props"),
    *("//api/state", "/models/", "/v1/../api/state", "/%2e%2e/api/state", "/API/state", "/health/../api/state"),
    *("/health%2f..%2fapi/state", "/health;/api/state", "http://127.0.0.1/api/state"),
)
WRONG_KEYS = (
    "",
    "Authorization: Bearer wrong\r\n",
    "Authorization: Bearer \r\n",
    f"Authorization: Basic {KEY}\r\n",
    "X-Api-Key:\r\n",
)
NO_REQUESTS = (
    b"garbage\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET /health\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
)
CHUNKED = b"1d\r\n" + BODY + b"\r\n0\r\n\r\n"
TWO_MEANINGS = (
    b"Content-Length: 29\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKED,
    b"Content-Length: 29\r\nContent-Length: 5\r\n\r\n" + BODY,
    b"Content-Length: 29\r\n Transfer-Encoding: chunked\r\n\r\n" + BODY,
    b"Content-Length : 29\r\n\r\n" + BODY,
    b"Content-Length: +29\r\n\r\n" + BODY,
    b"Transfer-Encoding: xchunked\r\n\r\n" + CHUNKED,
)
"""Heads that two readers may read in two ways: refused, never passed on."""


async def send(r: Rig, data: bytes, *, end: bool = True) -> bytes:
    """Send bytes as they stand, and give what came back; an answer or a close within 5 s is a must."""
    reader, writer = await asyncio.open_connection("127.0.0.1", r.port)
    try:
        writer.write(data)
        await writer.drain()
        if end:
            writer.write_eof()
        return await asyncio.wait_for(reader.read(65536), 5)
    except OSError:  # reset, or closed before all of it was sent
        return b""
    finally:
        writer.close()


async def test_with_a_key_nothing_but_health_is_open_and_no_secret_is_seen(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}}, "--models-max", "1", key=KEY) as r, r.client() as good:
        assert (await r.ask(good, "A")).status_code == 200
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{r.port}", trust_env=False) as stranger:
            assert (await stranger.get("/health")).status_code == 200
            assert (await stranger.get("/api/state", headers={"X-Api-Key": KEY})).status_code == 200
            m = await r.model("A")
            direct = await stranger.post(f"http://127.0.0.1:{m['port']}/v1/completions", json={"prompt": "x"})
            assert direct.status_code == 401, "a child's own port asks for the child's key"
        for path in WAYS_IN:
            for method in ("GET", "POST", "DELETE"):
                for header in WRONG_KEYS:
                    body = BODY.decode() if method == "POST" else ""
                    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{header}"
                    answer = await send(r, f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode(), end=False)
                    status = answer[9:12]
                    lenient = path.startswith("/health") and status == b"200" and len(answer) < 400
                    assert status in (b"400", b"401", b"403", b"404", b"405") or lenient, (method, path, header, answer)
                    assert b'"pid"' not in answer
        spawn = r.events("A", "spawn")[0]
        shown = (await good.get("/v1/models")).text + (await good.get("/api/state")).text + r.log
        for secret in (KEY, spawn["env"]["LLAMA_API_KEY"]):
            assert secret not in shown
        assert KEY not in str(spawn), "the front door's key is none of the child's"
        after = await r.model("A")
        assert (after["state"], after["pinned"], len(r.events("A", "spawn"))) == ("loaded", False, 1)
        assert len(r.events("A", "request")) == 1, "one of these reached the child"


async def test_without_a_key_foreign_pages_cannot_manage_and_no_other_machine_gets_in(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}}) as r, r.client() as c:
        await r.ask(c, "A")
        for path, body in (("/api/models/A/evict", "{}"), ("/models/unload", '{"model": "A"}')):
            for headers in (
                {"Host": "evil.example", "Content-Type": "application/json"},
                {"Origin": "https://evil.example", "Content-Type": "application/json"},
                {"Content-Type": "text/plain"},
            ):
                answer = await c.post(path, content=body, headers=headers)
                assert answer.status_code in (400, 403, 415), f"{path} {headers}: {answer.status_code}"
        answer = await c.get("/api/state", headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403
        assert "access-control-allow-origin" not in answer.headers
        assert (await r.model("A"))["state"] == "loaded"
        second = Rig(tmp_path / "open", {"A": {}})
        second.launch("--host", "0.0.0.0")
        try:
            assert await asyncio.to_thread(second.process.wait, 15) == 2
        finally:
            second.process.kill()
            second.process.wait()
        assert "--insecure" in second.log
        assert "Traceback" not in second.log


async def test_malformed_and_ambiguous_requests_are_refused_and_change_nothing(tmp_path: Path) -> None:
    bodies: tuple[tuple[bytes, int], ...] = (
        *((body, 400) for body in (b"", b"{", b"[]", b"null", b'{"model": 7}', b'{"prompt": "x"}', b"\xff\xfe")),
        (b'{"model": "nobody"}', 404),
        (json.dumps({"model": "A" * 100_000}).encode(), 404),
        (b'{"a": ' * 2000, 400),
    )
    async with rig(tmp_path, {"A": {}}) as r, r.client() as c:
        for body, status in bodies:
            answer = await c.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == status, f"{body[:40]!r}: {answer.status_code}"
            error = answer.json()["error"]
            assert error["message"]
            assert error["code"] == status
        for kind in ("text/plain", "application/x-www-form-urlencoded"):
            answer = await c.post("/v1/completions", content=BODY, headers={"Content-Type": kind})
            assert answer.status_code == 200, "the model is found whatever the content type says"
        upload: dict[str, Any] = {"file": ("a.wav", b"RIFF" * 1000)}
        answer = await c.post("/v1/audio/transcriptions", data={"model": "A"}, files=upload)
        assert answer.status_code == 200
        big = await c.post("/v1/completions", json={"model": "A", "prompt": "x" * 20_000_000, "max_tokens": 1})
        assert big.status_code == 200
        served = len(r.events("A", "request"))
        for raw in NO_REQUESTS:
            answer_bytes = await send(r, raw)
            assert answer_bytes[9:10] in (b"", b"4", b"5"), f"{raw[:40]!r}: {answer_bytes[:60]!r}"
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        for raw in TWO_MEANINGS:
            answer_bytes = await send(r, head + raw)
            assert answer_bytes[9:12] in (b"", b"400", b"411", b"501"), f"{raw[:60]!r}: {answer_bytes[:60]!r}"
        assert len(r.events("A", "request")) == served, "one of these reached the child"
        rng = random.Random(7)
        for _ in range(150):
            noise = bytearray(head + b"Content-Length: 29\r\n\r\n" + BODY)
            for _ in range(rng.randrange(1, 6)):
                noise[rng.randrange(len(noise))] = rng.randrange(256)
            await send(r, bytes(noise))
        slow = [await asyncio.open_connection("127.0.0.1", r.port) for _ in range(150)]
        for _, writer in slow:
            writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n")
        assert (await r.ask(c, "A")).status_code == 200, "slow heads keep nobody out"
        for _, writer in slow:
            writer.close()

        async def clean() -> bool:
            state = await r.state()
            return not state["queue"] and not state["requests"] and not state["models"][0]["in_flight"]

        await r.until(clean, "all counters are back at zero", 5)
        assert len(r.events("A", "spawn")) == 1
        assert "Traceback" not in r.log
