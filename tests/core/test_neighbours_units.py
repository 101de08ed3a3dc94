"""llmtop as a service: files that the system takes, an end in order, no secrets."""

from __future__ import annotations

import configparser
import os
import plistlib
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from llmtop.cli.app import main
from llmtop.config.discovery import Catalog
from llmtop.config.resolve import Configuration
from llmtop.config.spec import ModelSpec, Settings
from llmtop.errors import ConfigError
from llmtop.neighbours import units
from llmtop.neighbours.units import Service, launchd_plist, service, systemd_unit
from llmtop.testing.models import server_command, write_model

Said = pytest.CaptureFixture[str]
NASTY = (
    "/usr/bin/python3",
    "-P",
    "-m",
    "llmtop",
    "serve",
    "--models-dir",
    '/m/a b$HOME%h "q" \\ ü;',
    "--",
    "-ngl",
    "99",
)


def made(*specs: ModelSpec, **settings: object) -> Configuration:
    return Configuration(Settings(state_dir="/s", **settings), Catalog({s.id: s for s in specs}))  # type: ignore[arg-type]


def parsed(unit: str) -> configparser.ConfigParser:
    reader = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    reader.optionxform = str  # type: ignore[assignment,method-assign]
    reader.read_string(unit)
    return reader


def test_a_unit_stops_llmtop_alone_and_gives_it_the_time_it_needs() -> None:
    unit = parsed(systemd_unit(Service(NASTY, 80, "/h", "/s/log")))
    assert dict(unit["Service"]) | {
        "KillMode": "mixed",
        "TimeoutStopSec": "80",
        "OOMPolicy": "continue",
        "LimitNOFILE": "65536",
        "RestartPreventExitStatus": "2",
    } == dict(unit["Service"])
    assert unit["Install"]["WantedBy"] == "default.target"


def test_a_word_reaches_systemd_without_variables_specifiers_or_quotes_of_its_own() -> None:
    line = parsed(systemd_unit(Service(NASTY, 80, "/h", "/s/log")))["Service"]["ExecStart"]
    assert line.endswith('"/m/a b$$HOME%%h \\"q\\" \\\\ ü;" -- -ngl 99')


@pytest.mark.slow
def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    path = tmp_path / "llmtop.service"
    argv = (shutil.which("true") or "/bin/true", *NASTY[1:])
    (tmp_path / "run").mkdir(mode=0o700)
    env = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path / "run")}

    def verified(text: str) -> tuple[int, str]:
        path.write_text(text)
        done = subprocess.run(
            ["systemd-analyze", "verify", "--user", str(path)], env=env, capture_output=True, text=True, check=False
        )
        return done.returncode, "\n".join(line for line in done.stderr.splitlines() if "llmtop" in line)

    good = systemd_unit(Service(argv, 80, "/h", "/s/log"))
    assert verified(good) == (0, "")
    assert verified(good.replace("KillMode=mixed", "KillMode=some"))[1], "a fault would have been told"


def test_an_agent_is_a_plist_that_launchd_reads_and_ends_in_order() -> None:
    agent = plistlib.loads(launchd_plist(Service(NASTY, 80, "/h", "/s/log")))
    assert agent["ProgramArguments"] == list(NASTY)
    assert (agent["Label"], agent["RunAtLoad"], agent["ExitTimeOut"]) == ("llmtop", True, 80)
    assert agent["KeepAlive"] == {"SuccessfulExit": False}
    assert agent["AbandonProcessGroup"] is True
    assert agent["ProcessType"] == "Interactive"
    assert agent["StandardErrorPath"] == agent["StandardOutPath"] == "/s/log"
    assert agent["SoftResourceLimits"] == {"NumberOfFiles": 65536}


def test_the_time_to_stop_covers_the_slowest_model() -> None:
    assert service(made(), {}, [], python="/p").stop_s == 80
    assert service(made(stop_timeout_s=200.0), {}, [], python="/p").stop_s == 220
    assert service(made(ModelSpec("A", stop_timeout_s=90.0), ModelSpec("B")), {}, [], python="/p").stop_s == 110


def test_options_go_in_as_they_were_given_with_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    flags: dict[str, object] = {
        "models_dir": "m",
        "models_max": "2",
        "models_autoload": False,
        "watch": True,
        "readonly": None,
        "insecure": True,
        "allow_host": ["a", "b"],
        "llama_server": "bin/llama-server",
    }
    argv = service(made(), flags, ["-c", "1"], python="/p").argv
    assert argv == (
        *("/p", "-P", "-m", "llmtop", "serve", "--models-dir", f"{tmp_path}/m", "--models-max", "2"),
        *("--llama-server", f"{tmp_path}/bin/llama-server", "--insecure", "--allow-host", "a", "--allow-host", "b"),
        *("--no-models-autoload", "--watch", "--", "-c", "1"),
    )


def test_a_key_on_the_command_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="--api-key-file") as error:
        service(made(), {"api_key": ["s3cret"]}, [], python="/p")
    assert "s3cret" not in str(error.value)
    with pytest.raises(ConfigError, match="line end"):
        service(made(), {"models_dir": "a\nb"}, [], python="/p")


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options of a llmtop that could start here."""
    for name in [name for name in os.environ if name.startswith(("LLMTOP_", "LLAMA_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_model(tmp_path / "m", "A")
    server = server_command(tmp_path / "bin")
    return ["--models-dir", str(tmp_path / "m"), "--llama-server", str(server), "--state-dir", str(tmp_path / "s")]


def test_print_writes_to_stdout_and_nothing_else(words: list[str], tmp_path: Path, capsys: Said) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["service", "install", "--print", *words, "--", "-c", "1"]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in (*words, "serve", "-P", sys.executable))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_wrong_option_is_told_before_anything_is_written(words: list[str], tmp_path: Path, capsys: Said) -> None:
    assert main(["service", "install", *words, "--models-max", "x"]) == 2
    assert main(["service", "install", *words, "--api-key", "s3cret"]) == 2
    assert main(["service", "start"]) == 2
    assert "s3cret" not in capsys.readouterr().err
    assert not (tmp_path / "config").exists()


def test_variables_that_will_not_be_there_are_told(
    words: list[str], capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_ARG_MODELS_MAX", "1")
    assert main(["service", "install", "--print", *words]) == 0
    assert "LLAMA_ARG_MODELS_MAX is set here, and will not be in the service" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drives systemctl")
def test_install_status_and_uninstall_drive_systemctl_for_the_user(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "systemctl"
    tool.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/told\n[ "$3" != status ] || exit 3\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    unit = tmp_path / "config" / "systemd" / "user" / "llmtop.service"
    assert main(["service", "status"]) == 1
    assert main(["service", "install", *words]) == 0
    assert "ExecStart=" in unit.read_text()
    assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o700
    assert main(["service", "uninstall"]) == 0
    assert not unit.exists()
    assert (tmp_path / "told").read_text().splitlines() == [
        "--user --no-pager status llmtop.service",
        "--user daemon-reload",
        "--user enable --now llmtop.service",
        "--user disable --now llmtop.service",
        "--user daemon-reload",
    ]


def test_an_agent_replaces_an_older_one_once_that_is_gone(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    tool = tools / "launchctl"
    tool.write_text(
        f'#!/bin/sh\necho "$1" >> {tmp_path}/told\n[ "$1" != print ] || [ "$(grep -c print {tmp_path}/told)" -lt 3 ]\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setattr("llmtop.cli.service.sys.platform", "darwin")
    assert main(["service", "install", *words]) == 0
    agent = plistlib.loads((tmp_path / "Library" / "LaunchAgents" / "llmtop.plist").read_bytes())
    assert agent["ProgramArguments"][4:] == ["serve", *words]
    assert stat.S_IMODE((tmp_path / "s" / "logs").stat().st_mode) == 0o700
    assert (tmp_path / "told").read_text().split() == ["bootout", "print", "print", "print", "bootstrap"]
    assert main(["service", "uninstall"]) == 0
    assert not (tmp_path / "Library" / "LaunchAgents" / "llmtop.plist").exists()


def test_both_systems_have_a_place_and_commands_and_another_is_told() -> None:
    env = {"HOME": "/h"}
    assert str(units.place("darwin", env)) == "/h/Library/LaunchAgents/llmtop.plist"
    assert str(units.place("linux", env)) == "/h/.config/systemd/user/llmtop.service"
    with pytest.raises(ConfigError, match="no services"):
        units.place("win32", env)
    path = units.place("darwin", env)
    assert units.commands("install", "darwin", path, 501) == (("launchctl", "bootstrap", "gui/501", str(path)),)
    assert units.commands("uninstall", "darwin", path, 501) == (("launchctl", "bootout", "gui/501/llmtop"),)


def test_help_has_the_recipe_for_tmux(capsys: Said) -> None:
    assert main(["service", "--help"]) == 0
    assert "tmux new-session -d -s llmtop" in capsys.readouterr().out
