"""``llmtop web`` on a real core: a tab shows the screen, leaving stops nothing, and nobody is left behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil
import pyte
import pytest

from llmtop.testing.rig import Rig, quiet_environment, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PATIENCE_S = 30.0
SIZE = (120, 40)
KEY = "s3cret-front-door"


class Web:
    """A running ``llmtop web``."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, http: aiohttp.ClientSession) -> None:
        self.process, self.address, self.http = process, address, http
        self.at = address.split("/")[2]

    def views(self) -> list[psutil.Process]:
        """The processes of its tabs."""
        return psutil.Process(self.process.pid).children(recursive=True)

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Tab]:
        """Open the printed address as a browser would, and a view by the cookie that it gave."""
        async with self.http.get(self.address, allow_redirects=True) as page:
            assert page.status == 200
            assert page.url.query_string == ""
        path = f"ws://{self.at}/ws?width={SIZE[0]}&height={SIZE[1]}"
        async with self.http.ws_connect(path, headers={"Origin": f"http://{self.at}"}) as opened:
            yield Tab(opened)


class Tab:
    """One view, and what stands on it."""

    def __init__(self, opened: aiohttp.ClientWebSocketResponse) -> None:
        self.opened = opened
        self._screen = pyte.Screen(*SIZE)
        self._stream = pyte.ByteStream(self._screen)

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    async def press(self, keys: str) -> None:
        await self.opened.send_json(["stdin", keys])

    async def until(self, *words: str) -> None:
        """Read until all of it is on the screen."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(word in self.text for word in words):
                message = await self.opened.receive()
                assert message.type is aiohttp.WSMsgType.BINARY, f"{message}; {self.text}"
                self._stream.feed(message.data)

    async def until_closed(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.opened.receive()).type is aiohttp.WSMsgType.BINARY:
                self._stream.feed(message.data)
        assert message.type is aiohttp.WSMsgType.CLOSE


def launch(folder: Path, one: Rig, *options: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "llmtop_tui", "web", f"http://127.0.0.1:{one.port}", "--port", "0", *options]
    key = {"LLAMA_API_KEY": one.key} if one.key else {}
    env = quiet_environment(folder, {"XDG_CONFIG_HOME": str(folder / "config"), **key})
    with (folder / "web.log").open("wb") as log:
        return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)


@asynccontextmanager
async def web(folder: Path, one: Rig, *options: str) -> AsyncIterator[Web]:
    """A ``llmtop web`` of a core. What it leaves is swept up."""
    process = launch(folder, one, *options)
    try:
        await until(lambda: process.poll() is not None or "open http" in said(folder))
        found = re.search(r"open (http://127\.0\.0\.1:\d+/\?key=\S+)", said(folder))
        assert found, said(folder)
        jar = aiohttp.CookieJar(unsafe=True)  # unsafe: cookies of an address without a name
        async with aiohttp.ClientSession(cookie_jar=jar) as http:
            yield Web(process, found[1], http)
    finally:
        if process.poll() is None:
            process.kill()  # its views end with it, or a test has failed that says so
            process.wait()


def said(folder: Path) -> str:
    return (folder / "web.log").read_text("utf-8")


async def until(test: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not test():  # noqa: ASYNC110  (other processes send no events)
            await asyncio.sleep(0.05)


def all_gone(processes: list[psutil.Process]) -> Callable[[], bool]:
    """None of them runs, reaped or not: the parent may be dead."""

    def test() -> bool:
        return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)

    return test


async def test_a_tab_shows_the_screen_and_q_leaves_it_alone(tmp_path: Path) -> None:
    async with rig(tmp_path, {"amber": {}, "birch": {}}) as one:
        async with one.client() as client:
            assert (await one.ask(client, "amber")).status_code == 200
        async with web(tmp_path, one) as served:
            async with served.tab() as first, served.tab() as second:
                await first.until("amber", "LOADED", "birch", "Quit")
                await second.until("amber", "LOADED")
                views = served.views()
                assert len(views) == 2
                await first.press("o")
                await first.until("no pager can be shown here: z zooms the log panel")
                await first.press("y")
                await first.until("copied")
                await first.press("q")
                await first.until_closed()
                await until(lambda: len(served.views()) == 1)
                await second.press("?")
                await second.until("KEYS")
            await until(all_gone(views))
            assert served.process.poll() is None
        assert (await one.model("amber"))["state"] == "loaded"


async def test_the_front_doors_key_is_on_no_command_line(tmp_path: Path) -> None:
    async with (
        rig(tmp_path, {"amber": {}}, key=KEY) as one,
        web(tmp_path, one, "--readonly") as served,
        served.tab() as tab,
    ):
        await tab.until("amber", "UNLOADED", "Quit")
        assert "Evict" not in tab.text
        (view,) = served.views()
        words = view.cmdline()
        assert words[-3:] == ["attach", f"http://127.0.0.1:{one.port}", "--readonly"]
        assert KEY not in " ".join(words)
        assert KEY not in said(tmp_path)
        assert served.address.partition("key=")[2] not in str(view.environ())


@pytest.mark.parametrize("how", ["tab", "SIGTERM", "SIGINT", "SIGKILL", "early"])
async def test_no_view_outlives_its_tab_or_its_server(how: str, tmp_path: Path) -> None:
    async with rig(tmp_path, {"amber": {}}) as one, web(tmp_path, one) as served:
        views: list[psutil.Process] = []
        async with served.tab() as tab:
            if how == "early":  # before it can have read anything
                await until(lambda: bool(served.views()))
            else:
                await tab.until("amber")
            views = served.views()
            assert len(views) == 1
            if how in ("tab", "early"):
                await tab.opened.close()
            else:
                served.process.send_signal(getattr(signal, how))
            await until(all_gone(views))
        if how in ("tab", "early"):
            assert served.process.poll() is None
        else:
            code = await asyncio.to_thread(served.process.wait, PATIENCE_S)
            assert code == (-signal.SIGKILL if how == "SIGKILL" else 0)
            assert said(tmp_path).count("\n") == 2
        assert (await one.state())["pid"] == one.process.pid


async def test_a_view_that_hangs_does_not_outlive_a_killed_server(tmp_path: Path) -> None:
    async with rig(tmp_path, {"amber": {}}) as one, web(tmp_path, one) as served, served.tab() as tab:
        await tab.until("amber")
        (view,) = served.views()
        one.process.send_signal(signal.SIGSTOP)  # what it shows answers nothing any more
        try:
            served.process.kill()
            await until(all_gone([view]))
        finally:
            one.process.send_signal(signal.SIGCONT)


async def test_a_core_that_is_gone_is_told_in_the_tab(tmp_path: Path) -> None:
    async with rig(tmp_path, {"amber": {}}) as one, web(tmp_path, one) as served:
        assert one.stop() == 0
        async with served.tab() as tab:
            await tab.until_closed()
            assert f"no llmtop answers at http://127.0.0.1:{one.port}" in tab.text
        await until(lambda: not served.views())


async def test_a_core_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "llmtop_tui", "web", "http://127.0.0.1:1", "--port", "0"]
    done = await asyncio.to_thread(
        subprocess.run, argv, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 1
    assert done.stderr.startswith("llmtop: no llmtop answers at http://127.0.0.1:1")
    assert done.stderr.count("\n") == 1
