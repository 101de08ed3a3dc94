"""llmtop as a service of its user: a launchd agent on macOS, a systemd user unit on Linux."""

from __future__ import annotations

import os
import plistlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from llmtop.config.resolve import Configuration
from llmtop.config.rows import ROWS
from llmtop.errors import ConfigError

LABEL = "llmtop"
FILES = 65536
"""Open descriptors: a connection and its child's are two each."""
GRACE_S = 5.0
"""Requests in flight get that long when llmtop ends [s]."""
LONGEST_STOP_S = 60.0
"""Stop timeout that a model of any size may get by itself [s]."""
MARGIN_S = 15.0
"""From SIGKILL of the last child to the end of llmtop itself [s]."""
RESTART_S = 5


@dataclass(frozen=True)
class Service:
    """What is to run.

    Args:
        argv: Program and arguments, absolute paths.
        stop_s: What an end in order may take [s].
        home: The user's home folder.
        log: File for its output, where the system keeps none itself.
    """

    argv: tuple[str, ...]
    stop_s: int
    home: str
    log: str


def service(
    configuration: Configuration, flags: Mapping[str, object], child_args: Sequence[str], *, python: str
) -> Service:
    """Make a service of what the command line says.

    Args:
        configuration: The same, resolved: for the times, and the llama-server, which is not on a service's PATH.
        flags: Parameter name to what the command line said.
        child_args: What stands after ``--``.
        python: Interpreter that has llmtop.

    Raises:
        ConfigError: A key is among the options; or one has a line end in it.
    """
    if flags.get("api_key"):
        raise ConfigError("--api-key would stand in a file that others may read: give --api-key-file FILE")
    words = [python, "-P", "-m", "llmtop", "serve", *_words(flags)]
    if configuration.server is not None and not flags.get("llama_server"):
        words += ["--llama-server", configuration.server.path]
    if child_args:
        words += ["--", *child_args]
    if any(not word.isprintable() for word in words):
        raise ConfigError("an option holds a line end or another sign that cannot be printed: leave it out")
    settings = configuration.settings
    stops = [spec.stop_timeout_s for spec in configuration.catalog.models.values()]
    longest = max([LONGEST_STOP_S, settings.stop_timeout_s or 0.0, *(stop or 0.0 for stop in stops)])
    home = os.path.expanduser("~")
    return Service(
        tuple(words), int(GRACE_S + longest + MARGIN_S), home, os.path.join(settings.state_dir, "logs", "service.log")
    )


def _words(flags: Mapping[str, object]) -> list[str]:
    """Options as they go on a command line, files and folders with their whole path."""
    words: list[str] = []
    for row in ROWS:
        given = flags.get(row.key)
        if isinstance(given, bool):
            words += [f"--{row.name}" if given else f"--no-{row.name}"] if given or row.off_switch else []
        elif isinstance(given, list | tuple):
            words += [word for value in cast("Sequence[object]", given) for word in (f"--{row.name}", str(value))]
        elif given is not None:
            whole = row.metavar in {"DIR", "FILE"} or (row.name == "llama-server" and "/" in str(given))
            words += [f"--{row.name}", os.path.abspath(os.path.expanduser(str(given))) if whole else str(given)]
    return words


def systemd_unit(it: Service) -> str:
    """A user unit. ``systemctl --user stop`` ends it in order: SIGTERM to llmtop alone, which ends its children."""
    return "\n".join(
        [
            "[Unit]",
            "Description=llmtop, a queue in front of local language models",
            "",
            "[Service]",
            "Type=exec",
            f"ExecStart={' '.join(_quoted(word) for word in it.argv)}",
            "# reads the configuration again",
            "ExecReload=/bin/kill -HUP $MAINPID",
            "WorkingDirectory=~",
            "Restart=on-failure",
            f"RestartSec={RESTART_S}",
            "# 2: the configuration is wrong, another try would not mend it",
            "RestartPreventExitStatus=2",
            "# SIGTERM goes to llmtop alone, which ends its children; what is left after that time is killed",
            "KillMode=mixed",
            f"TimeoutStopSec={it.stop_s}",
            "# a child that the system kills for memory does not end the others",
            "OOMPolicy=continue",
            f"LimitNOFILE={FILES}",
            "StandardOutput=journal",
            "StandardError=journal",
            "SyslogIdentifier=llmtop",
            "",
            "[Install]",
            "WantedBy=default.target",
            "",
        ]
    )


def _quoted(word: str) -> str:
    """A word as systemd reads it: no variables, no specifiers, no quotes of its own."""
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return word if re.fullmatch(r"[\w@+=:,./-]+", word) else f'"{word}"'


def launchd_plist(it: Service) -> bytes:
    """An agent. ``launchctl bootout`` ends it in order: SIGTERM, then ``ExitTimeOut`` before SIGKILL."""
    return plistlib.dumps(
        {
            "Label": LABEL,
            "ProgramArguments": list(it.argv),
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": RESTART_S,
            "ExitTimeOut": it.stop_s,
            "AbandonProcessGroup": True,  # the guardian ends the children where llmtop cannot
            "ProcessType": "Interactive",  # else macOS may slow it, and its children, down
            "SoftResourceLimits": {"NumberOfFiles": FILES},
            "WorkingDirectory": it.home,
            "StandardOutPath": it.log,
            "StandardErrorPath": it.log,
        },
        sort_keys=False,
    )


def place(platform: str, env: Mapping[str, str]) -> Path:
    """Where the system looks for it.

    Raises:
        ConfigError: Neither launchd nor systemd is here.
    """
    home = Path(env.get("HOME") or Path.home())
    if platform == "darwin":
        return home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
    if platform.startswith("linux"):
        return Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "systemd" / "user" / f"{LABEL}.service"
    raise ConfigError(f"no services are known on {platform}: run llmtop serve by what starts programs there")


def commands(verb: str, platform: str, path: Path, uid: int) -> tuple[tuple[str, ...], ...]:
    """What is run after the file was written (``install``), before it goes (``uninstall``), or to look (``status``)."""
    unit, domain = f"{LABEL}.service", f"gui/{uid}"
    if platform == "darwin":
        return {
            "install": (("launchctl", "bootstrap", domain, str(path)),),
            "uninstall": (("launchctl", "bootout", f"{domain}/{LABEL}"),),
            "status": (("launchctl", "print", f"{domain}/{LABEL}"),),
        }[verb]
    systemctl = ("systemctl", "--user")
    return {
        "install": ((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", unit)),
        "uninstall": ((*systemctl, "disable", "--now", unit),),
        "status": ((*systemctl, "--no-pager", "status", unit),),
    }[verb]
