"""How a child leaves: asked politely and once, killed when its time is over, stuck if it survives that."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Callable, Coroutine
from dataclasses import dataclass

from llmtop.children import news, protocol
from llmtop.children.command import stop_command
from llmtop.children.process import ChildProcess, process_state, run_quietly
from llmtop.config.spec import ModelSpec, Settings

STUCK_AFTER_S = 10.0
"""A process alive that long after SIGKILL is stuck [s]."""

LOADING_KILL_S = 0.5
"""From SIGTERM to SIGKILL for a child that is still loading [s]."""

_STOP_BASE_S, _STOP_MAX_S, _STOP_BYTES_PER_S = 10.0, 60.0, 20e9


def stop_timeout(spec: ModelSpec, settings: Settings, footprint_bytes: int | None) -> float:
    """Seconds from the polite stop to SIGKILL [s].

    The preset's, the setting's, else 10 s and the footprint at 20 GB/s, 60 s at most.
    """
    if spec.stop_timeout_s is not None:
        return spec.stop_timeout_s
    if settings.stop_timeout_s is not None:
        return settings.stop_timeout_s
    return min(_STOP_MAX_S, _STOP_BASE_S + (footprint_bytes or 0) / _STOP_BYTES_PER_S)


@dataclass(frozen=True)
class Hands:
    """What the ladder needs of its child.

    Args:
        tell: Sends news.
        later: Calls something after a delay [s].
        background: Runs something beside it.
        speaks: Whether the child speaks the protocol.
    """

    tell: Callable[[news.News], None]
    later: Callable[[float, Callable[[], None]], object]
    background: Callable[[Coroutine[None, None, None]], None]
    speaks: Callable[[], bool]


class Ladder:
    """The stop ladder of one process.

    Args:
        instance: Its number.
        spec: Its model.
        port: Its port.
        env: Its environment, for the stop command.
        process: The process.
        hands: See ``Hands``.
    """

    def __init__(
        self, instance: int, spec: ModelSpec, *, port: int, env: dict[str, str], process: ChildProcess, hands: Hands
    ) -> None:
        self.sigkilled = False
        self.stuck = False
        self._instance = instance
        self._spec = spec
        self._port = port
        self._env = env
        self._process = process
        self._hands = hands

    def leave(self, settings: Settings, *, ready: bool, footprint_bytes: int | None) -> None:
        """Ask it to leave; SIGKILL follows. One that is not ready reads nothing yet: it gets a signal, little time."""
        if ready:
            kill_in_s = stop_timeout(self._spec, settings, footprint_bytes)
            how = self._ask(kill_in_s)
        else:
            kill_in_s = LOADING_KILL_S
            how = self._terminate(group=bool(self._spec.cmd))
        self._hands.tell(news.Stopping(self._instance, kill_in_s, how))
        self._hands.later(kill_in_s, self.kill)

    def kill(self) -> None:
        """SIGKILL to its group, once."""
        if self._process.reaped or self.sigkilled:
            return
        self.sigkilled = True
        self._process.send(signal.SIGKILL, group=True)
        self._hands.tell(news.Killed(self._instance))
        self._hands.later(STUCK_AFTER_S, self._look)

    def _look(self) -> None:
        if not self._process.reaped:
            self.tell_stuck(process_state(self._process.pid))

    def tell_stuck(self, state: str) -> None:
        """Say once that something survived SIGKILL."""
        if not self.stuck:
            self.stuck = True
            self._hands.tell(news.Stuck(self._instance, state))

    def _ask(self, within_s: float) -> str:
        """Ask a ready child, and say how."""
        if self._spec.cmd and self._spec.stop_cmd:
            self._hands.background(self._run_stop_command(within_s))
            return "stop-cmd"
        if self._spec.cmd:
            return self._terminate(group=True)
        # The line alone ends one in child mode; to any other build stdin means nothing.
        if self._process.write(protocol.EXIT_LINE) and self._hands.speaks():
            return "exit line"
        return self._terminate(group=False)

    def _terminate(self, *, group: bool) -> str:
        self._process.send(signal.SIGTERM, group=group)
        return "SIGTERM"

    async def _run_stop_command(self, within_s: float) -> None:
        try:
            argv = stop_command(self._spec, self._port, self._process.pid)
            await asyncio.to_thread(run_quietly, argv, self._env, within_s)
        except (OSError, ValueError, subprocess.SubprocessError):
            self._process.send(signal.SIGTERM, group=True)
