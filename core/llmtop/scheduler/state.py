"""The scheduler's memory: models, their instances, the queue. Plain data with a few questions that have one answer."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from llmtop.errors import Refusal
from llmtop.scheduler.actions import Action
from llmtop.scheduler.events import Facts, Limits
from llmtop.snapshot import Failure


class Child(Enum):
    """What an instance does. ``SETTLING``: reaped, its memory not back yet."""

    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"
    STOPPING = "stopping"
    SETTLING = "settling"


LEAVING = (Child.STOPPING, Child.SETTLING)


@dataclass(slots=True, eq=False)
class Instance:
    """One child, from the claim to the return of its memory. Times are those of the events [s]."""

    id: int
    model: str
    reserved: int
    spawned_at: float
    state: Child = Child.LOADING
    alone: bool = False
    """Claimed all that pins leave, because nothing is known of its size."""
    in_flight: set[int] = field(default_factory=set)
    ready_at: float = 0.0
    ready_active_s: float = 0.0
    """The head's clock when it became ready."""
    last_used: float = 0.0
    last_granted: float = 0.0
    asked_again: bool = False
    """A request came after those that waited for the load."""
    drain: str = ""
    """Takes no new requests, and whose need that is: ``head``, ``operator``, ``sick``, ``removed``."""
    drain_since: float = 0.0
    stop_reason: str = ""
    stop_since: float = 0.0
    failure: Failure | None = None
    """The load is lost, or the child is sick, and this is why."""
    sick: bool = False
    stuck: bool = False
    good: bool = False
    """It gave a good answer."""
    evicting_for: str = ""

    @property
    def up(self) -> bool:
        """It can answer requests."""
        return self.state is Child.LOADED or self.state is Child.SLEEPING

    @property
    def admits(self) -> bool:
        """It takes new requests."""
        return (self.state is Child.LOADED or self.state is Child.SLEEPING) and not self.drain

    @property
    def leaving(self) -> bool:
        """It will be gone without anybody's doing: stopping, settling, or sick (two seconds from its stop)."""
        return not self.stuck and (self.state in LEAVING or self.sick)

    @property
    def load_s(self) -> float:
        """How long its load took [s]."""
        return max(0.0, self.ready_at - self.spawned_at)


@dataclass(slots=True, eq=False)
class Entry:
    """A model that is waited for."""

    model: str
    since: float
    waiters: dict[int, float] = field(default_factory=dict)
    """Request to its time of arrival, in order of arrival."""
    claimed: int = 0
    """Its instance, once it has claimed; 0 before."""
    head_active_s: float | None = None
    """The head's clock when it became head."""
    operator: str = ""
    """Why it is wanted without a waiter: ``operator``, ``pinned``, ``startup``."""
    retried: bool = False
    """It has been given its second try after running out of memory."""
    ports: int = 0
    """Tries lost to a port that was taken."""
    refused: Refusal | None = None


@dataclass(slots=True, eq=False)
class Model:
    """What is known of a model over its instances."""

    facts: Facts
    pinned_by: str = ""
    measured: int | None = None
    raised: int | None = None
    """Reservation after running out of memory beside others, until a load succeeds [bytes]."""
    alone: bool = False
    """The same with the budget off: nothing but pinned models beside it."""
    instance: Instance | None = None
    entry: Entry | None = None
    failures: int = 0
    quarantined_until: float = 0.0
    failure: Failure | None = None
    refusal: Refusal | None = None
    """What a request gets while quarantined."""
    broken: Failure | None = None
    """A failure that stays until the files or the preset change."""
    unwanted: bool = False
    """Its last load was cancelled because nobody wanted it."""
    sick_at: float | None = None
    reload_at: float | None = None
    load_s: float | None = None
    stop_s: float | None = None
    loads: int = 0
    last_used: float | None = None
    removed: bool = False

    @property
    def name(self) -> str:
        """Its id."""
        return self.facts.name

    @property
    def known_bytes(self) -> int | None:
        """Declared or measured size, the larger [bytes]; None when it is neither."""
        sizes = [size for size in (self.facts.declared, self.measured) if size is not None]
        return max(sizes) if sizes else None


@dataclass(slots=True, eq=False)
class World:
    """Everything the scheduler knows, and the actions of the event in hand."""

    limits: Limits
    models: dict[str, Model] = field(default_factory=dict)
    instances: dict[int, Instance] = field(default_factory=dict)
    """Every instance that holds a slot: running, settling, stuck."""
    queue: dict[str, Entry] = field(default_factory=dict)
    """Model to entry, in order of arrival."""
    waiting: dict[int, str] = field(default_factory=dict)
    granted: dict[int, int] = field(default_factory=dict)
    """Request to instance."""
    reloads: set[str] = field(default_factory=set)
    """Pinned models that are to come back."""
    budget: int | None = None
    stranded: int = 0
    hold: bool = False
    held_since: float | None = None
    """Since when the head's clock stands still."""
    held_s: float = 0.0
    permit: Entry | None = None
    drain_for: Entry | None = None
    drain_set: tuple[Instance, ...] = ()
    closing: bool = False
    serial: int = 0
    wake_at: float | None = None
    out: list[Action] = field(default_factory=list)

    def active_s(self, now: float) -> float:
        """The head's clock: time, less the time during which the queue was held [s]."""
        return now - self.held_s - (0.0 if self.held_since is None else now - self.held_since)

    def set_clock(self, now: float) -> None:
        """Stop the head's clock while the queue is held and no permit is out; else let it run."""
        stopped = self.hold and self.permit is None
        if stopped and self.held_since is None:
            self.held_since = now
        elif not stopped and self.held_since is not None:
            self.held_s += now - self.held_since
            self.held_since = None

    def is_pinned(self, instance: Instance) -> bool:
        """A pin that keeps its slot: the child is to stay."""
        return bool(self.models[instance.model].pinned_by) and not instance.leaving and instance.drain in ("", "head")

    def reserved(self) -> int:
        """Bytes of everything that holds a slot [bytes]."""
        return sum(i.reserved for i in self.instances.values())

    @property
    def room(self) -> int | None:
        """The budget without what is stranded [bytes]; None when bytes do not count."""
        return None if self.budget is None else self.budget - self.stranded
