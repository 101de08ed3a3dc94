"""What is counted for ``/metrics``: plain numbers in lists, so that a request pays about a microsecond for them."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from llmtop.engine.records import CLIENT_LEFT, ChildRecord
from llmtop.scheduler import actions as act
from llmtop.scheduler import events
from llmtop.scheduler.state import World

WAIT_S = (0.005, 0.05, 0.25, 1, 2.5, 5, 10, 15, 30, 60, 120, 300, 600)
LOAD_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600)
REQUEST_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
RELAY_S = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3)
"""Upper bounds of histograms [s]; what is above the last counts in a bucket of its own."""
FAILURES = frozenset(("oom", "bad_file", "bad_argument", "port", "killed", "timeout", "crash", "sick", "not_found"))
"""Classes of failures that get a label; any other one counts as ``other``."""


class Histogram:
    """Counts of durations.

    Args:
        bounds: Upper bounds, ascending [s].

    Attributes:
        counts: One for each bound and one above them; not cumulative [1].
        total: Sum of all that was seen [s].
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def see(self, seconds: float) -> None:
        """Count one duration [s]."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


class ModelMeters:
    """What is counted for one model.

    Attributes:
        answers: Answers by the first digit of their status; index 0 counts clients that left.
        waits: From arrival to grant, refusal or leaving.
        requests: From arrival to the end of the answer.
        loads: From spawn to ready.
        tokens: Generated, as answers told.
    """

    __slots__ = ("answers", "loads", "requests", "tokens", "waits")

    def __init__(self) -> None:
        self.answers = [0] * 10
        self.waits = Histogram(WAIT_S)
        self.requests = Histogram(REQUEST_S)
        self.loads = Histogram(LOAD_S)
        self.tokens = 0


class Meters:
    """All counters that the scheduler's own state does not hold.

    Attributes:
        models: By id; only ids of the configuration come in here.
        loads: Loads begun, by reason.
        evictions: Stops asked for, by reason.
        stops: Children that are gone, by the last word they were given; ``exit`` when there was none.
        failures: Failed loads, crashes and sick children, by class.
        refusals: Requests refused or cut, by error type.
        relay: What the front door itself took of each request that a child answered.
    """

    def __init__(self) -> None:
        self.models: dict[str, ModelMeters] = {}
        self.loads: Counter[str] = Counter()
        self.evictions: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.relay = Histogram(RELAY_S)

    def model(self, name: str) -> ModelMeters:
        """The meters of a known model."""
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelMeters()
        return found

    def answer(
        self, model: str, status: int, queue_ms: int, total_ms: float, tokens: int, relay_s: float = 0.0
    ) -> None:
        """A request is over. Waits and total in milliseconds; ``relay_s`` 0 where it never reached a child."""
        meters = self.models.get(model) or self.model(model)
        meters.answers[0 if status == CLIENT_LEFT else status // 100 % 10] += 1
        meters.waits.see(queue_ms / 1000)
        meters.requests.see(total_ms / 1000)
        meters.tokens += tokens
        if relay_s:
            self.relay.see(relay_s)

    def step(
        self,
        event: events.Event,
        actions: Sequence[act.Action],
        world: World,
        children: Mapping[int, ChildRecord],
        now: float,
    ) -> None:
        """A step of the scheduler, seen after it was decided and before it is carried out.

        Args:
            event: What happened.
            actions: What is asked for.
            world: As it is after the step.
            children: Records of the children, those included that this step lets go.
            now: Time of the step [s].
        """
        for action in actions:
            if isinstance(action, act.Spawn):
                self.loads[action.reason] += 1
            elif isinstance(action, act.Stop):
                self.evictions[action.reason] += 1
            elif isinstance(action, act.Settle):
                child = children.get(action.instance)
                self.stops[(child.signal if child is not None else "") or "exit"] += 1
            elif isinstance(action, act.Refuse | act.Cut):
                self.refusals[action.refusal.type] += 1
        if isinstance(event, events.Ready):
            i = world.instances.get(event.instance)
            if i is not None and i.ready_at == now:  # late or repeated news changes nothing
                self.model(i.model).loads.see(now - i.spawned_at)
        elif isinstance(event, events.LoadFailed | events.Sick | events.Exited) and event.failure is not None:
            i = world.instances.get(event.instance)
            # An exit that was foretold by a lost load or a sick child is the same failure.
            fresh = None if isinstance(event, events.Exited) else event.failure
            if i is not None and i.failure is fresh:
                kind = event.failure.kind
                self.failures[kind if kind in FAILURES else "other"] += 1
