"""Servers that are no llama-server, run by ``cmd``: the same queue, the same stops, nothing left behind."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil
import pytest

from llmtop.children.binary import server_environment, wheel_binary
from llmtop.children.guardian import start_time
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PLAIN = """
    import json, os, signal, sys, time
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    name, port, notes = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    begin = time.monotonic()

    def note(event, **more):
        with open(notes, "a") as file:
            file.write(json.dumps({"event": event, "name": name, "pid": os.getpid(), "t": time.time(), **more}) + "\\n")

    def leave(signum, frame):
        note(signal.Signals(signum).name)
        os._exit(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def send(self, status, data, kind="application/json"):
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            note("GET", path=self.path)
            ready = self.path == "/v9/ready" and time.monotonic() - begin > 0.4
            self.send(200 if ready else 503 if self.path == "/v9/ready" else 404, b"{}")

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            note("POST", path=self.path, auth=self.headers.get("Authorization", ""))
            if request.get("stream"):
                tokens = b"".join(b'data: {"choices": [{"delta": {"content": "%d"}}]}\\n\\n' % n for n in range(5))
                self.send(200, tokens + b"data: [DONE]\\n\\n", "text/event-stream")
            else:
                message = {"role": "assistant", "content": os.environ.get("GREETING", "")}
                answer = {"model": name, "choices": [{"index": 0, "message": message, "text": "x"}]}
                self.send(200, json.dumps(answer).encode())

        def log_message(self, *args):
            pass

    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, leave)
    note("spawn", env=sorted(os.environ), argv=sys.argv)
    sys.stderr.write("plain server on %d\\n" % port)
    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


class Plain:
    """A script that is a small server, and the notes that its runs leave."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.script, self.log = folder / "plain.py", folder / "plain.jsonl"
        self.script.write_text(textwrap.dedent(PLAIN))

    def command(self, name: str) -> str:
        """Its command line for a preset."""
        return f"{shlex.join([sys.executable, str(self.script), name])} ${{PORT}} {shlex.quote(str(self.log))}"

    def notes(self, name: str, event: str = "") -> list[dict[str, Any]]:
        """What its runs under a name noted."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [n for n in map(json.loads, lines) if n["name"] == name and event in ("", n["event"])]


def below(r: Rig, word: str) -> list[int]:
    """Living processes below llmtop with a word in their command line."""
    found: list[int] = []
    for process in psutil.Process(r.process.pid).children(recursive=True):
        try:
            if word in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def test_a_cmd_server_serves_beside_llama_servers_under_one_cap(tmp_path: Path) -> None:
    plain = Plain(tmp_path / "plain")
    preset = tmp_path / "preset.ini"
    preset.write_text(
        f"[other]\ncmd = {plain.command('other')}\nhealth = /v9/ready\nenv = GREETING='good day' MODE=x\nalias = o\n"
    )
    options = ["--models-preset", str(preset), "--models-max", "1"]
    async with rig(tmp_path, {"A": {}}, *options) as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        body: dict[str, Any] = {"model": "o", "messages": [{"role": "user", "content": "hi"}]}
        answer = await c.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"] == "good day"
        assert float(answer.headers["x-llmtop-load-ms"]) > 350, "granted before its own health path said so"
        assert (await r.model("A"))["state"] == "unloaded", "it takes a slot as any other"
        streamed = await c.post("/v1/chat/completions", json=body | {"stream": True})
        assert streamed.text.endswith("data: [DONE]\n\n")
        (spawn,) = plain.notes("other", "spawn")
        assert "LLAMA_API_KEY" not in spawn["env"]
        assert "LLAMA_SERVER_ROUTER_PORT" not in spawn["env"]
        assert {"GREETING", "MODE", "PORT"} <= set(spawn["env"])
        assert {n["auth"] for n in plain.notes("other", "POST")} == {""}
        assert {n["path"] for n in plain.notes("other", "GET")} == {"/v9/ready"}, "it is asked for what it knows"
        told = (await c.get("/api/models/other/log")).text
        assert "plain server on" in told
        assert (await r.ask(c, "A")).status_code == 200
        assert len(plain.notes("other", "SIGTERM")) == 1
        assert not below(r, "plain.py")
        last = (await c.get("/api/swaps")).json()["swaps"][-1]
        assert [s["model"] for s in last["stops"]] == ["other"]


async def test_a_stop_command_is_run_instead_of_the_signal_and_its_failure_is_no_way_to_stay(tmp_path: Path) -> None:
    plain = Plain(tmp_path / "plain")
    preset = tmp_path / "preset.ini"
    sections = {"asked": "kill -INT ${PID}", "broken": "/nowhere/stop ${PORT}"}
    preset.write_text(
        "".join(
            f"[{name}]\ncmd = {plain.command(name)}\nhealth = /v9/ready\nstop-cmd = {stop}\n"
            for name, stop in sections.items()
        )
    )
    options = ["--models-preset", str(preset), "--stop-timeout", "5", "--models-max", "2", "--memory-budget", "off"]
    async with rig(tmp_path, {"A": {}}, *options) as r, r.client() as c:
        for name in sections:
            assert (await r.ask(c, name)).status_code == 200
            assert (await c.post(f"/api/models/{name}/evict", json={})).status_code == 200
            await r.until_state(name, "unloaded", 4)
        assert [n["event"] for n in plain.notes("asked") if n["event"].startswith("SIG")] == ["SIGINT"]
        assert [n["event"] for n in plain.notes("broken") if n["event"].startswith("SIG")] == ["SIGTERM"]


async def test_a_server_behind_a_wrapper_is_stopped_with_it_and_one_that_never_comes_up_is_told(tmp_path: Path) -> None:
    plain = Plain(tmp_path / "plain")
    preset = tmp_path / "preset.ini"
    wrapped = shlex.quote(f"{plain.command('wrapped')} & wait")
    preset.write_text(
        f"[wrapped]\ncmd = sh -c {wrapped}\nhealth = /v9/ready\n"
        f"[wrong]\ncmd = {sys.executable} -c \"raise SystemExit('no weights here')\"\n"
        "[missing]\ncmd = /nowhere/server --port ${PORT}\n"
    )
    async with rig(tmp_path, {"A": {}}, "--models-preset", str(preset)) as r, r.client() as c:
        assert (await r.ask(c, "wrapped")).status_code == 200
        pid = plain.notes("wrapped", "spawn")[0]["pid"]
        assert pid != (await r.model("wrapped"))["pid"]
        await c.post("/api/models/wrapped/evict", json={})
        await r.until_state("wrapped", "unloaded", 5)
        assert start_time(pid) is None, "the wrapper went and the server stayed"
        for name, word in (("wrong", "no weights here"), ("missing", "/nowhere/server")):
            answer = await asyncio.wait_for(r.ask(c, name), 10)
            error = answer.json()["error"]
            assert (answer.status_code, error["type"]) == (503, "load_failed")
            assert word in error["message"]


async def test_the_real_llama_server_run_as_an_unknown_server_is_one_among_others(tmp_path: Path) -> None:
    real = wheel_binary()
    if real is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    write_tiny(tmp_path / "weights.gguf")
    needs = server_environment(real, {})
    preset = tmp_path / "preset.ini"
    line = shlex.join([real, "-m", str(tmp_path / "weights.gguf"), "-c", "512", "--no-warmup", "--host", "127.0.0.1"])
    preset.write_text(
        f"[real]\ncmd = {line} --port ${{PORT}}\n"
        + (f"env = {shlex.join(f'{k}={v}' for k, v in needs.items())}\n" if needs else "")
    )
    options = ["--models-preset", str(preset), "--models-max", "1"]
    async with rig(tmp_path, {"A": {}}, *options) as r, r.client() as c:
        for model in ("real", "A", "real", "A"):
            answer = await r.ask(c, model)
            assert answer.status_code == 200, answer.text
            assert len(below(r, "weights.gguf")) == (model == "real")
        stops = [s for swap in (await c.get("/api/swaps")).json()["swaps"] for s in swap["stops"]]
        assert "SIGKILL" not in {s["signal"] for s in stops}
