"""What the panels draw from: the newest snapshot and the little that the view remembers itself."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from llmtop.snapshot import Memory, Model, Snapshot
from llmtop_tui.format import known
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
    """What the gauge measures against: the device's limit, else the budget, else all there is [bytes]."""
    return memory.limit or memory.budget or memory.total


class Sample(NamedTuple):
    """One point of the memory history."""

    at: float
    used: int
    limit: int


class History:
    """Memory in use over time, at most one sample a second for half an hour. Samples that are not known leave a gap."""

    SPAN_S = 1800

    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=self.SPAN_S)

    def add(self, snapshot: Snapshot) -> None:
        """Take the snapshot's reading."""
        used, limit = known(snapshot.memory.used), known(limit_of(snapshot.memory))
        if used is None or limit is None or (self.samples and snapshot.at - self.samples[-1].at < 1):
            return
        self.samples.append(Sample(snapshot.at, int(used), int(limit)))


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

    def take(self, snapshot: Snapshot) -> None:
        """Make this the snapshot that is shown."""
        self.snapshot = snapshot
        self.letters.update(snapshot.models)
        self.history.add(snapshot)
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
