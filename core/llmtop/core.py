"""The core: everything but the view, started and ended in order, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from llmtop.access_log import AccessLog
from llmtop.children.guardian_link import GuardianLink
from llmtop.children.limits import raise_descriptor_limit
from llmtop.children.owner import Claim, claim, taken_port
from llmtop.children.records import recover
from llmtop.children.supervisor import Supervisor
from llmtop.client import Reply
from llmtop.config.diff import diff
from llmtop.config.resolve import Configuration, reload
from llmtop.config.watch import changes
from llmtop.control.app import ControlServer
from llmtop.engine.control import EngineControl
from llmtop.engine.desk import Desk
from llmtop.engine.driver import Engine
from llmtop.engine.gate import EngineGate
from llmtop.errors import LlmtopError, Refusal, StartError
from llmtop.frontdoor.server import FrontDoor
from llmtop.watchdog import Watchdog

_log = logging.getLogger(__name__)
GRACE_S = 5.0
"""Requests in flight get that long when llmtop ends [s]."""
SWITCH_INTERVAL_S = 0.0005
"""How long another thread may keep the interpreter from the core [s]: the view shares it."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")


class House:
    """All parts of a core, on its loop.

    Args:
        configuration: What to run.
        guardian: Ends the children if llmtop cannot.
    """

    def __init__(self, configuration: Configuration, guardian: GuardianLink) -> None:
        settings = configuration.settings
        self._guardian = guardian
        self._state_dir = Path(settings.state_dir)
        self._claim: Claim = claim(self._state_dir)
        self._configuration = configuration
        self._end = contextlib.AsyncExitStack()
        self._reading = asyncio.Lock()
        self.url = ""
        self.port = 0
        self.engine: Engine
        self.control: EngineControl
        self._gate: EngineGate

    async def start(self) -> None:
        """Start in the order in which nothing is left behind when a step fails: children come last.

        Raises:
            StartError: The port is taken, or something else that the user can mend.
        """
        self._end.callback(self._claim.release)
        try:
            await self._start()
        except BaseException:
            await self._end.aclose()
            raise

    async def _start(self) -> None:
        settings = self._configuration.settings
        survivors = await asyncio.to_thread(recover, self._state_dir)
        nofile = raise_descriptor_limit()
        desk = Desk(settings, self._state_dir, os.environ)
        server = self._configuration.server.path if self._configuration.server is not None else ""

        def supervise(sink: Callable[[Any], None]) -> Supervisor:
            return Supervisor(
                settings,
                state_dir=self._state_dir,
                llama_server=server,
                sink=sink,
                front_port=lambda: self.port,
                guardian=self._guardian,
                nofile=nofile,
            )

        engine = self.engine = Engine(self._configuration, desk, supervise)
        self._end.push_async_callback(engine.aclose)
        access = AccessLog(engine.loop, self._state_dir / "logs" / "access.log")
        self._end.callback(access.close)
        self._gate = EngineGate(engine, access.line)
        front = FrontDoor(self._gate, settings, spool_dir=self._state_dir)
        engine.forget_upstream = front.forget
        exposed = settings.host not in LOOPBACK and not settings.api_keys
        self.control = EngineControl(engine, lambda: self.url, self._reread, self._gate.resolve, exposed=exposed)
        control = ControlServer(self.control)
        self._end.push_async_callback(control.aclose)
        self._gate.connect_control(await control.start())
        await engine.start()
        try:
            self.port = await front.start()
        except OSError as error:
            if settings.port:
                raise taken_port(settings.host, settings.port) from error
            raise StartError(f"cannot listen on {settings.host}: {error.strerror}") from error
        self._end.push_async_callback(self._leave, front)
        self._guardian.start()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http://{host}:{self.port}"
        self._claim.announce(self.url)
        for line in survivors:
            engine.note("orphan", "", line)
        engine.load_startup_models()
        engine.background(self._follow_files())

    async def _leave(self, front: FrontDoor) -> None:
        """No new requests; waiters are told; what is in flight gets its grace; all children stop side by side."""
        await front.close_listeners()
        await self.engine.close(GRACE_S)
        await front.aclose(0.5)

    async def _reread(self) -> Reply:
        """Read presets and folders again, one reading after the other; a fault in them changes nothing."""
        async with self._reading:
            return await self._reread_alone()

    async def _reread_alone(self) -> Reply:
        try:
            fresh = await asyncio.to_thread(reload, self.engine.configuration)
        except LlmtopError as error:
            self.engine.note("config", "", f"configuration not reloaded: {error}")
            return Reply(False, refusal=Refusal("invalid_request", f"configuration not reloaded: {error}"))
        for line in diff(self.engine.configuration, fresh):
            self.engine.note("config", "", line)
        changed = await self.engine.reconfigure(fresh)
        self._gate.renamed()
        return Reply(True, changed)

    async def _follow_files(self) -> None:
        """Read the configuration again whenever its files have changed and come to rest."""
        async with contextlib.aclosing(changes(self._configuration)) as settled:
            async for _ in settled:
                await self._reread()

    async def close(self) -> None:
        """End everything in order."""
        await self._end.aclose()


class Core:
    """A house on a thread of its own. ``start`` and ``stop`` are called from other threads.

    Args:
        configuration: What to run.
    """

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self._guardian = GuardianLink()
        self._thread = threading.Thread(target=self._main, name="llmtop core")
        self._started = threading.Event()
        self._over = threading.Event()
        self._error: BaseException | None = None
        self._wanted_end: asyncio.Event | None = None
        self._stops = 0
        self.loop: asyncio.AbstractEventLoop
        self.house: House

    def start(self) -> None:
        """Start, and return when the front door is open.

        Raises:
            StartError: It cannot start; nothing was left running.
        """
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        self._thread.start()
        while not self._started.wait(0.2):
            pass
        if self._error is not None:
            self._thread.join()
            raise self._error

    def stop(self) -> None:
        """Ask it to end in order; a second time, to kill its children. Callable from any thread and signal handler."""
        self._stops += 1
        with contextlib.suppress(RuntimeError, AttributeError):  # it has ended, or has not begun
            self.loop.call_soon_threadsafe(self._stop_now, self._stops)

    def _stop_now(self, times: int) -> None:
        if times > 1 and hasattr(self, "house") and hasattr(self.house, "engine"):
            self.house.engine.kill_all()
        if self._wanted_end is not None:
            self._wanted_end.set()

    def reload(self) -> None:
        """Read the configuration again. Callable from any thread."""
        with contextlib.suppress(RuntimeError):
            asyncio.run_coroutine_threadsafe(self.house.control.reload(), self.loop)

    @property
    def over(self) -> bool:
        """It has ended."""
        return self._over.is_set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait for its end. True when it has ended."""
        return self._over.wait(timeout_s)

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._live())
        except BaseException as error:
            self._error = error
            if self._started.is_set():
                _log.exception("the core broke")
        finally:
            self._over.set()
            self._started.set()

    async def _live(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._wanted_end = asyncio.Event()
        self.house = House(self._configuration, self._guardian)
        await self.house.start()
        watchdog = Watchdog(self.loop, self.house.engine.note)
        watchdog.start()
        # What was made so far stays. Without it in the way the collector finds the cycles of dead children cheaply.
        gc.collect()
        gc.freeze()
        self._started.set()
        try:
            await self._wanted_end.wait()
        finally:
            watchdog.stop()
            await self.house.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop where there is one."""
    try:
        import uvloop
    except ImportError:  # pragma: no cover - another interpreter
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def wait_until_over(core: Core) -> int:
    """Serve from the main thread until a signal ends it: SIGTERM and Ctrl-C in order, a second one at once.

    SIGHUP ends a llmtop that has a terminal, and makes one without a terminal read its configuration again.
    """
    attended = has_terminal()  # asked now: when SIGHUP comes, the terminal has gone

    def end(_signum: int, _frame: FrameType | None) -> None:
        core.stop()

    def hang_up(signum: int, frame: FrameType | None) -> None:
        if attended:
            end(signum, frame)
        else:
            core.reload()

    for signum, handler in ((signal.SIGTERM, end), (signal.SIGINT, end), (signal.SIGHUP, hang_up)):
        signal.signal(signum, handler)
    while not core.join(0.5):
        pass
    return 0


def has_terminal() -> bool:
    """Somebody sits at it."""
    return sys.stdin is not None and sys.stdin.isatty()


def serve(configuration: Configuration) -> int:
    """Run without a view until a signal ends it. Gives the exit code.

    Raises:
        StartError: It cannot start.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S", stream=sys.stderr)
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    core = Core(configuration)
    core.start()
    house = core.house
    _log.info("llmtop serves %s (%d models, pid %d)", house.url, len(configuration.catalog.models), os.getpid())
    return wait_until_over(core)
