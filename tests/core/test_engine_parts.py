"""The engine's smaller parts: tickets, file checks, out-of-memory book, access log, watchdog."""

from __future__ import annotations

import asyncio
import stat
import threading
import time
from pathlib import Path

import pytest

from llmtop.access_log import LINES_MAX, AccessLog
from llmtop.config.spec import ModelSpec
from llmtop.engine.files import FileCheck
from llmtop.engine.records import ChildRecord, OomBook, Ticket
from llmtop.errors import Refusal, Refused
from llmtop.scheduler.events import Checked
from llmtop.snapshot import OomLine
from llmtop.testing.models import write_model
from llmtop.watchdog import Watchdog, view_stack

pytestmark = pytest.mark.anyio


def child(**more: object) -> ChildRecord:
    record = ChildRecord(7, ModelSpec("A"), 0.0)
    record.started(1, 2, (), "key")
    return record


def ticket(closed: list[tuple[str, int, bool]], now: float = 10.0) -> Ticket:
    return Ticket(
        asyncio.get_running_loop(),
        1,
        "A",
        path="/v1/completions",
        client="127.0.0.1",
        stream=False,
        now=now,
        on_close=lambda t, status, error: closed.append((t.id, status, error)),
    )


async def test_a_ticket_is_closed_once_however_often_it_is_given_back() -> None:
    closed: list[tuple[str, int, bool]] = []
    one = ticket(closed)
    one.close(200)
    one.close(502, compute_error=True)
    assert closed == [("1", 200, False)]


async def test_a_grant_tells_the_wait_and_the_loads_part_of_it() -> None:
    one = ticket([])
    one.grant(child(), 12.5, 4.0)
    grant = one.granted.result()
    assert (grant.queue_ms, grant.load_ms) == (2500, 2500), "the load's part is never more than the wait"
    assert (grant.upstream.key, grant.upstream.port, grant.upstream.api_key) == ("A#7", 2, "key")


async def test_a_refusal_reaches_whoever_waits_and_is_no_warning_if_nobody_does() -> None:
    one = ticket([])
    one.refuse(Refusal("queue_full", "full", retry_after_s=3))
    with pytest.raises(Refused) as told:
        await one.granted
    assert told.value.refusal.code == 503


def test_three_500s_in_a_row_are_worth_a_look_and_501_and_503_do_not_count() -> None:
    one = child()
    assert [one.judge(s) for s in (500, 500, 200, 500, 503, 501, 500, 500)] == [False] * 7 + [True]
    assert not one.judge(500)


def test_out_of_memory_lines_are_counted_and_the_newest_is_kept_until_seen() -> None:
    book = OomBook()
    assert book.acknowledged
    book.add(OomLine(1.0, "A", "first", 1), 1)
    book.add(OomLine(2.0, "A", "later", 9), 8)
    assert (book.count, book.acknowledged) == (9, False)
    assert book.last is not None
    assert book.last.text == "later"


def test_files_are_looked_at_again_only_when_they_changed(tmp_path: Path) -> None:
    told: list[Checked] = []
    path = write_model(tmp_path, "A")
    spec = ModelSpec("A", path=str(path), files=(str(path),))
    check = FileCheck(told.append)
    check.whole(spec)
    assert check.again(spec) is spec
    assert told == []
    path.write_bytes(b"not a model at all")
    broken = check.again(spec)
    assert broken.problem
    assert told[-1].failure is not None
    assert told[-1].failure.kind == "bad_file"
    write_model(tmp_path, "A")
    assert not check.again(broken).problem
    assert told[-1].failure is None


def test_a_problem_found_at_the_start_is_told_at_once() -> None:
    told: list[Checked] = []
    FileCheck(told.append).whole(ModelSpec("A", problem="not a GGUF file"))
    assert [(t.model, t.failure.message) for t in told if t.failure] == [("A", "not a GGUF file")]


def test_a_problem_that_goes_without_a_change_of_the_file_is_noticed(tmp_path: Path) -> None:
    """A download's companion file vanishes when it is done."""
    told: list[Checked] = []
    path = write_model(tmp_path, "A")
    unfinished = ModelSpec("A", path=str(path), files=(str(path),), problem="still being downloaded")
    check = FileCheck(told.append)
    check.whole(unfinished)
    fresh = check.again(unfinished)
    assert not fresh.problem
    assert told[-1].failure is None
    assert check.again(fresh) is fresh


def test_a_file_that_is_cut_short_stays_so_until_it_changes(tmp_path: Path) -> None:
    told: list[Checked] = []
    path = write_model(tmp_path, "A")
    spec = ModelSpec("A", path=str(path), files=(str(path),))
    check = FileCheck(told.append)
    check.whole(spec, "A.gguf: cut short: tensor 'x' goes beyond the end of the file")
    assert check.again(spec) is spec
    assert len(told) == 1
    assert told[0].failure is not None
    assert (told[0].failure.kind, "download" in told[0].failure.hint) == ("bad_file", True)
    path.write_bytes(path.read_bytes() + b"more")
    check.again(spec)
    assert told[-1].failure is None


async def test_the_access_log_is_private_and_says_what_it_could_not_keep(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "access.log"
    log = AccessLog(asyncio.get_running_loop(), path)
    for n in range(LINES_MAX + 5):
        log.line(str(n), "A", "/v1/completions", 200, 1, 2, 3.0)
    log.close()
    lines = path.read_text().splitlines()
    assert len(lines) == LINES_MAX + 1
    assert lines[0].split(" ", 1)[1] == "0 200 A /v1/completions queue=1 load=2 total=3.0"
    assert "5 more lines" in lines[-1]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
async def test_a_loop_that_stands_still_is_reported_with_what_the_main_thread_did() -> None:
    told: list[str] = []
    dog = Watchdog(asyncio.get_running_loop(), lambda kind, model, text: told.append(text))
    dog.start()
    time.sleep(0.8)  # noqa: ASYNC251 - this is the fault
    await asyncio.sleep(0.3)
    dog.stop()
    assert len(told) == 1
    assert "stood still" in told[0]
    assert "test_a_loop_that_stands_still" in told[0]


def test_the_views_stack_is_one_line() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(view_stack()))
    thread.start()
    thread.join()
    assert "\n" not in found[0]
    assert "test_the_views_stack_is_one_line" in found[0]
