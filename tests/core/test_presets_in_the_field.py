"""What people have met with presets and models folders, a rule each."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import product
from pathlib import Path
from urllib.parse import quote

import pytest

from llmtop.config.discovery import recheck
from llmtop.config.resolve import Configuration, resolve
from llmtop.config.spec import ModelSpec
from llmtop.testing.fake_model import HELP
from llmtop.testing.models import write_model
from llmtop.testing.rig import rig

Made = Callable[..., Configuration]
MORE_HELP = """
--samplers SAMPLERS                     samplers, in their order, with ';' between
--chat-template-kwargs STRING           a JSON object
-np,   --parallel N                     slots
                                        (env: LLAMA_ARG_N_PARALLEL)
"""


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Resolves a preset beside a folder with the models A and B; values may name the folder as ``@``."""
    server = tmp_path / "llama-server"
    server.write_text(f"#!/bin/sh\ncat <<'END'\n{HELP}\n{MORE_HELP}END\n")
    server.chmod(0o755)
    for name in "AB":
        write_model(tmp_path / "models", name)

    def resolved(preset: str | bytes, *child_args: str, **flags: object) -> Configuration:
        text = preset if isinstance(preset, bytes) else preset.encode()
        (tmp_path / "p.ini").write_bytes(text.replace(b"@", os.fsencode(tmp_path / "models")))
        given = {"models_dir": str(tmp_path / "models"), "models_preset": str(tmp_path / "p.ini")} | flags
        return resolve({**given, "llama_server": str(server)}, {}, child_args)

    return resolved


def model(configuration: Configuration, name: str) -> ModelSpec:
    return configuration.catalog.models[name]


def value_of(spec: ModelSpec, option: str) -> str:
    words = (*spec.source_args, *spec.args)
    return words[words.index(option) + 1]


@pytest.mark.parametrize("name", ["broken-model", "user/repo:quant"])
def test_a_section_without_a_model_is_listed_and_can_never_be_spawned(made: Made, name: str) -> None:
    found = made(f"[{name}]\nctx-size = 512\n")
    assert model(found, name).problem.startswith("no model, hf-repo or cmd")
    assert model(found, name).problem_kind == "bad_argument"
    assert not model(found, name).source_args
    assert [p.line for p in found.catalog.problems] == [1]
    assert not model(found, "A").problem, "it takes no other down"


def test_an_alias_said_twice_stays_with_the_first_and_both_sections_are_named(made: Made) -> None:
    found = made("[A]\nalias = qwen,qwen-36, qwen3.6\n[B]\nalias = qwen, b2, A\n")
    assert model(found, "A").aliases == ("qwen", "qwen-36", "qwen3.6")
    assert model(found, "B").aliases == ("b2",)
    said = [line for line in found.settings.warnings if "alias" in line]
    assert any("[B]" in line and "[A]" in line and "qwen" in line for line in said)
    assert any("[B] alias A is a model's own name" in line for line in said)
    assert not found.catalog.problems, "it is no reason not to start"


def test_star_default_and_keys_above_any_section_are_no_models(made: Made) -> None:
    found = made("version = 1\nc = 1\n[*]\nc = 2\n[default]\nc = 3\n[A]\n[B]\n")
    assert list(found.catalog.models) == ["A", "B"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("samplers", "top_k;top_p;temperature"),
        ("chat-template-kwargs", '{"a": "b;c"}'),
        ("chat-template-kwargs", "a#b = c \\n 'd' \"e\" \\"),
        ("mmproj", "@/a b/x#1.gguf"),
    ],
)
def test_a_value_reaches_the_child_byte_for_byte(made: Made, tmp_path: Path, key: str, value: str) -> None:
    for bom, ends, equals in product(("", "\ufeff"), ("\n", "\r\n"), (" = ", "=", "\t=  ")):
        lines = ["; a comment", "# another", "[A]", f"{key}{equals}{value}", ""]
        spec = model(made((bom + ends.join(lines)).encode()), "A")
        assert value_of(spec, f"--{key}") == value.replace("@", str(tmp_path / "models")), (bom, ends, equals)


@pytest.mark.parametrize(
    "line", ["model = /x\0y", "mmproj = \0", "cmd = a\0b", "env = A=\0", "chat\0 = x", "alias = \0"]
)
def test_a_nul_byte_takes_its_line_down_and_nothing_else(made: Made, line: str) -> None:
    found = made(f"[A]\nc = 512\n{line}\n[B\0]\nc = 1\n[B]\nc = 256\n")
    assert [p.line for p in found.catalog.problems] == [3, 4]
    assert all("NUL" in p.text and p.remedy for p in found.catalog.problems)
    assert [value_of(model(found, name), "--ctx-size") for name in "AB"] == ["512", "256"]


def test_a_path_with_blanks_and_signs_of_comments_is_the_models_file(made: Made, tmp_path: Path) -> None:
    write_model(tmp_path / "models" / "a b", "x#1;2")
    spec = model(made("[M]\nmodel = @/a b/x#1;2.gguf\n"), "M")
    assert spec.path == str(tmp_path / "models" / "a b" / "x#1;2.gguf")
    assert not spec.problem


def test_a_file_wins_over_a_name_that_looks_like_a_repository(made: Made, tmp_path: Path) -> None:
    name = "unsloth/gemma-4-31B-it-GGUF:Q4_K_XL"
    spec = model(made(f"[{name}]\nmodel = @/A.gguf\nhf-repo = {name}\n"), name)
    assert spec.source_args == ("-m", str(tmp_path / "models" / "A.gguf"))


def test_a_missing_projector_is_found_before_anything_is_evicted_and_again_when_it_comes(
    made: Made, tmp_path: Path
) -> None:
    missing = tmp_path / "models" / "mmproj-late.gguf"
    spec = model(made(f"[A]\nmmproj = {missing}\n"), "A")
    assert (spec.problem, spec.problem_kind) == (f"mmproj not found: {missing}", "not_found")
    missing.write_bytes(b"GGUF" + bytes(40))
    assert not recheck(spec).problem
    missing.unlink()
    assert recheck(recheck(spec)).problem


def test_what_star_says_is_what_the_child_gets_unless_the_section_or_the_command_line_says_otherwise(
    made: Made,
) -> None:
    preset = "[*]\nparallel = 1\nc = 512\n[A]\nparallel = 2\n"
    found = made(preset)
    assert (value_of(model(found, "A"), "--parallel"), value_of(model(found, "B"), "--parallel")) == ("2", "1")
    assert value_of(model(found, "A"), "--ctx-size") == "512"
    assert [value_of(model(made(preset, "-np", "3"), name), "-np") for name in "AB"] == ["3", "3"]
    assert found.catalog.origins["A"] == {"[*]": ("--ctx-size", "512"), "[A]": ("--parallel", "2")}
    assert found.catalog.origins["B"] == {"[*]": ("--parallel", "1", "--ctx-size", "512")}
    assert made(preset, "-np", "3").catalog.origins["A"] == {"[*]": ("--ctx-size", "512"), "--": ("-np", "3")}


def test_a_cap_that_stands_in_star_holds(made: Made) -> None:
    found = made("[*]\nmodels-max = 1\n[A]\n")
    assert (found.settings.models_max, found.settings.models_max_source) == (1, "preset")
    assert "models-max" not in " ".join(model(found, "A").args)


def test_shards_are_one_model_named_by_its_first_however_large_and_linked(made: Made, tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "models"
    parts: list[Path] = []
    for index, size in ((1, 4096), (2, 8192), (3, 65536)):
        blob = write_model(blobs, f"sha{index}", size=size)
        parts.append(folder / f"X-0000{index}-of-00003.gguf")
        parts[-1].symlink_to(blob)
    found = made("")
    assert sorted(found.catalog.models) == ["A", "B", "X"]
    assert model(found, "X").path == str(parts[0]), "links are not followed: shards are found by their names"
    assert model(found, "X").files == tuple(map(str, parts))
    parts[1].unlink()
    assert model(made(""), "X").problem == "2 of 3 shards, without 00002"


def test_projectors_half_downloads_broken_links_and_loops_are_no_models(made: Made, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    write_model(folder / "vision", "V")
    write_model(folder / "vision", "mmproj-F16")
    (folder / "half.gguf.part").write_bytes(b"GGUF")
    (folder / "gone.gguf").symlink_to(folder / "nowhere.gguf")
    (folder / "loop").symlink_to(folder)
    (folder / "deep").mkdir()
    (folder / "deep" / "er").mkdir()
    found = made("")
    assert set(found.catalog.models) == {"A", "B", "vision"}
    assert value_of(model(found, "vision"), "--mmproj") == str(folder / "vision" / "mmproj-F16.gguf")


@pytest.mark.parametrize("link", [False, True])
def test_a_file_that_a_section_loads_is_listed_once_under_the_sections_name(
    made: Made, tmp_path: Path, link: bool
) -> None:
    path = tmp_path / "models" / "A.gguf"
    if link:
        (tmp_path / "way").symlink_to(path)
        path = tmp_path / "way"
    found = made(f"[qwen-27b]\nmodel = {path}\nc = 8192\n")
    assert sorted(found.catalog.models) == ["B", "qwen-27b"]
    assert sorted(made(f"[*]\ndedup-cache-models = false\n[q]\nmodel = {path}\n").catalog.models) == ["A", "B", "q"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_cannot_be_loaded_is_refused_and_pushes_nothing_out_and_any_name_works_in_a_url(
    tmp_path: Path,
) -> None:
    write_model(tmp_path / "models", "A", load_ms=50)
    name, file = "user/repo-GGUF:Q4_K_XL", write_model(tmp_path / "elsewhere", "x", load_ms=50)
    preset = tmp_path / "p.ini"
    preset.write_text(f"[broken]\nc = 1\n[blind]\nmodel = {file}\nmmproj = /missing.gguf\n[{name}]\nmodel = {file}\n")
    async with rig(tmp_path, None, "--models-preset", str(preset), "--models-max", "1") as r, r.client() as c:
        assert (await r.ask(c, "A")).status_code == 200
        pid = (await r.model("A"))["pid"]
        for wrong, says in (("broken", "no model, hf-repo or cmd"), ("blind", "mmproj not found: /missing.gguf")):
            for answer in (await r.ask(c, wrong), await r.say(c, "/models/load", model=wrong)):
                assert answer.status_code >= 400
                assert says in answer.json()["error"]["message"]
        assert (await r.model("A"))["pid"] == pid
        quoted = quote(name, safe="")
        assert (await r.say(c, f"/api/models/{quoted}/load")).status_code == 200
        await r.until_state(name, "loaded")
        assert (await c.get(f"/v1/models/{quoted}")).json()["id"] == name
        assert (await r.ask(c, name)).status_code == 200
