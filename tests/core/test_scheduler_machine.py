"""All events in all orders: nothing is ever broken on the way, and a world that behaves then answers everybody."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from llmtop.scheduler import events as ev
from llmtop.snapshot import Failure
from llmtop.testing.world import Pace, World

NIGHTLY = bool(os.environ.get("LLMTOP_NIGHTLY"))
NAMES = ("A", "B", "C", "D", "E")
FAILURES = st.builds(
    Failure, st.sampled_from(["oom", "crash", "bad_file", "port", "timeout", "killed"]), st.just("it broke")
)
INDEX = st.integers(0, 999)
"""Picks one of whatever there is."""
SIZES = st.one_of(st.none(), st.sampled_from([10, 20, 40, 60, 90, 120]))
TIMES = st.sampled_from([0.0, 0.1, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 700.0])


def facts(name: str) -> st.SearchStrategy[ev.Facts]:
    """A model of any kind."""
    return st.builds(
        ev.Facts,
        st.just(name),
        declared=SIZES,
        measured=st.one_of(st.none(), SIZES),
        estimated=SIZES,
        pinned=st.sampled_from([False, False, False, True]),
        idle_unload_s=st.sampled_from([None, None, 5.0]),
        evict_on_sleep=st.booleans(),
    )


LIMITS = st.builds(
    ev.Limits,
    models_max=st.integers(0, 3),
    max_wait_s=st.sampled_from([0.0, 2.0, 15.0, None]),
    max_queue=st.sampled_from([0, 2, 8]),
    drain_timeout_s=st.sampled_from([None, None, 4.0]),
)


class Life(RuleBasedStateMachine):
    """One life of a scheduler; ``World`` judges every step."""

    world: World

    @initialize(
        limits=LIMITS, budget=st.sampled_from([None, 100]), count=st.integers(2, 5), stay=st.booleans(), data=st.data()
    )
    def begin(self, limits: ev.Limits, budget: int | None, count: int, stay: bool, data: st.DataObject) -> None:
        self.world = World(limits)
        self.world.stuck_stay = stay
        self.world.feed(ev.Budget(budget))
        for name in NAMES[:count]:
            self.world.feed(ev.Configured(data.draw(facts(name))))

    def name(self, index: int) -> str:
        names = list(self.world.facts)
        return names[index % len(names)]

    def child(self, index: int, *, told: bool = False, up: bool = False) -> int:
        """An instance that has not exited; 0 if there is none of that kind."""
        ids = [
            p.id
            for p in self.world.processes.values()
            if p.state != "settling" and (p.told or not told) and (p.up or not up)
        ]
        return ids[index % len(ids)] if ids else 0

    # --- requests

    @rule(index=INDEX)
    def ask(self, index: int) -> None:
        self.world.ask(self.name(index))

    @rule(index=INDEX, autoload=st.booleans())
    def ask_with_autoload_given(self, index: int, autoload: bool) -> None:
        self.world.feed(ev.Arrived(len(self.world.fates) + 1, self.name(index), autoload))

    @precondition(lambda self: self.world.queued)
    @rule(index=INDEX)
    def give_up(self, index: int) -> None:
        waiting = self.world.waiting()
        self.world.feed(ev.Left(waiting[index % len(waiting)]))

    @precondition(lambda self: self.world.flying())
    @rule(index=INDEX, good=st.sampled_from([True, True, False, None]))
    def end(self, index: int, good: bool | None) -> None:
        flying = self.world.flying()
        self.world.feed(ev.Left(flying[index % len(flying)], good))

    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        self.world.feed(ev.Cancel(index % (len(self.world.fates) + 1)))

    # --- nature

    @precondition(lambda self: self.world.moves())
    @rule(index=INDEX)
    def go_on(self, index: int) -> None:
        moves = self.world.moves()
        self.world.feed(moves[index % len(moves)])

    @rule(seconds=TIMES)
    def let_time_pass(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    @rule(index=INDEX, failure=st.one_of(st.none(), FAILURES))
    def exit(self, index: int, failure: Failure | None) -> None:
        self.world.feed(ev.Exited(self.child(index), failure))

    @rule(index=INDEX, failure=FAILURES)
    def lose_a_load(self, index: int, failure: Failure) -> None:
        self.world.feed(ev.LoadFailed(self.child(index), failure))

    @rule(index=INDEX, failure=FAILURES)
    def fall_sick(self, index: int, failure: Failure) -> None:
        self.world.feed(ev.Sick(self.child(index, up=True), failure))

    @rule(index=INDEX)
    def get_stuck(self, index: int) -> None:
        self.world.feed(ev.Stuck(self.child(index, told=True)))

    @rule(index=INDEX, sleeps=st.booleans())
    def sleep_or_wake(self, index: int, sleeps: bool) -> None:
        i = self.child(index, up=True)
        if i not in self.world.processes or not self.world.processes[i].flying:
            self.world.feed(ev.Slept(i) if sleeps else ev.Woke(i))

    # --- configuration and memory

    @rule(index=INDEX, footprint=st.sampled_from([10, 50, 90, 130]))
    def measure(self, index: int, footprint: int) -> None:
        self.world.feed(ev.Measured(self.name(index), footprint))

    @rule(total=st.sampled_from([40, 80, 100, 150]), stranded=st.sampled_from([0, 0, 30]))
    def change_the_budget(self, total: int, stranded: int) -> None:
        self.world.feed(ev.Budget(None if self.world.budget is None else total, stranded))

    @rule(limits=LIMITS)
    def change_the_limits(self, limits: ev.Limits) -> None:
        self.world.feed(ev.Limited(limits))

    @rule(index=INDEX, data=st.data())
    def configure(self, index: int, data: st.DataObject) -> None:
        self.world.feed(ev.Configured(data.draw(facts(self.name(index)))))

    @rule(index=INDEX)
    def remove(self, index: int) -> None:
        self.world.feed(ev.Removed(self.name(index)))

    @rule(index=INDEX, failure=st.one_of(st.none(), FAILURES))
    def look_at_the_files(self, index: int, failure: Failure | None) -> None:
        self.world.feed(ev.Checked(self.name(index), failure))

    # --- the operator

    @rule(
        index=INDEX,
        verb=st.sampled_from([ev.Load, ev.Evict, ev.KillNow, ev.Pin, ev.Unpin, ev.Unpin]),
    )
    def act_on_a_model(self, index: int, verb: type[ev.Load]) -> None:
        self.world.feed(verb(self.name(index)))

    @rule(index=INDEX)
    def load_at_the_start(self, index: int) -> None:
        self.world.feed(ev.Load(self.name(index), startup=True))

    @rule(verb=st.sampled_from([ev.Hold, ev.Step, ev.Resume]))
    def act_on_the_queue(self, verb: type[ev.Hold]) -> None:
        self.world.feed(verb())

    @precondition(lambda self: len(self.world.fates) > 12)
    @rule(all_of_them=st.booleans())
    def close(self, all_of_them: bool) -> None:
        self.world.feed(ev.StopAll() if all_of_them else ev.Close())

    # --- what is long over, and what was not left undone

    @precondition(lambda self: self.world.gone)
    @rule(index=INDEX, kind=st.integers(0, 6))
    def hear_old_news(self, index: int, kind: int) -> None:
        old = self.world.gone[index % len(self.world.gone)]
        fault = Failure("oom", "late")
        news: list[ev.Event] = [
            ev.Ready(old),
            ev.Exited(old, fault),
            ev.Settled(old),
            ev.Sick(old, fault),
            ev.Stuck(old),
            ev.LoadFailed(old, fault),
            ev.Slept(old),
        ]
        self.world.stale(news[kind])

    @rule(index=INDEX)
    def hear_twice_that_a_request_is_over(self, index: int) -> None:
        over = [r for r, fate in self.world.fates.items() if fate == "over"]
        if over:
            self.world.stale(ev.Left(over[index % len(over)]))

    @rule()
    def look_again(self) -> None:
        self.world.probe()

    def teardown(self) -> None:
        """Everybody is answered in time, once the world behaves; nothing is left over."""
        if not hasattr(self, "world"):
            return
        w = self.world
        w.feed(ev.Resume())
        w.feed(ev.Budget(w.budget, 0))
        busiest = next((p.model for p in w.processes.values() if p.up), None)
        w.behave(Pace(), stream=busiest if w.limits.max_wait_s is not None else None)
        assert not any(i.in_flight for i in w.machine.world.instances.values())
        assert not w.machine.world.granted
        assert not w.machine.world.waiting


TestLife = pytest.mark.timeout(7200 if NIGHTLY else 120)(Life.TestCase)
TestLife.settings = settings(
    max_examples=4000 if NIGHTLY else 150,
    stateful_step_count=120 if NIGHTLY else 50,
    deadline=None,
    derandomize=not NIGHTLY,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
