"""All children: spawned, watched, stopped, and told about. The engine knows this class and ``news``."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from llmtop.children.binary import server_help
from llmtop.children.child import Child
from llmtop.children.guardian_link import GuardianLink
from llmtop.children.logfile import LogWriter
from llmtop.children.news import News
from llmtop.children.ports import PortPicker
from llmtop.children.probe import make_client
from llmtop.children.records import Records
from llmtop.children.world import World
from llmtop.config.spec import ModelSpec, Settings
from llmtop.errors import StartError
from llmtop.snapshot import LogLine

TAIL = 500
"""Lines kept of all children together [1]."""

_CHECK_S = 1.0


class Supervisor:
    """Runs the children. To be made and used on the core's loop.

    Args:
        settings: Timeouts.
        state_dir: Holds the records and the logs; it exists.
        llama_server: Path of the binary.
        sink: Gets all news, called on the loop. For each instance ``Exited`` comes exactly once and last.
        front_port: The front door's port, asked at each spawn.
        guardian: Started by the caller; closed by ``aclose``.
        nofile: Soft limit of open descriptors that children get [1]; None leaves them llmtop's.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        state_dir: Path,
        llama_server: str,
        sink: Callable[[News], None],
        front_port: Callable[[], int],
        guardian: GuardianLink,
        nofile: int | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._children: dict[int, Child] = {}
        self._runs: dict[int, asyncio.Task[None]] = {}
        self._latest: dict[str, Child] = {}
        self._http: httpx.AsyncClient | None = None
        self._guardian = guardian
        self._logs = LogWriter(state_dir / "logs")
        self._starters = ThreadPoolExecutor(4, thread_name_prefix="llmtop-spawn")
        self._tail: deque[LogLine] = deque(maxlen=TAIL)
        self._world = World(
            settings=settings,
            llama_server=llama_server,
            nofile=nofile,
            sink=sink,
            front_port=front_port,
            guardian=guardian,
            records=Records(state_dir),
            logs=self._logs,
            ports=PortPicker(self._loop.time),
            starters=self._starters,
            numbers=itertools.count(1),
            tail=self._tail,
            client=self._client,
        )
        self._check = self._loop.call_later(_CHECK_S, self._look_after_guardian)
        self._starters.submit(_read_ahead, llama_server)

    def spawn(self, instance: int, spec: ModelSpec, *, cache_ram_mib: int | None) -> None:
        """Start a child; the news say how it goes.

        Args:
            instance: A number that was never used before.
            spec: The model.
            cache_ram_mib: Its share of the prompt cache [MiB], None leaves it alone.
        """
        child = Child(instance, spec, cache_ram_mib, self._world)
        self._children[instance] = child
        self._latest[spec.id] = child
        run = self._loop.create_task(child.run(), name=f"child-{instance}")
        self._runs[instance] = run
        run.add_done_callback(lambda _: self._forget(instance))

    def stop(self, instance: int, *, loading: bool, footprint_bytes: int | None) -> None:
        """Ask a child to leave: politely and once, by SIGKILL when its stop timeout is over.

        Args:
            instance: Which.
            loading: It was not ready yet; the child's own knowledge of that wins.
            footprint_bytes: Its memory [bytes]; more of it takes longer to give back.
        """
        del loading
        if child := self._children.get(instance):
            child.stop(footprint_bytes)

    def kill(self, instance: int) -> None:
        """SIGKILL to a child's group, whatever it does."""
        if child := self._children.get(instance):
            child.kill()

    def verify(self, instance: int) -> None:
        """Ask a child for one token; ``Sick`` follows if it cannot give it."""
        if child := self._children.get(instance):
            child.verify()

    def log(self, model: str) -> tuple[LogLine, ...]:
        """What is kept of the model's last child, oldest first."""
        child = self._latest.get(model)
        return child.ring.lines() if child is not None else ()

    def tail(self) -> tuple[LogLine, ...]:
        """The newest lines of all children, oldest first."""
        return tuple(self._tail)

    async def aclose(self) -> None:
        """Stop all children side by side, by the ladder each is due, and close everything."""
        self._check.cancel()
        for child in self._children.values():
            child.stop(None)
        while self._runs and not all(child.stuck for child in self._children.values()):
            await asyncio.wait(self._runs.values(), timeout=0.5)
        for run in self._runs.values():  # stuck after SIGKILL: nothing more can be done
            run.cancel()
        await asyncio.gather(*self._runs.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()
        self._guardian.close()
        self._starters.shutdown(wait=False)
        await asyncio.to_thread(self._logs.close)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            self._http = make_client()
        return self._http

    def _forget(self, instance: int) -> None:
        self._children.pop(instance, None)
        run = self._runs.pop(instance)
        if not run.cancelled() and (error := run.exception()) is not None:
            self._loop.call_exception_handler(
                {"message": f"the care of child {instance} broke", "exception": error, "task": run}
            )

    def _look_after_guardian(self) -> None:
        self._guardian.check()
        self._check = self._loop.call_later(_CHECK_S, self._look_after_guardian)


def _read_ahead(llama_server: str) -> None:
    """Read the binary's help before the first spawn needs it."""
    with contextlib.suppress(StartError):
        server_help(llama_server)
