"""llama.cpp's preset files, read as they stand."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from llmtop.config.ini import parse_ini
from llmtop.config.keys import Option, to_arg
from llmtop.config.preset import Presets, as_args, interpret, merge, split_child_args, star_settings
from llmtop.errors import ConfigError


@dataclass(frozen=True)
class Known:
    """An option of a llama-server in a test."""

    names: tuple[str, ...]
    takes_value: bool = True
    env: str = ""


@dataclass(frozen=True)
class Table:
    """The options of a llama-server in a test."""

    options: tuple[Known, ...]

    def lookup(self, key: str) -> Option | None:
        bare = key.lstrip("-")
        return next((o for o in self.options if key == o.env or any(bare == n.lstrip("-") for n in o.names)), None)

    def spellings(self) -> Iterable[str]:
        return [name for option in self.options for name in option.names]


TABLE = Table(
    (
        Known(("-c", "--ctx-size"), env="LLAMA_ARG_CTX_SIZE"),
        Known(("-ngl", "--gpu-layers", "--n-gpu-layers"), env="LLAMA_ARG_N_GPU_LAYERS"),
        Known(("--mmap", "--no-mmap"), takes_value=False, env="LLAMA_ARG_MMAP"),
        Known(("-kvo", "--kv-offload", "-nkvo", "--no-kv-offload"), takes_value=False),
        Known(("--no-host",), takes_value=False),
        Known(("--metrics",), takes_value=False),
        Known(("--samplers",)),
        Known(("--chat-template-kwargs",)),
        Known(("-np", "--parallel")),
        Known(("--tools",)),
        Known(("-md", "--model-draft")),
    )
)


def read(text: str, table: Table | None = TABLE) -> Presets:
    sections, problems = parse_ini(text, "p.ini")
    return interpret("p.ini", sections, table, problems)


def argv(text: str, table: Table | None = TABLE) -> tuple[str, ...]:
    return merge(read(text, table).drafts["A"].args)


def test_values_reach_the_child_byte_for_byte() -> None:
    text = (
        "\ufeffversion = 1\r\n[A]\r\nsamplers = top_k;top_p;temperature\r\n"
        'chat-template-kwargs={"a": "b;c", "d": "\\\\#=\'x\'"}\r\n; no\r\n# no\r\nmodel = /m/a b/x#1.gguf\r\n'
    ).removeprefix("\ufeff")
    draft = read(text).drafts["A"]
    assert merge(draft.args) == (
        "--samplers",
        "top_k;top_p;temperature",
        "--chat-template-kwargs",
        '{"a": "b;c", "d": "\\\\#=\'x\'"}',
    )
    assert draft.sources == {"model": "/m/a b/x#1.gguf"}


@pytest.mark.parametrize("key", ["n-gpu-layers", "ngl", "LLAMA_ARG_N_GPU_LAYERS", "gpu-layers", "--n-gpu-layers"])
def test_every_form_of_a_key_is_the_same_argument(key: str) -> None:
    assert argv(f"[A]\n{key} = 99\n") == ("--n-gpu-layers", "99")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("mmap = true", ("--mmap",)),
        ("mmap = off", ("--no-mmap",)),
        ("no-mmap = true", ("--no-mmap",)),
        ("no-mmap = false", ("--mmap",)),
        ("LLAMA_ARG_NO_MMAP = 1", ("--no-mmap",)),
        ("LLAMA_ARG_MMAP = 0", ("--no-mmap",)),
        ("nkvo = true", ("--no-kv-offload",)),
        ("kvo = false", ("--no-kv-offload",)),
        ("no-host = true", ("--no-host",)),
        ("no-host = false", ()),
        ("metrics = false", ()),
        ("metrics = ", ("--metrics",)),
    ],
)
def test_flags_take_yes_no_and_their_opposite(line: str, expected: tuple[str, ...]) -> None:
    assert argv(f"[A]\n{line}\n") == expected


def test_a_flag_with_another_value_is_left_out_and_told() -> None:
    presets = read("[A]\nmmap = 17\n")
    assert presets.drafts["A"].args == []
    assert "p.ini:2" in presets.warnings[0]


def test_without_a_table_the_shape_of_a_key_decides() -> None:
    text = "[A]\nctx-size = 512\nngl = 9\nflash-attn = on\njinja = true\nmmap = false\n"
    assert argv(text, None) == ("--ctx-size", "512", "-ngl", "9", "--flash-attn", "on", "--jinja", "--no-mmap")
    assert read("[A]\nLLAMA_ARG_CTX_SIZE = 5\n", None).drafts["A"].env == [("LLAMA_ARG_CTX_SIZE", "5")]


def test_keys_above_the_first_section_and_default_are_no_models() -> None:
    presets = read("version = 1\nc = 3\n[*]\nc = 512\n[default]\nc = 4\n[A]\nc = 5\n")
    assert list(presets.drafts) == ["A"]
    assert merge(presets.star.args) == ("--ctx-size", "512")


def test_the_command_line_beats_the_section_beats_star() -> None:
    presets = read("[*]\nc = 512\nparallel = 1\n[A]\nparallel = 2\nngl = 1\n")
    after = as_args(["-ngl", "99", "--lora", "a", "--lora", "b", "--temp", "-0.5"], TABLE)
    assert merge(presets.star.args, presets.drafts["A"].args, after) == (
        *("--ctx-size", "512", "--parallel", "2"),
        *("-ngl", "99", "--lora", "a", "--lora", "b", "--temp", "-0.5"),
    )


def test_what_llmtop_owns_is_left_out_with_a_line() -> None:
    section = "[A]\nhost = 0.0.0.0\nport = 9000\napi-key = S3CRET\nssl-key-file = k\nLLAMA_ARG_PORT = 1\n"
    text = section + "[*]\nmodel = x\nalias = y\n"
    presets = read(text)
    assert presets.drafts["A"].args == presets.star.args == []
    assert len(presets.warnings) == 7
    assert "S3CRET" not in "".join(presets.warnings)


def test_what_opens_files_or_a_shell_is_passed_on_and_told() -> None:
    presets = read("[A]\ntools = all\n")
    assert merge(presets.drafts["A"].args) == ("--tools", "all")
    assert "files and commands" in presets.warnings[0]


def test_llmtops_own_keys_are_read_and_not_passed_on() -> None:
    text = (
        "[A]\npin = true\nmemory = 12GiB\nidle-unload = 5m\nevict-on-sleep = on\non-client-abort = drain\n"
        "stop-timeout = 3\nload-on-startup = 1\ncache-ram = 100\nsleep-idle-seconds = 60\nenv = A=1 B='x y'\n"
        "alias = q, r,s\n"
    )
    draft = read(text).drafts["A"]
    assert draft.args == []
    assert draft.aliases == ["q", "r", "s"]
    assert draft.own == {
        "pin": True,
        "memory": 12 * 2**30,
        "idle-unload": 300.0,
        "evict-on-sleep": True,
        "on-client-abort": "drain",
        "stop-timeout": 3.0,
        "load-on-startup": True,
        "cache-ram": 100,
        "sleep-idle-seconds": 60.0,
        "env": (("A", "1"), ("B", "x y")),
    }


@pytest.mark.parametrize(
    "line",
    ["memory = lots", "pin = perhaps", "on-client-abort = shrug", "cmd = 'open", "env = 1", "health = x", "model ="],
)
def test_a_bad_value_takes_its_own_model_down_and_no_other(line: str) -> None:
    presets = read(f"[A]\n{line}\n[B]\nmodel = b.gguf\n")
    assert presets.drafts["A"].problem
    assert not presets.drafts["B"].problem
    assert presets.problems[0].line == 2


def test_all_faults_are_told_at_once_with_their_lines() -> None:
    presets = read("version = 2\n[A]\njunk\nmemory = x\n[B\nc = 1\n[C]\nmemory = y\n")
    assert [problem.line for problem in presets.problems] == [1, 3, 5, 4, 8]
    assert "C" in presets.drafts


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("ctx_sise", "ctx-size"),
        ("n-gpu-layer", "n-gpu-layers"),
        ("--paralel", "parallel"),
        ("memroy", "memory"),
        ("zzz", ""),
    ],
)
def test_a_key_that_is_misspelt_is_told_with_the_one_that_was_meant(key: str, meant: str) -> None:
    said = read(f"[A]\n{key} = 5\n").warnings
    question = f" (did you mean {meant}?)" if meant else ""
    assert said == [f"p.ini:2: [A] {key} is no option of this llama-server{question}; left out"]


def test_an_unknown_key_is_left_out_with_file_and_line() -> None:
    presets = read("[A]\nmax-tokns = 5\nc = 1\n")
    assert merge(presets.drafts["A"].args) == ("--ctx-size", "1")
    assert presets.warnings == ["p.ini:2: [A] max-tokns is no option of this llama-server; left out"]


def test_a_token_goes_to_the_environment_and_never_to_the_command_line() -> None:
    draft = read("[A]\nhf-token = hf_x\n").drafts["A"]
    assert (draft.args, draft.env) == ([], [("HF_TOKEN", "hf_x")])


def test_a_variable_that_cannot_be_read_does_not_show_its_value() -> None:
    presets = read("[A]\nenv = TOKEN s3cret\n")
    assert "s3cret" not in f"{presets.problems} {presets.drafts['A'].problem}"


def test_star_sets_llmtops_options_and_a_cap_in_a_section_is_told() -> None:
    sections, _ = parse_ini("[*]\nmodels-max = 1\ncram = 500\nsleep-idle-seconds = 9\n[A]\nmodels-max = 3\n")
    said = star_settings("p.ini", sections)
    assert {name: s.value for name, s in said.items()} == {"models_max": 1, "cache_ram": 500, "sleep_idle_seconds": 9.0}
    assert said["models_max"].where == "p.ini:2"
    assert "put it into [*]" in interpret("p.ini", sections, TABLE).warnings[0]


def test_a_cap_in_star_that_cannot_be_read_is_refused_not_replaced_by_the_default() -> None:
    sections, _ = parse_ini("[*]\nmodels-max = one\n")
    with pytest.raises(ConfigError, match=r"p\.ini:2"):
        star_settings("p.ini", sections)


def test_words_after_the_dashes_pass_untouched_but_for_what_llmtop_decides() -> None:
    words = [
        "-ngl",
        "99",
        "--cache-ram",
        "500",
        "--host",
        "0.0.0.0",
        "--x=y",
        "--sleep-idle-seconds=60",
        "--models-max",
        "2",
    ]
    child = split_child_args(words)
    assert child.args == ["-ngl", "99", "--x=y"]
    assert {name: said.value for name, said in child.said.items()} == {"cache_ram": 500, "sleep_idle_seconds": 60.0}
    assert len(child.warnings) == 2


def test_an_option_the_binary_does_not_know_is_an_error_with_a_table() -> None:
    with pytest.raises(ValueError, match="no option"):
        to_arg("nonsense", "1", TABLE)
