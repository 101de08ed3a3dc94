"""A configuration of llama-swap made a preset: what carries over, and that nothing is lost without a word."""

from __future__ import annotations

import stat
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from llmtop.cli.app import main
from llmtop.config.examine import examine
from llmtop.config.ini import parse_ini
from llmtop.errors import ConfigError
from llmtop.neighbours.llama_swap import Converted, convert, read_yaml
from llmtop.neighbours.no_equivalent import OF_ALL, OF_MODEL
from llmtop.testing.models import server_command, write_model

ENV = {"MODELS": "/m"}


def converted(text: str) -> Converted:
    return convert(yaml.safe_load(text), ENV)


def section(made: Converted, name: str) -> dict[str, str]:
    sections, problems = parse_ini(made.text)
    assert not problems
    return {entry.key: entry.value for found in sections if found.name == name for entry in found.entries}


def one(settings: str, head: str = "") -> tuple[dict[str, str], Converted]:
    """The section of a single model ``m``."""
    made = converted(f"{head}\nmodels:\n  m:\n" + "".join(f"    {line}\n" for line in settings.strip().splitlines()))
    return section(made, "m"), made


def test_a_llama_server_becomes_keys_and_keeps_its_values_byte_for_byte() -> None:
    keys, _ = one(
        """
cmd: |
  # a comment
  llama-server --port ${PORT} --host 0.0.0.0 --alias x \\
    -m "/m/a b#1.gguf" -ngl 99 --ctx-size=4096 --jinja --no-mmap --temp -1
  --samplers "top_k;top_p" --chat-template-kwargs '{"a": "b c"}' --rpc host:1
"""
    )
    assert keys == {
        "model": "/m/a b#1.gguf",
        "ngl": "99",
        "ctx-size": "4096",
        "jinja": "true",
        "no-mmap": "true",
        "temp": "-1",
        "samplers": "top_k;top_p",
        "chat-template-kwargs": '{"a": "b c"}',
        "--rpc": "host:1",
    }


def test_macros_of_file_model_environment_and_one_in_another_are_filled_in() -> None:
    head = 'macros: {ctx: 4096, args: "--ctx-size ${ctx} --jinja", run: "llama-server --port ${PORT}", fast: true}'
    keys, made = one(
        "macros: {ctx: 16384}\ncmd: ${run} -m ${env.MODELS}/${MODEL_ID}.gguf ${args} --flash-attn ${fast}", head
    )
    assert keys == {"model": "/m/m.gguf", "ctx-size": "16384", "jinja": "true", "flash-attn": "true"}
    assert not made.notes


def test_a_macro_that_nothing_defines_or_that_holds_itself_is_told() -> None:
    _, made = one("cmd: mlx ${nope} ${a} --port ${PORT}", 'macros: {a: "x ${a}"}')
    assert "model m: ${nope} is not defined" in made.notes
    assert any("contains itself" in note for note in made.notes)


def test_what_else_a_model_says_has_its_keys() -> None:
    keys, made = one(
        """
cmd: mlx_lm.server --port ${PORT} --name 'a b'
aliases: [x, {id: y, unlisted: true}]
ttl: 90
env: ["A=1", "B=two words"]
checkEndpoint: /ready
cmdStop: docker stop ${MODEL_ID} ${PID}
"""
    )
    assert keys == {
        "cmd": "mlx_lm.server --port ${PORT} --name 'a b'",
        "alias": "x,y",
        "idle-unload": "90",
        "env": "A=1 'B=two words'",
        "health": "/ready",
        "stop-cmd": "docker stop m ${PID}",
    }
    assert not made.notes


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ("cmd: llama-server -m x --lora a --lora b", "--lora comes more than once"),
        ("cmd: llama-server -m x stray", "stray"),
        ("cmd: llama-server -m x --api-key k", "--api-key is llmtop's to set"),
        ("cmd: 'x \"'", "cannot be split into words"),
        ("cmd: x", "does not contain ${PORT}"),
        ("cmd: x ${PORT}\nproxy: http://10.0.0.1:5", "only at a port of this machine"),
        ("cmd: x ${PORT}\nproxy: http://localhost:${PORT}/deep", "not to /deep"),
        ("cmd: x ${PORT}\ncheckEndpoint: none", "checkEndpoint: none"),
        ("cmd: x ${PORT}\nunlisted: true", "unlisted"),
        ("cmd: x ${PORT}\nuseModelName: y", "useModelName"),
        ("cmd: x ${PORT}\naliases: ['a,b']", "a,b"),
        ("cmd: x ${PORT}\nfilters: {stripParams: a, setParams: {b: 1}}", "filters.stripParams"),
        ("cmd: x ${PORT}\nnew: 1", "new: not known here"),
        ("ttl: 1", "it has no cmd"),
    ],
)
def test_what_has_no_equivalent_is_a_comment_in_its_section_and_a_note(settings: str, says: str) -> None:
    _, made = one(settings)
    note = next(note for note in made.notes if says in note)
    assert note.startswith("model m: ")
    assert f"; {note.removeprefix('model m: ')}" in made.text.partition("[m]")[2].splitlines()


def test_a_fixed_port_becomes_the_one_that_llmtop_gives() -> None:
    keys, made = one("cmd: vllm serve x --port 9999 --size 99990\nproxy: http://127.0.0.1:9999")
    assert keys == {"cmd": "vllm serve x --port ${PORT} --size 99990"}
    assert not made.notes


def test_the_llama_server_that_most_have_is_the_one_to_start_with() -> None:
    text = "models:\n"
    text += "".join(
        f"  {n}: {{cmd: '{p}/llama-server --port ${{PORT}} -m {n}'}}\n"
        for n, p in zip("abc", ["/x", "/y", "/y"], strict=True)
    )
    made = converted(text)
    assert section(made, "b") == {"model": "b"}
    assert section(made, "a") == {"cmd": "/x/llama-server --port ${PORT} -m a"}
    assert "start llmtop with --llama-server /y/llama-server" in made.notes


@pytest.mark.parametrize(
    ("groups", "cap"),
    [
        ("", "1"),
        ("groups: {g: {members: [a, b]}}", "1"),
        ("groups: {g: {swap: false, members: [a, b]}}", "2"),
        ("groups: {g: {swap: false, exclusive: false, members: [a, b]}, h: {exclusive: false, members: [c]}}", "3"),
        ("groups: {g: {swap: false, persistent: true, exclusive: false, members: [a]}, h: {members: [b, c]}}", "2"),
        ("matrix: {sets: {x: a & b}}", "1"),
    ],
)
def test_groups_become_a_cap(groups: str, cap: str) -> None:
    made = converted(
        f"{groups}\nmodels: {{a: {{cmd: 'x ${{PORT}}'}}, b: {{cmd: 'x ${{PORT}}'}}, c: {{cmd: 'x ${{PORT}}'}}}}"
    )
    assert section(made, "*")["models-max"] == cap
    assert bool(groups) == any(note.startswith(("groups:", "matrix:")) for note in made.notes)


def test_persistent_members_are_pinned_and_preloaded_ones_loaded_at_the_start() -> None:
    made = converted(
        "groups: {g: {persistent: true, members: [a]}}\nhooks: {on_startup: {preload: [b, z]}}\n"
        "models: {a: {cmd: 'x ${PORT}'}, b: {cmd: 'x ${PORT}'}}"
    )
    assert section(made, "a")["pin"] == "true"
    assert section(made, "b")["load-on-startup"] == "true"
    assert "hooks: preload names z, which is no model" in made.notes


def test_a_common_ttl_holds_for_all_but_those_that_say_never() -> None:
    made = converted("globalTTL: 60\nmodels: {a: {cmd: 'x ${PORT}', ttl: 0}, b: {cmd: 'x ${PORT}', ttl: -1}}")
    assert section(made, "*")["idle-unload"] == "60"
    assert section(made, "a")["idle-unload"] == "off"
    assert "idle-unload" not in section(made, "b")


def test_every_key_that_is_known_to_have_no_equivalent_says_what_to_do() -> None:
    config: dict[str, Any] = dict.fromkeys(OF_ALL, 1) | {
        "models": {"m": {"cmd": "x ${PORT}"} | dict.fromkeys(OF_MODEL, 1) | {"filters": {"a": 1}}}
    }
    notes = "\n".join(convert(config, ENV).notes)
    assert all(f"{key}: " in notes for key in OF_ALL)
    assert all(f"model m: {key}" in notes for key in OF_MODEL)


def test_no_key_is_written_and_no_name_can_add_a_line() -> None:
    config = {
        "apiKeys": ["sk-hunter2"],
        "models": {"a\n[b]": {"cmd": "x"}, "*": {"cmd": "x"}, "m": {"cmd": "x", "n\nm = 1": 2}},
    }
    made = convert(config, ENV)
    assert "sk-hunter2" not in made.text + "\n".join(made.notes)
    assert [found.name for found in parse_ini(made.text)[0]] == ["*", "m"]
    assert section(made, "m") == {"cmd": "x"}
    assert len([note for note in made.notes if "no section can have that name" in note]) == 2


@pytest.mark.parametrize(
    ("word", "open_"),
    [
        ("${PORT}:8080", True),
        ("-p${PORT}:8080", True),
        ("--publish=${PORT}:80/tcp", True),
        ("127.0.0.1:${PORT}:80", False),
    ],
)
def test_a_container_whose_port_others_reach_is_told(word: str, open_: bool) -> None:
    made = convert({"models": {"A": {"cmd": f"docker run -p {word} image"}}}, ENV)
    assert any("open to other machines" in note for note in made.notes) == open_


@pytest.mark.parametrize(
    "text",
    [
        "models: &m\n  a: *m\n",
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in pairwise("abcdefgh"))
        + "models:\n  m: {cmd: *h}\n",
    ],
)
def test_references_that_unfold_without_end_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(text)
    with pytest.raises(ConfigError, match="larger than any configuration"):
        read_yaml(str(tmp_path / "c.yaml"))


def test_macros_that_hold_themselves_are_told_and_left_as_they_are() -> None:
    made = convert(
        {"macros": {"a": "${a}${a}${a}", "b": "${c}", "c": "${b}"}, "models": {"A": {"cmd": "x ${a} ${b}"}}}, ENV
    )
    assert "cmd = x ${a} ${b}\n" in made.text
    assert any("contains itself" in note for note in made.notes)


def test_a_stop_command_that_cannot_be_split_is_told() -> None:
    made = convert({"models": {"A": {"cmd": "x ${PORT}", "cmdStop": "docker 'stop"}}}, ENV)
    assert "stop-cmd" not in made.text
    assert any("cmdStop cannot be split into words" in note for note in made.notes)


@pytest.mark.parametrize(("ttl", "said"), [(1_000_000, "1000000"), (90, "90"), (float("inf"), ""), (float("nan"), "")])
def test_a_ttl_of_any_length_can_be_read_again(ttl: float, said: str) -> None:
    made = convert({"globalTTL": ttl, "models": {"A": {"cmd": "x ${PORT}", "ttl": ttl}}}, ENV)
    assert made.text.count(f"idle-unload = {said}\n") == (2 if said else 0)
    assert "inf" not in made.text


def test_a_model_in_no_group_has_room_beside_the_persistent_ones() -> None:
    keep = {"keep": {"persistent": True, "swap": False, "members": ["A"]}}
    made = convert({"models": {"A": {"cmd": "sh"}, "B": {"cmd": "sh"}}, "groups": keep}, ENV)
    assert "models-max = 2\n" in made.text
    made = convert({"models": {"A": {"cmd": "sh"}}, "groups": keep}, ENV)
    assert "models-max = 1\n" in made.text


def test_the_preset_can_be_read_and_means_the_same(tmp_path: Path) -> None:
    write_model(tmp_path / "m", "a b")
    server = server_command(tmp_path / "bin")
    config = {
        "models": {
            "A:1": {"cmd": f"{server} --port ${{PORT}} -m '{tmp_path}/m/a b.gguf' -c 512 --no-mmap -fa on", "ttl": 30},
            "B": {"cmd": "sh --port ${PORT}", "env": ["K=v w"], "aliases": ["b"]},
        }
    }
    (tmp_path / "p.ini").write_text(convert(config, ENV).text)
    flags = {"models_preset": str(tmp_path / "p.ini"), "llama_server": str(server), "models_dir": str(tmp_path / "bin")}
    made, faults = examine(flags, {}, [])
    assert not faults
    assert made.settings.models_max == 1
    a, b = made.catalog.models["A:1"], made.catalog.models["B"]
    assert a.source_args == ("-m", f"{tmp_path}/m/a b.gguf")
    assert a.args == ("--ctx-size", "512", "--no-mmap", "--flash-attn", "on")
    assert a.idle_unload_s == 30
    assert (b.cmd, b.env, b.aliases) == ("sh --port ${PORT}", (("K", "v w"),), ("b",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("models: [", ":1: no YAML"),
        ("a: 1", "holds no models"),
        ("- 1", "holds no models"),
        ("models: 3", "holds no models"),
    ],
)
def test_a_file_that_is_none_is_told_in_a_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        read_yaml(str(path))
    assert "\n" not in str(error.value)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_yaml(str(tmp_path / "none"))


def test_the_command_writes_only_what_is_not_there_and_tells_every_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = tmp_path / "c.yaml", tmp_path / "p.ini"
    source.write_text("logLevel: info\nmodels: {m: {cmd: 'x ${PORT}', env: ['T=secret']}}")
    assert main(["import", "llama-swap", str(source)]) == 0
    said = capsys.readouterr()
    assert "[m]" in said.out
    assert said.err.startswith("llmtop: logLevel: ")
    assert main(["import", "llama-swap", str(source), "-o", str(output)]) == 0
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    assert output.read_text() == said.out
    assert main(["import", "llama-swap", str(source), "-o", str(output)]) == 2
    assert main(["import", "llama-swap", str(source), "-o", str(output), "--force"]) == 0
    assert main(["import", "ollama", str(source)]) == 2
