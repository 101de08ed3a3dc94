"""The short form of the fuzzer: every run of the tests sends the same few hundred inputs."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtop.testing.fuzz_http import fuzz, judge

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_five_hundred_mutated_requests_break_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    report = await fuzz(tmp_path, seed=11, count=500)
    assert not report.faults, report.text()
    assert report.sent == 500
    assert report.statuses[200] > 20, "some of them are good requests, and are served"
    assert report.statuses[400] > 50


@pytest.mark.parametrize(
    "answer",
    [
        b"garbage",
        b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 299 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 2\r\n\r\n{}",
        b'HTTP/1.1 400 Bad Request\r\nContent-Length: 39\r\n\r\n{"error":{"code":404,"message":"other"}}',
    ],
)
def test_the_fuzzer_sees_an_answer_that_is_wrong(answer: bytes) -> None:
    assert judge(answer)[1]
