"""What was asked when: a trace of JSON lines, or a recording of a live run; either may be packed with ``gzip``.

A trace has one request a line: ``{"t": seconds, "model": name, "duration": seconds}``, and may tell of the model along
with it: ``"size"`` [bytes, or ``"18GiB"``], ``"load_s"``, ``"stop_s"`` [s].
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from statistics import median
from typing import Annotated, Any

import msgspec

from llmtop.children.text import safe_text
from llmtop.config.units import parse_size
from llmtop.errors import ConfigError
from llmtop.record import LONGEST_LINE, is_recording, opened
from llmtop.simulate.world import Ask
from llmtop.snapshot import Snapshot

MAX_REQUESTS = 1_000_000
_LIKE = 'a trace has lines like {"t": 0.5, "model": "qwen3", "duration": 3.2}'

Time = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds, from whatever moment on: counted from 1970 they are some 2e9."""


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line of a trace."""

    t: Time
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]
    duration: Time
    size: int | str | None = None
    load_s: Time | None = None
    stop_s: Time | None = None


class Told(msgspec.Struct):
    """What a trace says of a model; None where it says nothing. ``where`` is where the size stands."""

    size: int | None = None
    load_s: float | None = None
    stop_s: float | None = None
    settle_s: float | None = None
    where: str = ""


class Trace(msgspec.Struct):
    """Requests in order of time, the first at 0, and what is told of their models.

    Args:
        left_out: Requests of a recording that never got a child, and so have no duration [1].
        models_max: Cap of the recorded run; None for a trace.
        budget: Its byte budget [bytes].
    """

    asks: list[Ask]
    models: dict[str, Told]
    left_out: int = 0
    models_max: int | None = None
    budget: int | None = None


def read_trace(path: str) -> Trace:
    """Read a trace or a recording.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read or a line of it is wrong; the message begins with file and line.
    """
    try:
        with opened(path) as file:
            first = file.readline(LONGEST_LINE)
            lines = _numbered(path, file)
            trace = _recording(path, _up_to_a_cut(lines)) if is_recording(first) else _rows(path, first, lines)
    except EOFError as error:
        raise ConfigError(f"{path}: is cut off: pack it again") from error
    if not trace.asks:
        raise ConfigError(f"{path}: there is no request in it to simulate")
    trace.asks.sort(key=lambda ask: ask.t)
    start = trace.asks[0].t
    trace.asks = [Ask(ask.t - start, ask.model, ask.duration) for ask in trace.asks]
    return trace


def _numbered(path: str, file: Any) -> Iterator[tuple[str, bytes]]:
    number = 1
    while text := file.readline(LONGEST_LINE):
        number += 1
        yield f"{path}:{number}", text


def _up_to_a_cut(lines: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    """What there is of a packed recording: a crash or a full disk may have cut it off, as it may a plain one."""
    with contextlib.suppress(EOFError):
        yield from lines


def _rows(path: str, first: bytes, lines: Iterator[tuple[str, bytes]]) -> Trace:
    trace = Trace([], {})
    decoder = msgspec.json.Decoder(Row)
    for where, text in _chain((f"{path}:1", first), lines):
        if not text.strip():
            continue
        try:
            row = decoder.decode(text)
        except msgspec.ValidationError as error:
            raise ConfigError(f"{where}: {_plain(error)}; {_LIKE}") from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: is not JSON: {error}; {_LIKE}") from error
        if not all(math.isfinite(value) for value in (row.t, row.duration)):
            raise ConfigError(f"{where}: times must be finite")
        if len(trace.asks) >= MAX_REQUESTS:
            raise ConfigError(
                f"{where}: more than {MAX_REQUESTS} requests are too many for one simulation: cut the trace"
            )
        name = safe_text(row.model)
        trace.asks.append(Ask(row.t, name, row.duration))
        _learn(trace.models.setdefault(name, Told()), row, where)
    return trace


def _chain(first: tuple[str, bytes], rest: Iterator[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
    yield first
    yield from rest


def _learn(told: Told, row: Row, where: str) -> None:
    """Of sizes the largest holds, of times the last."""
    if row.size is not None:
        try:
            size = parse_size(row.size) if isinstance(row.size, str) else row.size
        except ValueError as error:
            raise ConfigError(f"{where}: size {safe_text(str(row.size))!r} {error}") from error
        if size <= 0:
            raise ConfigError(f"{where}: size must be more than 0 bytes")
        if told.size is None or size > told.size:
            told.size, told.where = size, where
    told.load_s = told.load_s if row.load_s is None else row.load_s
    told.stop_s = told.stop_s if row.stop_s is None else row.stop_s


def _plain(error: msgspec.ValidationError) -> str:
    """What is wrong with a line, in the words of its fields."""
    text, _, field = str(error).partition(" - at `$.")
    field = field.rstrip("`")
    if "contains unknown field" in text:
        return f"{text.replace('Object contains ', '')}: a request has t, model, duration, size, load_s, stop_s"
    if "missing required field" in text:
        return text.replace("Object ", "")
    if ">= 0" in text:
        return f"{field} must not be negative"
    return f"{field}: {text.lower()}" if field else text.lower()


# --- recordings


class _Line(msgspec.Struct):
    """A line of a recording; snapshots are read only where they are needed."""

    t: float
    event: dict[str, Any] | None = None
    actions: list[dict[str, Any]] = []
    snapshot: msgspec.Raw = msgspec.Raw(b"")


class _Seen:
    """What a recording tells, gathered line by line."""

    def __init__(self) -> None:
        self.arrived: dict[int, tuple[float, str]] = {}
        self.granted: dict[int, float] = {}
        self.asks: list[Ask] = []
        self.sizes: dict[str, int] = {}
        self.times: dict[tuple[str, str], list[float]] = {}
        self.instances: dict[int, str] = {}
        self.since: dict[int, float] = {}
        self.end = 0.0

    def line(self, line: _Line) -> None:
        """Take a step of the scheduler in."""
        self.end = line.t
        event = line.event or {}
        kind = event.get("type")
        if kind == "Arrived":
            self.arrived[int(event["request"])] = (line.t, str(event["model"]))
        elif kind == "Left":
            self.over(int(event["request"]), line.t)
        elif kind == "Measured":
            self.sizes[str(event["model"])] = int(event["footprint"])
        elif kind in ("Ready", "Exited", "Settled"):
            self._phase({"Ready": "load_s", "Exited": "stop_s", "Settled": "settle_s"}[kind], event, line.t)
        for action in line.actions:
            self._action(action, line.t)

    def over(self, request: int, now: float) -> None:
        """A request that had a child is over: now its duration is known."""
        at = self.granted.pop(request, None)
        if at is not None and request in self.arrived:
            came, model = self.arrived.pop(request)
            self.asks.append(Ask(came, safe_text(model), now - at))

    def _action(self, action: dict[str, Any], now: float) -> None:
        kind = action.get("type")
        if kind == "Grant":
            self.granted[int(action["request"])] = now
        elif kind == "Cut":
            self.over(int(action["request"]), now)
        elif kind == "Spawn":
            instance, model = int(action["instance"]), str(action["model"])
            self.instances[instance], self.since[instance] = model, now
            if action["reserved"] > 0:
                self.sizes.setdefault(model, int(action["reserved"]))
        elif kind == "Stop":
            self.since[int(action["instance"])] = now
            if action.get("loading"):
                self.since.pop(int(action["instance"]))

    def _phase(self, name: str, event: dict[str, Any], now: float) -> None:
        instance = int(event["instance"])
        model, since = self.instances.get(instance), self.since.pop(instance, None)
        if name == "stop_s":
            self.since[instance] = now
        if model is not None and since is not None:
            self.times.setdefault((model, name), []).append(now - since)


def _recording(path: str, lines: Iterator[tuple[str, bytes]]) -> Trace:
    seen, picture = _Seen(), None
    decoder = msgspec.json.Decoder(_Line)
    for where, text in lines:
        if not text.endswith(b"\n"):
            break
        try:
            line = decoder.decode(text)
            seen.line(line)
        except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}: the recording is damaged: {error}") from error
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{where}: the recording is damaged: no {error} where it belongs") from error
        if raw := bytes(line.snapshot):
            picture = raw
    for request in list(seen.granted):
        seen.over(request, seen.end)
    models = {ask.model: _told(seen, ask.model, path) for ask in seen.asks}
    trace = Trace(seen.asks, models, left_out=len(seen.arrived))
    if picture is not None:
        try:
            snapshot = msgspec.json.decode(picture, type=Snapshot)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}: the last snapshot of the recording is damaged: {error}") from error
        trace.models_max, trace.budget = snapshot.models_max, snapshot.memory.budget
    return trace


def _told(seen: _Seen, model: str, path: str) -> Told:
    def typical(name: str) -> float | None:
        values = seen.times.get((model, name))
        return median(values) if values else None

    return Told(seen.sizes.get(model), typical("load_s"), typical("stop_s"), typical("settle_s"), path)
