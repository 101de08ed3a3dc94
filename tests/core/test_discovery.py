"""Models found on disk and in presets, made one catalogue."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from llmtop.config.discovery import Catalog, build_catalog, cache_share, recheck
from llmtop.config.spec import ModelSpec, Settings
from llmtop.errors import ConfigError

GOOD = b"GGUF" + bytes(60)


def put(path: Path, data: bytes = GOOD) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return str(path)


def catalog(folder: Path | None, preset: str = "", *, env: dict[str, str] | None = None, **options: object) -> Catalog:
    file = ""
    if preset:
        assert folder is not None
        file = put(folder.parent / "p.ini", preset.encode())
    settings = Settings(models_dir=str(folder or ""), models_preset=file, **options)  # type: ignore[arg-type]
    return build_catalog(settings, None, env=env or {})


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


def test_each_file_is_a_model_and_each_folder_is_one(models: Path) -> None:
    put(models / "b.gguf")
    put(models / "A.GGUF")
    put(models / "vision" / "weights.gguf")
    put(models / "vision" / "mmproj-F16.gguf")
    found = catalog(models).models
    assert list(found) == ["A", "b", "vision"]
    assert found["vision"].source_args == (
        *("-m", str(models / "vision" / "weights.gguf")),
        *("--mmproj", str(models / "vision" / "mmproj-F16.gguf")),
    )
    assert found["vision"].files == found["vision"].source_args[1::2]


def test_shards_are_one_model_loaded_by_its_first(models: Path) -> None:
    for index in (3, 1, 2):
        put(models / "big" / f"x-0000{index}-of-00003.gguf", GOOD * index)
        put(models / f"flat-0000{index}-of-00003.gguf")
    found = catalog(models).models
    assert list(found) == ["big", "flat"]
    assert found["big"].path.endswith("x-00001-of-00003.gguf")
    assert len(found["big"].files) == 3


def test_a_missing_shard_is_the_models_own_problem_until_it_comes(models: Path) -> None:
    put(models / "x-00001-of-00003.gguf")
    put(models / "x-00003-of-00003.gguf")
    put(models / "y.gguf")
    found = catalog(models)
    assert found.models["x"].problem == "2 of 3 shards, without 00002"
    assert not found.models["y"].problem
    assert "2 of 3 shards" in str(found.problems[0])
    put(models / "x-00002-of-00003.gguf")
    again = recheck(found.models["x"])
    assert (again.problem, len(again.files)) == ("", 3)


def test_links_are_kept_as_they_are_named(models: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "blobs"
    for index in (1, 2):
        put(blobs / f"sha{index}")
        (models / "q").mkdir(exist_ok=True)
        (models / "q" / f"q-0000{index}-of-00002.gguf").symlink_to(blobs / f"sha{index}")
    assert catalog(models).models["q"].path == str(models / "q" / "q-00001-of-00002.gguf")


def test_halves_loops_and_broken_links_are_no_models(models: Path) -> None:
    put(models / "x.gguf.part")
    put(models / ".hidden.gguf")
    put(models / "a" / "deep" / "too.gguf")
    (models / "gone.gguf").symlink_to(models / "nowhere")
    (models / "me.gguf").symlink_to(models / "me.gguf")
    (models / "loop").symlink_to(models)
    os.mkfifo(models / "pipe.gguf")
    found = catalog(models)
    assert not found.models
    assert "no models" in found.warnings[0]


def test_a_projector_is_never_listed(models: Path) -> None:
    put(models / "a.gguf")
    put(models / "b.gguf")
    put(models / "mmproj-a.gguf")
    found = catalog(models).models
    assert list(found) == ["a", "b"]
    assert "--mmproj" in found["a"].source_args
    assert "--mmproj" not in found["b"].source_args


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"<html>", "a web page"),
        (LFS, "a Git LFS pointer"),
        (b"abcdef", "61 62 63 64"),
        (b"GG", "47 47"),
        (b"", "empty"),
    ],
)
def test_a_file_that_is_no_gguf_is_told_before_anything_is_evicted_for_it(models: Path, data: bytes, says: str) -> None:
    put(models / "a.gguf", data)
    spec = catalog(models).models["a"]
    assert spec.problem_kind == "bad_file"
    assert "not a GGUF file" in spec.problem
    assert says in spec.problem
    put(models / "a.gguf")
    assert not recheck(spec).problem


def test_a_download_that_aria2_has_not_ended_is_no_model_yet(models: Path) -> None:
    put(models / "a.gguf")
    beside = put(models / "a.gguf.aria2", b"")
    found = catalog(models)
    assert "a.gguf is not whole yet" in found.models["a"].problem
    assert "let the download end" in str(found.problems[0])
    assert recheck(found.models["a"]).problem, "nothing changed"
    os.unlink(beside)
    assert not recheck(found.models["a"]).problem


def test_names_that_are_not_utf8_are_left_out_and_told(models: Path) -> None:
    for name in (b"lat\xe9.gguf", b"dir\xe9/m.gguf", b"good/also\xe9.gguf", b"good/m.gguf"):
        try:
            put(Path(os.fsdecode(os.fsencode(models) + b"/" + name)))
        except OSError:
            pytest.skip("this file system takes no such names")
    found = catalog(models)
    assert list(found.models) == ["good"]
    told = [str(problem) for problem in found.problems]
    assert all("\\xe9" in line and line.endswith("rename it") for line in told)
    assert len(told) == 3
    json.dumps(told).encode("utf-8")


@pytest.mark.parametrize("target", [".", ".."])
def test_a_link_back_to_the_folder_is_no_model(models: Path, target: str) -> None:
    put(models / "a.gguf")
    put(models / "b.gguf")
    (models / "loop").symlink_to(target)
    found = catalog(models)
    assert list(found.models) == ["a", "b"]
    assert not found.problems


def test_a_file_that_goes_is_noticed(models: Path) -> None:
    path = put(models / "a.gguf")
    spec = catalog(models).models["a"]
    Path(path).unlink()
    gone = recheck(spec)
    assert (gone.problem, gone.problem_kind) == (f"model not found: {path}", "not_found")


def test_a_folder_of_several_models_uses_the_one_of_its_name_and_says_so(models: Path) -> None:
    put(models / "m" / "a.gguf")
    put(models / "m" / "m.gguf")
    found = catalog(models)
    assert found.models["m"].path.endswith("m.gguf")
    assert "holds 2 models" in str(found.problems[0])


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--models-dir"):
        catalog(tmp_path / "nope")


def test_a_section_amends_the_model_of_its_name(models: Path) -> None:
    path = put(models / "A.gguf")
    found = catalog(models, "[*]\nctx-size = 512\n[A]\nctx-size = 1024\nalias = q\n", child_args=("--temp", "0"))
    spec = found.models["A"]
    assert (spec.path, spec.source, spec.aliases) == (path, "dir", ("q",))
    assert spec.args == ("--ctx-size", "1024", "--temp", "0")


def test_a_file_that_a_section_loads_is_not_listed_twice(models: Path) -> None:
    path = put(models / "file.gguf")
    assert list(catalog(models, f"[mine]\nmodel = {path}\n").models) == ["mine"]
    kept = catalog(models, f"[*]\ndedup-cache-models = false\n[mine]\nmodel = {path}\n")
    assert list(kept.models) == ["file", "mine"]


def test_a_section_without_a_model_can_be_seen_but_not_loaded(models: Path) -> None:
    put(models / "A.gguf")
    found = catalog(models, "[broken]\nctx-size = 512\n[user/repo:Q9]\n")
    for name in ("broken", "user/repo:Q9"):
        assert found.models[name].problem.startswith("no model")
        assert found.models[name].problem_kind == "bad_argument"
        assert recheck(found.models[name]) == found.models[name]
    assert len(found.problems) == 2


def test_a_local_file_wins_over_a_name_that_looks_like_a_repository(models: Path) -> None:
    path = put(models / "x.gguf")
    spec = catalog(models, f"[user/repo:Q4]\nmodel = {path}\nhf-repo = user/repo\n").models["user/repo:Q4"]
    assert spec.source_args == ("-m", path)


def test_a_download_is_named_to_the_child_and_has_no_file(models: Path) -> None:
    spec = catalog(models, "[d]\nhf-repo = user/repo:Q4\nhf-file = x.gguf\n").models["d"]
    assert spec.source_args == ("--hf-repo", "user/repo:Q4", "--hf-file", "x.gguf")
    assert (spec.path, spec.problem) == ("", "")


@pytest.mark.parametrize(
    ("key", "says"),
    [("mmproj", "mmproj not found: /missing.gguf"), ("model-draft", "model-draft not found: /missing.gguf")],
)
def test_a_missing_companion_file_is_found_beforehand(models: Path, key: str, says: str) -> None:
    path = put(models / "x.gguf")
    spec = catalog(models, f"[m]\nmodel = {path}\n{key} = /missing.gguf\n").models["m"]
    assert (spec.problem, spec.problem_kind) == (says, "not_found")


def test_an_alias_belongs_to_the_first_and_never_hides_a_name(models: Path) -> None:
    for name in "ABC":
        put(models / f"{name}.gguf")
    found = catalog(models, "[A]\nalias = q, C, A\n[B]\nalias = q,r\n")
    assert found.models["A"].aliases == ("q",)
    assert found.models["B"].aliases == ("r",)
    assert len(found.warnings) == 2
    assert "[B] alias q is an alias of [A]" in found.warnings[1]


def test_another_server_gets_no_arguments_of_a_llama_server(models: Path) -> None:
    preset = "[*]\nctx-size = 512\n[mlx]\ncmd = mlx_lm.server --port ${PORT}\nhealth = /v1/models\nstop-cmd = stop it\n"
    spec = catalog(models, preset, child_args=("-ngl", "9")).models["mlx"]
    assert (spec.cmd, spec.health, spec.stop_cmd) == ("mlx_lm.server --port ${PORT}", "/v1/models", "stop it")
    assert spec.args == spec.source_args == ()


def test_a_pin_keeps_sleep_and_idle_unload_away(models: Path) -> None:
    for name in "ABC":
        put(models / f"{name}.gguf")
    found = catalog(models, "[A]\npin = true\n[B]\nsleep-idle-seconds = off\n", sleep_idle_s=60.0, idle_unload_s=300.0)
    assert [(s.sleep_idle_s, s.idle_unload_s) for s in found.models.values()] == [
        (None, None),
        (0.0, 300.0),
        (60.0, 300.0),
    ]


def test_too_many_models_for_the_start_are_refused_with_both_numbers(models: Path) -> None:
    for name in "AB":
        put(models / f"{name}.gguf")
    preset = "[A]\nload-on-startup = true\n[B]\nload-on-startup = true\n"
    with pytest.raises(ConfigError, match=r"^number of models to load on startup \(2\) exceeds models_max \(1\)"):
        catalog(models, preset, models_max=1)
    assert all(spec.load_on_startup for spec in catalog(models, preset, models_max=0).models.values())


def test_pins_that_leave_no_slot_and_sizes_that_never_fit_are_told(models: Path) -> None:
    for name in "AB":
        put(models / f"{name}.gguf")
    preset = "[A]\npin = true\nmemory = 3GiB\n"
    found = catalog(models, preset, models_max=1, budget=str(2 * 2**30))
    assert len(found.warnings) == 2
    assert "refused" in found.warnings[0]
    assert "[A] memory" in found.warnings[1]
    assert not catalog(models, preset, models_max=2, budget=str(3 * 2**30)).warnings


def test_the_hub_cache_is_used_when_no_folder_is_named(tmp_path: Path) -> None:
    repo = tmp_path / "hub" / "models--user--repo"
    put(repo / "blobs" / "sha")
    snapshot = repo / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "m-Q4_K_M.gguf").symlink_to(repo / "blobs" / "sha")
    put(snapshot / "mmproj-F16.gguf")
    put(snapshot / "BF16" / "m-BF16-00001-of-00001.gguf")
    put(snapshot / "mtp-m-Q4_0.gguf")
    put(repo / "snapshots" / "old" / "m-Q2_K.gguf")
    put(repo / "refs" / "main", b"abc")
    found = catalog(None, env={"HF_HOME": str(tmp_path), "HOME": str(tmp_path)}).models
    assert list(found) == ["user/repo:BF16", "user/repo:Q4_K_M"]
    assert found["user/repo:Q4_K_M"].source == "cache"
    assert found["user/repo:Q4_K_M"].path == str(snapshot / "m-Q4_K_M.gguf")
    assert "--mmproj" in found["user/repo:Q4_K_M"].source_args


def test_what_older_builds_downloaded_is_found_too(tmp_path: Path) -> None:
    put(tmp_path / "user_repo_m-Q8_0.gguf")
    manifest = {"ggufFile": {"rfilename": "m-Q8_0.gguf"}, "mmprojFile": None}
    put(tmp_path / "manifest=user=repo=Q8_0.json", json.dumps(manifest).encode())
    put(tmp_path / "manifest=user=other=Q8_0.json", b"not json")
    found = catalog(None, env={"LLAMA_CACHE": str(tmp_path)}).models
    assert list(found) == ["user/repo:Q8_0"]


def test_a_cached_model_that_a_section_names_is_not_listed_twice(tmp_path: Path) -> None:
    for tag in ("Q4_K_M", "Q8_0"):
        put(tmp_path / "hub" / "models--user--repo" / "snapshots" / "abc" / f"m-{tag}.gguf")
    preset = put(tmp_path / "p.ini", b"[mine]\nhf-repo = user/repo:q4_k_m\n")
    settings = Settings(models_preset=preset)
    found = build_catalog(settings, None, env={"HF_HOME": str(tmp_path), "HOME": str(tmp_path)})
    assert list(found.models) == ["user/repo:Q8_0", "mine"]


def test_no_cache_at_all_is_a_line_not_an_error(tmp_path: Path) -> None:
    found = catalog(None, env={"LLAMA_CACHE": str(tmp_path / "no-cache")})
    assert not found.models
    assert str(tmp_path / "no-cache") in found.warnings[0]


def shares(total: int, cap: int, *own: int | None) -> list[int | None]:
    specs = {str(i): ModelSpec(str(i), cache_ram_mib=value) for i, value in enumerate(own)}
    settings = Settings(cache_ram_mib=total, models_max=cap)
    return [cache_share(settings, Catalog(specs), spec) for spec in specs.values()]


def test_the_prompt_cache_is_one_budget() -> None:
    assert shares(15000, 2, None, None) == [7500, 7500]
    assert shares(9000, 0, None, None, None) == [3000, 3000, 3000]
    assert shares(9000, 1, None, None, None) == [9000, 9000, 9000]
    assert shares(9000, 8, None, None, None) == [3000, 3000, 3000]


def test_what_presets_take_for_themselves_comes_off_first_and_never_below_zero() -> None:
    assert shares(9000, 4, 3000, None, None) == [3000, 3000, 3000]
    assert shares(2000, 4, 3000, None) == [3000, 0]
    assert shares(2000, 4, -1, None) == [-1, 2000]


def test_no_cache_stays_none_and_no_limit_is_told(models: Path) -> None:
    assert shares(0, 2, None, 5) == [0, 5]
    assert shares(-1, 2, None) == [-1]
    put(models / "A.gguf")
    assert "no limit" in catalog(models, cache_ram_mib=-1).warnings[0]


def test_another_server_takes_no_part_of_the_prompt_cache() -> None:
    specs = {"a": ModelSpec("a"), "c": ModelSpec("c", cmd="x")}
    settings = Settings(cache_ram_mib=1000, models_max=4)
    assert [cache_share(settings, Catalog(specs), spec) for spec in specs.values()] == [1000, None]
