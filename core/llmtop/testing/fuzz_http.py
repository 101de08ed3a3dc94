"""Mutated HTTP against a whole llmtop: what must hold whatever a client sends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from llmtop.errors import STATUS
from llmtop.testing.rig import Rig, rig

SIDE_BY_SIDE = 24
ANSWER_S = 10.0
"""A whole request, or one that no more bytes can mend, is answered within this, or its connection closed [s]."""
HEALTH_S = 2.0
"""The slowest ``/health`` in between [s]: the machine may be busy, the loop must not stand still."""
LOOK_EACH = 250
PRESET = """version = 1
[A]
cmd = {python} {child} ${{PORT}} {seen}
memory = 1MiB
alias = other
"""
CHILD = r"""
import asyncio, re, sys
HEAD = re.compile(rb"(GET|HEAD|POST|PUT|PATCH|DELETE|OPTIONS) /[\x21-\x7e]* HTTP/1\.1\r\n"
                  rb"(?:[!#$%&'*+.^_`|~0-9A-Za-z-]+: [\t\x20-\x7e\x80-\xff]*\r\n)*\r\n")
ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 11\r\n\r\n{"ok":true}'


def note(*words):
    with open(sys.argv[2], "a") as f:
        f.write(" ".join(words) + "\n")


async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lower = head.lower()
            if not HEAD.fullmatch(head):
                note("malformed", repr(head[:200]))
            if lower.count(b"\r\ncontent-length:") + lower.count(b"\r\ntransfer-encoding:") > 1:
                note("ambiguous", repr(head[:200]))
            if any(b"\r\n" + name in lower for name in (b"authorization:", b"x-api-key:", b"upgrade:", b"origin:")):
                note("leaked", repr(head[:200]))
            length = re.search(rb"\r\ncontent-length: (\d+)\r\n", lower)
            if length:
                await reader.readexactly(int(length[1]))
            elif b"\r\ntransfer-encoding:" in lower:
                while size := int(await reader.readline(), 16):
                    await reader.readexactly(size + 2)
                await reader.readline()
            method = head.split(b" ", 1)[0].decode()
            if method not in ("GET", "HEAD", "OPTIONS"):
                note("request", method)
            writer.write(ANSWER if method != "HEAD" else ANSWER[:-11])
    except (asyncio.IncompleteReadError, ConnectionError, ValueError):
        pass
    finally:
        writer.close()


async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", int(sys.argv[1]), limit=2**22)
    async with server:
        await server.serve_forever()


asyncio.run(main())
"""
"""A child that takes note of whatever reaches it that it should not have to read twice."""

BODY = b'{"model":"A","prompt":"x","stream":false}'
FORM = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nA\r\n--b--\r\n'


def _post(path: bytes, body: bytes = BODY, headers: bytes = b"Content-Type: application/json\r\n") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body)


SEEDS = (
    _post(b"/v1/completions"),
    _post(b"/v1/chat/completions?model=other", b'{"messages":[]}'),
    _post(b"/v1/audio/transcriptions", FORM, b"Content-Type: multipart/form-data; boundary=b\r\n"),
    _post(b"/upstream/A/anything", b"abc", b"X-Api-Key: sesame\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\n"),
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"%x\r\n%b\r\n0\r\nTrailer: 1\r\n\r\n" % (len(BODY), BODY),
    b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost\r\n\r\n",
    b"GET /slots?model=A HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD /props?model=A HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /api/state HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sesame\r\n\r\n",
    b"OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\nAccess-Control-Request-Method: GET\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
    _post(b"/v1/completions", BODY, b"Expect: 100-continue\r\n"),
    _post(b"/models/load", b'{"model":"A"}', b"Content-Type: application/json\r\nHost: localhost\r\n"),
)
WORDS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b",", b";", b'"', b"\\", b"%00", b"%2e%2e/"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 0\r\n", b"Content-Length: 99999999999999999999\r\n", b"-1", b"+5"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity, chunked\r\n", b"0x5", b"//", b"#"),
    *(b"transfer-encoding:\x0bchunked\r\n", b"Upgrade: websocket\r\n", b"Expect: 1\r\n", b"Connection: close\r\n"),
    *(b"Connection: content-length\r\n", b"Host: y\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"--b--", b"--b\r\n"),
    *(b"5;ext=1\r\nabcde\r\n", b"HTTP/1.1", b"HTTP/9.9", b"PRI * HTTP/2.0", b'"model":7', b'"model":"nobody"'),
    *(b'{"a":' * 300, b"[" * 3000, b"\xff\xfe", b"\xf0\x9f\xa6\x99", b"1e999", b"\\ud800", b"X: y\r\n" * 120),
    *(b"X: " + b"y" * 70_000 + b"\r\n", b"?model=A&model=other", b"?autoload=0", b"/upstream/A/"),
)
_HEAD = re.compile(rb"HTTP/1\.1 ([0-9]{3}) [^\r\n]*\r\n((?:[!-9;-~]+: [^\r\n]*\r\n)*)\r\n", re.DOTALL)
_LENGTH = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)
_STATUSES = {*STATUS.values(), 100, 200, 204, 415, 417}


class Report(msgspec.Struct):
    """What came of a run.

    Args:
        sent: Inputs.
        statuses: Answers by status; 0 counts connections closed without one.
        faults: What must not happen, in words, with the input.
        seconds: It took [s].
        slowest_health_s: The slowest ``/health`` in between [s].
    """

    sent: int = 0
    statuses: Counter[int] = Counter()
    faults: list[str] = []
    seconds: float = 0.0
    slowest_health_s: float = 0.0

    def text(self) -> str:
        """In a few lines."""
        told = ", ".join(f"{status or 'closed'}: {count}" for status, count in sorted(self.statuses.items()))
        head = (
            f"{self.sent} inputs in {self.seconds:.0f} s, slowest /health {self.slowest_health_s * 1000:.0f} ms; {told}"
        )
        return "\n".join([head, *self.faults[:20], f"{len(self.faults)} faults"])


def _flip(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]


def _drop(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randrange(1, 20) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(WORDS) + data[at:]


def _insert_line(rng: random.Random, data: bytes) -> bytes:
    ends = [match.end() for match in re.finditer(rb"\r\n", data)] or [0]
    at = rng.choice(ends)
    return data[:at] + rng.choice(WORDS) + data[at:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data))
    end = start + rng.randrange(1, 60)
    return data[:end] + data[start:end] + data[end:]


def _splice(rng: random.Random, data: bytes) -> bytes:
    other = rng.choice(SEEDS)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other)) :]


def _follow(rng: random.Random, data: bytes) -> bytes:
    return data + rng.choice(SEEDS)


MUTATIONS: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    *(_flip, _drop, _insert, _insert_line, _insert_line, _repeat, _splice, _follow),
)


def mutated(rng: random.Random) -> bytes:
    """One input: a good request, mutated up to six times, sometimes with another one behind it."""
    data = rng.choice(SEEDS)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 6))):
        data = rng.choice(MUTATIONS)(rng, data) or b"\r\n"
    return data[: 2**18]


def judge(answer: bytes, *, bodyless: bool = False) -> tuple[int, str]:
    """The status of the first answer in what came back (0 for none), and what is wrong with it.

    Args:
        answer: All that came back.
        bodyless: The request was a HEAD.
    """
    if not answer:
        return 0, ""
    head = _HEAD.match(answer)
    if head is None:
        return 0, f"no HTTP answer: {answer[:80]!r}"
    status, rest = int(head[1]), answer[head.end() :]
    if status not in _STATUSES:
        return status, f"unforeseen status {status}"
    if status == 500:
        return status, "a bug of llmtop's own"
    length = _LENGTH.search(answer[: head.end()])
    if status >= 400 and not bodyless and length is not None and len(rest) >= int(length[1]) > 0:
        try:
            told = msgspec.json.decode(rest[: int(length[1])])["error"]
            if told["code"] != status or not told["message"]:
                return status, f"an error that says something else: {told}"
        except (msgspec.DecodeError, KeyError, TypeError):
            return status, f"an error that is none: {rest[:80]!r}"
    return status, ""


class Fuzzer:
    """Sends mutated requests to one llmtop.

    Args:
        r: Where.
        seed: Makes a run repeat itself.
    """

    def __init__(self, r: Rig, seed: int) -> None:
        self._rig = r
        self._rng = random.Random(seed)
        self._process = psutil.Process(r.process.pid)
        self._gate = asyncio.Semaphore(SIDE_BY_SIDE)
        self.report = Report(statuses=Counter(), faults=[])

    async def run(self, count: int) -> Report:
        """Send so many, and see that llmtop is as it was before."""
        start = time.monotonic()
        async with self._rig.client() as c:
            assert (await c.post("/v1/completions", content=BODY)).status_code == 200, self._rig.log[-500:]
        await asyncio.sleep(1.5)  # kept connections go
        before = self._process.num_fds()
        for first in range(0, count, LOOK_EACH):
            batch = [mutated(self._rng) for _ in range(min(LOOK_EACH, count - first))]
            await asyncio.gather(*[self._one(data, self._rng.random()) for data in batch])
            await self._look()
        await self._end(before)
        self.report.seconds = time.monotonic() - start
        return self.report

    async def _one(self, data: bytes, style: float) -> None:
        async with self._gate:
            answer, over = b"", False
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._rig.port)
            except OSError as error:
                self._fault(f"no connection: {error}", data)
                return
            try:
                half = int(len(data) * style)
                writer.write(data[:half])
                await asyncio.sleep(0)
                writer.write(data[half:])
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    answer = await asyncio.wait_for(reader.read(2**16), 0.03 + style * 0.1)
                writer.write_eof()
                answer += await asyncio.wait_for(reader.read(), ANSWER_S)
                over = True
            except TimeoutError:
                self._fault("neither answered nor closed", data)
            except OSError:
                over = True
            finally:
                writer.transport.abort()
            if over:
                status, wrong = judge(answer, bodyless=data.lstrip(b"\r\n").startswith(b"HEAD "))
                self.report.statuses[status] += 1
                if wrong:
                    self._fault(wrong, data)
            self.report.sent += 1

    async def _look(self) -> None:
        if self._process.status() == psutil.STATUS_ZOMBIE or not self._process.is_running():
            raise AssertionError(f"llmtop is gone: {self._rig.log[-2000:]}")
        start = time.monotonic()
        async with self._rig.client() as c:
            assert (await c.get("/health")).status_code == 200
        took = time.monotonic() - start
        self.report.slowest_health_s = max(self.report.slowest_health_s, took)
        if took > HEALTH_S:
            self._fault(f"/health took {took:.1f} s", b"")

    async def _end(self, before: int) -> None:
        async def clean() -> bool:
            state = await self._rig.state()
            busy = state["requests"] or state["queue"] or any(m["in_flight"] for m in state["models"])
            return not busy and self._process.num_fds() <= before + 2

        try:
            await self._rig.until(clean, "nothing is left in flight or open", 15)
        except AssertionError as error:
            self._fault(f"{self._process.num_fds()} descriptors, {before} before: {error}"[:600], b"")
        state = await self._rig.state()
        self.report.faults += [f"fault told by llmtop: {text}" for text in state["faults"]]
        log = self._rig.log
        if "Traceback" in log or "failed inside" in log:
            self._fault(f"a traceback in the log: {log[log.find('Traceback') :][:1500]}", b"")
        seen = _lines(self._rig.folder / "seen.txt")
        self.report.faults += [f"reached the child: {line}" for line in seen if not line.startswith("request ")]
        relayed = sum(line.startswith("request ") for line in seen)
        if relayed > state["requests_total"]:
            self._fault(f"the child saw {relayed} requests, llmtop let in {state['requests_total']}", b"")

    def _fault(self, text: str, data: bytes) -> None:
        self.report.faults.append(f"{text}; input {data[:400]!r}" if data else text)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


async def fuzz(folder: Path, seed: int, count: int) -> Report:
    """Run a fuzzer against a llmtop of its own in an empty folder."""
    (folder / "models").mkdir()
    (folder / "child.py").write_text(CHILD)
    (folder / "seen.txt").touch()
    preset = PRESET.format(python=sys.executable, child=folder / "child.py", seen=folder / "seen.txt")
    (folder / "preset.ini").write_text(preset)
    async with rig(folder, None, "--models-preset", str(folder / "preset.ini"), "--memory-budget", "off") as r:
        return await Fuzzer(r, seed).run(count)
