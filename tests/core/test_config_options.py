"""Which of flag, environment and preset wins, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from llmtop.config.options import Said, settle
from llmtop.config.rows import ROWS, UNLIMITED
from llmtop.config.spec import Settings
from llmtop.errors import ConfigError

STAR = {"models_max": Said(1, "preset", "p.ini:3")}


def test_a_flag_beats_the_environment_beats_the_preset_beats_the_default() -> None:
    flags, env = {"models_max": "3"}, {"LLAMA_ARG_MODELS_MAX": "2"}
    seen = [
        settle({}, {}),
        settle({}, {}, star=STAR),
        settle({}, env, star=STAR),
        settle(flags, env, star=STAR),
    ]
    assert [(s.models_max, s.models_max_source) for s in seen] == [
        (4, "default"),
        (1, "preset"),
        (2, "env"),
        (3, "flag"),
    ]


def test_llmtops_own_variable_beats_llama_cpps() -> None:
    assert settle({}, {"LLMTOP_PORT": "9001", "LLAMA_ARG_PORT": "9002"}).port == 9001


def test_a_cap_said_twice_is_told_with_both_values() -> None:
    (line,) = settle({"models_max": "3"}, {"LLAMA_ARG_MODELS_MAX": "2"}).warnings
    assert "3" in line
    assert "2 by LLAMA_ARG_MODELS_MAX is not used" in line


def test_what_stands_after_the_dashes_beats_the_environment_and_yields_to_the_flag() -> None:
    after = {"cache_ram": Said(500, "flag", "-- -cram")}
    env = {"LLAMA_ARG_CACHE_RAM": "600"}
    assert settle({}, env, after=after).cache_ram_mib == 500
    assert settle({"cache_ram": "400"}, env, after=after).cache_ram_mib == 400


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("max_wait", "0", "max_wait_s", 0.0),
        ("max_wait", "off", "max_wait_s", None),
        ("load_timeout", "0", "load_timeout_s", None),
        ("client_stall", "off", "client_stall_s", None),
        ("stop_timeout", "1.5", "stop_timeout_s", 1.5),
        ("max_queue", "off", "max_queue", 0),
        ("heartbeat", "0", "heartbeat_s", 0.0),
        ("memory_budget", "0", "budget", "off"),
        ("memory_budget", "off", "budget", "off"),
        ("memory_budget", "48GiB", "budget", str(48 * 2**30)),
        ("max_body", "off", "max_body", UNLIMITED),
        ("models_max", "0", "models_max", 0),
        ("allow_host", ["a.example", "b.example,c.example"], "allow_hosts", ("a.example", "b.example", "c.example")),
        ("readonly", True, "readonly", True),
        ("models_autoload", False, "autoload", False),
    ],
)
def test_zero_and_off_mean_what_the_table_says(option: str, text: object, field: str, value: object) -> None:
    assert getattr(settle({option: text}, {}), field) == value


def test_every_option_can_be_set_by_its_own_variable(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("k")
    texts = {"host": "127.0.0.2", "budget": "1GiB", "api_keys": "k", "": str(tmp_path / "keys")}
    for row in ROWS:
        text = "true" if row.switch else texts.get(row.field, "7")
        settings = settle({}, {row.variable: text})
        default = Settings(state_dir=settle({}, {}).state_dir)
        if not (row.switch and getattr(default, row.field)):
            assert msgspec.structs.replace(settings, warnings=()) != default, row.variable


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"models_max": "many"}, "--models-max"),
        ({"models_max": "-1"}, "--models-max"),
        ({"port": "0"}, "--port"),
        ({"port": "70000"}, "--port"),
        ({"memory_budget": "48"}, "48GiB"),
        ({"max_wait": "soon"}, "--max-wait"),
        ({"host": "/tmp/x.sock"}, "127.0.0.1"),
        ({"api_key": [""]}, "--api-key"),
        ({"api_key_file": "/nowhere/keys"}, "--api-key-file"),
    ],
)
def test_a_value_that_cannot_be_read_is_one_line_with_its_option(flags: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError) as told:
        settle(flags, {})
    assert says in str(told.value)
    assert "\n" not in str(told.value)


def test_a_fault_in_the_environment_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="LLAMA_ARG_MODELS_MAX"):
        settle({}, {"LLAMA_ARG_MODELS_MAX": "x"})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "myhost"])
def test_an_open_address_without_a_key_is_refused_unless_meant(host: str) -> None:
    with pytest.raises(ConfigError, match="--insecure"):
        settle({"host": host}, {})
    assert settle({"host": host, "insecure": True}, {}).insecure
    assert settle({"host": host}, {"LLAMA_API_KEY": "k"}).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"])
def test_a_loopback_address_needs_no_key(host: str) -> None:
    assert settle({"host": host}, {}).host == host.strip("[]")


def test_keys_come_from_flags_lists_and_files(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\nk3\n\nk1\n")
    settings = settle({"api_key": ["k1,k2"], "api_key_file": str(file)}, {"LLAMA_API_KEY": "ignored"})
    assert settings.api_keys == ("k1", "k2", "k3")


def test_a_key_file_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="holds no key"):
        settle({"api_key_file": str(file)}, {})


def test_no_message_ever_holds_a_key() -> None:
    with pytest.raises(ConfigError) as told:
        settle({"api_key": ["s3cret,"]}, {})
    assert "s3cret" not in str(told.value)


def test_a_mistyped_variable_is_told() -> None:
    (line,) = settle({}, {"LLMTOP_MODEL_MAX": "1", "LLMTOP_DEBUG": "1"}).warnings
    assert "LLMTOP_MODEL_MAX" in line
