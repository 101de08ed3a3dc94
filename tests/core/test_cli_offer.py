"""``llmtop`` started where one serves already: what is offered to whom."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmtop.children import owner
from llmtop.cli import offer
from llmtop.cli.app import main
from llmtop.cli.caller import Target
from llmtop.config.resolve import Configuration
from llmtop.errors import StartError
from llmtop.testing.models import server_command, write_model

LINE = "port 1 is taken by a test; stop it"
UNAUTHORIZED = (401, {"error": {"code": 401, "message": "no", "type": "unauthorized"}})
Said = pytest.CaptureFixture[str]


class View:
    """Cannot run anything here, and notes what it is to show."""

    def __init__(self) -> None:
        self.attached: list[tuple[str, str, bool, str]] = []

    def run(self, configuration: Configuration) -> int:
        raise StartError(LINE)

    def attach(self, url: str, key: str, *, readonly: bool, record: str) -> int:
        self.attached.append((url, key, readonly, record))
        return 7

    def web(self, url: str, key: str, *, readonly: bool, host: str, port: int) -> int:
        raise NotImplementedError

    def replay(self, path: str) -> int:
        raise NotImplementedError


class Holder:
    """Somebody on a port; answers by path, 404 to all else."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/api/state": (200, {"pid": 4711})}
        self.key = ""
        self.keys: list[str] = []
        holder = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = self.headers.get("Authorization", "")
                holder.keys.append(key)
                wrong = holder.key and key != f"Bearer {holder.key}"
                status: int
                body: Any
                status, body = UNAUTHORIZED if wrong else holder.answers.get(self.path, (404, b""))
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def holder() -> Iterator[Holder]:
    one = Holder()
    yield one
    one.close()


Start = Callable[..., tuple[int, View]]


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("house")
    write_model(folder / "models", "a")
    return ["--models-dir", str(folder / "models"), "--llama-server", str(server_command(folder / "bin"))]


@pytest.fixture
def start(options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start ``llmtop`` on a port, with an answer typed at the terminal; None: there is no terminal."""
    for name in ("LLAMA_API_KEY", "LLMTOP_API_KEY", "LLMTOP_URL"):
        monkeypatch.delenv(name, raising=False)

    def started(port: int, typed: str | None, *more: str) -> tuple[int, View]:
        view = View()
        monkeypatch.setattr("llmtop.cli.run.has_terminal", lambda: typed is not None)
        monkeypatch.setattr("sys.stdin", io.StringIO(typed or ""))
        return main([*options, "--port", str(port), "--state-dir", str(tmp_path / "state"), *more], view), view

    return started


@pytest.mark.parametrize("typed", ["\n", "y\n"])
def test_yes_attaches_to_who_has_the_port_with_the_options_given(
    start: Start, holder: Holder, typed: str, capsys: Said
) -> None:
    holder.key = "k"
    code, view = start(holder.port, typed, "--api-key", "k", "--readonly", "--record", "/nowhere/run")
    assert (code, view.attached) == (7, [(holder.url, "k", True, "/nowhere/run")])
    said = capsys.readouterr()
    assert f"llmtop (pid 4711) already serves on {holder.url}: attach to it? [Y/n]" in said.out
    assert LINE not in said.err


def test_no_is_the_line_of_always(start: Start, holder: Holder, capsys: Said) -> None:
    code, view = start(holder.port, "n\n")
    assert (code, view.attached) == (1, [])
    assert capsys.readouterr().err == f"llmtop: {LINE}\n"


def test_an_end_of_input_is_no_yes(start: Start, holder: Holder) -> None:
    code, view = start(holder.port, "")
    assert (code, view.attached) == (1, [])


@pytest.mark.parametrize("key", [[], ["--api-key", "other"]])
def test_a_holder_that_wants_another_key_is_told_with_the_option(
    start: Start, holder: Holder, key: list[str], capsys: Said
) -> None:
    holder.key = "k"
    code, view = start(holder.port, "\n", *key)
    assert (code, view.attached) == (1, [])
    assert capsys.readouterr() == ("", f"llmtop: {LINE}; that llmtop wants its key: --api-key KEY, or LLAMA_API_KEY\n")


@pytest.mark.parametrize(
    "state", [(200, {"pid": None}), (200, []), (200, b"<html>"), (200, b"[" * 100_000), (500, {}), (404, {}), (401, {})]
)
def test_a_stranger_is_not_offered(start: Start, holder: Holder, state: tuple[int, Any], capsys: Said) -> None:
    holder.answers = {"/api/state": state, "/models": (200, {"data": [{"id": "gpt"}]})}
    code, view = start(holder.port, "\n")
    assert (code, view.attached) == (1, [])
    assert capsys.readouterr() == ("", f"llmtop: {LINE}\n")


def test_a_router_of_llama_cpp_is_told_how_to_be_watched(start: Start, holder: Holder, capsys: Said) -> None:
    holder.answers = {"/models": (200, {"data": [{"id": "a", "status": {"value": "unloaded"}}]})}
    code, view = start(holder.port, "\n")
    assert (code, view.attached) == (1, [])
    assert capsys.readouterr().err == (
        f"llmtop: {LINE}; `llmtop attach {holder.url}` can show it: llama.cpp's router\n"
    )


def test_the_owner_of_the_state_folder_is_offered_wherever_it_listens(
    start: Start, holder: Holder, tmp_path: Path
) -> None:
    claim = owner.claim(tmp_path / "state", holder.url)
    try:
        code, view = start(1, "\n")
    finally:
        claim.release()
    assert (code, view.attached) == (7, [(holder.url, "", False, "")])


def test_a_holder_of_another_users_gets_no_key(start: Start, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    def unseen(_: int) -> None:
        pass

    monkeypatch.setattr("llmtop.children.process.listener", unseen)
    start(holder.port, "n\n", "--api-key", "k")
    assert set(holder.keys) == {""}


def test_nobody_is_asked_without_a_terminal_or_by_serve(
    start: Start, holder: Holder, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    def refuse(_: object) -> int:
        raise StartError(LINE)

    monkeypatch.setattr("llmtop.core.serve", refuse)
    for typed, more in ((None, ()), ("\n", ("serve",))):
        code, view = start(holder.port, typed, *more)
        assert (code, view.attached) == (1, [])
        assert capsys.readouterr().err.endswith(f"llmtop: {LINE}\n")
    assert holder.keys == []


@pytest.mark.parametrize(
    ("host", "url"), [("0.0.0.0", "http://127.0.0.1:1"), ("::", "http://[::1]:1"), ("10.0.0.7", "http://10.0.0.7:1")]
)
def test_one_that_listens_everywhere_is_asked_on_this_machine(
    start: Start, monkeypatch: pytest.MonkeyPatch, host: str, url: str
) -> None:
    asked: list[str] = []

    class Nobody:
        def __init__(self, target: Target, _: float) -> None:
            asked.append(target.url)

        def pid(self) -> int:
            raise StartError("nobody")

    monkeypatch.setattr(offer, "Caller", Nobody)

    def no(*_: str) -> bool:
        return False

    monkeypatch.setattr("llmtop.remote_router.is_router", no)
    start(1, "\n", "--host", host, "--insecure")
    assert asked == [url]
