"""What a shell is offered when Tab is pressed: at once, or nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmtop.cli.app import main
from llmtop.cli.complete import WITHIN_S

Said = pytest.CaptureFixture[str]
MODELS = [{"id": "qwen3:8b", "aliases": ["q"]}, {"id": "user/gemma"}, {"id": "$(reboot)"}, {"id": "qwen\nx"}]


class _Core(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        data = json.dumps({"data": MODELS}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        for byte in data:
            self.wfile.write(bytes([byte]))
            if server.slow.wait(0):
                server.over.wait(0.2)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            return  # it did not wait for us


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Core)
        self.slow, self.over = threading.Event(), threading.Event()


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Server]:
    with _Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("LLMTOP_URL", f"http://127.0.0.1:{server.server_port}")
        yield server
        server.over.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> Any:
    """What bash would be offered after some words, the last of them unfinished."""

    def ask(*words: str, between: str = " ") -> list[str]:
        monkeypatch.setenv("_LLMTOP_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", between.join(("llmtop", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as left:
            main([])
        assert left.value.code == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out.rstrip("\n").split("\n") if said.out.strip() else []

    return ask


@pytest.mark.parametrize("verb", ["load", "evict", "pin", "unpin", "kill", "logs"])
def test_verbs_are_offered_the_running_models_by_id_and_alias(core: _Server, offered: Any, verb: str) -> None:
    assert offered(verb, "q") == ["qwen3:8b", "q"]
    assert offered(verb, "user") == ["user/gemma"]


@pytest.mark.parametrize(("split", "rest"), [(("qwen3", ":"), "8b"), (("qwen3", ":", "8"), "8b"), (("q",), "qwen3:8b")])
def test_bash_which_splits_at_colons_is_told_what_follows_the_last_one(
    core: _Server, offered: Any, monkeypatch: pytest.MonkeyPatch, split: tuple[str, ...], rest: str
) -> None:
    url = ("--url", *re.split("(:)", os.environ["LLMTOP_URL"]))
    monkeypatch.delenv("LLMTOP_URL")
    assert rest in offered("load", *url, *split, between="\n")
    assert offered("load", *url, *split[:1], ":nothing", between="\n") == []


def test_a_name_that_a_shell_would_act_on_is_not_offered(core: _Server, offered: Any) -> None:
    assert offered("load", "") == ["qwen3:8b", "q", "user/gemma"]


def test_the_llmtop_that_the_line_names_is_the_one_that_is_asked(
    core: _Server, offered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = os.environ["LLMTOP_URL"]
    monkeypatch.setenv("LLMTOP_URL", "http://127.0.0.1:1")
    assert offered("load", "--url", url, "user") == ["user/gemma"]
    assert offered("--port", url.rpartition(":")[2], "load", "user") == ["user/gemma"]
    assert offered("load", "user") == []


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "ftp://x"])
def test_nobody_there_offers_nothing_and_says_nothing(offered: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("LLMTOP_URL", url)
    assert offered("load", "q") == []


@pytest.mark.slow
def test_a_llmtop_that_is_slow_is_not_waited_for(core: _Server, offered: Any) -> None:
    core.slow.set()
    before = time.monotonic()
    assert offered("load", "q") == []
    assert time.monotonic() - before < WITHIN_S + 1.0


def test_commands_and_the_words_of_others_are_offered(offered: Any) -> None:
    assert offered("qu") == ["queue"]
    assert offered("queue", "h") == ["hold"]
    assert offered("service", "un") == ["uninstall"]
    assert offered("export", "open") == ["openwebui", "opencode"]
    assert offered("import", "") == ["llama-swap"]


@pytest.mark.slow
def test_the_script_that_is_shown_makes_bash_complete(core: _Server, tmp_path: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    program = tmp_path / "llmtop"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m llmtop "$@"\n')
    program.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script = subprocess.run(
        ["llmtop", "--show-completion", "bash"], env=env, capture_output=True, text=True, check=True
    )
    assert "complete -o default -F _llmtop_completion llmtop" in script.stdout
    line = 'COMP_WORDS=(llmtop load user); COMP_CWORD=2; _llmtop_completion llmtop; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [bash, "--norc", "-c", script.stdout + line], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "user/gemma\n"
