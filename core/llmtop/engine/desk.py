"""The memory desk: budget, books, learned footprints. All that the engine wants to know of bytes goes through here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path

from llmtop.config.spec import ModelSpec, Settings
from llmtop.memory.books import Baseline, Books
from llmtop.memory.budget import Alone, Effective, Held, effective, look_alone
from llmtop.memory.devices import Devices, ask_devices
from llmtop.memory.estimate import Headers, estimate
from llmtop.memory.gguf import CutShort, GgufError
from llmtop.memory.learned import Learned
from llmtop.memory.probe import choose
from llmtop.memory.sample import Sample
from llmtop.memory.settle import Settled, settle
from llmtop.memory.watch import MemoryWatch
from llmtop.scheduler.events import Facts

_log = logging.getLogger(__name__)
BEFORE_STOP_S = 2.5
"""A reading before a stop is not waited for any longer than this [s]."""


class Desk:
    """Knows how much there is, who holds it, and what a model will need.

    Args:
        settings: ``budget`` and the limits of models.
        state_dir: Holds the learned footprints.
        env: Environment: where readings come from.
    """

    def __init__(self, settings: Settings, state_dir: Path, env: Mapping[str, str]) -> None:
        self._settings = settings
        self.watch = MemoryWatch(choose(env))
        self.books = Books(self.watch)
        self.learned = Learned(state_dir)
        self.devices = Devices()
        self._headers = Headers()
        self._env = env
        self._alone = Alone()
        self._pages: dict[int, Baseline] = {}
        self.budget: Effective = effective(settings.budget, None, self.devices, self._alone, Held())

    async def start(self, llama_server: str, on_sample: Callable[[Sample], None]) -> None:
        """Take the first reading, so that the first claim knows the budget, and go on reading."""
        self.watch.listeners.append(on_sample)
        self.watch.start()
        needs_devices = self._settings.budget == "auto" and llama_server
        if needs_devices:
            try:
                self.devices = await asyncio.to_thread(ask_devices, llama_server)
            except (OSError, ValueError) as error:  # a server that cannot list is told of when it cannot load
                _log.info("llama-server lists no devices: %s", error)
        await self.watch.fresh()

    async def stop(self) -> None:
        """Stop reading."""
        await self.watch.stop()
        self.learned.close()

    def cut_short(self, spec: ModelSpec) -> str:
        """Say of a model whose file is not all there that it is so; reads its header, as ``facts`` does."""
        try:
            if spec.path and not spec.problem:
                self._headers.get(spec.path)
        except CutShort as error:
            return str(error)
        except GgufError:
            pass  # a header that is beyond us may be within a newer server
        return ""

    def facts(self, spec: ModelSpec) -> Facts:
        """What is known of a model's size and habits; reads its header, so it belongs in a worker thread."""
        vram = self.watch.latest is not None and self.watch.latest.label == "VRAM"
        found = None if spec.problem else estimate(spec, self._headers, env=self._env, vram=vram)[0]
        return Facts(
            spec.id,
            declared=spec.memory,
            measured=self.learned.get(spec),
            estimated=found.total if found is not None else None,
            pinned=spec.pin,
            idle_unload_s=spec.idle_unload_s,
            evict_on_sleep=spec.evict_on_sleep,
        )

    def rebudget(self, sample: Sample, running: int, reserved: int) -> Effective:
        """The budget by this sample.

        Args:
            sample: Newest reading.
            running: Children that are not settled yet [1].
            reserved: What is set aside for them [bytes].
        """
        measured = sum(size for pid in self.watch.children if (size := self.watch.footprint(pid)) is not None)
        held = Held(running, measured, max(measured, reserved), self.books.stranded.bytes)
        self._alone = look_alone(sample, self._alone, held)
        self.budget = effective(self._settings.budget, sample, self.devices, self._alone, held)
        return self.budget

    @property
    def stranded(self) -> int:
        """What stopped children have not given back [bytes]."""
        return self.books.stranded.bytes

    def opened(self, instance: int, expected: int | None) -> None:
        """A child is about to be spawned."""
        self._pages[instance] = self.books.open(instance, expected)

    def started(self, instance: int, pid: int, model: str) -> None:
        """Its process exists."""
        self.watch.children[pid] = model
        if (page := self._pages.get(instance)) is not None:
            page.pid = pid

    def ready(self, instance: int) -> None:
        """It is loaded."""
        if (page := self._pages.get(instance)) is not None:
            page.ready = True

    def gone(self, pid: int | None) -> None:
        """Its process was reaped."""
        if pid is not None:
            self.watch.children.pop(pid, None)

    @property
    def wired(self) -> bool:
        """Wired pages are what counts here: a Mac."""
        return self.watch.latest is not None and self.watch.latest.label == "WIRED"

    @property
    def stop_needs_reading(self) -> bool:
        """A stop is judged by what it gives back, so the level before it counts. Plain RAM is back with the exit."""
        latest = self.watch.latest
        return latest is not None and latest.label != "MEM"

    async def before_stop(self, instance: int) -> None:
        """Note the level just before a stop."""
        page = self._pages.get(instance)
        if page is not None:
            try:
                await asyncio.wait_for(page.before_stop(), BEFORE_STOP_S)
            except TimeoutError:
                _log.warning("no memory reading before a stop within %g s", BEFORE_STOP_S)

    async def settle(self, instance: int, footprint: int, fits: Callable[[int], bool]) -> Settled:
        """Wait until a reaped child's memory is back."""
        page = self._pages.pop(instance, None)
        if page is None:
            return Settled(0.0, None, 0, "it never started")
        return await settle(self.watch, page, footprint, fits)

    def settles_at_once(self) -> bool:
        """Plain RAM: the kernel has taken it back when the process is reaped."""
        return self.watch.latest is not None and self.watch.latest.label == "MEM"

    def close_page(self, instance: int) -> None:
        """A reaped child whose memory is back with its exit."""
        if (page := self._pages.pop(instance, None)) is not None:
            page.close(0)
