"""Puts a core and the view together: embedded in one process, attached to one elsewhere, or a recording."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from llmtop_tui.app import Leave, LlmtopApp
from llmtop_tui.preferences import Preferences, folder_of

if TYPE_CHECKING:
    from llmtop.client import CoreClient
    from llmtop.config.resolve import Configuration
    from llmtop.core import Core

# A core is imported only where one is run, and a network only where one is used: the others' first picture does not
# wait for them.

LOG_BYTES = 2 * 2**20


def run(configuration: Configuration) -> int:
    """Run a core in this process and show it. Gives the exit code.

    A fault in the view does not end the core: the terminal is restored, the fault is told in a line, and the process
    goes on as ``serve`` would.

    Raises:
        StartError: The core cannot start.
    """
    from llmtop.core import Core

    log = _log_to_file(Path(configuration.settings.state_dir))
    core = Core(configuration)
    try:
        core.start()
    except BaseException:
        logging.getLogger().removeHandler(log)  # the folder may be another's, whom this process may show next
        log.close()
        raise
    return Embedded(core, configuration).run()


class Embedded:
    """A core and its view in one process.

    Args:
        core: It has been started.
        configuration: What it runs.
    """

    def __init__(self, core: Core, configuration: Configuration) -> None:
        self._core = core
        self._readonly = configuration.settings.readonly
        self._app: LlmtopApp | None = None
        self._ending = False

    def run(self) -> int:
        """Show the view, and serve on or end as the user wants. Gives the exit code."""
        from llmtop.core import wait_until_over

        for signum in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._end)
        if self._show() is Leave.STOP_ALL and not self._ending:  # a signal has asked for the end already
            self._core.stop()
        return wait_until_over(self._core)

    def _show(self) -> Leave:
        """Show the view until the user leaves it or it breaks."""
        from llmtop.embed import EmbeddedClient

        self._app = _view(EmbeddedClient(self._core), readonly=self._readonly)
        why = ""
        try:
            result = self._app.run(mouse=self._app.mouse)
            if result is None and self._app.return_code:
                why = f"the view broke: {self._app.broken}"
        except KeyboardInterrupt:
            result = Leave.STOP_ALL
        except Exception as error:  # whatever broke the view, the children are served on
            logging.getLogger(__name__).exception("the view broke")
            result, why = None, f"the view broke: {type(error).__name__}: {error}"
        self._app = None
        if self._ending or self._core.over:
            return Leave.STOP_ALL
        if why or result is Leave.KEEP_SERVING:
            url = self._core.house.url
            _say(f"{why + '; ' if why else ''}still serving at {url}, pid {os.getpid()}: Ctrl-C ends it")
            return Leave.KEEP_SERVING
        return Leave.STOP_ALL

    def _end(self, _signum: int, _frame: FrameType | None) -> None:
        """A signal: core and view end in order, at the second one at once."""
        self._ending = True
        self._core.stop()
        if self._app is not None:
            self._app.call_later(self._app.exit, Leave.STOP_ALL)


def attach(url: str, key: str, *, readonly: bool, record: str = "") -> int:
    """Show a core that runs elsewhere. Gives the exit code."""
    from llmtop.record import Recorder
    from llmtop.remote import RemoteClient
    from llmtop.remote_router import RouterClient, is_router

    kind = RouterClient if is_router(url, key) else RemoteClient
    if not record:
        return _view_only(kind(url, key), readonly=readonly)
    recorder = Recorder(record, time.monotonic(), time.time())
    try:
        client = kind(url, key, seen=lambda snapshot: recorder.snapshot(snapshot, time.monotonic()))
        return _view_only(client, readonly=readonly)
    finally:
        recorder.close()


def replay(path: str) -> int:
    """Show a recorded run. Gives the exit code."""
    from llmtop.replay import ReplayClient

    return _view_only(ReplayClient(path), readonly=True)


def _view_only(client: CoreClient, *, readonly: bool) -> int:
    app = _view(client, readonly=readonly)
    app.run(mouse=app.mouse)
    if app.broken:
        _say(f"the view broke: {app.broken}; please report it, LLMTOP_DEBUG=1 tells where")
        if os.environ.get("LLMTOP_DEBUG"):
            traceback.print_exception(app.fault)
    return int(app.return_code or 0)


def _view(client: CoreClient, *, readonly: bool) -> LlmtopApp:
    """The screen as this user likes it."""
    return LlmtopApp(
        client,
        readonly=readonly,
        ascii_only=bool(os.environ.get("LLMTOP_ASCII")),
        preferences=Preferences.load(folder_of(os.environ)),
        mouse=not os.environ.get("LLMTOP_NO_MOUSE"),
    )


def _say(text: str) -> None:
    sys.stderr.write(f"llmtop: {text}\n")


def _log_to_file(state_dir: Path) -> logging.Handler:
    """While the screen is taken, llmtop's own log goes to a file in the state folder."""
    folder = state_dir / "logs"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = folder / "llmtop.log"
    path.touch(mode=0o600, exist_ok=True)
    handler = RotatingFileHandler(path, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    for noisy in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    return handler
