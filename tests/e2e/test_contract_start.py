"""How llmtop starts: where the cap comes from, what it refuses and how it says so, and that there is only one of it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing.models import server_command, write_model
from llmtop.testing.rig import Rig, quiet_environment, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def refused(
    one: Rig, *options: str, env: dict[str, str] | None = None, port: int | None = None
) -> tuple[int, str]:
    """Start one that must not come up; gives its exit code and what it said."""
    begin = len(one.log) if (one.folder / "llmtop.log").exists() else 0
    first = one.process if hasattr(one, "process") else None
    first_port = one.port
    one.launch(*options, env=env, port=port)
    process = one.process
    if first is not None:
        one.process, one.port = first, first_port
    try:
        code = await asyncio.to_thread(process.wait, 15)
    finally:
        process.kill()
        process.wait()
    said = one.log[begin:]
    assert "Traceback" not in said
    assert len([line for line in said.splitlines() if line.startswith("llmtop:")]) == 1, f"one line is said: {said}"
    return code, said


async def test_the_cap_is_the_flags_else_the_environments_else_the_presets(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    preset.write_text("version = 1\n[*]\nmodels-max = 1\nc = 512\n")
    given: dict[str, dict[str, Any]] = {m: {} for m in "ABC"}
    options, env = ["--models-preset", str(preset)], {"LLAMA_ARG_MODELS_MAX": "2"}
    async with rig(tmp_path / "preset", given, *options) as r, r.client() as c:
        state = await r.state()
        assert (state["models_max"], state["models_max_source"]) == (1, "preset")
        for m in "AB":
            assert (await r.ask(c, m)).status_code == 200
        assert len(r.children()) == 1
        argv = r.events("A", "spawn")[0]["argv"]
        assert "512" in argv, "the rest of [*] goes to the child"
        assert "models-max" not in " ".join(argv)
    async with rig(tmp_path / "env", given, *options, env=env) as r, r.client() as c:
        state = await r.state()
        assert (state["models_max"], state["models_max_source"]) == (2, "env")
        await r.ask(c, "A")
        assert not [k for k in r.events("A", "spawn")[0]["env"] if k.startswith("LLAMA_ARG_MODELS")]
    async with rig(tmp_path / "flag", given, *options, "--models-max", "0", env=env) as r, r.client() as c:
        state = await r.state()
        assert (state["models_max"], state["models_max_source"]) == (0, "flag")
        for m in given:
            assert (await r.ask(c, m)).status_code == 200
        assert len(r.children()) == 3


async def test_more_startup_models_than_the_cap_are_refused_before_anything_starts(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    preset.write_text("[A]\nload-on-startup = true\n[B]\nload-on-startup = true\n")
    options = ["--models-preset", str(preset)]
    one = Rig(tmp_path / "refused", {"A": {}, "B": {}})
    code, said = await refused(one, "--models-max", "1", *options)
    assert code == 2
    assert "number of models to load on startup (2) exceeds models_max (1)" in said
    assert not one.events("A")
    async with rig(tmp_path / "open", {"A": {}, "B": {}}, "--models-max", "0", *options) as r:
        for m in "AB":
            await r.until_state(m, "loaded")


async def test_a_second_llmtop_on_the_same_port_or_state_folder_names_the_first_and_starts_nothing(
    tmp_path: Path,
) -> None:
    async with rig(tmp_path, {"A": {"load_ms": 50}}) as r, r.client() as c:
        await r.ask(c, "A")
        first = str(r.process.pid)
        elsewhere = {"LLMTOP_STATE_DIR": str(tmp_path / "other")}
        for port, env in ((r.port, elsewhere), (None, {})):
            code, said = await refused(r, env=env, port=port)
            assert code == 1
            assert first in said
            assert "llmtop attach" in said
        assert (await r.ask(c, "A")).status_code == 200
        assert len(r.events("A", "spawn")) == 1


async def test_a_port_held_by_somebody_else_starts_no_child(tmp_path: Path) -> None:
    preset = tmp_path / "preset.ini"
    preset.write_text("[A]\nload-on-startup = true\n")
    one = Rig(tmp_path / "r", {"A": {}})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, said = await refused(one, "--models-preset", str(preset), port=port)
    assert code == 1
    assert str(port) in said
    assert str(os.getpid()) in said, "who holds it is named"
    assert not one.events("A")


async def test_no_llama_server_and_no_models_are_told_in_a_line_with_what_to_do(tmp_path: Path) -> None:
    write_model(tmp_path / "models", "A")
    server = str(server_command(tmp_path / "bin"))
    base = [sys.executable, "-m", "llmtop", "serve", "--port", "1"]
    cases = (
        (
            ["--models-dir", str(tmp_path / "models"), "--llama-server", "/nowhere/llama-server"],
            "/nowhere/llama-server",
        ),
        (["--models-dir", str(tmp_path / "missing"), "--llama-server", server], str(tmp_path / "missing")),
        (["--models-dir", str(tmp_path / "models"), "--models-preset", "/no.ini", "--llama-server", server], "/no.ini"),
    )
    for more, word in cases:
        done = await asyncio.to_thread(
            subprocess.run,
            [*base, *more],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
            env=quiet_environment(tmp_path),
            cwd=tmp_path,
        )
        said = done.stderr
        assert done.returncode in (1, 2), f"{more}: {done.returncode} {said}"
        assert word in said
        assert "Traceback" not in said
        assert len(said.strip().splitlines()) <= 3, said


async def test_an_empty_folder_serves_and_says_that_it_has_no_models(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir(parents=True)
    async with rig(tmp_path, {}) as r, r.client() as c:
        assert (await c.get("/v1/models")).json()["data"] == []
        answer = await r.ask(c, "A")
        assert (answer.status_code, answer.json()["error"]["type"]) == (404, "model_not_found")
        write_model(r.models, "A", load_ms=50)
        assert [m["id"] for m in (await c.get("/v1/models", params={"reload": 1})).json()["data"]] == ["A"]
        assert (await r.ask(c, "A")).status_code == 200


async def test_a_file_that_is_no_gguf_evicts_nobody_and_is_taken_once_it_is_mended(tmp_path: Path) -> None:
    async with rig(tmp_path, {"A": {}, "B": {}}, "--models-max", "1") as r, r.client() as c:
        good = (r.models / "B.gguf").read_bytes()
        (r.models / "B.gguf").write_text("version https://git-lfs.github.com/spec/v1\n")
        assert (await r.ask(c, "A")).status_code == 200
        answer = await r.ask(c, "B")
        error = answer.json()["error"]
        assert (answer.status_code, error["type"]) == (503, "load_failed")
        assert "GGUF" in error["message"]
        assert (await r.model("A"))["state"] == "loaded", "found before anything is evicted for it"
        assert not r.events("B")
        assert (await r.model("B"))["problem"]
        (r.models / "B.gguf").write_bytes(good)
        assert (await r.ask(c, "B")).status_code == 200


async def test_a_model_whose_file_is_cut_short_evicts_nobody(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    write_tiny(models / "B.gguf")
    whole = (models / "B.gguf").read_bytes()
    (models / "B.gguf").write_bytes(whole[:-1000])
    async with rig(tmp_path, {"A": {}}, "--models-max", "1") as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        answer = await r.ask(c, "B")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "load_failed")
        assert "cut short" in answer.json()["error"]["message"]
        assert (await r.model("A"))["state"] == "loaded"
        (models / "B.gguf").write_bytes(whole)
        assert (await r.ask(c, "B")).status_code == 200
