"""Serves the view to browsers of this machine that hold the key."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from aiohttp import WSCloseCode, web
from textual_serve.server import Server, to_int

from llmtop.errors import StartError
from llmtop_tui.web.page import LEAVE_S, Page, plain_screen, tab_environment

MOST_VIEWS = 8
"""Each is a process of its own."""

HEARTBEAT_S = 15.0
"""A browser that is gone without a word is noticed by then, and half of it later [s]."""

FILES = Path(__file__).with_name("page")
HEADERS = {
    "Cache-Control": "no-store",
    # The terminal writes style elements; all else is a file from here.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "clipboard-read=()",
    "Referrer-Policy": "no-referrer",  # the first address holds the key
    "Server": "llmtop",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ViewServer(Server):
    """textual-serve's server with a lock on every route, and an end for every process.

    Args:
        argv: The program of a tab.
        api_key: The front door's key, for that program; empty for none.
        host: A loopback address; it is bound already.
        port: The same.
    """

    def __init__(self, argv: Sequence[str], api_key: str, host: str, port: int) -> None:
        name = f"[{host}]" if ":" in host else host.lower()
        tail = "" if port == 80 else f":{port}"
        address = f"http://{name}{tail}"
        super().__init__("", host=host, port=port, public_url=address)  # pyright: ignore[reportUnknownMemberType]
        self.key = secrets.token_urlsafe(32)
        self._argv, self._env = argv, tab_environment(api_key)
        self._hosts = {known + tail for known in ("127.0.0.1", "localhost", "[::1]", name)}
        self._cookie = f"llmtop-web-{port}"  # browsers keep cookies by host alone: another port's is another view's
        self._open: set[web.WebSocketResponse] = set()

    @property
    def address(self) -> str:
        """What to open in a browser; it holds the key."""
        return f"{self.public_url}/?key={self.key}"

    async def _make_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._index),
                web.get("/ws", self.handle_websocket),
                web.get("/download/{key}", self.handle_download),
                web.static("/static", self.statics_path),
                web.static("/page", FILES),
            ]
        )
        app.on_response_prepare.append(_add_headers)
        app.on_shutdown.append(self.on_shutdown)
        return app

    # The lock

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Let nobody in who has not the key, nor a page that is not ours."""
        if request.host.lower() not in self._hosts:  # a name that was made to point here
            return _refusal(403, "This address is not one of llmtop's: open the one that llmtop web printed.")
        if request.path == "/" and "key" in request.query:
            return self._let_in(request.query["key"])
        if not self._fits(request.cookies.get(self._cookie, "")):
            return _refusal(401, "This view is locked: open the address that llmtop web printed, it holds the key.")
        if "Upgrade" in request.headers and request.headers.get("Origin") != f"http://{request.host}".lower():
            return _refusal(403, "Another page may not open this view.")
        return await handler(request)

    def _fits(self, key: str) -> bool:
        return hmac.compare_digest(key.encode("utf-8", "replace"), self.key.encode())

    def _let_in(self, key: str) -> web.Response:
        """Keep the key in a cookie, and out of the address."""
        if not self._fits(key):
            return _refusal(403, "That key is not this view's: it has a new one each time llmtop web starts.")
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(self._cookie, self.key, httponly=True, samesite="Strict", path="/")
        return answer

    # What is behind it

    async def _index(self, _: web.Request) -> web.StreamResponse:
        return web.FileResponse(FILES / "index.html")

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run a view for as long as the page is there."""
        page_socket = web.WebSocketResponse(heartbeat=HEARTBEAT_S, timeout=1.0)
        await page_socket.prepare(request)

        async def write_bytes(data: bytes) -> None:
            with contextlib.suppress(ConnectionError):  # to a page that is gone there is nothing to say
                await page_socket.send_bytes(data)

        async def write_str(text: str) -> None:
            with contextlib.suppress(ConnectionError):
                await page_socket.send_str(text)

        async def close() -> None:
            await page_socket.close()

        if len(self._open) >= MOST_VIEWS:
            await write_bytes(plain_screen(f"{MOST_VIEWS} views are open, and that is the limit: close one."))
            await page_socket.close(code=WSCloseCode.TRY_AGAIN_LATER)
            return page_socket
        page = Page(
            self._argv,
            self._env,
            write_bytes=write_bytes,
            write_str=write_str,
            close=close,
            downloads=self.download_manager,
        )
        self._open.add(page_socket)
        try:
            await page.start(to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24))
            await self._process_messages(page_socket, page)
        except OSError as error:
            await write_bytes(plain_screen(f"the view failed: {str(error) or 'it takes no keys any more'}"))
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError):
            await page_socket.close(code=WSCloseCode.UNSUPPORTED_DATA)  # not what our page says
        finally:
            await page.stop()
            self._open.discard(page_socket)  # no sooner: what counts is processes
            await page_socket.close()
        return page_socket

    async def on_shutdown(self, app: web.Application) -> None:
        """Close every page; what runs behind it ends with it."""
        await asyncio.gather(*(page.close(code=WSCloseCode.GOING_AWAY) for page in list(self._open)))

    async def until_told(self, listener: socket.socket, target: str) -> None:
        """Serve until a signal."""
        told, loop = asyncio.Event(), asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(signum, told.set)
        runner = web.AppRunner(await self._make_app(), access_log=None, shutdown_timeout=LEAVE_S + 2)
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            _say(f"shows {target} to browsers on this machine; Ctrl-C stops only that")
            _say(f"open {self.address}")
            await told.wait()
        finally:
            for signum in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(signum)  # a second one ends it at once
            await runner.cleanup()


def serve(url: str, key: str, *, readonly: bool, host: str, port: int) -> int:
    """Serve views of a core to browsers until a signal. Gives the exit code.

    Args:
        url: The core's front door.
        key: Its key, empty for none.
        readonly: The views have no keys that change anything.
        host: A loopback address.
        port: Where to listen; 0 takes a free one.

    Raises:
        StartError: The port cannot be had.
    """
    if not os.environ.get("LLMTOP_DEBUG"):
        for name in ("aiohttp", "textual-serve"):  # a malformed request is no news
            logging.getLogger(name).addHandler(logging.NullHandler())
            logging.getLogger(name).propagate = False
    argv = [sys.executable, "-P", "-m", "llmtop_tui", "attach", url, *(["--readonly"] if readonly else [])]
    with _listen(host, port) as listener:
        server = ViewServer(argv, key, host, int(listener.getsockname()[1]))
        asyncio.run(server.until_told(listener, url))
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise StartError(f"port {port} of {host} is taken: give another one with --port") from None
        raise StartError(f"{host}:{port} cannot be listened at: {error.strerror or error}") from None


def _refusal(status: int, text: str) -> web.Response:
    page = f'<!doctype html><meta charset="utf-8"><title>llmtop</title><p>{text}'
    return web.Response(status=status, text=page, content_type="text/html")


async def _add_headers(_: web.Request, answer: web.StreamResponse) -> None:
    answer.headers.update(HEADERS)


def _say(text: str) -> None:
    sys.stderr.write(f"llmtop: {text}\n")
    sys.stderr.flush()
