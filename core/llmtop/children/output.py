"""What a child writes.

Read without blocking, cut into lines, made safe, kept, classified and passed on in small batches.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO

from llmtop.children.classify import Classifier, Verdict, any_worth_a_look
from llmtop.children.ring import Ring
from llmtop.children.sizes import WORDS, SizeCollector
from llmtop.children.text import LineSplitter, safe_lines
from llmtop.snapshot import LogLine

BATCH_S = 0.1
"""Shortest time between two batches of news about output [s]."""

BATCH_LINES = 50
"""Most lines in a batch; more are counted."""

LATE_S = 0.005
"""Stderr is read that long after it has something, many lines at a time [s].

A llama-server writes hundreds of lines before the first byte of an answer, and the core relays that byte.
"""

_READ_BYTES = 4 * 1024
_WINDOW_S = 0.03
_WINDOW_BYTES = 1 << 20
"""Most time spent on a child's output, and most of it read, in one batch time.

Who writes more waits for his pipe, not the core for him.
"""

_PULLS = 32
_TURN_S = 0.002
"""So long it is read in one go [s]."""
_PIPE_BYTES = 1 << 18
"""Room in stderr's pipe, where the system lets it be chosen: a llama-server answers nobody while its log is stuck."""
_FILE_BYTES = 256 * 1024


@dataclass(frozen=True)
class Listener:
    """Who hears of a child's output. All are called on the loop.

    Args:
        control: A line of stdout; True if it was a message and no log line.
        wrong: A line that means something is wrong.
        oom: An out-of-memory line, and how many there were.
        lines: A batch of lines, safe to show.
        sign: Something was written: the child is not hung.
    """

    control: Callable[[bytes], bool]
    wrong: Callable[[Verdict], None]
    oom: Callable[[str, int], None]
    lines: Callable[[tuple[str, ...]], None]
    sign: Callable[[], None]


class Stream:
    """One pipe of a child, read on the loop; ``late_s`` [s] after it has something to say."""

    def __init__(self, pipe: IO[bytes], feed: Callable[[bytes], None], late_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = pipe
        self._feed = feed
        self._late_s = late_s
        self._later: asyncio.TimerHandle | None = None
        self._reading = False
        os.set_blocking(pipe.fileno(), False)
        if late_s and sys.platform == "linux":
            with contextlib.suppress(OSError):
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    @property
    def open(self) -> bool:
        """The end of the file was not seen."""
        return not self._pipe.closed

    def resume(self) -> None:
        """Read as it comes."""
        if self.open and not self._reading:
            self._reading = True
            self._loop.add_reader(self._pipe.fileno(), self._readable)

    def pause(self) -> None:
        """Let the child wait."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        elif self._reading:
            self._loop.remove_reader(self._pipe.fileno())
        self._reading = False

    def _readable(self) -> None:
        if self._late_s:
            self._loop.remove_reader(self._pipe.fileno())
            self._later = self._loop.call_later(self._late_s, self._read_late)
        else:
            self.read()

    def _read_late(self) -> None:
        self._later, self._reading = None, False
        self.resume()  # first: what is read may close the window, and pause it again
        end = time.perf_counter() + _TURN_S
        while self._reading and self.read() and time.perf_counter() < end:
            pass

    def read(self) -> bool:
        """Read once; False if there was nothing."""
        if not self.open:
            return False
        try:
            data = os.read(self._pipe.fileno(), _READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self.close()
            return False
        self._feed(data)
        return True

    def close(self) -> None:
        """Stop reading and close the descriptor."""
        self.pause()
        with contextlib.suppress(OSError):
            self._pipe.close()


class Output:
    """Both pipes of one child.

    Args:
        model: Its id.
        stdout: Pipe, closed by ``close``.
        stderr: The same.
        numbers: Gives the sequence number of each line.
        tail: Newest lines of all children.
        file: Takes text for the model's file.
        listener: See ``Listener``.
        file_bytes: Size of the model's files [bytes].
    """

    def __init__(
        self,
        model: str,
        *,
        stdout: IO[bytes],
        stderr: IO[bytes],
        numbers: Iterator[int],
        tail: deque[LogLine],
        file: Callable[[str], None],
        listener: Listener,
        file_bytes: int = 0,
    ) -> None:
        self.ring = Ring()
        self.sizes = SizeCollector(file_bytes)
        self._model = model
        self._numbers = numbers
        self._tail = tail
        self._file = file
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._splitters = (LineSplitter(), LineSplitter())
        self._readers = (Classifier(), Classifier())
        self._streams = (
            Stream(stdout, lambda data: self._feed(0, data)),
            Stream(stderr, lambda data: self._feed(1, data), LATE_S),
        )
        self._batch: list[str] = []
        self._more = 0
        self._text: list[str] = []
        self._text_size = 0
        self._oom_count = 0
        self._oom_text = ""
        self._window_bytes, self._window_s = 0, 0.0
        self._timer: asyncio.TimerHandle | None = None
        for stream in self._streams:
            stream.resume()

    def pull_stderr(self) -> None:
        """Read what lies in stderr's pipe now, as far as the window allows.

        It was written before what stdout has just said.
        """
        while self._window_open and self._streams[1].read():
            pass

    def pull_stdout(self) -> None:
        """Read what lies in stdout's pipe now: it may say more than what was learnt by another way."""
        for _ in range(_PULLS):
            if not self._streams[0].read():
                break

    async def finish(self, patience_s: float) -> None:
        """The process is gone.

        Read the rest, wait no longer than ``patience_s`` [s] for whoever else holds a pipe, and close.
        """
        end = self._loop.time() + patience_s
        while True:
            self._window_bytes, self._window_s = 0, 0.0
            for stream in self._streams:
                while self._window_open and stream.read():
                    pass
            if not any(stream.open for stream in self._streams) or self._loop.time() >= end:
                break
            await asyncio.sleep(0.002)
        self.close()

    def close(self) -> None:
        """Close both pipes and pass on what was read."""
        for number, (stream, splitter) in enumerate(zip(self._streams, self._splitters, strict=True)):
            stream.close()
            self._take(number, splitter.finish())
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flush()

    @property
    def _window_open(self) -> bool:
        return self._window_s < _WINDOW_S and self._window_bytes < _WINDOW_BYTES

    def _feed(self, number: int, data: bytes) -> None:
        self._listener.sign()
        begin = time.perf_counter()
        self._take(number, self._splitters[number].feed(data))
        self._window_bytes += len(data)
        self._window_s += time.perf_counter() - begin
        if not self._window_open:
            for stream in self._streams:
                stream.pause()
        self._arm()

    def _take(self, number: int, lines: list[bytes]) -> None:
        if number == 0:
            lines = [line for line in lines if not self._listener.control(line)]
        if not lines:
            return
        texts = safe_lines(lines)
        self._keep(texts)
        # What is read in one go is searched in one go: hardly any line that a server writes while it serves matters.
        block = "\n".join(texts)
        if not _worth_a_look(block):
            self._readers[number].skip(block)
            return
        for text in texts:
            self.sizes.feed(text)
            verdict = self._readers[number].feed(text)
            if verdict is not None:
                if verdict.pattern.oom:
                    self._oom_count += 1
                    self._oom_text = verdict.text
                self._listener.wrong(verdict)

    def _keep(self, texts: list[str]) -> None:
        at = time.time()
        kept = [LogLine(number, at, self._model, text) for text, number in zip(texts, self._numbers)]  # noqa: B905
        self.ring.extend(kept)
        self._tail.extend(kept)
        room = BATCH_LINES - len(self._batch)
        self._batch += texts[:room]
        self._more += len(texts[room:])
        if self._text_size < _FILE_BYTES:
            self._text += texts
            self._text_size += sum(map(len, texts)) + len(texts)

    def _arm(self) -> None:
        if self._timer is None:
            # The first line of a quiet child goes out at once, the next batch a batch time later.
            self._timer = self._loop.call_later(0, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._window_bytes, self._window_s = 0, 0.0
        for stream in self._streams:
            stream.resume()
        if self._flush():
            self._timer = self._loop.call_later(BATCH_S, self._tick)

    def _flush(self) -> bool:
        """Pass on what was read since the last time; False if that was nothing."""
        if self._oom_text:
            text, self._oom_text = self._oom_text, ""
            self._listener.oom(text, self._oom_count)
        if not self._batch:
            return False
        batch, self._batch = self._batch, []
        text_lines, self._text, self._text_size = self._text, [], 0
        if self._more:
            batch.append(f"… {self._more} more lines")
            self._more = 0
        self._file("\n".join(text_lines) + "\n")
        self._listener.lines(tuple(batch))
        return True


def _worth_a_look(block: str) -> bool:
    return any(word in block for word in WORDS) or any_worth_a_look(block)
