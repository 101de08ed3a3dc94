"""The view in a browser: who is let in, what runs behind a tab, and how that ends."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from aiohttp import web

from llmtop.cli.app import main
from llmtop.errors import StartError
from llmtop_tui.__main__ import Terminal
from llmtop_tui.web import page, server
from llmtop_tui.web.server import FILES, HEADERS, MOST_VIEWS, ViewServer

pytestmark = pytest.mark.anyio

PATIENCE_S = 20.0
ROUTES = (
    "/",
    "/ws",
    "/static/js/textual.js",
    "/static/css/xterm.css",
    "/page/page.js",
    "/download/x",
    "/nowhere",
    "//",
)
MISFITS: tuple[Any, ...] = ("{", "{}", "[]", '["stdin"]', '["stdin", 5]', '["resize", {}]', '"stdin"', "null")

CHILD = """
import os, sys
out = sys.stdout.buffer
def say(kind, payload):
    out.write(kind + len(payload).to_bytes(4, "big") + payload)
    out.flush()
out.write(b"a line before\\n__GANGLION__\\n")
"""
TELLS = CHILD + "say(b'D', repr([sys.argv[1:], dict(os.environ)]).encode())\nsys.stdin.buffer.read()\n"
DEAF = CHILD + "say(b'D', b'%d' % os.getpid())\nimport time\nwhile True: time.sleep(1)\n"
DIES = "import sys; sys.stderr.write('first\\nllmtop: no \\x1b[31mllmtop answers\\n')"
BABBLES = CHILD + "out.write(b'X' + bytes(4)); out.flush()\nsys.stdin.buffer.read()\n"
APP = """
import os, time
from textual.app import App
from llmtop_tui.web import driver
driver.LEAVE_S = 0.2
class Still(App):
    def on_mount(self):
        self.call_later(self.linger)
    def linger(self):
        os.write(2, b"here\\n")
        time.sleep({busy_s})
Still().run()
"""
LEAVES = CHILD + "say(b'M', b'{\"type\": \"exit\"}')\nsys.stderr.write('the view broke: on purpose\\n')\n"


class Guarded:
    """A running server and a browser's way to it."""

    def __init__(self, view_server: ViewServer, http: aiohttp.ClientSession) -> None:
        self.server, self.http = view_server, http
        self.at = f"127.0.0.1:{view_server.port}"
        self.cookie = {"Cookie": f"llmtop-web-{view_server.port}={view_server.key}"}

    async def get(self, path: str, **headers: str) -> aiohttp.ClientResponse:
        async with self.http.get(f"http://{self.at}{path}", headers=headers, allow_redirects=False) as answer:
            await answer.read()
            return answer

    @asynccontextmanager
    async def tab(self, **headers: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        sent = {"Origin": f"http://{self.at}"} | self.cookie | headers
        async with self.http.ws_connect(f"ws://{self.at}/ws?width=90&height=30", headers=sent) as opened:
            yield opened


@asynccontextmanager
async def guarded(child: str = TELLS, *words: str, api_key: str = "") -> AsyncIterator[Guarded]:
    """A server whose tabs run a Python program."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [sys.executable, "-c", child, *words]
        view_server = ViewServer(argv, api_key, "127.0.0.1", listener.getsockname()[1])
        runner = web.AppRunner(await view_server._make_app(), access_log=None)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        try:
            async with aiohttp.ClientSession() as http:
                yield Guarded(view_server, http)
        finally:
            await runner.cleanup()


async def first_bytes(tab: aiohttp.ClientWebSocketResponse) -> bytes:
    return await tab.receive_bytes(timeout=PATIENCE_S)


async def until(test: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not test():  # noqa: ASYNC110  (what it tests has no event)
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("path", ROUTES)
async def test_no_route_answers_without_the_key(path: str) -> None:
    async with guarded() as one:
        name = next(iter(one.cookie.values())).partition("=")[0]
        for headers in ({}, {"Cookie": f"{name}="}, {"Cookie": f"{name}=\xff\u1234"}, {"Cookie": f"{name}={'x' * 43}"}):
            answer = await one.get(path, **headers)
            assert answer.status == 401
            assert "llmtop web printed" in await answer.text()
            assert {header: answer.headers[header] for header in HEADERS} == HEADERS
        assert (await one.get(path, **one.cookie)).status in (200, 400, 404)


async def test_the_key_is_taken_once_and_left_out_of_the_address() -> None:
    async with guarded() as one:
        assert one.server.address == f"http://{one.at}/?key={one.server.key}"
        answer = await one.get(f"/?key={one.server.key}")
        assert (answer.status, answer.headers["Location"]) == (303, "/")
        kept = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(kept.split("; "))
        assert (await one.get("/", Cookie=kept.split(";")[0])).status == 200
        for wrong in ("", "x", one.server.key[:-1], one.server.key + "x", "%ff%00", "\u1234"):
            refused = await one.get(f"/?key={wrong}", **one.cookie)
            assert refused.status == 403
            assert "Set-Cookie" not in refused.headers
        assert (await one.get(f"/static/js/textual.js?key={one.server.key}")).status == 401


async def test_only_this_machines_names_are_answered() -> None:
    async with guarded() as one:
        port = one.server.port
        for host in (f"localhost:{port}", f"[::1]:{port}", f"LOCALHOST:{port}", one.at):
            assert (await one.get("/", Host=host, **one.cookie)).status == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "", "localhost"):
            assert (await one.get("/", Host=host, **one.cookie)).status == 403
            assert (await one.get(f"/?key={one.server.key}", Host=host)).status == 403


async def test_no_other_page_gets_a_view() -> None:
    async with guarded() as one:
        for origin in ("http://evil.example", "null", "", f"https://{one.at}", f"http://localhost:{one.server.port}"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with one.tab(Origin=origin):
                    pass
            assert refused.value.status == 403
        bare = f"ws://{one.at}/ws"
        for headers, status in ((one.cookie, 403), ({"Origin": f"http://{one.at}"}, 401)):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await one.http.ws_connect(bare, headers=headers)
            assert refused.value.status == status
        assert one.server._open == set()


async def test_the_page_is_whole_and_asks_nobody_else() -> None:
    texts = [file.read_text("utf-8") for file in FILES.iterdir()]
    assert len(texts) == 3
    asked = {found for text in texts for found in re.findall(r"""["(](/(?:static|page)/[^"]+)""", text)}
    assert {"/static/js/textual.js", "/page/page.js", "/page/page.css"} <= asked
    assert not any("://" in text for text in texts)
    async with guarded() as one:
        for path in asked:
            assert (await one.get(path, **one.cookie)).status == 200, path


async def test_a_tab_runs_the_program_with_the_key_in_its_environment_alone() -> None:
    async with guarded(TELLS, "a b", "$(c)", api_key="s3cret") as one, one.tab() as tab:
        text = (await first_bytes(tab)).decode()
        assert text.startswith("[['a b', '$(c)'], ")
        for item in ("'LLMTOP_API_KEY': 's3cret'", "'COLUMNS': '90'", "'ROWS': '30'", "web.driver:TabDriver"):
            assert item in text
        assert one.server.key not in text
    assert "LLMTOP_API_KEY" not in page.tab_environment("")


async def test_the_views_are_limited_and_a_closed_one_makes_room() -> None:
    async with guarded() as one, AsyncExitStack() as stack:
        tabs = [await stack.enter_async_context(one.tab()) for _ in range(MOST_VIEWS)]
        for tab in tabs:
            await first_bytes(tab)
        async with one.tab() as refused:
            assert f"{MOST_VIEWS} views are open" in (await first_bytes(refused)).decode()
            assert (await refused.receive()).type is aiohttp.WSMsgType.CLOSE
            assert refused.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER
        await tabs[0].close()
        await until(lambda: len(one.server._open) < MOST_VIEWS)
        async with one.tab() as tab:
            assert (await first_bytes(tab)).startswith(b"[[]")


@pytest.mark.parametrize(("child", "words"), [(DIES, "llmtop: no "), (LEAVES, "the view broke: on purpose")])
async def test_the_last_words_of_a_view_are_shown(child: str, words: str) -> None:
    async with guarded(child) as one, one.tab() as tab:
        said = await first_bytes(tab)
        assert words in said.decode()
        assert b"first" not in said
        assert b"\x1b[31m" not in said
        assert (await tab.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE


async def test_what_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LEAVE_S", 0.2)
    async with guarded(DEAF) as one:
        async with one.tab() as tab:
            process = psutil.Process(int(await first_bytes(tab)))
            assert process.is_running()
        await until(lambda: not process.is_running())
        async with one.tab() as tab:
            process = psutil.Process(int(await first_bytes(tab)))
    assert not process.is_running()  # the server does not end before it


async def test_what_reads_no_keys_any_more_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "LEAVE_S", 0.2)
    async with guarded(DEAF) as one, one.tab() as tab:
        process = psutil.Process(int(await first_bytes(tab)))
        await tab.send_str(json.dumps(["stdin", "x" * 2**20]))
        assert "takes no keys" in (await first_bytes(tab)).decode()
        await until(lambda: not process.is_running())


async def test_what_is_no_packet_ends_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(BABBLES) as one, one.tab() as tab:
        assert (await tab.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
        await until(lambda: not one.server._open)


@pytest.mark.parametrize("text", MISFITS)
async def test_what_our_page_does_not_say_ends_the_view(text: str) -> None:
    async with guarded() as one, one.tab() as tab:
        await first_bytes(tab)
        await tab.send_str(text)
        assert (await tab.receive(timeout=PATIENCE_S)).type is aiohttp.WSMsgType.CLOSE
        assert tab.close_code == aiohttp.WSCloseCode.UNSUPPORTED_DATA
        await until(lambda: not one.server._open)


async def test_a_page_gets_its_pong() -> None:
    async with guarded() as one, one.tab() as tab:
        await first_bytes(tab)
        await tab.send_str(json.dumps(["ping", "7"]))
        assert await tab.receive_json(timeout=PATIENCE_S) == ["pong", "7"]


@pytest.mark.slow
@pytest.mark.parametrize(("busy_s", "code"), [(0, 0), (600, 1)])
def test_a_view_ends_with_its_input_whatever_it_does(busy_s: int, code: int) -> None:
    env = os.environ | page.tab_environment("")
    argv = [sys.executable, "-c", APP.format(busy_s=busy_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as view:
        assert view.stdin is not None
        assert view.stderr is not None
        try:
            assert view.stderr.readline() == b"here\n"
            view.stdin.close()
            assert view.wait(PATIENCE_S) == code
        finally:
            view.kill()


def test_a_port_that_is_taken_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} of 127.0.0.1 is taken: .*--port"):
            server.serve("http://127.0.0.1:1", "", readonly=False, host="127.0.0.1", port=port)


@pytest.mark.parametrize("missing", ["aiohttp", "textual_serve"])
def test_a_missing_extra_is_one_line(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == missing or name.startswith("llmtop_tui.web.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(StartError) as told:
        Terminal().web("http://127.0.0.1:1", "", readonly=False, host="127.0.0.1", port=0)
    assert str(told.value) == "the web view needs the extra: pip install 'llmtop-swap[web]'"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ps", "web"])
def test_no_command_pays_for_the_web_view_before_it_is_served(command: str) -> None:
    code = "import sys; from llmtop_tui.__main__ import main; main(); print({'aiohttp', 'textual'} & set(sys.modules))"
    argv = [sys.executable, "-c", code, command, "--url", "http://127.0.0.1:1"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "no llmtop answers" in done.stderr
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.example", ""])
def test_other_machines_are_no_listeners(host: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "http://127.0.0.1:1", "--host", host], view=Terminal()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "this machine only" in said


def test_the_wheel_brings_the_page_along() -> None:
    assert sorted(file.name for file in FILES.iterdir()) == ["index.html", "page.css", "page.js"]
    assert FILES.is_relative_to(Path(server.__file__).parent)
