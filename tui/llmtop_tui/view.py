"""What the panels draw from: the newest snapshot and the little that the view remembers itself."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from llmtop.snapshot import HELD as HELD
from llmtop.snapshot import Memory, Model, Snapshot
from llmtop_tui.format import known, stepped
from llmtop_tui.glyphs import UNICODE, Glyphs

Level = Literal["slim", "narrow", "normal", "wide"]
Alarm = Literal["OK", "WARN", "CRIT"]

BREAKPOINTS: tuple[tuple[int, Level], ...] = ((0, "slim"), (60, "narrow"), (100, "normal"), (160, "wide"))
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


def level_of(width: int) -> Level:
    """The layout for a terminal of this width [cells]."""
    found: Level = "slim"
    for start, level in BREAKPOINTS:
        if width >= start:
            found = level
    return found


def holds_memory(model: Model) -> bool:
    """A child of this model is there, or its memory is not back yet."""
    return model.state != "unloaded" or model.settling or model.stuck


def size_of(model: Model) -> int:
    """What a child takes: measured, else what was reserved for it [bytes]."""
    return model.footprint_bytes if model.footprint_bytes is not None else model.reserved_bytes


def limit_of(memory: Memory) -> int | None:
    """What the gauge measures against [bytes]: the device's limit, else what children may have beside the others.

    What is in use counts other programs too, and a budget does not: both are set against the same thing here.
    """
    if memory.limit or memory.budget is None:
        return memory.limit or memory.total
    all_of_it = memory.budget + (memory.others or 0)
    return min(all_of_it, memory.total or all_of_it)


class Sample(NamedTuple):
    """One point of the memory history."""

    at: float
    used: int
    limit: int


class History:
    """Memory in use over time, at most one sample a second for half an hour. Samples that are not known leave a gap.

    The last ones are kept closer together as well, for the seconds of a swap.
    """

    SPAN_S = 1800
    FINE = 1500

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=self.SPAN_S)
        self._fine: deque[Sample] = deque(maxlen=self.FINE)

    def add(self, snapshot: Snapshot) -> None:
        """Take the snapshot's reading."""
        used, limit = known(snapshot.memory.used), known(limit_of(snapshot.memory))
        if used is None or limit is None:
            return
        sample = Sample(snapshot.at, int(used), int(limit))
        if not self._fine or sample.at > self._fine[-1].at:
            self._fine.append(sample)
        if not self.samples or sample.at - self.samples[-1].at >= 1:
            self.samples.append(sample)

    def peak(self, start: float) -> int | None:
        """The most that was in use since then [bytes], None where nothing was read."""
        newest = itertools.takewhile(lambda sample: sample.at >= start, reversed(self.samples))
        return max((sample.used for sample in newest), default=None)

    def age_s(self, now: float) -> float:
        """For how long there are readings [s]."""
        return max(0.0, now - self.samples[0].at) if self.samples else 0.0

    def between(self, start: float, end: float) -> list[Sample]:
        """Readings of a time [s since the epoch], as close together as they were kept, oldest first."""
        fine_from = self._fine[0].at if self._fine else end
        coarse = [sample for sample in self.samples if start <= sample.at <= end and sample.at < fine_from]
        return coarse + [sample for sample in self._fine if start <= sample.at <= end]


class Letters:
    """A letter for each child, kept while it lives: the gauge and the table name it alike."""

    def __init__(self) -> None:
        self._of: dict[str, str] = {}

    def update(self, models: tuple[Model, ...]) -> None:
        """Give letters to new children, take back those of children that are gone."""
        alive = [model.id for model in models if holds_memory(model)]
        self._of = {name: letter for name, letter in self._of.items() if name in alive}
        free = [letter for letter in LETTERS if letter not in self._of.values()]
        for name in alive:
            if name not in self._of:
                self._of[name] = free.pop(0) if free else "+"

    def __getitem__(self, model: str) -> str:
        return self._of.get(model, "")

    def band(self, model: str) -> int:
        """Number of the child's colour."""
        return max(0, LETTERS.find(self._of.get(model, "A")))


class _Base(NamedTuple):
    """What a child's footprint is compared with [bytes]; ``before``: the most it had when the time began."""

    instance: int | None
    seen: float
    at: float
    least: int
    before: int
    most: int


class Growth:
    """Children that take more and more: a footprint that grew by 3 % and 64 MiB within the last minute.

    To take back what it had before is no growth: a child that wakes up does that.

    Attributes:
        models: Their names.
    """

    WINDOW_S = 60.0
    FRESH_S = 5.0
    """So long after its load a child's readings still catch up with it [s]."""
    _SHARE, _LEAST = 1.03, 64 << 20

    def __init__(self) -> None:
        self._base: dict[str, _Base] = {}
        self.models: frozenset[str] = frozenset()

    def update(self, snapshot: Snapshot) -> None:
        """Take the footprints of children that are up; a load grows anyway."""
        bases: dict[str, _Base] = {}
        grows: set[str] = set()
        for model in snapshot.models:
            size = model.footprint_bytes
            if size is None or model.state not in ("loaded", "sleeping"):
                continue
            fresh = _Base(model.instance, snapshot.at, snapshot.at, size, size, size)
            base = self._base.get(model.id, fresh)
            if base.instance != model.instance:
                base = fresh
            most = max(base.most, size)
            catches_up = snapshot.at - base.seen < self.FRESH_S
            if size < base.least or catches_up or snapshot.at - base.at >= self.WINDOW_S:
                base = base._replace(at=snapshot.at, least=size, before=most)
            if size > max(base.least * self._SHARE, base.before) and size - base.least > self._LEAST:
                grows.add(model.id)
            bases[model.id] = base._replace(most=most)
        self._base, self.models = bases, frozenset(grows)

    def __contains__(self, model: str) -> bool:
        return model in self.models


class Alarms:
    """OK, WARN from 80 %, CRIT from 95 % of the limit; a word is left only 3 points below where it was entered."""

    _ENTER: tuple[tuple[float, Alarm], ...] = ((0.95, "CRIT"), (0.80, "WARN"))
    _SLACK = 0.03

    def __init__(self) -> None:
        self.word: Alarm = "OK"

    def update(self, share: float | None) -> None:
        """Take a new share of the limit in use, 0 to 1 and above."""
        if share is None:
            return
        order = ("OK", "WARN", "CRIT")
        for threshold, word in self._ENTER:
            slack = self._SLACK if order.index(self.word) >= order.index(word) else 0.0
            if share >= threshold - slack:
                self.word = word
                return
        self.word = "OK"


@dataclass
class View:
    """State of the screen that is not in the snapshot."""

    snapshot: Snapshot
    glyphs: Glyphs = UNICODE
    mono: bool = False
    readonly: bool = False
    letters: Letters = field(default_factory=Letters)
    history: History = field(default_factory=History)
    alarms: Alarms = field(default_factory=Alarms)
    paused_s: float | None = None
    stale_s: float | None = None
    """Seconds without a snapshot, None while they come in."""
    fault: str = ""
    """Why none comes in, as far as it is known."""
    replay: str = ""
    """Where a recording stands, in a few words; empty for a live core."""
    kind: str = ""
    """What this core is, if it is no llmtop."""
    every_s: float = 0.0
    """Time between two pictures [s]."""
    cost: str = ""
    """What this process takes."""
    growth: Growth = field(default_factory=Growth)

    def take(self, snapshot: Snapshot) -> None:
        """Make this the snapshot that is shown, with the models as idle as the screen tells it."""
        models = tuple(
            msgspec.structs.replace(model, idle_s=stepped(model.idle_s)) if model.idle_s else model
            for model in snapshot.models
        )
        self.snapshot = msgspec.structs.replace(snapshot, models=models)
        self.letters.update(snapshot.models)
        self.history.add(snapshot)
        self.growth.update(snapshot)
        self.alarms.update(self.share)

    @property
    def share(self) -> float | None:
        """Memory in use as a share of the limit."""
        memory = self.snapshot.memory
        used, limit = known(memory.used), known(limit_of(memory))
        return used / limit if used is not None and limit else None

    def model(self, name: str | None) -> Model | None:
        """The model of that name."""
        return next((model for model in self.snapshot.models if model.id == name), None)


def children_of(snapshot: Snapshot, letters: Letters | None = None) -> list[Model]:
    """Models whose children hold memory; in the order of their letters where those are given."""
    children = [model for model in snapshot.models if holds_memory(model)]
    return sorted(children, key=lambda m: letters.band(m.id)) if letters is not None else children
