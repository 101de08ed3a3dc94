"""A request body on its way: one MiB in memory, the rest in an unlinked file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import IO

from llmtop.errors import Refusal, Refused

IN_MEMORY = 2**20
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
        self._chunks = bytearray()
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
        space = self._space
        if space.used + len(data) > space.limit:
            raise Refused(
                Refusal("too_busy", f"waiting requests hold {space.limit >> 20} MiB already", retry_after_s=5)
            )
        if self.size + len(data) <= IN_MEMORY and self._file is None:
            self._chunks += data
        else:
            try:
                self._write(data)
            except OSError as error:
                raise Refused(
                    Refusal("too_busy", f"cannot hold the request body: {error.strerror}", retry_after_s=5)
                ) from None
        self.size += len(data)
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
        self._chunks = bytearray()
        if self._file is not None:
            self._file.close()
            self._file = None
