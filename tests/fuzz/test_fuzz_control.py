"""The short form of the fuzzer of the management API: every run of the tests makes the same few hundred calls."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from llmtop.testing.fuzz_control import Call, call, fuzz_control, judge

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

GET = Call(b"GET /api/swaps HTTP/1.1\r\n\r\n", "GET", "/api/swaps")


async def test_six_hundred_hostile_calls_find_no_fault_and_leave_a_llmtop_that_works(tmp_path: Path) -> None:
    report = await fuzz_control(tmp_path, seed=11, count=600)
    assert not report.faults, report.text()
    assert report.sent == 600
    for status in (200, 400, 403, 404, 405, 413, 415):
        assert report.statuses[status], f"no call got {status}: {report.text()}"


def test_calls_come_to_every_route_and_differ() -> None:
    calls = [call(random.Random(seed)) for seed in range(3000)]
    assert len({one.data for one in calls}) > 2500
    paths = {one.path for one in calls}
    for path in ("/", "/models/load", "/models/unload", "/api/queue/step", "/api/oom/acknowledge", "/models/sse"):
        assert path in paths
    for start, end in (
        ("/api/models/", "/kill"),
        ("/api/models/", "/log"),
        ("/v1/models/", ""),
        ("/api/requests/", ""),
    ):
        assert sum(path.startswith(start) and path.endswith(end) for path in paths) > 20


def answer(status: str, body: bytes, extra: bytes = b"Content-Type: application/json\r\n") -> bytes:
    return b"HTTP/1.1 %b\r\n%bX-Llmtop-Request-Id: 1\r\n\r\n%b" % (status.encode(), extra, body)


def test_a_good_answer_is_no_fault() -> None:
    assert judge(GET, answer("200 OK", b'{"swaps":[]}')) == (200, "")
    told = b'{"error":{"code":404,"message":"no such route","type":"not_found"}}'
    assert judge(GET, answer("404 Not Found", told)) == (404, "")


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"garbage",
        answer("500 Internal Server Error", b'{"error":{"code":500,"message":"x","type":"internal_error"}}'),
        answer("502 Bad Gateway", b'{"error":{"code":502,"message":"x","type":"upstream_error"}}'),
        answer("299 Odd", b"{}"),
        answer("200 OK", b"{"),
        answer("200 OK", b'"Traceback (most recent call last)"'),
        answer("200 OK", b"{}", b"X-Evil: 1\r\n"),
        answer("404 Not Found", b"Not Found"),
        answer("404 Not Found", b'{"error":{"code":400,"message":"x","type":"not_found"}}'),
        answer("404 Not Found", b'{"error":{"code":404,"message":"x","type":"unheard_of"}}'),
        answer("404 Not Found", b'{"error":{"code":404,"message":"","type":"not_found"}}'),
        answer("404 Not Found", b'{"error":{"code":404,"message":"\\u001b[2J","type":"not_found"}}'),
        answer("404 Not Found", b'{"error":{"code":404,"message":"\\u202ex","type":"not_found"}}'),
        answer("404 Not Found", b'{"error":{"code":404,"message":"%b","type":"not_found"}}' % (b"x" * 5000)),
    ],
)
def test_the_fuzzer_sees_an_answer_that_is_wrong(wrong: bytes) -> None:
    assert judge(GET, wrong)[1]
