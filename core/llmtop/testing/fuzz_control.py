"""Hostile calls of the management API of a whole llmtop that is at work: what must hold whoever asks for what."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
import unicodedata
from collections import Counter
from pathlib import Path
from urllib.parse import quote

import msgspec
import psutil

from llmtop.errors import STATUS
from llmtop.testing.fuzz_http import HEALTH_S, Report
from llmtop.testing.rig import Rig, rig

SIDE_BY_SIDE = 16
ANSWER_S = 20.0
STREAM_S = 0.4
"""So long a stream is listened to before its reader leaves [s]."""
LOOK_EACH = 200
MESSAGE_MAX = 1200
"""No message is longer, however long the name in the request was [characters]."""
MODELS: tuple[str, ...] = ("A", "x y", "löwe 🦁", "load")
"""Ids with a space, with letters outside ASCII, and like a verb; each is a model that works."""
VERBS = ("load", "evict", "pin", "unpin", "kill", "log")
IDS: tuple[str, ...] = (
    *(quote(name, safe="") for name in MODELS),
    *("", ".", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "A%2F..%2FB", "A%2F", "%2FA", "%2F", "%5C", "a\\b", "A/"),
    *("A//x",),
    *("%00", "A%00", "%FF", "%C3%28", "%ED%A0%80", "%", "%zz", "%2", "%25", "%2541", "A%0D%0AX-Evil:%201", "%1b%5B2J"),
    *("%E2%80%AEA", "%E2%81%A6A", "%EF%BB%BF", "%F0%9F%A6%81", "%C2%85", "%E2%80%A8", "%F3%A0%80%81", "A%CC%81" * 200),
    *("a" * 10_000, "%41" * 3_000, "A/" * 3_000 + "x", "%F0%9F%A6%81" * 900),
    *("A/load", "A%2Fload", "load/load", "sse", "queue", "{id}", "{id:path}", "[A-Z]", "*", "?", "#", ";A", "A;x=1"),
    *("A,B",),
    *("-1", "0", "1", "NaN", "1e9", "0x10", "9" * 400, "None", "null", "true", "__class__", "%25s%25n", "$(reboot)"),
    *("<script>alert(1)</script>", "'", '%22"', "`id`", "A|B", "~", "A?instance=1", "A&x", "A+B", "C:"),
    *("//evil.example/",),
)
"""Segments of a path, as they go on the wire."""
NUMBERS: tuple[str, ...] = (
    *("0", "1", "-1", "7", "true", "null", "1.0", "1e2", "1E400", "-0", "0.1", "1" * 30, "9" * 400, "1" * 5000),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775809", "18446744073709551616", "NaN", "Infinity"),
    *('"7"', '"seven"', "[]", "[7]", "{}", '{"a":1}', '""', "0x7", "07", "+7", '"\\ud800"', '"\\u0000"'),
)
"""Values where a number belongs, as JSON or nearly so."""
NAMES: tuple[bytes, ...] = (
    *(msgspec.json.encode(name) for name in MODELS),
    *(b'""', b'" A"', b'"A\\u0000"', b'"\\u202eA"', b'"\\u001b[2J"', b'"\\ud83e\\udd81"', b'"\\ud800"', b'"\xff"'),
    *(b'"../A"',),
    *(b'"%41"', b'"A\\r\\nX: y"', b'"' + b"a" * 10_000 + b'"', b'"' + "é".encode() * 5_000 + b'"', b"7", b"1e999"),
    *(b"null",),
    *(b"true", b"[]", b'["A"]', b"{}", b'{"id":"A"}', b"-", b"NaN", b"'A'", b'"A', b'"\\x41"', b'"\\u00"'),
)
"""Values where a model's name belongs."""
OTHERS: tuple[bytes, ...] = (
    *(b"", b" ", b"{}", b"[]", b"null", b"true", b"0", b'""', b"{", b"}", b"{}{}", b"{}x", b"\x00"),
    *(b"\xff\xfe{\x00}\x00",),
    *(b"\xef\xbb\xbf{}", b'{"a":' * 40_000, b"[" * 100_000, b"[" * 900 + b"]" * 900, b'{"model":"A","model":"x y"}'),
    *(b'{"model":"A","instance":1,"extra":{"a":[1,2]}}', b'{"instance":1,"instance":null}', b"model=A"),
    *(b"{'model':'A'}",),
    *(b" " * 70_000, b'{"model":"' + b"x" * 70_000 + b'"}', b"{" + b'"k":1,' * 9_000 + b'"k":1}', b"x" * 1_200_000),
    *(b'{"\\ud800":1}', b'{"mod\\u0065l":"A"}'),
    *(b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nA\r\n--b--\r\n",),
)
QUERIES: tuple[str, ...] = (
    *("", "", "", "?", "?after=0", "?after=-1", "?after=1e3", "?after=", "?after=%00", "?after=" + "9" * 30),
    *("?after=%D9%A1",),
    *("?reload=1", "?reload=0", "?reload=yes", "?reload", "?%72eload=1", "?reload=1&reload=0", "?model=A", "?model="),
    *("?model=nobody", "?model=%FF", "?model=A&model=B", "?autoload=0", "?" + "&".join("a=1" for _ in range(150))),
    *("?%",),
    *("?" + "x" * 8_000, "?a=%E2%80%AE", "?;", "??", "?a[]=1&a[b]=2"),
)
HEADERS: tuple[str, ...] = (
    *("", "", "", "Content-Type: text/plain\r\n", "Content-Type: application/json; charset=utf-16\r\n"),
    *("Content-Type: application/JSON\r\n", "Content-Encoding: gzip\r\n", "X-HTTP-Method-Override: DELETE\r\n"),
    *("Last-Event-ID: 1\r\n", "Last-Event-ID: -1\r\n", "Last-Event-ID: \xff\r\n", f"Last-Event-ID: {'9' * 400}\r\n"),
    *("Last-Event-ID: 999999999\r\n", "Range: bytes=0-1\r\n", "If-None-Match: *\r\n", "Accept: image/png\r\n"),
    *("Accept-Encoding: br\r\n", "Expect: 100-continue\r\n", "Connection: upgrade\r\n", "X-Forwarded-Host: evil\r\n"),
    *("Origin: https://evil.example\r\n", "Host: evil.example\r\n", "TE: trailers\r\n", "Cookie: a=b\r\n"),
)
METHODS = ("GET", "POST", "POST", "DELETE", "HEAD", "OPTIONS", "PUT", "PATCH", "TRACE")
READS = ("/", "/models", "/v1/models", "/props", "/metrics", "/api/state", "/api/swaps", "/models/sse", "/api/events")
_STATUSES = {*STATUS.values(), 200, 204, 415, 417}
_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[!-9;-~]+: [^\r\n]*\r\n)*)\r\n", re.DOTALL)
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Kinds of characters that no message may hold: they move a terminal's cursor, or are not seen."""


class Call(msgspec.Struct, frozen=True):
    """One request: what goes on the wire, and how to take its answer."""

    data: bytes
    method: str
    path: str

    @property
    def streams(self) -> bool:
        """Its answer may have no end."""
        return self.method == "GET" and self.path in ("/models/sse", "/api/events")


def segment(rng: random.Random) -> str:
    """A model's id, or what may be taken for one."""
    return rng.choice(IDS[: len(MODELS)] if rng.random() < 0.3 else IDS)


def body(rng: random.Random) -> bytes:
    """A body for a verb: what it takes, something like it, or anything."""
    kind = rng.random()
    if kind < 0.1:
        return b"{}"
    if kind < 0.3:
        return b'{"instance": %b}' % rng.choice(NUMBERS).encode()
    if kind < 0.65:
        return b'{"model": %b}' % rng.choice(NAMES)
    return rng.choice(OTHERS)


def call(rng: random.Random) -> Call:
    """One hostile call."""
    kind, method = rng.random(), rng.choice(METHODS)
    if kind < 0.15:
        path = rng.choice(READS)
        method = "GET" if rng.random() < 0.7 else method
    elif kind < 0.6:
        path = f"/api/models/{segment(rng)}/{rng.choice(VERBS)}"
        method = rng.choice(("POST", "POST", "GET", method))
    elif kind < 0.7:
        path = f"/v1/models/{segment(rng)}"
        method = "GET"
    elif kind < 0.8:
        path = f"/api/requests/{rng.choice(IDS)}"
        method = "DELETE"
    elif kind < 0.95:
        verb = rng.choice(("hold", "resume", "step", rng.choice(IDS)))
        path = rng.choice(
            ("/models/load", "/models/unload", "/models/load", f"/api/queue/{verb}", "/api/oom/acknowledge")
        )
        method = rng.choice(("POST", "POST", "POST", method))
    else:
        path = f"/api/{rng.choice(IDS)}"
    path = path.replace(" ", "%20").replace("#", "%23")
    extra = rng.choice(HEADERS)
    data = body(rng) if method in ("POST", "PUT", "PATCH") or rng.random() < 0.1 else b""
    host = "" if "Host:" in extra else "Host: 127.0.0.1\r\n"
    kind_of = "" if "Content-Type" in extra or rng.random() < 0.05 else "Content-Type: application/json\r\n"
    head = f"{method} {path}{rng.choice(QUERIES)} HTTP/1.1\r\n{host}{kind_of}{extra}Connection: close\r\n"
    return Call(f"{head}Content-Length: {len(data)}\r\n\r\n".encode("latin1", "replace") + data, method, path)


def judge(asked: Call, answer: bytes) -> tuple[int, str]:
    """The status of an answer, and what is wrong with it."""
    head = _HEAD.match(answer)
    while head is not None and head[1] == b"100":
        answer = answer[head.end() :]
        head = _HEAD.match(answer)
    if head is None:
        return 0, f"no HTTP answer: {answer[:80]!r}"
    status, rest = int(head[1]), answer[head.end() :]
    if status not in _STATUSES or status in (500, 502):
        return status, f"status {status}: {rest[:300]!r}"
    if b"Traceback" in rest:
        return status, f"a traceback: {rest[:300]!r}"
    if b"x-llmtop-request-id:" not in head[2].lower() or b"x-evil" in head[2].lower():
        return status, f"headers: {head[2]!r}"
    if asked.method == "HEAD" or asked.streams or status == 204:
        return status, ""
    return status, _judge_error(status, rest) if status >= 400 else _judge_good(head[2], rest)


def _judge_good(head: bytes, rest: bytes) -> str:
    if b"application/json" in head.lower():
        try:
            msgspec.json.decode(rest)
        except (msgspec.DecodeError, UnicodeError) as error:
            return f"no JSON ({error}): {rest[:200]!r}"
    return ""


def _judge_error(status: int, rest: bytes) -> str:
    try:
        error = msgspec.json.decode(rest)["error"]
        code, message, type_ = error["code"], error["message"], error["type"]
    except (msgspec.DecodeError, UnicodeError, KeyError, TypeError):
        return f"an error that is none: {rest[:200]!r}"
    if code != status or type_ not in STATUS or not message:
        return f"an error that says something else: {error}"
    if len(message) > MESSAGE_MAX:
        return f"a message of {len(message)} characters: {message[:200]!r}"
    if hidden := {c for c in message if unicodedata.category(c) in _HIDDEN}:
        return f"a message with {hidden}: {message[:200]!r}"
    return ""


class ControlFuzzer:
    """Calls the management API of one llmtop, while clients and readers of its streams are at work.

    Args:
        r: Where.
        seed: Makes a run ask for the same again.
    """

    def __init__(self, r: Rig, seed: int) -> None:
        self._rig = r
        self._rng = random.Random(seed)
        self._process = psutil.Process(r.process.pid)
        self._gate = asyncio.Semaphore(SIDE_BY_SIDE)
        self.report = Report(statuses=Counter(), faults=[])

    async def run(self, count: int) -> Report:
        """Make so many calls, and see that llmtop is as it was before."""
        start = time.monotonic()
        async with self._rig.client() as c:
            assert (await self._rig.ask(c, "A")).status_code == 200, self._rig.log[-500:]
        before = self._process.num_fds()
        others = [asyncio.create_task(work) for work in (*map(self._ask, MODELS[:2]), self._read("/api/events"))]
        try:
            for first in range(0, count, LOOK_EACH):
                calls = [call(self._rng) for _ in range(min(LOOK_EACH, count - first))]
                await asyncio.gather(*map(self._one, calls))
                await self._look()
        finally:
            for task in others:
                task.cancel()
            ended = await asyncio.gather(*others, return_exceptions=True)
        self.report.faults += [f"beside it: {e!r}" for e in ended if not isinstance(e, asyncio.CancelledError)]
        await self._end(before)
        self.report.seconds = time.monotonic() - start
        return self.report

    async def _ask(self, model: str) -> None:
        """A client at work; what it gets is an answer or an error that says why."""
        async with self._rig.client() as c:
            while True:
                answer = await self._rig.ask(c, model)
                if answer.status_code != 200 and _judge_error(answer.status_code, answer.content):
                    self.report.faults.append(f"a client of {model}: {answer.status_code} {answer.text[:300]}")
                await asyncio.sleep(0.02)

    async def _read(self, path: str) -> None:
        """A view that reads along; its stream never ends by itself."""
        async with self._rig.client() as c, c.stream("GET", path) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    msgspec.json.decode(line[5:])
        raise AssertionError(f"{path} ended")

    async def _one(self, asked: Call) -> None:
        async with self._gate:
            answer = b""
            reader, writer = await asyncio.open_connection("127.0.0.1", self._rig.port)
            try:
                writer.write(asked.data)
                async with asyncio.timeout(STREAM_S if asked.streams else ANSWER_S):
                    while data := await reader.read(2**18):
                        answer += data
            except TimeoutError:
                if not asked.streams:
                    self._fault("neither answered nor closed", asked)
                    return
            except OSError as error:
                if not answer:
                    self._fault(f"no answer: {error!r}", asked)
                    return
            finally:
                writer.transport.abort()
            status, wrong = judge(asked, answer)
            self.report.statuses[status] += 1
            self.report.sent += 1
            if wrong:
                self._fault(wrong, asked)

    async def _look(self) -> None:
        start = time.monotonic()
        async with self._rig.client() as c:
            assert (await c.get("/health")).status_code == 200, self._rig.log[-2000:]
            took = time.monotonic() - start
            await c.post("/api/queue/resume", json={})
        self.report.slowest_health_s = max(self.report.slowest_health_s, took)
        if took > HEALTH_S:
            self.report.faults.append(f"/health took {took:.1f} s")

    async def _end(self, before: int) -> None:
        async with self._rig.client() as c:
            for model in MODELS:  # whatever was held, pinned, killed or evicted: all of them work
                await c.post(f"/api/models/{quote(model)}/unpin", json={})
                answer = await self._rig.ask(c, model)
                if answer.status_code != 200:
                    self.report.faults.append(f"{model} after it: {answer.status_code} {answer.text[:300]}")

        async def clean() -> bool:
            state = await self._rig.state()
            busy = state["requests"] or state["queue"] or any(m["in_flight"] for m in state["models"])
            return not busy and self._process.num_fds() <= before + 8  # the pipes of one more child

        with contextlib.suppress(AssertionError):
            await self._rig.until(clean, "nothing is left in flight or open", 15)
            state = await self._rig.state()
            self.report.faults += [f"fault told by llmtop: {text}" for text in state["faults"]]
            if "Traceback" in self._rig.log:
                self.report.faults.append(f"a traceback in the log: {self._rig.log[-1500:]}")
            return
        self.report.faults.append(
            f"{self._process.num_fds()} descriptors, {before} before: {await self._rig.state()}"[:900]
        )

    def _fault(self, text: str, asked: Call) -> None:
        self.report.faults.append(f"{text}; input {asked.data[:300]!r}")


async def fuzz_control(folder: Path, seed: int, count: int) -> Report:
    """Run a fuzzer against a llmtop of its own in an empty folder."""
    models = {name: {"load_ms": 20, "tokens": 2, "tok_rate": 500} for name in MODELS}
    async with rig(folder, models, "--models-max", "2", "--memory-budget", "off") as r:
        return await ControlFuzzer(r, seed).run(count)
