"""Flags, environment, preset and folder made one configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from llmtop.config.discovery import cache_share
from llmtop.config.resolve import Configuration, reload, resolve
from llmtop.errors import ConfigError, StartError
from llmtop.testing import fake_server

Where = dict[str, str]


@pytest.fixture
def flags(tmp_path: Path) -> dict[str, object]:
    """Options for one model, a preset, and a llama-server that can be asked for its help."""
    models = tmp_path / "models"
    models.mkdir()
    (models / "A.gguf").write_bytes(b"GGUF" + bytes(40))
    (tmp_path / "p.ini").write_text("version = 1\n[*]\nmodels-max = 1\nc = 512\ncram = 700\n")
    server = tmp_path / "llama-server"
    server.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {fake_server.__file__} "$@"\n')
    server.chmod(0o755)
    return {"models_dir": str(models), "models_preset": str(tmp_path / "p.ini"), "llama_server": str(server)}


def warned(configuration: Configuration, text: str) -> bool:
    return any(text in line for line in configuration.settings.warnings)


def test_the_preset_counts_where_nobody_else_speaks(flags: dict[str, object]) -> None:
    settings = resolve(flags, {}, []).settings
    assert (settings.models_max, settings.models_max_source, settings.cache_ram_mib) == (1, "preset", 700)
    settings = resolve(flags, {"LLAMA_ARG_MODELS_MAX": "2"}, ["--cache-ram", "800"]).settings
    assert (settings.models_max, settings.models_max_source, settings.cache_ram_mib) == (2, "env", 800)


def test_what_llmtop_shares_out_never_stands_in_a_childs_arguments(flags: dict[str, object]) -> None:
    configuration = resolve(flags, {}, ["-cram", "800", "-ngl", "9", "--host", "0.0.0.0"])
    spec = configuration.catalog.models["A"]
    assert spec.args == ("--ctx-size", "512", "-ngl", "9")
    assert cache_share(configuration.settings, configuration.catalog, spec) == 800
    assert warned(configuration, "--host after --")


def test_every_fault_reaches_the_warnings_with_its_place(flags: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "models" / "bad.gguf").write_bytes(b"no")
    (tmp_path / "p.ini").write_text("[A]\nnonsense-key = 1\n[B]\nc = 1\n")
    configuration = resolve(flags, {"LLMTOP_MODLES_DIR": "x"}, [])
    for text in ("p.ini:2: [A] nonsense-key", "p.ini:3: [B] no model", "not a GGUF file", "LLMTOP_MODLES_DIR"):
        assert warned(configuration, text), text


def test_a_missing_llama_server_matters_only_where_one_is_needed(flags: dict[str, object], tmp_path: Path) -> None:
    flags["llama_server"] = str(tmp_path / "nowhere")
    with pytest.raises(StartError, match="nowhere"):
        resolve(flags, {}, [])
    configuration = resolve(flags, {}, [], need_server=False)
    assert configuration.server is None
    assert warned(configuration, "nowhere")
    (tmp_path / "models" / "A.gguf").unlink()
    (tmp_path / "p.ini").write_text("[mlx]\ncmd = mlx --port ${PORT}\n")
    configuration = resolve(flags, {}, [])
    assert not configuration.needs_server
    assert not warned(configuration, "nowhere")


def test_a_wrong_option_is_told_before_a_missing_server(flags: dict[str, object], tmp_path: Path) -> None:
    flags |= {"llama_server": str(tmp_path / "nowhere"), "port": "x"}
    with pytest.raises(ConfigError, match="--port"):
        resolve(flags, {}, [])


def test_a_reload_reads_presets_and_folders_again_with_the_options_of_the_start(
    flags: dict[str, object], tmp_path: Path
) -> None:
    first = resolve(flags, {"LLMTOP_PORT": "9001"}, ["-ngl", "9"])
    (tmp_path / "models" / "B.gguf").write_bytes(b"GGUF" + bytes(40))
    (tmp_path / "p.ini").write_text("[A]\nc = 64\n")
    again = reload(first)
    assert list(again.catalog.models) == ["A", "B"]
    assert again.catalog.models["A"].args == ("--ctx-size", "64", "-ngl", "9")
    assert (again.settings.port, again.settings.models_max) == (9001, 4)


def test_a_reload_that_cannot_be_read_says_so_and_leaves_the_old_one_alone(
    flags: dict[str, object], tmp_path: Path
) -> None:
    first = resolve(flags, {}, [])
    (tmp_path / "p.ini").write_text("[*]\nmodels-max = x\n")
    with pytest.raises(ConfigError, match=r"p\.ini:2"):
        reload(first)
    assert first.settings.models_max == 1


def test_no_secret_is_in_the_words_for_a_configuration(flags: dict[str, object]) -> None:
    assert "s3cret" not in repr(resolve(flags | {"api_key": ["s3cret"]}, {"LLAMA_API_KEY": "s3cret"}, []))
