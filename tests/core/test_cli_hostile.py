"""What the command line does with names that mean harm, with terminals that are small, and with readers that leave."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from llmtop.cli.app import GROUPS, build, main
from llmtop.cli.tables import table, width
from llmtop.cli.teach import EXAMPLES, flowing
from llmtop.snapshot import Failure, LogLine, Memory, Model, Oom, OomLine, Phases, QueueEntry, Snapshot, Swap
from llmtop.testing.models import write_model

EVIL = "\x1b[31mred\x1b]0;title\x07\u202eevil\nline\x9b2J"
RAW = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Signs that a terminal acts on."""
STATE = Snapshot(
    version="0",
    pid=7,
    at=0.0,
    url="",
    models=(Model(EVIL, "loaded", reason=EVIL), Model("漢字", failure=Failure("oom", EVIL)), Model("-dash")),
    queue=(QueueEntry(EVIL, 1, 1, 0.1, EVIL),),
    memory=Memory(),
    oom=Oom(1, OomLine(0.0, EVIL, EVIL, 1)),
)
Said = pytest.CaptureFixture[str]


class Handler(BaseHTTPRequestHandler):
    """A core whose every name is meant to harm."""

    asked: list[tuple[str, bytes]]

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        swap = Swap(1, EVIL, EVIL, 0.0, (EVIL,), EVIL, Phases())
        line = LogLine(1, 0.0, EVIL, EVIL)
        answers: dict[str, object] = {"/api/state": STATE, "/api/swaps": {"swaps": [swap]}}
        self._answer(answers.get(path, {"lines": [line] * 2000}))

    def do_POST(self) -> None:
        self.asked.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
        self._answer({"success": True, "changed": True})

    def _answer(self, value: object) -> None:
        data = msgspec.json.encode(value)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, bytes]]]:
    """A core to talk to; gives what is posted to it."""
    kind = type("Mine", (Handler,), {"asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("LLMTOP_URL", f"http://127.0.0.1:{server.server_port}")
        yield kind.asked  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("words", [["ps"], ["queue"], ["swaps"], ["logs", "x"], ["load", EVIL]])
@pytest.mark.parametrize("terminal", [False, True])
def test_no_terminal_acts_on_a_name(
    asked: list[tuple[str, bytes]], capsys: Said, monkeypatch: pytest.MonkeyPatch, words: list[str], terminal: bool
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    monkeypatch.setenv("TERM", "dumb")  # rich's own colours are none of a name's
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(words) == 0
    said = capsys.readouterr()
    assert "evil" in said.out + said.err
    assert not RAW.search(said.out + said.err)


@pytest.mark.parametrize("words", [["ps"], ["queue"], ["swaps"], ["logs", "x"], ["load", "x"], ["queue", "hold"]])
@pytest.mark.parametrize(
    "answer", [b"hello", b"[]", b"{}x", b"[" * 100_000, b"{}", b'{"models": 3, "swaps": 3, "lines": 3}']
)
def test_who_answers_otherwise_than_a_llmtop_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: Said, words: list[str], answer: bytes
) -> None:
    monkeypatch.setattr("llmtop.cli.wire.exchange", lambda *_: (200, answer))
    assert main([*words, "--url", "http://box:1"]) == 1
    said = capsys.readouterr()
    assert said.err == "llmtop: http://box:1 answers, but not as a llmtop of this version (--url)\n"


def test_json_escapes_what_a_terminal_would_act_on(asked: list[tuple[str, bytes]], capsys: Said) -> None:
    assert main(["ps", "--json"]) == 0
    text = capsys.readouterr().out
    assert msgspec.json.decode(text, type=Snapshot) == STATE
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", text)


def test_a_folder_full_of_bad_names_harms_neither_check_nor_fit(
    tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLMTOP_STATE_DIR", str(tmp_path / "state"))
    for name in (EVIL, "[bold]x[x]", "-dash", "a b"):
        write_model(tmp_path / "models", name)
    preset = tmp_path / "p.ini"
    preset.write_text(f"[a b]\nalias = al{EVIL.replace(chr(10), '')}\n")
    words = ["--models-dir", str(tmp_path / "models"), "--models-preset", str(preset)]
    assert main(["check", *words]) in {0, 1}
    assert main(["fit", *words, "--memory-budget", "1GiB"]) == 0
    text = capsys.readouterr().out
    assert text.count("[bold]x[x]") >= 2
    assert not RAW.search(text)


def test_wide_letters_keep_the_columns_straight(capsys: Said) -> None:
    table("", ("A", "B"), [("漢字", "x"), ("abcd", "y")])
    lines = capsys.readouterr().out.splitlines()
    assert [width(line[: line.index(last)]) for line, last in zip(lines, "Bxy", strict=True)] == [6, 6, 6]


@pytest.mark.parametrize("columns", [20, 60, 80, 200])
def test_a_narrow_terminal_goes_without_what_it_needs_least(
    capsys: Said, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    rows = [("qwen3-14b", "loaded", "12345", "a reason of more than a few words that can be folded")]
    table("", ("MODEL", "STATE", "PID", "NOTE"), rows, spare=(2,))
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert all(width(line) <= columns for line in lines)
    assert ("12345" in lines[1]) == (columns >= 60)
    if columns >= 60:
        assert lines[1].startswith("qwen3-14b  loaded")


def test_a_name_that_begins_with_a_dash_stands_after_two(asked: list[tuple[str, bytes]], capsys: Said) -> None:
    assert main(["load", "--", "-dash"]) == 0
    assert asked == [("/api/models/-dash/load", b"{}")]
    assert main(["load", ""]) == 2
    assert "llmtop ps lists them" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["k\nX-Other: 1", "k\udce9", "k\x1b"])
def test_a_key_that_can_be_none_is_not_sent(capsys: Said, key: str) -> None:
    assert main(["ps", "--api-key", key, "--url", "http://127.0.0.1:1"]) == 2
    assert capsys.readouterr().err.startswith("llmtop: the key is no line of plain text")


def test_a_name_that_is_not_utf8_is_asked_for_byte_by_byte(asked: list[tuple[str, bytes]]) -> None:
    assert main(["pin", "lat\udce9"]) == 0
    assert asked == [("/api/models/lat%E9/pin", b"{}")]


@pytest.mark.parametrize("verb", ["evict", "kill"])
def test_a_verb_can_be_meant_for_one_instance(asked: list[tuple[str, bytes]], capsys: Said, verb: str) -> None:
    assert main([verb, "A", "--instance", "7"]) == 0
    assert asked == [(f"/api/models/A/{verb}", b'{"instance": 7}')]
    assert main(["pin", "A", "--instance", "7"]) == 2
    assert "llmtop pin --help" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "into", "code", "says"),
    [
        ("logs x", "| head -1", 0, ""),
        ("ps --watch --json", "| head -1", 0, ""),
        ("ps", "> /dev/full", 1, "llmtop: No space left on device: mend that, and try again"),
        ("ps", ">&-", 0, ""),
        ("nonsense", "2>&-", 2, ""),
    ],
)
def test_a_reader_that_leaves_or_cannot_take_more_is_no_bug(
    asked: list[tuple[str, bytes]], words: str, into: str, code: int, says: str
) -> None:
    del asked
    if into.endswith("/dev/full") and not os.path.exists("/dev/full"):
        pytest.skip("this system has no device that is always full")
    line = f"{shlex.quote(sys.executable)} -m llmtop {words} {into}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, says)


@pytest.mark.parametrize("command", sorted(EXAMPLES))
def test_every_example_in_the_help_can_be_called(command: str) -> None:
    whole: Any = typer.main.get_command(build())
    for words, _ in EXAMPLES[command]:
        said = shlex.split(words.partition(" | ")[0].partition(" > ")[0])
        args = said[: said.index("--")] if "--" in said else said
        if args[0].startswith("-"):
            assert whole.make_context("llmtop", args).params
        else:
            assert whole.commands[args[0]].make_context(args[0], args[1:]).params is not None


def test_every_command_is_taught_by_example_and_its_help_flows() -> None:
    app = build()
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert not re.search(r"[^\n]\n[^\n]", command.help or ""), name
        if name in {name for names in GROUPS.values() for name in names} & EXAMPLES.keys():
            assert "Examples" in (command.epilog or ""), name
    assert set(EXAMPLES) - {""} <= {name for names in GROUPS.values() for name in names}
    assert flowing("One\ntwo.\n\nThree\nfour.") == "One two.\n\nThree four."
