from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from llmtop.cli import doctor, fit
from llmtop.cli.context import Invocation
from llmtop.config.spec import ModelSpec
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.memory.learned import Learned

GIB = 2**30


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two tiny models, memory of 64 GiB told by a file, a llama-server that lists nothing."""
    models = tmp_path / "models"
    models.mkdir()
    for name in "AB":
        write_tiny(models / f"{name}.gguf")
    source = tmp_path / "memory.json"
    source.write_text(json.dumps({"total": 64 * GIB, "wired": 6 * GIB, "available": 50 * GIB, "gpu_limit": 48 * GIB}))
    server = tmp_path / "llama-server"
    server.write_text(
        f"#!{sys.executable}\nimport sys\nprint('Available devices:' if '--list-devices' in sys.argv else '')\n"
    )
    server.chmod(0o755)
    (tmp_path / "state").mkdir()
    for name, value in {
        "LLMTOP_MEMORY_SOURCE": f"file:{source}",
        "LLMTOP_STATE_DIR": str(tmp_path / "state"),
        "LLAMA_ARG_MODELS_DIR": str(models),
        "LLMTOP_LLAMA_SERVER": str(server),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def run(*words: str) -> str:
    app = typer.Typer()
    fit.register(app)
    doctor.register(app)
    result = CliRunner().invoke(app, list(words), obj=Invocation())
    assert result.exit_code == 0, result.output
    return result.stdout


def answer(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


@pytest.mark.slow
def test_fit_says_what_each_model_takes_and_which_fit_together(machine: Path) -> None:
    told = answer("fit", "--memory-budget", "300MiB")
    assert told["budget"] == 300 * 2**20
    assert [(m["model"], m["by"], m["fits"]) for m in told["models"]] == [
        ("A", "estimate", True),
        ("B", "estimate", True),
    ]
    assert all(m["counts"] == m["weights"] + m["kv"] + m["compute"] + m["projector"] for m in told["models"])
    assert told["together"] == [["A"], ["B"]]
    assert answer("fit")["together"] == [["A", "B"]]


@pytest.mark.slow
def test_fit_prefers_what_was_measured(machine: Path) -> None:
    model = str(machine / "models/A.gguf")
    learned = Learned(machine / "state")
    learned.put(ModelSpec("A", path=model, files=(model,)), 47 * GIB, "test")
    learned.close()
    first = answer("fit")["models"][0]
    assert (first["counts"], first["by"], first["measured"], first["fits"]) == (47 * GIB, "measured", 47 * GIB, False)


@pytest.mark.slow
def test_fit_prints_a_table(machine: Path) -> None:
    text = run("fit")
    assert "budget: 41.5 GiB (auto: 48.0 GiB GPU limit by file" in text
    assert "together: A + B = " in text
    assert [line.split()[0] for line in text.splitlines()[:3]] == ["MODEL", "A", "B"]


@pytest.mark.slow
def test_doctor_gives_every_number_with_its_source(machine: Path) -> None:
    told = answer("doctor")
    readings = {reading["name"]: reading for reading in told["readings"]}
    assert readings["wired"]["bytes"] == 6 * GIB
    assert readings["wired"]["source"] == f"file {machine}/memory.json"
    assert readings["swap"]["bytes"] is None
    assert readings["swap"]["source"] == "n/a: no 'swap' in the file"
    assert readings["wired"]["age_s"] < 30
    assert told["budget"] == int(41.5 * GIB)
    assert told["budget_steps"][1] == "less 512 MiB margin"
    assert told["system"]["llama-server"].startswith(str(machine / "llama-server"))


@pytest.mark.slow
def test_doctor_says_what_is_missing(machine: Path) -> None:
    (machine / "memory.json").write_text("{")
    text = run("doctor", "--memory-budget", "off", "--cache-ram", "-1")
    assert "is not a JSON object" in text
    assert "2 s are waited instead" in text
    assert "the prompt cache has no limit" in text
    assert "budget              none" in text


@pytest.mark.slow
def test_doctor_of_the_memory_leaves_the_rest_out(machine: Path) -> None:
    text = run("doctor", "--memory")
    assert "python" not in text
    assert text.splitlines()[0].startswith("memory by")
