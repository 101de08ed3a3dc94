"""Texts that point clients at a running llmtop: they are what the client reads, whatever a model is called."""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml

from llmtop.cli.app import main
from llmtop.cli.neighbours import KINDS, reachable
from llmtop.neighbours.clients import CLIENTS, KEY

URL = "http://127.0.0.1:8080"
NASTY = ["qwen3:8b", "user/repo-GGUF:Q4_K_M", 'it\'s "so"; $(x) #1', "müsli"]
Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize("kind", CLIENTS)
def test_every_text_has_the_url_and_a_placeholder_for_the_key(kind: str) -> None:
    text = CLIENTS[kind](URL, NASTY)
    assert f"{URL}/v1" in text
    assert KEY in text


def test_opencode_gets_a_provider_with_all_models() -> None:
    provider = json.loads(CLIENTS["opencode"](URL, NASTY))["provider"]["llmtop"]
    assert list(provider["models"]) == NASTY
    assert provider["options"] == {"baseURL": f"{URL}/v1", "apiKey": KEY}


def test_continue_gets_yaml_with_all_models() -> None:
    made = yaml.safe_load(CLIENTS["continue"](URL, NASTY))
    assert made["schema"] == "v1"
    assert [(m["name"], m["model"]) for m in made["models"]] == [(name, name) for name in NASTY]
    assert {m["apiBase"] for m in made["models"]} == {f"{URL}/v1"}


@pytest.mark.parametrize("name", NASTY)
def test_a_shell_takes_a_name_as_it_is(name: str) -> None:
    aider = CLIENTS["aider"](URL, [name, *NASTY]).splitlines()
    assert shlex.split(aider[2]) == ["aider", "--model", f"openai/{name}"]
    assert all(line.startswith("# ") for line in aider[3:])
    words = shlex.split(CLIENTS["curl"](URL, [name]).replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1])["model"] == name
    assert words[-1] == f"{URL}/v1/chat/completions"


def test_a_container_is_told_how_it_reaches_this_machine_and_another_one_as_it_is() -> None:
    here, there = CLIENTS["openwebui"](URL, []), CLIENTS["openwebui"]("http://box:81", [])
    assert "--network host" in here
    assert "http://host.docker.internal:8080/v1" in here
    assert "--network" not in there
    assert "OPENAI_API_BASE_URL=http://box:81/v1" in there


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        data = json.dumps({"data": [{"id": name} for name in server.names]}).encode()
        self.send_response(200 if self.path == "/v1/models" and self.headers["Authorization"] == "Bearer k3y" else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    names: tuple[str, ...] = ("A", "B\nC")


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Models) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("LLMTOP_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("LLAMA_API_KEY", "k3y")
        yield server
        server.shutdown()
        thread.join()


def test_export_asks_the_running_llmtop_and_never_prints_its_key(running: _Server, capsys: Said) -> None:
    assert main(["export", "opencode"]) == 0
    said = capsys.readouterr()
    assert list(json.loads(said.out)["provider"]["llmtop"]["models"]) == ["A"], "a name with a line end is no name"
    assert "k3y" not in said.out + said.err
    running.names = ()
    assert main(["export", "curl"]) == 1
    assert "has no models" in capsys.readouterr().err


@pytest.mark.parametrize("bound", ["0.0.0.0", "[::]"])
def test_a_llmtop_that_listens_everywhere_is_named_by_an_address_that_can_be_reached(bound: str) -> None:
    assert reachable(f"http://{bound}:8080") == URL
    assert reachable("http://box:1/0.0.0.0") == "http://box:1/0.0.0.0"


def test_every_kind_is_known_and_another_is_a_wrong_use(capsys: Said) -> None:
    assert {*CLIENTS, "grafana"} == set(KINDS)
    assert main(["export", "cursor"]) == 2
    assert "openwebui" in capsys.readouterr().err
