"""What changed between two configurations, in words."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmtop.config.diff import diff
from llmtop.config.discovery import Catalog
from llmtop.config.resolve import Configuration, reload, resolve
from llmtop.config.spec import GIB, ModelSpec, Settings
from llmtop.errors import ConfigError
from llmtop.testing.models import server_command, write_model


def made(*specs: ModelSpec, settings: Settings | None = None) -> Configuration:
    return Configuration(settings or Settings(), Catalog({spec.id: spec for spec in specs}))


A, B, C = (ModelSpec(name, args=("-c", "4096")) for name in "ABC")


def test_added_removed_and_changed_models_are_told_in_that_words() -> None:
    changed = msgspec.structs.replace(C, args=("-c", "8192"))
    d = ModelSpec("D")
    assert diff(made(A, B, C), made(A, changed, d)) == ("C: args changed: -c 4096 → 8192", "D added", "B removed")


def test_nothing_is_told_where_nothing_changed() -> None:
    assert diff(made(A, B), made(A, B)) == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"args": ("-c", "4096", "--jinja")}, "A: args changed: --jinja added"),
        ({"args": ()}, "A: args changed: -c 4096 removed"),
        ({"args": ("--no-mmap", "-c", "4096")}, "A: args changed: --no-mmap added"),
        ({"pin": True}, "A: pin changed: off → on"),
        ({"memory": 2 * GIB}, "A: memory changed: none → 2048 MiB"),
        ({"idle_unload_s": 90.0}, "A: idle-unload changed: none → 90"),
        ({"aliases": ("x", "y")}, "A: aliases changed: none → x y"),
        ({"problem": "not found: x"}, "A: cannot be loaded: not found: x"),
        ({"health": "/v1/models"}, "A: health changed: /health → /v1/models"),
    ],
)
def test_each_kind_of_change_has_its_words(change: dict[str, object], says: str) -> None:
    after = msgspec.structs.replace(A, **change)
    assert diff(made(A), made(after)) == (says,)


def test_a_flag_that_turns_is_one_change() -> None:
    on, off = ModelSpec("A", args=("--mmap",)), ModelSpec("A", args=("--no-mmap",))
    assert diff(made(on), made(off)) == ("A: args changed: --mmap → --no-mmap",)


def test_no_secret_is_told() -> None:
    before = ModelSpec("A", args=("--hf-token", "t0ken"), env=(("K", "s3cret"),))
    after = ModelSpec("A", args=("--hf-token", "t1ken"), env=(("K", "s4cret"),))
    lines = diff(made(before, settings=Settings(api_keys=("k3y",))), made(after, settings=Settings(api_keys=("k4y",))))
    text = "\n".join(lines)
    assert "api-key" in text
    assert "--hf-token" in text
    assert "env changed: K" in text
    assert not [word for word in ("t0ken", "t1ken", "s3cret", "s4cret", "k3y", "k4y") if word in text]


def test_every_option_that_changes_has_a_name() -> None:
    before, after = Settings(), Settings(models_max=2, budget=str(GIB), max_wait_s=None, autoload=False)
    assert diff(made(settings=before), made(settings=after)) == (
        "models-max: 4 → 2",
        "models-autoload: on → off",
        f"memory-budget: auto → {GIB}",
        "max-wait: 15 → none",
    )


def flags(tmp_path: Path, preset: str) -> dict[str, object]:
    for name in "AB":
        write_model(tmp_path / "models", name)
    (tmp_path / "p.ini").write_text(preset)
    server = server_command(tmp_path / "bin")
    return {
        "models_dir": str(tmp_path / "models"),
        "models_preset": str(tmp_path / "p.ini"),
        "llama_server": str(server),
    }


@pytest.mark.parametrize(
    ("broken", "place"),
    [("[A\nc = 1\n", ":1: '[A' is not a section"), ("[A]\nc\n", ":2: 'c' is not"), ("[A]\npin = so\n", ":2: [A] pin")],
)
def test_a_preset_that_got_a_fault_is_not_taken(tmp_path: Path, broken: str, place: str) -> None:
    before = resolve(flags(tmp_path, "[A]\nc = 512\n"), {}, [])
    (tmp_path / "p.ini").write_text(broken)
    with pytest.raises(ConfigError, match=r"p\.ini") as error:
        reload(before)
    assert place in str(error.value)
    (tmp_path / "p.ini").write_text("[A]\nc = 1024\n")
    assert diff(before, reload(before)) == ("A: args changed: --ctx-size 512 → 1024",)


def test_a_fault_that_was_there_at_the_start_holds_no_later_change_up(tmp_path: Path) -> None:
    before = resolve(flags(tmp_path, "[A]\npin = so\n"), {}, [])
    (tmp_path / "p.ini").write_text("; a line more\n[A]\npin = so\n[B]\nc = 1\n")
    assert diff(before, reload(before)) == ("B: args changed: --ctx-size 1 added",)


def test_a_model_file_that_is_gone_keeps_no_other_change_back(tmp_path: Path) -> None:
    before = resolve(flags(tmp_path, f"[M]\nmodel = {tmp_path / 'models' / 'A.gguf'}\n"), {}, [])
    (tmp_path / "models" / "A.gguf").unlink()
    with (tmp_path / "p.ini").open("a") as file:
        file.write("[B]\nc = 1\n")
    assert [line.partition(":")[0] for line in diff(before, reload(before))] == ["B", "M"]
