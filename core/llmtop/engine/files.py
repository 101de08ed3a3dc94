"""Are a model's files in order? Looked at before anything is evicted for it, if they changed since the last look."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from llmtop.children.patterns import DOWNLOAD
from llmtop.config.discovery import recheck
from llmtop.config.spec import ModelSpec
from llmtop.scheduler.events import Checked
from llmtop.snapshot import Failure

Signature = tuple[tuple[int, int] | None, ...]
"""Size and time of each file; None for one that is missing."""


class FileCheck:
    """Remembers how files looked.

    Args:
        tell: Hands an event to the scheduler.
    """

    def __init__(self, tell: Callable[[Checked], object]) -> None:
        self._tell = tell
        self._seen: dict[str, Signature] = {}

    def whole(self, spec: ModelSpec, cut_short: str = "") -> None:
        """A whole look at a model: its problem, or that a file is ``cut_short``, is told."""
        self._seen[spec.id] = _signature(spec)
        if cut_short:
            self._tell(Checked(spec.id, Failure("bad_file", cut_short, at=time.time(), hint=DOWNLOAD)))
        elif spec.problem:
            self._tell(Checked(spec.id, file_failure(spec)))

    def again(self, spec: ModelSpec) -> ModelSpec:
        """A quick look, if its files changed or it had a problem; gives the model as it is now."""
        signature = _signature(spec)
        changed = self._seen.get(spec.id) != signature
        if not changed and not spec.problem:
            return spec
        self._seen[spec.id] = signature
        fresh = recheck(spec)
        if not changed and fresh.problem == spec.problem:
            return spec
        self._tell(Checked(spec.id, file_failure(fresh) if fresh.problem else None))
        return fresh


def file_failure(spec: ModelSpec) -> Failure:
    """A configured problem as the failure that its loads would have."""
    return Failure(spec.problem_kind, spec.problem, at=time.time())


def _signature(spec: ModelSpec) -> Signature:
    return tuple(_stat(file) for file in spec.files)


def _stat(file: str) -> tuple[int, int] | None:
    try:
        s = os.stat(file)
    except OSError:
        return None
    return s.st_size, s.st_mtime_ns
