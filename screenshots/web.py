"""Takes web.png: a real core at work, its view in a real browser. ``python screenshots/web.py [BROWSER]``."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from live import at_work, running_core

FILE = Path(__file__).with_suffix(".png")
SIZE = (1200, 800)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SETTLE_S = 1.5
"""Until the page has drawn what came over."""


class Tab:
    """A browser's tab, by its DevTools protocol."""

    def __init__(self, connection: aiohttp.ClientWebSocketResponse) -> None:
        self._connection, self._numbers = connection, itertools.count(1)
        self.events: list[dict[str, Any]] = []

    async def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        await self._connection.send_json({"id": number, "method": method, "params": parameters})
        while (answer := await self._connection.receive_json(timeout=20)).get("id") != number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    async def value(self, script: str) -> Any:
        return (await self.do("Runtime.evaluate", expression=script, awaitPromise=True))["result"].get("value")

    async def until(self, script: str) -> None:
        for _ in range(100):
            if await self.value(script):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError(script)

    async def picture(self) -> bytes:
        return base64.b64decode((await self.do("Page.captureScreenshot"))["data"])


@asynccontextmanager
async def started(first_words: str, *argv: str) -> AsyncIterator[str]:
    """A program, for as long as it is needed; gives what it says after its first words."""
    process = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        said = ""
        while not (found := re.search(first_words + r"(\S+)", said)):
            said = (await process.stderr.readline()).decode()
            assert said, f"{argv[0]} ended"
        yield found[1]
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def opened(address: str, browser: str) -> AsyncIterator[Tab]:
    """The address in a browser of its own."""
    options = ("--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={SIZE[0]},{SIZE[1]}")
    with tempfile.TemporaryDirectory() as profile:
        argv = (browser, *options, f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank")
        async with started("DevTools listening on ws://", *argv) as place, aiohttp.ClientSession() as http:
            async with http.get(f"http://{place.split('/')[0]}/json/list") as answer:
                found = next(tab for tab in await answer.json() if tab["type"] == "page")
            async with http.ws_connect(found["webSocketDebuggerUrl"], max_msg_size=0) as connection:
                tab = Tab(connection)
                for domain in ("Network", "Log", "Page", "Runtime"):
                    await tab.do(f"{domain}.enable")
                await tab.do(
                    "Emulation.setDeviceMetricsOverride",
                    width=SIZE[0],
                    height=SIZE[1],
                    deviceScaleFactor=1,
                    mobile=False,
                )
                await tab.do("Page.navigate", url=address)
                await tab.until("document.body && document.body.classList.contains('-first-byte')")
                yield tab


async def take(browser: str) -> None:
    with running_core() as url:
        argv = (sys.executable, "-m", "llmtop_tui", "web", url, "--port", "0")
        async with started("open ", *argv) as address, opened(address, browser) as tab, at_work(url):
            await asyncio.sleep(SETTLE_S)
            FILE.write_bytes(await tab.picture())
            outside = {
                event["params"]["request"]["url"].split("/")[2]
                for event in tab.events
                if event["method"] == "Network.requestWillBeSent"
            } - {address.split("/")[2]}
            print(f"{FILE.name}: {FILE.stat().st_size // 1024} KiB; hosts asked besides llmtop: {outside or 'none'}")


def main() -> int:
    browser = sys.argv[1] if sys.argv[1:] else next(filter(None, map(shutil.which, BROWSERS)), "")
    if not browser:
        print("no browser found: name one", file=sys.stderr)
        return 2
    asyncio.run(take(browser))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
