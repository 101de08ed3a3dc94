"""Choosing how this machine's memory is looked at."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Protocol

from llmtop.memory.sample import Sample

SOURCE_VARIABLE = "LLMTOP_MEMORY_SOURCE"


class Probe(Protocol):
    """Looks at the memory. It may block (a tool, a slow file system): call it in a worker thread, never on a loop."""

    @property
    def name(self) -> str:
        """What it is, for ``doctor``."""
        ...

    @property
    def min_interval_s(self) -> float:
        """Looks closer together than this tell nothing new [s]."""
        ...

    def sample(self, children: Mapping[int, str]) -> Sample:
        """Look once; never raises for what a system may lack.

        Args:
            children: Pid of each running child, with its model's id.
        """
        ...


def choose(env: Mapping[str, str], platform: str = sys.platform) -> Probe:
    """The probe for this machine, or the file that ``LLMTOP_MEMORY_SOURCE=file:PATH`` names.

    A value that is not of that form gives a probe whose every number is missing, with the reason.
    """
    from llmtop.memory.file import FileProbe

    source = env.get(SOURCE_VARIABLE, "")
    if source:
        kind, _, path = source.partition(":")
        fault = "" if kind == "file" and path else f"{SOURCE_VARIABLE} should be file:PATH, not {source[:80]!r}"
        return FileProbe(path, fault=fault)
    if platform == "darwin":
        from llmtop.memory.macos import MacProbe

        return MacProbe()
    from llmtop.memory.drm import Drm
    from llmtop.memory.linux import LinuxProbe
    from llmtop.memory.nvidia import Nvml

    return LinuxProbe(gpus=(Nvml(), Drm()))
