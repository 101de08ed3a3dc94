"""The command line and environment of a child."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from llmtop.children.binary import ServerHelp, server_environment
from llmtop.config.spec import ModelSpec, Settings

_VERBOSITY = ("-lv", "--verbosity", "--log-verbosity", "-v", "--verbose", "--log-verbose")
_VERBOSITY_ENV = ("LLAMA_ARG_LOG_VERBOSITY", "LLAMA_LOG_VERBOSITY", "LLAMA_ARG_LOG_VERBOSE")
_SLEEP = "--sleep-idle-seconds"

# Environment that must not reach a child: it would make it a router, open it under another key or bind it elsewhere.
_DROPPED = ("LLAMA_API_KEY", "LLAMA_ARG_HOST", "LLAMA_ARG_PORT")
_DROPPED_PREFIXES = ("LLAMA_ARG_MODELS_", "LLAMA_ARG_API_KEY", "LLAMA_ARG_SSL_", "LLMTOP_")

_SECRET = re.compile(r"-hft|(?:--?)?(?:\w+[-_])*(?:keys?|token|password|secret)", re.IGNORECASE)
"""Options and variables whose value nobody is to see: names that end in key, token, password or secret."""

_HEADER = re.compile(r"\s*((?:proxy-)?authorization|x-api-key|cookie)\s*:", re.IGNORECASE)
"""Begins a header that a server is told to send, whose value is a secret."""


@dataclass(frozen=True)
class Launch:
    """How to start a child.

    Args:
        argv: Program and arguments.
        env: The whole environment, the child's key in it.
        sleeps: It may go to sleep by itself.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    sleeps: bool


def has_option(args: Sequence[str], names: Sequence[str]) -> bool:
    """One of ``names`` is among ``args``, as ``--x`` or ``--x=1``."""
    return any(arg in names or arg.partition("=")[0] in names for arg in args)


def build_launch(
    spec: ModelSpec,
    settings: Settings,
    *,
    program: str,
    known: ServerHelp,
    port: int,
    api_key: str,
    front_port: int,
    cache_ram_mib: int | None,
) -> Launch:
    """Give the launch of ``spec``: a llama-server, or its own ``cmd``.

    Raises:
        ValueError: ``cmd`` is not a command line.
    """
    env = {
        name: value
        for name, value in os.environ.items()
        if name not in _DROPPED and not name.startswith(_DROPPED_PREFIXES)
    }
    env["LLAMA_SERVER_ROUTER_PORT"] = str(front_port)
    if spec.cmd:
        env.pop("LLAMA_SERVER_ROUTER_PORT")
        argv = shlex.split(spec.cmd.replace("${PORT}", str(port)))
        if not argv:
            raise ValueError("its cmd is empty")
        return Launch(tuple(argv), env | dict(spec.env) | {"PORT": str(port)}, sleeps=False)
    env = server_environment(program, env) | dict(spec.env) | {"LLAMA_API_KEY": api_key}
    argv = [program, "--host", "127.0.0.1", "--port", str(port), "--alias", spec.id, *spec.source_args]
    if known.knows("-lv") and not has_option(spec.args, _VERBOSITY) and not any(name in env for name in _VERBOSITY_ENV):
        argv += ["-lv", "4"]
    if cache_ram_mib is not None and (known.knows("--cache-ram") or not known.options):
        argv += ["--cache-ram", str(cache_ram_mib)]
    sleep_s = spec.sleep_idle_s if spec.sleep_idle_s is not None else settings.sleep_idle_s
    sleeps = has_option(spec.args, (_SLEEP,)) or "LLAMA_ARG_SLEEP_IDLE_SECONDS" in env
    if sleep_s and not spec.pin and not sleeps and known.knows(_SLEEP):
        argv += [_SLEEP, f"{sleep_s:.0f}"]
        sleeps = True
    return Launch((*argv, *spec.args), env, sleeps)


def with_descriptor_limit(argv: Sequence[str], soft: int | None) -> list[str]:
    """The same command under another soft limit of open descriptors.

    Llmtop's own is raised, a child's should not be.
    """
    if soft is None:
        return list(argv)
    return ["/bin/sh", "-c", 'ulimit -S -n "$0" 2>/dev/null; exec "$@"', str(soft), *argv]


def masked(argv: Sequence[str]) -> tuple[str, ...]:
    """The command line with values of secrets replaced, for every place that shows it."""
    shown: list[str] = []
    hide = False
    for arg in argv:
        name, equals, _ = arg.partition("=")
        if hide:
            shown.append("***")
        elif equals and _SECRET.fullmatch(name):
            shown.append(f"{name}=***")
        elif header := _HEADER.match(arg):
            shown.append(f"{header[0]} ***")
        else:
            shown.append(arg)
        hide = not equals and not hide and arg.startswith("-") and _SECRET.fullmatch(arg) is not None
    return tuple(shown)


def stop_command(spec: ModelSpec, port: int, pid: int) -> list[str]:
    """The command that ends a ``cmd`` server, ``${PORT}`` and ``${PID}`` filled in.

    Raises:
        ValueError: It is not a command line.
    """
    return shlex.split(spec.stop_cmd.replace("${PORT}", str(port)).replace("${PID}", str(pid)))
