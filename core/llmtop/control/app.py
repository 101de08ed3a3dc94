"""The control API on a Unix socket: readable by this user alone, and never on TCP."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path

import uvicorn

from llmtop.control.feeds import Pace
from llmtop.control.port import ControlPort
from llmtop.control.routes import ControlRoutes

PATH_MAX = 100
"""A Unix socket's path has room for 103 bytes on macOS, 107 on Linux (``sun_path``)."""

_GRACE_S = 1
_KEEP_ALIVE_S = 75


class _Uvicorn(uvicorn.Server):
    """uvicorn without its hands on the process: signals stay with llmtop."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Capture none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        await super().startup(sockets=sockets)
        self.up.set()


def _private_folder() -> Path:
    """A new folder of mode 0700 whose path leaves room for a socket's name."""
    folder = tempfile.mkdtemp(prefix="llmtop-")
    if len(os.fsencode(folder)) + len("/control") <= PATH_MAX:
        return Path(folder)
    os.rmdir(folder)
    return Path(tempfile.mkdtemp(prefix="llmtop-", dir="/tmp"))  # the system's own, where TMPDIR is too deep


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        path.chmod(0o600)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock


class ControlServer:
    """The control API, served on the loop that calls ``start``.

    Args:
        core: Whom it asks.
        pace: How often the event streams speak.
    """

    def __init__(self, core: ControlPort, pace: Pace | None = None) -> None:
        self._closing = asyncio.Event()
        self._routes = ControlRoutes(core, self._closing, pace or Pace())
        self._folder: Path | None = None
        self._server: _Uvicorn | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Serve.

        Returns:
            Path of the socket.

        Raises:
            OSError: No folder or socket can be made.
        """
        self._folder = _private_folder()
        path = self._folder / "control"
        try:
            listener = _bind(path)
        except OSError:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        config = uvicorn.Config(
            self._routes.application(),
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Uvicorn(config)
        self._serving = asyncio.create_task(self._server.serve(sockets=[listener]), name="control API")
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait((up, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not up.done():
            up.cancel()
            await self.aclose()
            raise OSError("the control API ended before it was up")
        return str(path)

    async def aclose(self) -> None:
        """End the streams, let other answers finish (1 s), close and remove the socket. May be called twice."""
        self._closing.set()
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await self._serving
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
