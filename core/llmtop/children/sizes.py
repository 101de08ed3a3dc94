"""A llama-server's own size lines, added up."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable

from llmtop.config.spec import MIB

# The groups are what llama.cpp's printf lines hold: who says it, on which buffer type, for what, how much.
_SIZE = re.compile(r"([A-Za-z_]\w*):\s+(\S+)\s+(model|KV|compute|output|RS)\s+buffer size\s*=\s*([\d.]+)\s*MiB")
_LARGER = re.compile(r"([A-Za-z_]\w*):\s+(\S+)\s+compute buffer size of\s+([\d.]+) MiB, does not match")
_MTMD = re.compile(r"memory usage of mmproj is ([\d.]+) MiB")
_NO_ALLOC = re.compile(r"no_alloc\s*=\s*([01])")

_Key = tuple[str, str, str]


WORDS = ("no_alloc", "loading model", "buffer size", "usage of mmproj")
"""One of these is in every line that matters here."""


class SizeCollector:
    """Learns a child's footprint from its log.

    One load may run several passes: a fit that allocates nothing, the model, a draft model. KV lines of a pass add up
    (a model with sliding-window attention prints two alike); of the others the last for a component and backend holds.

    Args:
        file_bytes: Size of the model's files [bytes], 0 if not known. Mapped weights are spans of them and may
            overlap, so the
            weights together count for no more.
    """

    def __init__(self, file_bytes: int = 0) -> None:
        self._file_bytes = file_bytes
        self._passes: list[dict[_Key, float]] = []
        self._tells_no_alloc = False
        self._no_alloc = False
        self._ignore = False
        self._mmproj = 0.0

    def feed(self, line: str) -> None:
        """Take a line of the log, with or without prefix."""
        if "no_alloc" in line and (found := _NO_ALLOC.search(line)):
            self._tells_no_alloc, self._no_alloc = True, found[1] == "1"
        elif "loading model" in line:
            self._start(line)
        elif "MiB" in line:
            self._take(line)

    def _start(self, line: str) -> None:
        if "loading model tensors" in line:
            self._ignore = self._no_alloc
            if not self._tells_no_alloc:  # an older build: only the last pass is known to be real
                self._passes.clear()
            self._passes.append({})
        elif "load_model: loading model '" in line:
            self._passes.clear()
            self._mmproj = 0.0

    def _take(self, line: str) -> None:
        if "mmproj" in line and (found := _MTMD.search(line)):
            self._mmproj = float(found[1])
        if self._ignore or not self._passes or "buffer size" not in line:
            return
        sizes = self._passes[-1]
        if found := _SIZE.search(line):
            key = (found[1], found[2], found[3])
            before = sizes.get(key, 0.0) if found[3] == "KV" else 0.0
            sizes[key] = before + float(found[4])
        elif found := _LARGER.search(line):
            key = ("sched_reserve", found[2], "compute")
            sizes[key] = max(sizes.get(key, 0.0), float(found[3]))

    @property
    def total(self) -> int | None:
        """All of it [bytes], None when the log told no sizes."""
        weights = sum(mib for sizes in self._passes for key, mib in sizes.items() if key[2] == "model") * MIB
        rest = sum(mib for sizes in self._passes for key, mib in sizes.items() if key[2] != "model") * MIB
        if self._file_bytes:
            weights = min(weights, self._file_bytes)
        return round(weights + rest + self._mmproj * MIB) if weights + rest else None


def bytes_of_files(paths: Iterable[str]) -> int:
    """What the files hold together [bytes]; a missing one counts for nothing."""
    total = 0
    for path in paths:
        with contextlib.suppress(OSError):
            total += os.path.getsize(path)
    return total
