"""A request body on its way: one MiB in memory, the rest in an unlinked file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from llmtop.errors import Refusal, Refused

if TYPE_CHECKING:
    from llmtop.frontdoor.upstream import UpstreamConnection

IN_MEMORY = 2**20
PIECE = 256 * 1024
"""So much of a body is written at a time [bytes]."""
TOGETHER_MAX = 2 * 2**30


class SpoolSpace:
    """What all bodies together may hold.

    Args:
        folder: Where the files live; it must exist when the first one is opened.
        limit: Bytes in memory and files together.
    """

    def __init__(self, folder: Path, limit: int = TOGETHER_MAX) -> None:
        self.folder = folder
        self.limit = limit
        self.used = 0


class Spool:
    """The bytes of one body that may still be needed; read in the order they came, and again after ``rewind``.

    Attributes:
        size: Bytes held.
        sent: Bytes handed out by ``take``.
    """

    __slots__ = ("_chunks", "_file", "_space", "sent", "size")

    def __init__(self, space: SpoolSpace) -> None:
        self._space = space
        self._chunks: bytes | bytearray = b""  # most bodies come in one piece, which is kept as it is
        self._file: IO[bytes] | None = None
        self.size = 0
        self.sent = 0

    @property
    def in_file(self) -> bool:
        """It has outgrown the memory that a request may take."""
        return self._file is not None

    def append(self, data: bytes) -> None:
        """Hold more bytes.

        Raises:
            Refused: All bodies together hold too much, or the file cannot be written.
        """
        space, size = self._space, self.size + len(data)
        if space.used + len(data) > space.limit:
            raise Refused(
                Refusal("too_busy", f"waiting requests hold {space.limit >> 20} MiB already", retry_after_s=5)
            )
        if size <= IN_MEMORY and self._file is None:
            if not self.size:
                self._chunks = data
            else:
                if isinstance(self._chunks, bytes):
                    self._chunks = bytearray(self._chunks)
                self._chunks += data
        else:
            try:
                self._write(data)
            except OSError as error:
                raise Refused(
                    Refusal("too_busy", f"cannot hold the request body: {error.strerror}", retry_after_s=5)
                ) from None
        self.size = size
        space.used += len(data)

    def _write(self, data: bytes) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._space.folder, buffering=0)  # noqa: SIM115  # closed by close()
        self._file.seek(self.size - len(self._chunks))
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]

    def take(self, limit: int) -> bytes:
        """The next bytes that were not handed out yet, at most ``limit``; empty when there are none."""
        memory = len(self._chunks)
        if self.sent < memory:
            data = bytes(self._chunks[self.sent : self.sent + limit])
        elif self._file is not None and self.sent < self.size:
            self._file.seek(self.sent - memory)
            data = self._file.read(limit)
        else:
            return b""
        self.sent += len(data)
        return data

    def pump(self, child: UpstreamConnection, *, whole: bool, chunked: bool) -> bool:
        """Write as much as the child takes now.

        Args:
            child: Where to.
            whole: No more will be appended.
            chunked: The body goes out in chunks.

        Returns:
            All of the body is out.

        Raises:
            OSError: The file cannot be read back.
        """
        while not child.full:
            data = self.take(PIECE)
            if data:
                child.transport.write(framed(data, chunked=chunked))
            elif whole:
                if chunked:
                    child.transport.write(b"0\r\n\r\n")
                return True
            else:
                break
        return False

    def whole(self) -> bytes:
        """All bytes in memory (all there are while ``in_file`` is False)."""
        return bytes(self._chunks)

    def rewind(self) -> None:
        """Hand out from the start again."""
        self.sent = 0

    def close(self) -> None:
        """Give everything back. Harmless when repeated."""
        self._space.used -= self.size
        self.size = self.sent = 0
        self._chunks = b""
        if self._file is not None:
            self._file.close()
            self._file = None


def framed(data: bytes, *, chunked: bool) -> bytes:
    """Body bytes as they go on the wire."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data
