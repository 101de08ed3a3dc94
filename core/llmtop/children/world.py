"""What all children of a supervisor share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import httpx

from llmtop.children.guardian_link import GuardianLink
from llmtop.children.logfile import LogWriter
from llmtop.children.news import News
from llmtop.children.ports import PortPicker
from llmtop.children.records import Records
from llmtop.config.spec import Settings
from llmtop.snapshot import LogLine


@dataclass(frozen=True)
class World:
    """The surroundings of a child.

    Args:
        settings: Timeouts.
        llama_server: Path of the binary.
        nofile: Soft limit of open descriptors for children [1], None leaves llmtop's.
        sink: Takes all news.
        front_port: The front door's port.
        guardian: Ends the children when llmtop cannot.
        records: The children on disk.
        logs: Their output on disk.
        ports: Loopback ports.
        starters: Threads in which processes are started.
        numbers: Sequence numbers of lines.
        tail: Newest lines of all children.
        client: Gives the shared HTTP client.
    """

    settings: Settings
    llama_server: str
    nofile: int | None
    sink: Callable[[News], None]
    front_port: Callable[[], int]
    guardian: GuardianLink
    records: Records
    logs: LogWriter
    ports: PortPicker
    starters: Executor
    numbers: Iterator[int]
    tail: deque[LogLine]
    client: Callable[[], httpx.AsyncClient]
