"""What the files say of a load that failed without a word.

llama-server's log has a thread of its own: of a server that leaves at once, the lines that say why are lost now and
then (1 in 150 starts on a busy machine), and only the exit status is left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import msgspec

from llmtop.children.patterns import DOWNLOAD
from llmtop.memory.gguf import GgufError, read_header, shard_paths
from llmtop.snapshot import Failure


async def named(why: Failure, files: Iterable[str]) -> Failure:
    """Give ``why`` the fault of the files as its cause, if it has none and they have one; reads headers in a thread."""
    if why.kind != "crash":
        return why
    fault = await asyncio.to_thread(_fault, tuple(files))
    if not fault:
        return why
    message = f"{fault} (exited with status {why.exit_code})" if why.exit_code is not None else fault
    return msgspec.structs.replace(why, kind="bad_file", message=message, hint=DOWNLOAD)


def _fault(files: tuple[str, ...]) -> str:
    ggufs = [Path(name) for name in files if name.endswith(".gguf")]
    for first in dict.fromkeys(shard_paths(path)[0] for path in ggufs):
        try:
            read_header(first)
        except GgufError as error:
            return str(error)
    return ""
