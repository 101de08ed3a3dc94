"""Keeps a child in the two lists that outlive llmtop: the guardian's, and the record on disk for the next start."""

from __future__ import annotations

from llmtop.children.guardian import Ward, executable, start_time
from llmtop.children.ladder import stop_timeout
from llmtop.children.records import Record
from llmtop.children.world import World
from llmtop.config.spec import ModelSpec


class Noted:
    """One running child in both lists, from the start of its process on.

    Args:
        pid: Leader of its group.
        port: The child's own.
        spec: Its model.
        world: Has both lists.
    """

    def __init__(self, pid: int, port: int, spec: ModelSpec, world: World) -> None:
        self._pid = pid
        self._port = port
        self._spec = spec
        self._world = world
        self._record: Record | None = None
        self._write("")

    def settled(self) -> None:
        """Wrappers have run what they wrap by now: add the executable. To be called while the pid is its own."""
        if self._record is not None and not self._record.exe:
            self._write(executable(self._pid))

    def forget(self) -> None:
        """It is gone."""
        self._world.guardian.remove(self._pid)
        self._world.records.remove(self._pid)

    def _write(self, exe: str) -> None:
        started = start_time(self._pid)
        if started is None:
            return
        stop_s = stop_timeout(self._spec, self._world.settings, None)
        self._world.guardian.add(Ward(self._pid, started, exe, self._pid, stop_s, bool(self._spec.cmd)))
        self._record = Record(self._pid, started, exe, self._port, self._spec.id, stop_s)
        self._world.records.put(self._record)
