"""Footprints measured on earlier loads, kept over restarts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
from pathlib import Path

import msgspec

from llmtop.config.spec import ModelSpec
from llmtop.memory.arguments import read_arguments
from llmtop.memory.gguf import shard_paths
from llmtop.memory.sample import ABSURD

log = logging.getLogger(__name__)

FILE = "llmtop.db"
BUSY_S = 0.2
"""Another process at the same file is waited for this long [s]; then the call does without."""
MOST_ROWS = 2000
TABLE = """
CREATE TABLE IF NOT EXISTS footprint (
    key TEXT PRIMARY KEY, model TEXT NOT NULL, bytes INTEGER NOT NULL, source TEXT NOT NULL, at REAL NOT NULL
) WITHOUT ROWID
"""


class Learned:
    """A small table in ``state_dir/llmtop.db``. Never fatal: a broken file is set aside, one out of reach ignored.

    Args:
        state_dir: The state folder.

    Attributes:
        fault: Why nothing is kept; empty when it is.
    """

    def __init__(self, state_dir: str | Path) -> None:
        self._path = Path(state_dir) / FILE
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self.fault = ""
        try:
            self._database = self._open()
        except sqlite3.DatabaseError as error:
            self._set_aside(error)
        except OSError as error:
            self._give_up(error)

    def get(self, spec: ModelSpec) -> int | None:
        """What this model with these arguments was last measured at [bytes]; None when it never was."""
        row = self._do("SELECT bytes FROM footprint WHERE key = ?", (key(spec),))
        return row[0] if row and isinstance(row[0], int) and 0 < row[0] <= ABSURD else None

    def source(self, spec: ModelSpec) -> str:
        """How it was measured; empty when it never was."""
        row = self._do("SELECT source FROM footprint WHERE key = ?", (key(spec),))
        return str(row[0]) if row else ""

    def put(self, spec: ModelSpec, size: int, source: str) -> None:
        """Keep a measured footprint; it replaces the one before.

        Args:
            spec: The model, as it was started.
            size: What it held [bytes]; nothing that is no size is kept.
            source: How it was measured.
        """
        if not 0 < size <= ABSURD:
            return
        values = (key(spec), spec.id, size, source, time.time())
        self._do("INSERT OR REPLACE INTO footprint VALUES (?, ?, ?, ?, ?)", values)
        self._do(
            "DELETE FROM footprint WHERE key IN (SELECT key FROM footprint ORDER BY at DESC LIMIT -1 OFFSET ?)",
            (MOST_ROWS,),
        )

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._database is not None:
                self._database.close()
                self._database = None

    def _open(self) -> sqlite3.Connection:
        """Open or create the file, for the owner only."""
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
        database = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            self._path.chmod(0o600)
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = NORMAL")
            database.execute(TABLE)
            database.execute("SELECT key, model, bytes, source, at FROM footprint LIMIT 1").fetchone()
        except BaseException:
            database.close()
            raise
        return database

    def _do(self, statement: str, values: tuple[object, ...]) -> tuple[object, ...] | None:
        with self._lock:
            if self._database is None:
                return None
            try:
                row: tuple[object, ...] | None = self._database.execute(statement, values).fetchone()
            except sqlite3.OperationalError as error:  # locked or full: for now
                log.warning("learned footprints: %s", error)
            except sqlite3.DatabaseError as error:
                self._database.close()
                self._database = None
                self._set_aside(error)
            else:
                return row
        return None

    def _set_aside(self, error: sqlite3.DatabaseError) -> None:
        """Begin anew; the broken file stays beside it to be looked at."""
        if isinstance(error, sqlite3.OperationalError) and "no such column" not in str(error):
            self._give_up(error)
            return
        aside = self._path.with_name(f"{FILE}.broken-{int(time.time())}")
        try:
            self._path.replace(aside)
            for tail in ("-wal", "-shm"):
                self._path.with_name(FILE + tail).unlink(missing_ok=True)
            self._database = self._open()
        except (OSError, sqlite3.DatabaseError) as again:
            self._give_up(again)
        else:
            log.warning("learned footprints: %s; the file was set aside as %s", error, aside.name)

    def _give_up(self, error: Exception) -> None:
        self.fault = f"{self._path}: {error}"
        log.warning("learned footprints are not kept: %s", self.fault)


def key(spec: ModelSpec) -> str:
    """Identity of what was measured: the files by name, size and time, and the arguments that matter for memory."""
    args = read_arguments(spec)
    files = {
        *spec.files,
        *(map(str, shard_paths(Path(spec.path))) if spec.path else ()),
        args.mmproj,
        args.draft,
        args.lora,
    }
    known = {
        "files": [_identity(file) for file in sorted(files - {""})],
        "args": msgspec.to_builtins(args),
        "named": list(spec.source_args) if not spec.path else [],
        "cmd": spec.cmd,
        "more": _more(spec),
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def _identity(file: str) -> tuple[str, int, int]:
    with contextlib.suppress(OSError):
        state = os.stat(file)
        return Path(file).name, state.st_size, state.st_mtime_ns
    return Path(file).name, 0, 0


def _more(spec: ModelSpec) -> list[str]:
    """Variables of the model's own that choose devices or how they are used."""
    return sorted(f"{name}={value}" for name, value in spec.env if name.startswith(("GGML_", "CUDA_", "HIP_", "ROCR_")))
