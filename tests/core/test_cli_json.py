"""The ``--json`` forms: one object, its version first, told in ``--help``; and no colour but on a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from llmtop.cli.app import main
from llmtop.cli.jsonform import versioned
from llmtop.errors import StartError
from llmtop.testing.models import server_command, write_model

Said = pytest.CaptureFixture[str]
SWAPS = b'{"swaps": [{"id": 1, "model": "A\\n", "phases": {}, "evicted": []}]}\n'


class _Core(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        data = {"/api/state": b'{"version":"1","models":[]}', "/api/swaps": SWAPS}.get(self.path, b"[]")
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Core) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("LLMTOP_URL", url)
        yield url
        server.shutdown()
        thread.join()


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a configuration of one model, and of nothing of this machine's own."""
    for name in [name for name in os.environ if name.startswith(("LLMTOP_", "LLAMA_"))]:
        monkeypatch.delenv(name)
    write_model(tmp_path / "m", "A")
    server = server_command(tmp_path / "bin")
    words = ["--models-dir", str(tmp_path / "m"), "--llama-server", str(server), "--state-dir", str(tmp_path / "s")]
    return [*words, "--memory-budget", "8GiB"]


def first_key(text: str) -> tuple[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return next(iter(found.items()))


@pytest.mark.parametrize("command", ["ps", "swaps"])
def test_what_a_running_llmtop_tells_is_one_line(core: str, capsys: Said, command: str) -> None:
    assert main([command, "--json"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") == 1
    assert first_key(text) == ("schema_version", 1)
    assert "version" in json.loads(text) or json.loads(text)["swaps"] == json.loads(SWAPS)["swaps"]


@pytest.mark.parametrize("command", ["check", "fit", "doctor"])
def test_what_llmtop_finds_here_has_its_version_first(local: list[str], capsys: Said, command: str) -> None:
    assert main([command, "--json", *local]) == 0
    assert first_key(capsys.readouterr().out) == ("schema_version", 1)


def test_a_simulation_has_its_version_first(tmp_path: Path, capsys: Said) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"t": 0, "model": "A", "duration": 1}\n{"t": 1, "model": "B", "duration": 1}\n')
    assert main(["simulate", str(trace), "--json"]) == 0
    assert first_key(capsys.readouterr().out) == ("schema_version", 1)


@pytest.mark.parametrize("command", ["ps", "swaps", "check", "fit", "doctor", "simulate"])
def test_the_form_is_told_in_help(capsys: Said, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    assert main([command, "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "--json prints" in text
    assert '{"schema_version": 1' in text


def test_watching_as_json_is_a_line_each_time(core: str, capsys: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([None, None])

    def sleep(_: float) -> None:
        if next(looks, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr("llmtop.cli.talk.time.sleep", sleep)
    assert main(["ps", "--watch", "--json"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert {first_key(line) for line in lines} == {("schema_version", 1)}


@pytest.mark.parametrize("text", [b"", b"[]", b"<html>", b'{"a":1'])
def test_what_is_no_object_is_no_answer(text: bytes) -> None:
    with pytest.raises(StartError, match="no JSON object"):
        versioned(text)


def test_an_empty_object_and_line_ends_between_fields_stay_json() -> None:
    assert json.loads(versioned(b"{}")) == {"schema_version": 1}
    assert versioned(b'{\n "a": "x\\ny",\r\n "b": 1}\n').count("\n") == 0
    assert json.loads(versioned(b'{\n "a": "x\\ny",\r\n "b": 1}\n')) == {"schema_version": 1, "a": "x\ny", "b": 1}


def test_check_as_json_tells_faults_and_what_each_model_gets(local: list[str], capsys: Said, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    preset.write_text("[A]\nc = 512\npin = so\n[M]\ncmd = x-server --port ${PORT} --api-key s3cret\n")
    assert main(["check", "--json", *local, "--models-preset", str(preset), "--port", "x"]) == 1
    text = capsys.readouterr().out
    found = json.loads(text)
    assert found["faults"] == [
        "--port: 'x' is not a port: 1 to 65535",
        f"{preset}:3: [A] pin: 'so' is neither true nor false; write true or false",
        f"{preset}:4: [M] cmd: x-server is not found, or is no program; install it, or write its whole path",
    ]
    args = {model["id"]: model["args"] for model in found["models"]}
    assert args["A"][2:4] == ["--ctx-size", "512"]
    assert args["M"] == ["x-server", "--port", "${PORT}", "--api-key", "***"]
    assert "s3cret" not in text


FAULTS = {
    "[*]\nmodels-max = lots\n": ":2: [*] models-max: 'lots' is not a whole number of 0 or more; write a number",
    "[A\n": ":1: '[A' is not a section; write [name] alone on the line",
    "[A]\nx\n": ":2: 'x' is not followed by = value; write KEY = VALUE, or begin the line with ; to leave it out",
    "[A]\nmmproj = /no.gguf\n": ":1: [A] mmproj not found: /no.gguf; put the file there, or correct the path",
    "[A]\ncmd = 'x\n": "; close its quotes",
    "[A]\nhealth = x\n": ":2: [A] health: 'x' is not a path; it begins with /",
    "[N]\nload-on-startup = true\n": ":1: [N] no model, hf-repo or cmd in this section",
}


def test_every_fault_is_told_at_once_with_its_line_and_a_remedy(local: list[str], capsys: Said, tmp_path: Path) -> None:
    preset = tmp_path / "p.ini"
    for text, says in FAULTS.items():
        preset.write_text(text)
        assert main(["check", *local, "--models-preset", str(preset)]) == 1
        lines = capsys.readouterr().out.splitlines()
        fault = next(line for line in lines if line.startswith(str(preset)))
        assert says in fault
        assert "; " in fault
        assert lines[-1] == "1 fault(s)."
    preset.write_text("".join(FAULTS))
    assert main(["check", *local, "--models-preset", str(preset), "--max-wait", "x", "--", "-cram", "y"]) == 1
    lines = capsys.readouterr().out.splitlines()
    told = [line for line in lines if line.startswith((str(preset), "--max-wait", "-- -cram"))]
    assert len(told) >= len(FAULTS) + 1
    places = [int(line.split(":")[1]) for line in told if line.startswith(str(preset))]
    assert places == sorted(places)


def test_a_good_configuration_has_no_fault(local: list[str], capsys: Said) -> None:
    assert main(["check", *local]) == 0
    assert capsys.readouterr().out.endswith("No faults found.\n")


def test_a_folder_that_is_not_there_is_one_fault_and_no_model_of_the_cache_is_shown(
    local: list[str], capsys: Said, tmp_path: Path
) -> None:
    assert (
        main(["check", *local, "--models-dir", str(tmp_path / "none"), "--models-preset", str(tmp_path / "no.ini")])
        == 1
    )
    text = capsys.readouterr().out
    assert "models      0" in text
    assert "--models-dir: " in text
    assert "--models-preset: " in text
    assert "2 fault(s)." in text


@pytest.mark.slow
def test_no_colour_where_no_terminal_is(core: str, local: list[str]) -> None:
    for words in (["--help"], ["ps", "--help"], ["check", *local], ["swaps"], ["nonsense"]):
        done = subprocess.run(
            [sys.executable, "-m", "llmtop", *words],
            capture_output=True,
            check=False,
            env=os.environ | {"TERM": "xterm-256color"},
        )
        assert b"\x1b" not in done.stdout + done.stderr, words


@pytest.mark.slow
def test_ps_json_loads_nothing_that_takes_long(core: str) -> None:
    code = "import sys; from llmtop_tui.__main__ import main; assert main() == 0; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code, "ps", "--json"], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"rich", "textual", "httpx", "asyncio", "starlette", "uvicorn", "psutil", "yaml", "watchfiles"}
