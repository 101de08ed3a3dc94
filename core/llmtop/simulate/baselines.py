"""Two other policies behind the scheduler's interface, for comparison. Neither counts bytes.

``RouterRules`` follows the queue of llama.cpp's router; ``InOrder`` is a plain first-in-first-out queue.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

from llmtop.scheduler import actions as act
from llmtop.scheduler import events as ev


@dataclass(slots=True)
class Resident:
    """A child: ``loading``, ``up`` or ``stopping``."""

    instance: int
    model: str
    state: str = "loading"
    in_flight: set[int] = field(default_factory=set[int])
    last_used: float = 0.0


class _Base:
    """Slots, children and what their news does to them; a policy adds who waits and who comes next."""

    def __init__(self, models_max: int) -> None:
        self._cap = models_max
        self.running: dict[str, Resident] = {}
        self._by_instance: dict[int, Resident] = {}
        self._granted: dict[int, Resident] = {}
        self._serial = 0
        self._out: list[act.Action] = []

    @property
    def wake_at(self) -> float | None:
        """Never: only news moves these policies."""
        return None

    def handle(self, event: ev.Event, now: float) -> list[act.Action]:
        """Take one event in and give what is to be done."""
        self._out = []
        match event:
            case ev.Arrived(request, model):
                self._arrived(request, model, now)
            case ev.Left(request):
                resident = self._granted.pop(request)
                resident.in_flight.discard(request)
                resident.last_used = now
            case ev.Ready(instance):
                self._by_instance[instance].state = "up"
            case ev.Exited(instance):
                resident = self._by_instance.pop(instance)
                del self.running[resident.model]  # the slot is free at once: nobody waits for the memory
                self._out.append(act.Settle(instance, resident.model))
            case _:
                pass
        self._pump(now)
        return self._out

    def _arrived(self, request: int, model: str, now: float) -> None:
        raise NotImplementedError

    def _pump(self, now: float) -> None:
        raise NotImplementedError

    def _room(self) -> bool:
        return self._cap <= 0 or len(self.running) < self._cap

    def _spawn(self, model: str, now: float) -> None:
        self._serial += 1
        resident = Resident(self._serial, model, last_used=now)
        self.running[model] = self._by_instance[self._serial] = resident
        self._out.append(act.Spawn(self._serial, model, 0, "request", 0.0))

    def _stop(self, victim: Resident, wanted_by: str) -> None:
        victim.state = "stopping"
        self._out.append(act.Stop(victim.instance, victim.model, "cap", wanted_by))

    def _grant(self, request: int, resident: Resident, now: float) -> None:
        resident.in_flight.add(request)
        resident.last_used = now
        self._granted[request] = resident
        self._out.append(act.Grant(request, resident.instance, resident.model))

    def _idle(self) -> list[Resident]:
        """Who could go, least recently used first."""
        idle = [r for r in self.running.values() if r.state == "up" and not r.in_flight]
        return sorted(idle, key=lambda r: (r.last_used, r.instance))


class RouterRules(_Base):
    """The queue rules of llama.cpp's router: one entry a model, first in first out, idle models only are evicted.

    A loaded model is served at once without a look at the queue, and there is no end to the patience of the head. That
    an entry keeps its model from being evicted needs no rule here: what waits for a model is granted in the step that
    makes it ready, so an idle model has no entry. The router's polling (up to 200 ms a wait) is left out.

    Args:
        models_max: Most children at once; 0 = no cap.
    """

    def __init__(self, models_max: int) -> None:
        super().__init__(models_max)
        self._entries: OrderedDict[str, list[int]] = OrderedDict()

    def _arrived(self, request: int, model: str, now: float) -> None:
        resident = self.running.get(model)
        if resident is not None and resident.state == "up":
            self._grant(request, resident, now)
        else:
            self._entries.setdefault(model, []).append(request)

    def _pump(self, now: float) -> None:
        for model in list(self._entries):
            resident = self.running.get(model)
            if resident is not None and resident.state == "up":
                for request in self._entries.pop(model):
                    self._grant(request, resident, now)
        while (head := self._head()) is not None and self._room():
            self._spawn(head, now)
        self._evict()

    def _head(self) -> str | None:
        """The first entry that has not claimed; it can claim once its own old process is gone."""
        for model in self._entries:
            resident = self.running.get(model)
            if resident is None or resident.state == "stopping":
                return None if resident is not None else model
        return None

    def _evict(self) -> None:
        """Make room for as many entries as have not loaded yet, as far as there are idle victims."""
        if self._cap <= 0:
            return
        waiting = [m for m in self._entries if (r := self.running.get(m)) is None or r.state == "stopping"]
        stopping = sum(r.state == "stopping" for r in self.running.values())
        victims = self._idle()
        while victims and self._cap - len(self.running) + stopping < len(waiting):
            self._stop(victims.pop(0), waiting[0])
            stopping += 1


class InOrder(_Base):
    """Strictly in order of arrival: nobody is granted before everybody who came earlier.

    Requests for models that are up run side by side; the first one for another model holds up all behind it until a
    victim has become idle and its own model is loaded.

    Args:
        models_max: Most children at once; 0 = no cap.
    """

    def __init__(self, models_max: int) -> None:
        super().__init__(models_max)
        self._queue: deque[tuple[int, str]] = deque()

    def _arrived(self, request: int, model: str, now: float) -> None:
        self._queue.append((request, model))

    def _pump(self, now: float) -> None:
        while self._queue:
            request, model = self._queue[0]
            resident = self.running.get(model)
            if resident is None:
                if self._room():
                    self._spawn(model, now)
                elif not any(r.state == "stopping" for r in self.running.values()) and (idle := self._idle()):
                    self._stop(idle[0], model)
                return
            if resident.state != "up":
                return
            self._queue.popleft()
            self._grant(request, resident, now)
