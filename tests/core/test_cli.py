"""The command line from outside: what it prints, where, and with which exit code."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from llmtop.cli.app import GROUPS, build, main
from llmtop.cli.caller import DEFAULT_URL, find
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.errors import ConfigError
from llmtop.snapshot import Failure, LogLine, Memory, Model, Phases, QueueEntry, Snapshot, Swap
from llmtop.testing.models import server_command, write_model

STATE = Snapshot(
    version="0.1.0",
    pid=7,
    at=0.0,
    url="",
    models=(
        Model(
            "A",
            "loaded",
            pid=11,
            port=12,
            pinned=True,
            in_flight=1,
            footprint_bytes=3 * 2**30,
            idle_s=1.5,
            reason="busy",
        ),
        Model("[bold]B", failure=Failure("oom", "out of memory")),
    ),
    queue=(QueueEntry("[bold]B", 1, 2, 0.4, "waiting for A to finish 1 request"),),
    memory=Memory(budget=8 * 2**30, reserved=3 * 2**30),
)
SWAP = Swap(1, "B", "request", 0.0, ("A",), "ok", Phases(stop_s=0.1, load_s=2.5))


class Stub(ThreadingHTTPServer):
    """Answers like a core with one key, and remembers what was asked."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    """The stub's routes."""

    def do_GET(self) -> None:
        answers: dict[str, Any] = {
            "/api/state": STATE,
            "/api/swaps": {"swaps": [SWAP]},
            "/api/models/a%2Fb%3Ac/log?after=-1": {
                "lines": [LogLine(1, 0.0, "a/b:c", "hello"), LogLine(2, 0.0, "a/b:c", "there")]
            },
        }
        self._answer(answers.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/api/models/gone/load":
            self._answer({"error": {"code": 404, "message": "no model gone", "type": "model_not_found"}}, 404, body)
        else:
            self._answer({"success": True, "changed": "unpin" not in self.path}, 200, body)

    def _answer(self, value: Any, status: int = 200, body: Any = None) -> None:
        server = self.server
        assert isinstance(server, Stub)
        server.asked.append((self.command, self.path, body))
        if self.headers["Authorization"] != "Bearer k":
            status, value = 401, {"error": {"code": 401, "message": "no key", "type": "unauthorized"}}
        data = msgspec.json.encode(value)
        self.send_response(404 if value is None else status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    with Stub() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("LLMTOP_URL", server.url)
        monkeypatch.setenv("LLAMA_API_KEY", "k")
        yield server
        server.shutdown()
        thread.join()


Said = pytest.CaptureFixture[str]


def test_ps_json_is_the_state_as_it_came_with_its_version_in_front(core: Stub, capsys: Said) -> None:
    assert main(["ps", "--json"]) == 0
    text = capsys.readouterr().out
    assert text.startswith('{"schema_version":1,"version":')
    assert msgspec.json.decode(text, type=Snapshot) == STATE


def test_ps_says_who_waits_and_why_and_takes_no_name_for_markup(core: Stub, capsys: Said) -> None:
    assert main(["ps"]) == 0
    text = capsys.readouterr().out
    assert "[bold]B" in text
    assert "failed" in text
    assert "[pinned] busy" in text
    assert "waiting for A to finish 1 request" in text
    assert "3.0 GiB of 8.0 GiB" in text


def test_on_a_terminal_the_same_is_a_table(core: Stub, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["ps"]) == 0
    text = capsys.readouterr().out
    assert "[bold]B" in text
    assert "waiting for A to finish 1 request" in text


def test_watching_goes_on_until_it_is_left_and_leaving_is_no_failure(
    core: Stub, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("llmtop.cli.talk.time.sleep", pause)
    assert main(["ps", "--json", "--watch"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert pauses == [1.0, 1.0, 1.0]


def test_logs_that_are_followed_ask_only_for_what_is_new(
    core: Stub, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pause(_: float) -> None:
        if len(core.asked) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("llmtop.cli.talk.time.sleep", pause)
    assert main(["logs", "a/b:c", "-f"]) == 1  # the stub does not know the second question
    assert [path for _, path, _ in core.asked][1:] == ["/api/models/a%2Fb%3Ac/log?after=2"]
    assert capsys.readouterr().out == "hello\nthere\n"


def test_swaps_show_the_phases_that_occurred(core: Stub, capsys: Said) -> None:
    assert main(["swaps"]) == 0
    words = capsys.readouterr().out.splitlines()[1].split()
    assert words == ["1", "B", "A", "-", "-", "0.1s", "-", "-", "2.5s", "ok", "request"]


def test_logs_take_an_id_with_any_sign_in_it(core: Stub, capsys: Said) -> None:
    assert main(["logs", "a/b:c"]) == 0
    assert capsys.readouterr().out == "hello\nthere\n"


@pytest.mark.parametrize("verb", ["load", "evict", "pin", "kill"])
def test_a_verb_is_one_post_with_a_json_body(core: Stub, capsys: Said, verb: str) -> None:
    assert main([verb, "A"]) == 0
    assert core.asked == [("POST", f"/api/models/A/{verb}", {})]
    assert capsys.readouterr().err.startswith("llmtop: A ")


def test_a_verb_that_changes_nothing_says_so(core: Stub, capsys: Said) -> None:
    assert main(["unpin", "A"]) == 0
    assert capsys.readouterr().err == "llmtop: A was not pinned\n"


def test_the_queue_can_be_seen_and_held(core: Stub, capsys: Said) -> None:
    assert main(["queue"]) == 0
    assert "waiting for A" in capsys.readouterr().out
    assert main(["queue", "hold"]) == 0
    assert core.asked[-1] == ("POST", "/api/queue/hold", {})


def test_a_refusal_is_one_line_and_exit_1(core: Stub, capsys: Said) -> None:
    assert main(["load", "gone"]) == 1
    assert capsys.readouterr().err == "llmtop: no model gone (model_not_found)\n"


def test_a_wrong_key_is_told(core: Stub, capsys: Said) -> None:
    assert main(["ps", "--api-key", "wrong"]) == 1
    err = capsys.readouterr().err
    assert "wants its key" in err
    assert "wrong" not in err


def test_options_before_a_commands_name_count_too(
    core: Stub, capsys: Said, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("LLAMA_API_KEY")
    monkeypatch.delenv("LLMTOP_URL")
    words = ["--port", str(core.server_port), "--api-key", "k", "--state-dir", str(tmp_path), "ps", "--json"]
    assert main(words) == 0
    assert '"version"' in capsys.readouterr().out


def test_nobody_there_is_one_line_and_exit_1(capsys: Said) -> None:
    assert main(["ps", "--url", "http://127.0.0.1:1"]) == 1
    err = capsys.readouterr().err
    assert "no llmtop answers at http://127.0.0.1:1" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["--nonsense"],
        ["nonsense"],
        ["kill"],
        ["queue", "stop"],
        ["serve", "--models-max", "x"],
        ["serve", "--models-dir", "/nowhere/models"],
        ["--models-dir", "/nowhere/models", "serve"],
        ["serve", "more"],
        ["serve", "--host", "0.0.0.0"],
        ["ps", "--url", "ftp://x"],
        ["ps", "--", "-ngl", "99"],
        ["demo", "--simulated", "--llama-server", "x"],
        ["demo", "--seconds", "-3"],
        ["attach"],
        ["--replay", "x"],
    ],
)
def test_a_wrong_use_is_one_line_on_stderr_and_exit_2(
    words: list[str], capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith(("LLMTOP_", "LLAMA_"))]:
        monkeypatch.delenv(name)
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.startswith("llmtop: ")
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_a_bug_is_one_line_too_and_a_traceback_only_when_wanted(monkeypatch: pytest.MonkeyPatch, capsys: Said) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.delenv("LLMTOP_DEBUG", raising=False)
    monkeypatch.setattr("llmtop.cli.talk.find", broken)
    assert main(["ps"]) == 1
    assert (
        capsys.readouterr().err == "llmtop: ZeroDivisionError: by zero (a bug in llmtop: LLMTOP_DEBUG=1 shows where)\n"
    )
    monkeypatch.setenv("LLMTOP_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["ps"])


def test_check_tells_every_fault_with_its_place_and_no_secret(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.gguf").write_bytes(b"GGUF" + bytes(40))
    (tmp_path / "bad.gguf").write_bytes(b"<html>")
    preset = tmp_path / "p.ini"
    preset.write_text("[good]\nmemory = lots\n[other]\nc = 1\n")
    preset.write_text(preset.read_text() + "[mlx]\ncmd = mlx_lm.server\n[ok]\nmodel = good.gguf\n")
    monkeypatch.chdir(tmp_path)
    words = ["check", "--models-dir", str(tmp_path), "--models-preset", str(preset), "--api-key", "s3cret"]
    assert main([*words, "--", "--hf-token", "t0ken"]) == 1
    text = capsys.readouterr().out
    assert f"\n{preset}:2: [good] memory: 'lots' is not a size; write 48GiB" in text
    assert f"\n{preset}:3: [other] no model" in text
    assert "bad.gguf is not a GGUF file" in text
    assert "its port is as open as loopback is" in text
    assert "-m good.gguf --hf-token" in text
    assert "s3cret" not in text
    assert "t0ken" not in text


def test_check_finds_what_only_a_closer_look_can_tell(tmp_path: Path, capsys: Said) -> None:
    whole = write_model(tmp_path / "models", "whole")
    cut = tmp_path / "models" / "cut.gguf"
    write_tiny(cut)
    os.truncate(cut, cut.stat().st_size // 2)
    preset = tmp_path / "p.ini"
    preset.write_text("[whole]\nc =\n[gone]\ncmd = no-such-program ${PORT}\n[here]\ncmd = sh ${PORT}\n")
    words = ["check", "--models-dir", str(whole.parent), "--models-preset", str(preset)]
    assert main([*words, "--llama-server", str(server_command(tmp_path))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("cut.gguf: cut short" in line and "download it again" in line for line in lines)
    assert f"{preset}:3: [gone] cmd: no-such-program is not found, or is no program; " in "\n".join(lines)
    assert any("c has no value" in line for line in lines)
    assert lines[-1] == "2 fault(s)."


def test_what_no_server_takes_after_the_dashes_is_told(tmp_path: Path, capsys: Said) -> None:
    write_model(tmp_path / "models", "A")
    words = ["check", "--models-dir", str(tmp_path / "models"), "--llama-server", str(server_command(tmp_path))]
    assert main([*words, "--", "-c", "-1", "--ctx-size=5", "--nonsense", "x"]) == 0
    warnings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning")]
    assert [line.split()[1] for line in warnings] == ["--ctx-size=5", "--nonsense"]
    assert warnings[0].endswith("write --ctx-size 5")
    assert main([*words, "--", "-c", "\udce9"]) == 1
    assert "what follows -- is not UTF-8 text" in capsys.readouterr().out
    assert main(["serve", "--models-dir", "l\udce9"]) == 2


def test_every_listed_command_exists_and_none_is_forgotten() -> None:
    listed = {command for commands in GROUPS.values() for command in commands}
    made = {command.name or getattr(command.callback, "__name__", "") for command in build().registered_commands}
    assert listed == made


def test_help_names_every_option_with_its_variable(capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "LLAMA_ARG_MODELS_MAX" in text
    assert "--memory-budget" in text
    assert "llmtop demo" in text


def test_a_url_beats_the_record_beats_the_default_port(tmp_path: Path) -> None:
    env = {"LLMTOP_STATE_DIR": str(tmp_path)}
    assert find(None, None, None, env).url == DEFAULT_URL
    (tmp_path / "owner.json").write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:99"}))
    assert find(None, None, None, env).url == "http://127.0.0.1:99"
    assert find(None, None, None, env | {"LLMTOP_URL": "box:5"}).url == "http://box:5"
    assert find(None, None, str(tmp_path / "other"), {"LLMTOP_PORT": "5"}).url == "http://127.0.0.1:5"
    assert find("http://x/", None, None, env | {"LLMTOP_URL": "box:5"}).url == "http://x"


@pytest.mark.parametrize(
    "record",
    ["", "{}", "[]", '{"pid": 0, "url": "http://x"}', '{"pid": 1e9, "url": "http://x"}', '{"pid": 1, "url": 5}'],
)
def test_a_record_that_tells_nothing_is_passed_over(tmp_path: Path, record: str) -> None:
    (tmp_path / "owner.json").write_text(record)
    assert find(None, None, str(tmp_path), {}).url == DEFAULT_URL


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:99999", "http://x:0", "::::"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        find(url, None, None, {})


def test_the_first_key_is_sent() -> None:
    assert find(None, "flag", None, {"LLAMA_API_KEY": "env"}).key == "flag"
    assert find(None, None, None, {"LLAMA_API_KEY": "a, b"}).key == "a"


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["--help"], ["ps", "--json"], ["check"], ["demo", "--help"], ["serve", "--port", "x"], ["attach"]]
)
def test_no_other_command_pays_for_the_screen(words: list[str], tmp_path: Path) -> None:
    code = "import sys; from llmtop_tui.__main__ import main; main(); sys.exit('textual' in sys.modules)"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LLMTOP_URL": "http://127.0.0.1:1"}
    argv = [sys.executable, "-c", code, *words]
    assert subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


class Shown:
    """A view that remembers what it was told of the screen."""

    def __init__(self) -> None:
        self.told: list[tuple[str | None, str | None]] = []

    def _show(self, *_: object, **__: object) -> int:
        self.told.append((os.environ.get("LLMTOP_ASCII"), os.environ.get("LLMTOP_NO_MOUSE")))
        return 0

    run = attach = web = replay = _show


@pytest.mark.parametrize("words", [["--replay", "x"], ["attach"], ["web"], ["demo", "--simulated"]])
@pytest.mark.parametrize(
    ("given", "told"),
    [([], (None, None)), (["--ascii"], ("1", None)), (["--no-mouse", "--ascii"], ("1", "1"))],
)
def test_options_of_the_screen_say_what_their_variables_say(
    words: list[str],
    given: list[str],
    told: tuple[str | None, str | None],
    core: Stub,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("LLMTOP_ASCII", "LLMTOP_NO_MOUSE"):
        monkeypatch.setenv(name, "")  # so that what the call sets is taken back
        monkeypatch.delenv(name)
    for command in ("run", "attach", "demo"):
        monkeypatch.setattr(importlib.import_module(f"llmtop.cli.{command}"), "has_terminal", lambda: True)
    view = Shown()
    assert main([*words, *given], view=view) == 0
    assert view.told == [told]


def test_options_of_the_screen_may_stand_before_the_command(core: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMTOP_ASCII", "")
    monkeypatch.setattr("llmtop.cli.attach.has_terminal", lambda: True)
    view = Shown()
    assert main(["--ascii", "attach"], view=view) == 0
    assert view.told[0][0] == "1"
