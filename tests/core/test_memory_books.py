from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from llmtop.memory.books import Books
from llmtop.memory.file import FileProbe
from llmtop.memory.probe import Probe
from llmtop.memory.sample import Sample
from llmtop.memory.settle import Settled, settle
from llmtop.memory.stranded import Stranded
from llmtop.memory.watch import MemoryWatch, Point

pytestmark = pytest.mark.anyio
GIB = 2**30


class World(MemoryWatch):
    """A watch on a file whose numbers follow a script, in virtual time: each look takes none, each pause 0.25 s."""

    def __init__(self, path: Path, probe: Probe) -> None:
        self.now = 100.0
        super().__init__(probe, clock=lambda: self.now)
        self._path = path
        self.level: Callable[[float], float | None] = lambda _: 6.0
        self.assumed: dict[str, int] = {}
        self.answers = True

    def look(self) -> Sample:
        level = self.level(self.now)
        data: dict[str, object] = {"total": 64 * GIB, "models": self.assumed}
        if level is not None:
            data |= {"wired": int(level * GIB), "available": int((60 - level) * GIB)}
        self._path.write_text(json.dumps(data))
        sample = self.probe.sample(self.children)
        self.latest = sample
        self.history.append(Point(self.now, sample.level.bytes, {}))
        for listener in self.listeners:
            listener(sample)
        return sample

    async def fresh(self) -> Sample | None:
        if not self.answers:
            self.now += 2.0
            return None
        return self.look()

    async def pause(self) -> None:
        self.now += 0.25

    def runs(self, seconds: float = 3.0) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            self.look()


@pytest.fixture
def world(tmp_path: Path) -> World:
    path = tmp_path / "memory.json"
    return World(path, FileProbe(str(path)))


@pytest.fixture
def books(world: World) -> Books:
    books = Books(world)
    world.runs()
    return books


def fits(limit_gib: float, need_gib: float) -> Callable[[int], bool]:
    return lambda stranded: need_gib * GIB + stranded <= limit_gib * GIB


async def swap(world: World, books: Books, curve: Callable[[float], float | None], *, room: float = 48.0) -> Settled:
    """A of 30 GiB loads on 6 GiB, is stopped, and the count then follows the curve (of seconds since the exit)."""
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.children[10] = "A"
    page.pid, page.ready = 10, True
    world.runs()
    await page.before_stop()
    gone = world.now
    del world.children[10]
    world.level = lambda now: curve(now - gone)
    return await settle(world, page, 30 * GIB, fits(room, 30))


async def test_spawn_waits_for_a_linear_return(world: World, books: Books) -> None:
    settled = await swap(world, books, lambda t: max(6.0, 36 - 15 * t))
    assert (settled.seconds, settled.returned_bytes, settled.stranded_bytes) == (2.0, 30 * GIB, 0)
    assert books.stranded.bytes == 0


async def test_eight_that_never_return_are_stranded_after_a_second(world: World, books: Books) -> None:
    settled = await swap(world, books, lambda _: 14.0)
    assert (settled.seconds, settled.returned_bytes, settled.stranded_bytes) == (1.0, 22 * GIB, 8 * GIB)
    assert not settled.timed_out
    assert books.stranded.bytes == 8 * GIB


async def test_wait_is_bounded_where_the_next_does_not_fit(world: World, books: Books) -> None:
    settled = await swap(world, books, lambda _: 30.0)
    assert (settled.seconds, settled.stranded_bytes, settled.timed_out) == (8.25, 24 * GIB, True)


async def test_stranded_bytes_come_back_as_the_memory_does(world: World, books: Books) -> None:
    await swap(world, books, lambda _: 14.0)
    world.runs(5)
    assert books.stranded.bytes == 8 * GIB
    world.level = lambda _: 9.0
    world.runs(1)
    assert books.stranded.bytes == 8 * GIB, "one reading is not yet believed"
    world.runs(1)
    assert books.stranded.bytes == 3 * GIB
    world.level = lambda _: 6.0
    world.runs(2)
    assert books.stranded.bytes == 0


async def test_next_load_does_not_hide_or_heal_what_is_stranded(world: World, books: Books) -> None:
    await swap(world, books, lambda _: 14.0)
    page = books.open(2, 30 * GIB)
    world.children[11] = "B"
    page.pid = 11
    for step in range(31):
        world.level = lambda _, step=step: 14.0 + step  # type: ignore[misc]
        world.runs(1)
        assert books.stranded.bytes == 8 * GIB
    page.ready = True
    world.level = lambda _: 38.0
    world.runs(2)
    assert books.stranded.bytes == 2 * GIB


async def test_hanging_probe_costs_two_seconds(world: World, books: Books) -> None:
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.runs()
    await page.before_stop()
    world.answers = False
    settled = await settle(world, page, 30 * GIB, fits(48, 30))
    assert (settled.seconds, settled.stranded_bytes, settled.reason) == (2.0, 0, "no reading for 2 s")


async def test_machine_without_gpu_does_not_wait(world: World, books: Books) -> None:
    page = books.open(1, 30 * GIB)
    world.level = lambda _: None
    world.runs()
    assert (await settle(world, page, 30 * GIB, fits(48, 30))).seconds == 0.0


async def test_child_that_died_unasked_is_measured_from_the_last_periodic_sample(world: World, books: Books) -> None:
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.runs()
    world.level = lambda _: 14.0
    settled = await settle(world, page, 30 * GIB, fits(48, 30))
    assert (settled.returned_bytes, settled.stranded_bytes) == (22 * GIB, 8 * GIB)


async def test_idle_child_whose_pages_were_unwired_has_settled_at_once(world: World, books: Books) -> None:
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 6.2
    world.runs()
    await page.before_stop()
    settled = await settle(world, page, 30 * GIB, fits(48, 30))
    assert (settled.seconds, settled.reason) == (0.0, "too little to measure")


async def test_expected_drop_is_corrected_for_children_that_came_after(world: World, books: Books) -> None:
    first = books.open(1, 10 * GIB)
    world.children[10], first.pid, first.ready = "A", 10, True
    world.level, world.assumed = (lambda _: 16.0), {"A": 10 * GIB, "B": 20 * GIB}
    world.runs()
    second = books.open(2, 20 * GIB)
    world.children[11], second.pid, second.ready = "B", 11, True
    world.level = lambda _: 36.0
    world.runs()
    await first.before_stop()
    assert first.expected_drop(15 * GIB) == 10 * GIB
    await second.before_stop()
    assert second.expected_drop(25 * GIB) == 20 * GIB


async def test_two_victims_are_back_only_when_both_are(world: World, books: Books) -> None:
    pages = [books.open(n, 20 * GIB) for n in (1, 2)]
    world.assumed = {"A": 20 * GIB, "B": 20 * GIB}
    for page, (pid, model) in zip(pages, ((10, "A"), (11, "B")), strict=True):
        world.children[pid], page.pid, page.ready = model, pid, True
    world.level = lambda _: 46.0
    world.runs()
    for page in pages:
        await page.before_stop()
    world.children.clear()
    start = world.now
    world.level = lambda now: 26.0 if now < start + 3 else 6.0
    first = await settle(world, pages[0], 20 * GIB, lambda _: False)
    second = await settle(world, pages[1], 20 * GIB, lambda _: False)
    assert [first.stranded_bytes, second.stranded_bytes] == [0, 0]
    assert second.seconds == 3.0


async def test_growth_of_a_loading_child_is_not_called_stranded(world: World, books: Books) -> None:
    old = books.open(1, 30 * GIB)
    old.ready = True
    world.level = lambda _: 36.0
    world.runs()
    books.open(2, 20 * GIB)
    await old.before_stop()
    world.level = lambda _: 20.0
    settled = await settle(world, old, 30 * GIB, lambda _: True)
    assert settled.stranded_bytes == 0
    assert books.stranded.bytes == 0


async def test_child_of_unknown_size_that_loads_meanwhile_leaves_nothing_to_call_stranded(
    world: World, books: Books
) -> None:
    old = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.runs()
    books.open(2, None)
    await old.before_stop()
    world.level = lambda _: 20.0
    assert (await settle(world, old, 30 * GIB, lambda _: True)).stranded_bytes == 0


async def test_unknown_level_before_the_spawn_expects_the_whole_footprint(world: World) -> None:
    books = Books(world)
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.runs(1)
    await page.before_stop()
    assert page.expected_drop(30 * GIB) == 30 * GIB


async def test_wait_that_is_cancelled_closes_its_page(world: World, books: Books) -> None:
    page = books.open(1, 30 * GIB)
    world.level = lambda _: 36.0
    world.runs()
    await page.before_stop()

    async def cancelled() -> None:
        raise asyncio.CancelledError

    world.pause = cancelled  # type: ignore[method-assign]
    with pytest.raises(asyncio.CancelledError):
        await settle(world, page, 30 * GIB, lambda _: False)
    assert books.held(0) == 0
    assert books.stranded.bytes == 0


def test_fall_below_what_is_stranded_is_taken_back_when_the_count_rises() -> None:
    keeper = Stranded()
    keeper.add(8 * GIB)
    children = frozenset({1})
    got = []
    for level in (44, 40, 40, 44, 44):
        keeper.observe(level * GIB, children, quiet=True, floor=None)
        got.append(keeper.bytes // GIB)
    assert got == [8, 8, 4, 8, 8]


def test_what_came_back_whole_is_over_and_a_later_rise_is_not_ours() -> None:
    keeper = Stranded()
    keeper.add(8 * GIB)
    for level in (44, 36, 36, 44, 44):
        keeper.observe(level * GIB, frozenset({1}), quiet=True, floor=None)
    assert keeper.bytes == 0


def test_exit_that_the_books_have_not_heard_of_yet_frees_nothing() -> None:
    keeper = Stranded()
    keeper.add(8 * GIB)
    for level, children in ((44, {1}), (14, {1}), (14, set[int]()), (14, set[int]())):
        keeper.observe(level * GIB, frozenset(children), quiet=True, floor=None)
    assert keeper.bytes == 8 * GIB


def test_with_nobody_left_the_level_without_children_is_the_bound() -> None:
    keeper = Stranded()
    keeper.add(8 * GIB)
    for _ in range(2):
        keeper.observe(9 * GIB, frozenset(), quiet=True, floor=6 * GIB)
    assert keeper.bytes == 3 * GIB


async def test_count_that_rises_after_the_exit_is_judged_by_the_gpu(world: World, books: Books, tmp_path: Path) -> None:
    page = books.open(1, 30 * GIB)
    page.ready = True

    def told(wired: int, gpu: int) -> None:
        text = json.dumps({"total": 64 * GIB, "wired": wired * GIB, "gpu_in_use": gpu * GIB})
        (tmp_path / "memory.json").write_text(text)

    class Told(World):
        def look(self) -> Sample:
            sample = self.probe.sample(self.children)
            self.latest = sample
            return sample

    world.__class__ = Told
    told(36, 31)
    await page.before_stop()
    told(40, 1)
    settled = await settle(world, page, 30 * GIB, fits(48, 30))
    assert (settled.seconds, settled.returned_bytes, settled.stranded_bytes) == (0.0, 30 * GIB, 0)


@pytest.mark.slow
async def test_real_watch_waits_for_a_real_file(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"

    def put(wired: float) -> None:
        (tmp_path / "new").write_text(json.dumps({"total": 64 * GIB, "wired": int(wired * GIB)}))
        (tmp_path / "new").replace(path)

    put(6)
    watch = MemoryWatch(FileProbe(str(path)), interval_s=0.05)
    books = Books(watch)
    watch.start()
    await watch.fresh()
    page = books.open(1, 30 * GIB)
    put(36)
    await page.before_stop()
    waiting = asyncio.create_task(settle(watch, page, 30 * GIB, lambda _: False))
    for step in range(6):
        put(36 - 5 * (step + 1))
        await asyncio.sleep(0.1)
    settled = await asyncio.wait_for(waiting, 5)
    await watch.stop()
    assert 0.4 < settled.seconds < 1.0
    assert settled.returned_bytes == 30 * GIB
