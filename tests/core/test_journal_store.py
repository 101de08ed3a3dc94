from __future__ import annotations

import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from llmtop.journal import Journal
from llmtop.journal_store import JournalStore
from llmtop.journal_swaps import Seconds
from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "llmtop.db"


def load(journal: Journal, store: JournalStore, instance: int, model: str, took_s: float) -> None:
    for event, actions, at in (
        (None, [act.Spawn(instance, model, 0, "request", 0.0)], 0.0),
        (ev.Ready(instance), [], took_s),
    ):
        store.keep(journal, journal.observe(event, actions, at, 1_000.0 + at), 1_000.0 + at)


def test_swaps_lines_and_seconds_survive_a_restart(path: Path) -> None:
    journal, store = Journal(), JournalStore(path)
    load(journal, store, 1, "A", 4.0)
    load(journal, store, 2, "B", 6.0)
    store.close()
    again = JournalStore(path)
    assert [(swap.model, swap.result) for swap in again.recent_swaps(9)] == [("A", "ok"), ("B", "ok")]
    assert [swap.model for swap in again.recent_swaps(1)] == ["B"]
    assert again.learned() == {"A": Seconds(4.0), "B": Seconds(6.0)}
    assert [line.text for line in again.recent_events(2)] == ["load B (request)", "B ready in 6.0 s"]
    assert again.problem == ""
    again.close()


def test_file_is_for_its_owner_only(path: Path) -> None:
    JournalStore(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_broken_file_is_set_aside_and_never_fatal(path: Path) -> None:
    path.write_bytes(b"this is no database" * 500)
    journal, store = Journal(), JournalStore(path)
    load(journal, store, 1, "A", 4.0)
    store.close()
    assert [p.name for p in path.parent.glob("llmtop.db.broken-*")]
    assert len(JournalStore(path).recent_swaps(9)) == 1


def test_tables_of_others_are_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE footprints (model TEXT)")
        db.execute("INSERT INTO footprints VALUES ('A')")
    store = JournalStore(path)
    store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT * FROM footprints").fetchall() == [("A",)]


def test_tables_of_another_version_are_made_anew(path: Path) -> None:
    JournalStore(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE journal_schema SET version = 99")
        db.execute("DROP TABLE swaps")
        db.execute("CREATE TABLE swaps (other TEXT)")
    journal, store = Journal(), JournalStore(path)
    load(journal, store, 1, "A", 4.0)
    store.close()
    assert store.lost == 0
    assert len(store.recent_swaps(9)) == 1


def test_lines_are_bounded_by_rows(path: Path) -> None:
    journal, store = Journal(), JournalStore(path, max_events=5)
    for number in range(50):
        store.keep(journal, [journal.note("note", "", f"n{number}", 1.0)], 1.0)
    store.close()
    assert [line.text for line in store.recent_events(99)] == ["n45", "n46", "n47", "n48", "n49"]


def test_folder_that_is_not_there_is_a_problem_and_not_fatal(tmp_path: Path) -> None:
    journal, store = Journal(), JournalStore(tmp_path / "gone" / "llmtop.db")
    load(journal, store, 1, "A", 4.0)
    assert "cannot be used" in store.problem
    assert store.lost == 2
    assert (store.recent_swaps(5), store.learned()) == ((), {})
    store.close()
