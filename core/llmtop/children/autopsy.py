"""What can be found out about a load that failed without a word.

llama-server's log has a thread of its own: of a server that leaves at once, the lines that say why are lost now and
then (1 in 150 starts on a busy machine), and only the exit status is left.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llmtop.children.patterns import DOWNLOAD
from llmtop.memory.gguf import GgufError, read_header, shard_paths
from llmtop.snapshot import Failure


async def cause_of(why: Failure, files: Iterable[str], port: int) -> Failure:
    """Give a failure without a cause one, where the files or the port have it.

    Args:
        why: What the child's lines and its exit status say.
        files: All files of the model; headers are read in a thread.
        port: The child's own, free again if nobody else has it.
    """
    if why.kind != "crash" or why.exit_code is None:
        return why
    if fault := await asyncio.to_thread(_fault, tuple(files)):
        kind, hint = "bad_file", DOWNLOAD
    elif _taken(port):
        kind, hint, fault = "port", "", f"port {port} is taken"
    else:
        return why
    message = f"{fault} (exited with status {why.exit_code})"
    return msgspec.structs.replace(why, kind=kind, message=message, hint=hint)


def _fault(files: tuple[str, ...]) -> str:
    ggufs = [Path(name) for name in files if name.endswith(".gguf")]
    for first in dict.fromkeys(shard_paths(path)[0] for path in ggufs):
        try:
            read_header(first)
        except GgufError as error:
            return str(error)
    return ""


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that linger are nobody's
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False
