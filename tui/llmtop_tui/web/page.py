"""The process behind one browser tab: the attach client, for as long as the tab is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Mapping, Sequence

from textual_serve.app_service import AppService
from textual_serve.download_manager import DownloadManager

from llmtop_tui.format import clean

READY = b"__GANGLION__\n"
LEAVE_S = 3.0
"""A view that was asked to leave is killed after that [s]."""

LAST_WORDS = 4096
CLEAR = "\x1b[?1003l\x1b[?1000l\x1b[?25l\x1b[2J\x1b[H"


class Page(AppService):
    """A tab's process. The base class knows what is said to it, this one when it starts and ends.

    Args:
        argv: The program and its arguments; no shell reads them.
        env: What is set for it besides the server's own environment.
        write_bytes: Sends what the terminal is to show.
        write_str: Sends JSON for the page.
        close: Closes the connection to the page.
        downloads: Files on their way to the browser.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        write_bytes: Callable[[bytes], Awaitable[None]],
        write_str: Callable[[str], Awaitable[None]],
        close: Callable[[], Awaitable[None]],
        downloads: DownloadManager,
    ) -> None:
        super().__init__("", write_bytes=write_bytes, write_str=write_str, close=close, download_manager=downloads)
        self._argv, self._env = argv, env

    def _build_environment(self, width: int = 80, height: int = 24) -> dict[str, str]:
        return super()._build_environment(width, height) | dict(self._env)

    async def _open_app_process(self, width: int = 80, height: int = 24) -> Process:
        """Start the process, in a session of its own: Ctrl-C in the server's terminal is the server's business."""
        env = self._build_environment(width, height)
        process = await asyncio.create_subprocess_exec(
            *self._argv, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, start_new_session=True
        )
        self._process, self._stdin = process, process.stdin
        return process

    async def run(self) -> None:
        """Carry what the process says to the page until it has ended, then tell its last words and close."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        words = asyncio.create_task(_last_line(process.stderr))
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                await self._relay(process.stdout)
            await asyncio.wait_for(process.wait(), LEAVE_S)
        except (OSError, LookupError, ValueError):  # it hangs, or says what is no packet
            self._kill()
            await process.wait()
        await asyncio.wait({words}, timeout=1.0)
        if not words.cancel() and (text := words.result()):
            await self.remote_write_bytes(plain_screen(text))
        await self.remote_close()

    async def _relay(self, stdout: asyncio.StreamReader) -> None:
        while (line := await stdout.readline()) != READY:
            if not line:
                return
        handlers = {b"D": self.on_data, b"M": self.on_meta, b"P": self.on_packed}
        while True:
            head = await stdout.readexactly(5)
            payload = await stdout.readexactly(int.from_bytes(head[1:], "big"))
            await handlers[head[:1]](payload)

    async def on_meta(self, data: bytes) -> None:
        """A word to the page. The last one closes nothing yet: why the view ended is told after it."""
        if json.loads(data).get("type") != "exit":
            await super().on_meta(data)
            return
        asyncio.get_running_loop().call_later(LEAVE_S, self._kill)

    async def send_bytes(self, data: bytes) -> bool:
        """Hand on what was typed. Raises TimeoutError where the process reads nothing any more."""
        async with asyncio.timeout(LEAVE_S):
            return await super().send_bytes(data)

    async def send_meta(self, data: dict[str, str | int | bool | None]) -> bool:
        """Tell the process something. Raises as ``send_bytes`` does."""
        async with asyncio.timeout(LEAVE_S):
            return await super().send_meta(data)

    async def stop(self) -> None:
        """End the process: politely, then not."""
        task, self._task = self._task, None
        if task is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        with contextlib.suppress(TimeoutError):
            await self.send_meta({"type": "quit"})
        self.stdin.close()
        await asyncio.wait({task}, timeout=LEAVE_S)
        self._kill()
        await task

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()


def plain_screen(text: str) -> bytes:
    """An empty terminal with one line of text."""
    return f"{CLEAR}\r\n  {clean(text)}\r\n".encode()


async def _last_line(stderr: asyncio.StreamReader) -> str:
    tail = b""
    while more := await stderr.read(LAST_WORDS):
        tail = (tail + more)[-LAST_WORDS:]
    lines = tail.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else ""


def tab_environment(key: str) -> dict[str, str]:
    """What a tab's process needs: the driver, a locale that shows more than ASCII, the front door's key."""
    env = {"TEXTUAL_DRIVER": "llmtop_tui.web.driver:TabDriver", "LC_ALL": "C.UTF-8"}
    return env | ({"LLMTOP_API_KEY": key} if key else {})
