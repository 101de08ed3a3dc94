"""Memory as a JSON file tells it: for tests, demos and recordings. Read afresh for each sample."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import msgspec

from llmtop.memory.sample import Label, Pressure, Sample, Value, measured, missing

MAX_BYTES = 2**20
"""A source file larger than this is not read [bytes]."""
RETRY_S = 0.02
"""A file caught half-written is read once more after this [s]."""


class FileProbe:
    """Reads an object of sizes in bytes, all optional: ``total``, ``wired``, ``available``, ``gpu_limit`` and more.

    ``processes`` maps pids to footprints, ``models`` ids to the footprints to assume for their running children.

    Args:
        path: The file.
        fault: Why there is no file to read (a malformed setting); empty when there is.
        sleep: Waits before the second look at a torn file.
    """

    min_interval_s = 0.0

    def __init__(self, path: str, *, fault: str = "", sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = Path(path)
        self._fault = fault
        self._sleep = sleep
        self._label: Label = "MEM"
        self.name = f"file {path}" if path else "file"

    def sample(self, children: Mapping[int, str]) -> Sample:
        """Read the file. What it lacks is missing; a file that cannot be read makes everything missing."""
        at = time.monotonic()
        data, why = self._read()
        if not why:  # an unreadable file does not change what the gauge counts
            self._label = "WIRED" if "wired" in data else "MEM"

        def value(key: str) -> Value:
            return (
                missing(self.name, at, why or f"no {key!r} in the file")
                if key not in data
                else measured(data[key], self.name, at)
            )

        total, available, wired = value("total"), value("available"), value("wired")
        models = {name: int(size) for name, size in _sizes(data.get("models")).items()}
        return Sample(
            at=at,
            total=total,
            available=available,
            used=value("used") if "used" in data else self._used(at, total, available, wired),
            wired=wired,
            limit=value("gpu_limit"),
            compressed=value("compressed"),
            cached=value("cached"),
            swap=value("swap"),
            gpu_in_use=value("gpu_in_use"),
            pressure=Pressure(None, "not told by a file", self.name),
            footprints=self._footprints(at, children, _sizes(data.get("processes")), models, why),
            models=models,
            label=self._label,
            notes=(why,) if why else (),
        )

    def _used(self, at: float, total: Value, available: Value, wired: Value) -> Value:
        if total.bytes is not None and available.bytes is not None:
            return measured(total.bytes - available.bytes, f"{self.name}: total less available", at)
        return wired if wired.bytes is not None else missing(self.name, at, wired.why)

    def _footprints(
        self,
        at: float,
        children: Mapping[int, str],
        processes: Mapping[str, float],
        models: Mapping[str, int],
        why: str,
    ) -> dict[int, Value]:
        """A process's own number wins over the one to assume for its model."""
        found: dict[int, Value] = {}
        for pid, model in children.items():
            if str(pid) in processes:
                found[pid] = measured(processes[str(pid)], f"{self.name}: processes", at)
            elif model in models:
                found[pid] = measured(models[model], f"{self.name}: models", at)
            else:
                found[pid] = missing(self.name, at, why or "neither its pid nor its model is in the file")
        return found

    def _read(self) -> tuple[dict[str, object], str]:
        """The file's object, and why it is empty when it could not be read."""
        if self._fault:
            return {}, self._fault
        why = ""
        for attempt in range(2):
            if attempt:
                self._sleep(RETRY_S)
            try:
                with self._path.open("rb") as file:
                    text = file.read(MAX_BYTES + 1)
            except OSError as error:
                return {}, f"cannot read {self._path}: {error.strerror}"
            if len(text) > MAX_BYTES:
                return {}, f"{self._path} is larger than {MAX_BYTES} bytes"
            try:
                return msgspec.json.decode(text, type=dict[str, object]), ""
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                why = f"{self._path} is not a JSON object: {error}"
        return {}, why


def _sizes(raw: object) -> dict[str, float]:
    """The entries of a JSON object that are sizes in bytes; the others are left out."""
    if not isinstance(raw, dict):
        return {}
    return {
        str(key): size
        for key, size in cast("dict[object, object]", raw).items()
        if isinstance(size, int | float)
        and not isinstance(size, bool)
        and math.isfinite(size)
        and measured(size, "", 0.0).bytes is not None
    }
