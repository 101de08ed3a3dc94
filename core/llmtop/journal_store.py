"""The journal on disk: SQLite, written by one thread, so that the core never waits for it. Nothing in here is fatal.

The file is shared with other tables; these are ``journal``, ``swaps``, ``journal_seconds`` and ``journal_schema``.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sqlite3
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from llmtop.journal import Journal
from llmtop.journal_swaps import Seconds
from llmtop.snapshot import EventLine, Swap

SCHEMA = 1
MAX_EVENTS = 50_000
MAX_SWAPS = 5_000
MAX_MODELS = 1_000
QUEUED = 1_000
"""Batches that may wait for the disk; what comes on top is lost, and counted."""
BUSY_S = 5.0
"""How long a write waits for another writer of the file [s]."""

_TABLES = """
CREATE TABLE IF NOT EXISTS journal (
    n INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL, text TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS swaps (n INTEGER PRIMARY KEY, at REAL NOT NULL, model TEXT NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS journal_seconds (
    model TEXT PRIMARY KEY, load_s REAL, stop_s REAL, at REAL NOT NULL);
"""
_BOUNDS = (
    ("DELETE FROM journal WHERE n <= (SELECT max(n) FROM journal) - ?", MAX_EVENTS),
    ("DELETE FROM swaps WHERE n <= (SELECT max(n) FROM swaps) - ?", MAX_SWAPS),
    (
        "DELETE FROM journal_seconds WHERE model NOT IN (SELECT model FROM journal_seconds ORDER BY at DESC LIMIT ?)",
        MAX_MODELS,
    ),
)


class _Batch(msgspec.Struct, frozen=True):
    lines: tuple[EventLine, ...]
    swaps: tuple[Swap, ...]
    seconds: tuple[tuple[str, Seconds, float], ...]


class JournalStore:
    """Keeps lines, finished swaps and learned seconds.

    Args:
        path: The database, made with mode 0600 where it is missing; a broken one is set aside.
        max_events: Lines kept [1].

    Attributes:
        problem: Why nothing is kept, in one line; empty while all is well.
        lost: Batches that were not kept [1].
    """

    def __init__(self, path: Path, max_events: int = MAX_EVENTS) -> None:
        self.path = path
        self.problem = ""
        self.lost = 0
        self._bounds = ((_BOUNDS[0][0], max_events), *_BOUNDS[1:])
        self._queue: queue.Queue[_Batch | None] = queue.Queue(QUEUED)
        self._thread: threading.Thread | None = None
        if self._prepare():
            self._thread = threading.Thread(target=self._work, name="llmtop-journal", daemon=True)
            self._thread.start()

    def keep(self, journal: Journal, lines: Sequence[EventLine], wall: float) -> None:
        """Keep what a step added; returns at once.

        Args:
            journal: Its finished swaps, and what it learned from them, are taken.
            lines: What ``observe`` or ``note`` gave.
            wall: Time of day [s since the epoch].
        """
        swaps = journal.take_finished()
        if not lines and not swaps:
            return
        learned = {line.model for line in lines if line.kind in ("ready", "exit", "settle") and line.model}
        learned |= {model for swap in swaps for model in (swap.model, *swap.evicted)}
        known = tuple((model, journal.seconds(model), wall) for model in sorted(learned))
        if self._thread is None:
            self.lost += 1
            return
        try:
            self._queue.put_nowait(_Batch(tuple(lines), swaps, known))
        except queue.Full:
            self.lost += 1

    def recent_swaps(self, n: int) -> tuple[Swap, ...]:
        """The last ``n`` swaps of earlier runs, oldest first; their ids are made to grow. Reads the disk."""
        rows = self._read("SELECT n, body FROM swaps ORDER BY n DESC LIMIT ?", (n,))
        found: list[Swap] = []
        for number, body in reversed(rows):
            with contextlib.suppress(msgspec.DecodeError, msgspec.ValidationError):
                found.append(msgspec.structs.replace(msgspec.json.decode(body, type=Swap), id=int(number)))
        return tuple(found)

    def recent_events(self, n: int) -> tuple[EventLine, ...]:
        """The last ``n`` lines, oldest first; numbered by the store. Reads the disk."""
        rows = self._read("SELECT n, at, kind, model, text FROM journal ORDER BY n DESC LIMIT ?", (n,))
        return tuple(EventLine(*row) for row in reversed(rows))

    def learned(self) -> dict[str, Seconds]:
        """What earlier runs learned of each model. Reads the disk."""
        rows = self._read("SELECT model, load_s, stop_s FROM journal_seconds", ())
        return {model: Seconds(load_s, stop_s) for model, load_s, stop_s in rows}

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits and end the thread; give up after ``timeout_s`` [s]."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=timeout_s)
        thread.join(timeout_s)

    # --- the file

    def _prepare(self) -> bool:
        """Make the file and its tables ready. False when it cannot be used."""
        for attempt in ("first", "last"):
            try:
                os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                self.path.chmod(0o600)
                with contextlib.closing(self._connect()) as db:
                    _make_tables(db)
                return True
            except (OSError, sqlite3.OperationalError) as error:
                self.problem = f"{self.path} cannot be used, the journal is not kept: {error}"
                return False
            except sqlite3.DatabaseError as error:
                if attempt == "last" or not self._set_aside():
                    self.problem = f"{self.path} is broken, the journal is not kept: {error}"
                    return False
        return False

    def _set_aside(self) -> bool:
        """Move a broken database out of the way, its companions too."""
        stamp = time.strftime("%Y%m%d-%H%M%S")
        try:
            self.path.rename(self.path.with_name(f"{self.path.name}.broken-{stamp}"))
        except OSError:
            return False
        for end in ("-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        return True

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=BUSY_S)
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
        except sqlite3.Error:
            db.close()
            raise
        return db

    def _read(self, sql: str, values: tuple[int, ...]) -> list[tuple[Any, ...]]:
        try:
            with contextlib.closing(self._connect()) as db:
                return db.execute(sql, values).fetchall()
        except (OSError, sqlite3.Error):
            return []

    # --- the thread

    def _work(self) -> None:
        try:
            db = self._connect()
        except sqlite3.Error as error:
            self.problem = f"{self.path} cannot be used, the journal is not kept: {error}"
            return
        with contextlib.closing(db):
            last = False
            while not last:
                batches, last = self._batches()
                if batches:
                    self._write(db, batches)

    def _batches(self) -> tuple[list[_Batch], bool]:
        """Wait for something to write, and take all that is there. True at the end."""
        taken: list[_Batch] = []
        item = self._queue.get()
        while item is not None:
            taken.append(item)
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                return taken, False
        return taken, True

    def _write(self, db: sqlite3.Connection, batches: Sequence[_Batch]) -> None:
        lines = [(line.at, line.kind, line.model, line.text) for batch in batches for line in batch.lines]
        swaps = [(s.at, s.model, msgspec.json.encode(s).decode()) for batch in batches for s in batch.swaps]
        seconds = [(model, s.load_s, s.stop_s, at) for batch in batches for model, s, at in batch.seconds]
        try:
            with db:
                db.executemany("INSERT INTO journal (at, kind, model, text) VALUES (?, ?, ?, ?)", lines)
                db.executemany("INSERT INTO swaps (at, model, body) VALUES (?, ?, ?)", swaps)
                db.executemany("INSERT OR REPLACE INTO journal_seconds VALUES (?, ?, ?, ?)", seconds)
                for sql, most in self._bounds:
                    db.execute(sql, (most,))
            self.problem = ""
        except (
            sqlite3.Error
        ) as error:  # a full disk, another writer that hangs: this batch is lost, the next may not be
            self.lost += len(batches)
            self.problem = f"{self.path} cannot be written: {error}"


def _make_tables(db: sqlite3.Connection) -> None:
    """Check the file and make the tables; those of another version are made anew: a journal is no treasure."""
    verdict = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict is None or verdict[0] != "ok":
        raise sqlite3.DatabaseError("it fails its own check")
    db.execute("CREATE TABLE IF NOT EXISTS journal_schema (version INTEGER NOT NULL)")
    row = db.execute("SELECT version FROM journal_schema").fetchone()
    if row is None or row[0] != SCHEMA:
        with db:
            for name in ("journal", "swaps", "journal_seconds"):
                db.execute(f"DROP TABLE IF EXISTS {name}")
            db.execute("DELETE FROM journal_schema")
            db.execute("INSERT INTO journal_schema VALUES (?)", (SCHEMA,))
    db.executescript(_TABLES)
    db.commit()
