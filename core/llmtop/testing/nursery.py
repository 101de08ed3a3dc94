"""A supervisor with all its news kept, for tests of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, TypeVar

from llmtop.children.guardian_link import GuardianLink
from llmtop.children.news import Exited, News
from llmtop.children.supervisor import Supervisor
from llmtop.config.spec import ModelSpec, Settings

N = TypeVar("N", bound=News)


class Nursery:
    """Spawns children and waits for news of them.

    Args:
        supervisor: Set by ``nursery``.
        news: All news so far, each with the time it came [s, ``time.perf_counter``].
    """

    def __init__(self, state_dir: Path, llama_server: Path | str, settings: Settings, nofile: int | None) -> None:
        state_dir.mkdir(parents=True, exist_ok=True)
        self.news: list[tuple[float, News]] = []
        self.guardian = GuardianLink()
        self.guardian.start()
        self._came = asyncio.Event()
        self._instances = 0
        self.supervisor = Supervisor(
            settings,
            state_dir=state_dir,
            llama_server=str(llama_server),
            sink=self._take,
            front_port=lambda: 1,
            guardian=self.guardian,
            nofile=nofile,
        )

    def spawn(self, spec: ModelSpec, cache_ram_mib: int | None = None) -> int:
        """Spawn a child and give its instance."""
        self._instances += 1
        self.supervisor.spawn(self._instances, spec, cache_ram_mib=cache_ram_mib)
        return self._instances

    def stop(self, instance: int, *, loading: bool = False) -> None:
        """Ask a child to leave."""
        self.supervisor.stop(instance, loading=loading, footprint_bytes=None)

    def of(self, kind: type[N], instance: int) -> list[N]:
        """News of one kind of one child, oldest first."""
        return [item for _, item in self.news if isinstance(item, kind) and item.instance == instance]

    def at(self, kind: type[News], instance: int) -> float:
        """When the first news of a kind came [s]."""
        return next(at for at, item in self.news if isinstance(item, kind) and item.instance == instance)

    async def until(self, kind: type[N], instance: int, timeout_s: float = 10.0) -> N:
        """Wait for the first news of a kind.

        Raises:
            AssertionError: It did not come in time.
        """
        end = time.monotonic() + timeout_s
        while not (found := self.of(kind, instance)):
            left = end - time.monotonic()
            assert left > 0, f"no {kind.__name__} of {instance} in {timeout_s:g} s: {self.told(instance)}"
            self._came.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._came.wait(), left)
        return found[0]

    def told(self, instance: int) -> list[str]:
        """Names of the news of a child, in order."""
        return [type(item).__name__ for _, item in self.news if item.instance == instance]

    def exits_are_last(self) -> bool:
        """Each child that is gone sent ``Exited`` once, and nothing after it."""
        gone = {item.instance for _, item in self.news if isinstance(item, Exited)}
        return all(self.told(i)[-1] == "Exited" and self.told(i).count("Exited") == 1 for i in gone)

    def _take(self, item: News) -> None:
        self.news.append((time.perf_counter(), item))
        self._came.set()


@contextlib.asynccontextmanager
async def nursery(
    state_dir: Path, llama_server: Path | str, *, nofile: int | None = None, **settings: Any
) -> AsyncGenerator[Nursery]:
    """Make a supervisor on ``state_dir``, give it, stop what is left and close it.

    Args:
        state_dir: Made if it is missing.
        llama_server: See ``models.server_command``.
        nofile: Soft limit of open descriptors for children [1].
        settings: Fields of ``Settings``.
    """
    home = Nursery(state_dir, llama_server, Settings(**settings), nofile)
    try:
        yield home
    finally:
        for instance in range(1, home._instances + 1):  # pyright: ignore[reportPrivateUsage]
            if not home.of(Exited, instance):
                home.supervisor.kill(instance)
        await home.supervisor.aclose()


def spec_of(path: Path, **fields: Any) -> ModelSpec:
    """The specification of a model file, more fields of ``ModelSpec`` as wanted."""
    return ModelSpec(id=path.stem, path=str(path), files=(str(path),), source_args=("-m", str(path)), **fields)
