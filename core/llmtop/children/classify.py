"""Reads a child's log for what went wrong.

A prompt that quotes such a line, and lines that only look like one, mean nothing.
"""

from __future__ import annotations

import re
import signal as signals
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from llmtop.children.patterns import PATTERNS, SMALLER, TRIGGERS, Pattern
from llmtop.children.text import safe_text
from llmtop.snapshot import Failure

_PREFIX = re.compile(
    r"(?:\[\d{1,5}\] *)?"  # the port, where llama.cpp's router forwarded the line
    r"(?:\d+\.\d\d\.\d{3}\.\d{3} +)?"  # minutes.seconds.milli.micro since the start
    r"(?:([DIWET]) +)?"  # level
)
_INFO_LINE = re.compile(r"^(?:\[\d{1,5}\] *)?\d+\.\d\d\.\d{3}\.\d{3} +I .*\n?", re.MULTILINE)
_COMPONENT = re.compile(r"(?:srv|slot|cmn|que|res|cli) +(?:\w|\(\))+: ")
_BEGINS = re.compile(f"^{_PREFIX.pattern.removesuffix('?')}|^{_PREFIX.pattern}{_COMPONENT.pattern}", re.MULTILINE)
"""A line that is no part of the one before it: it has a level, or says which part of the server speaks."""
# Text of a client in the log: JSON, or a line that says it shows a request.
_ECHO = re.compile(
    r"^\s*[{\[]\s*[\"{]|\{\s*\\?\"\w+\\?\"\s*:"
    r"|\\?\"(?:prompt|messages|content|input|text|role)\\?\"\s*:"
    r"|\b(?:request|response|prompt|params|body|messages|content|input|generated text|parsed message)\b"
    r"\s*[:=]\s*[\[{\"'`]"
    r"|\blog_server_r\b|\bformatted prompt\b|\bprompt (?:tokens|text)?:",
    re.IGNORECASE,
)
# One of these is in every such line: most lines are spared the search.
_ECHO_WORDS = (
    *("request", "response", "prompt", "params", "body", "messages", "content", "input", "generated text"),
    *("parsed message", "log_server_r", '"text', '"role', '{"', '{\\"', '["', "[{", '{ "', "[ "),
)
_NO_DIGITS = str.maketrans("123456789", "000000000")
_OF_INFO = tuple(needle for pattern in PATTERNS if pattern.info for needle in pattern.needles)
"""One of these is in every line of information that means something; of a server's lines nearly all are information."""
_LAST_LINES = 20
_UNREAD_MAX = 16

TELLING = 80
"""A pattern of this rank or more names the cause; below it only says that there is one."""


class Verdict(NamedTuple):
    """What a line means.

    Args:
        pattern: The row of the table.
        text: The line without prefix, safe to show.
    """

    pattern: Pattern
    text: str


def worth_a_look(text: str) -> bool:
    """False for a line that no pattern can match."""
    return _has(text.lower(), TRIGGERS)


def any_worth_a_look(block: str) -> bool:
    """False for lines (parted by line ends) of which no pattern can match one."""
    return _has(block, _OF_INFO) or worth_a_look(_INFO_LINE.sub("", block))


def _has(text: str, words: Iterable[str]) -> bool:
    for word in words:  # noqa: SIM110  # each line of each child comes here, and any() takes twice as long
        if word in text:
            return True
    return False


def strip_prefix(line: str) -> tuple[str, str]:
    """Give the level letter (empty without one) and the rest of a line that was made safe to show."""
    found = _PREFIX.match(line)
    return (found[1] or "", line[found.end() :]) if found else ("", line)


def classify(line: str) -> Verdict | None:
    """Say what one line means, None if nothing is wrong. See ``Classifier`` for lines in their order.

    Args:
        line: As the child wrote it, colours and prefix included.
    """
    return _classify(*strip_prefix(safe_text(line).strip())) if worth_a_look(line) else None


def _echoes(text: str) -> bool:
    low = text.lower()
    return any(word in low for word in _ECHO_WORDS) and _ECHO.search(text) is not None


def _classify(level: str, text: str) -> Verdict | None:
    if level in ("D", "T") or _echoes(text):
        return None
    pattern = _find(level == "I", text.translate(_NO_DIGITS))
    return Verdict(pattern, text) if pattern else None


@lru_cache(maxsize=1024)
def _find(info: bool, text: str) -> Pattern | None:
    # Digits are all alike to the patterns, so a flood of one message costs one search.
    for pattern in PATTERNS:
        if info and not pattern.info:
            continue
        for needle in pattern.needles:
            if needle in text:
                break
        else:
            if pattern.needles:
                continue
        if pattern.regex.search(text):
            return pattern
    return None


class Classifier:
    """Reads the lines of one stream in order.

    A line without prefix that follows a debug line or an echoed request is more of the same: a prompt has line breaks
    too.
    """

    def __init__(self) -> None:
        self._echoing = False
        self._unread: list[str] = []

    def skip(self, block: str) -> None:
        """Take lines (parted by line ends) of which none matters; a request that they echo may go on in the next."""
        start = block.rfind("\n") + 1  # of a server's log nearly always the last line begins something
        if not _BEGINS.match(block, start):
            start = max((found.start() for found in _BEGINS.finditer(block)), default=0)
        rest = block[start:]
        first, _, more = rest.partition("\n")
        if more and _has(more.lower(), _ECHO_WORDS):
            for line in rest.split("\n"):
                self.feed(line)
        else:
            self.feed(first)

    def feed(self, line: str) -> Verdict | None:
        """Take the next line, already safe to show; say what it means."""
        level, text = strip_prefix(line)
        if level or _COMPONENT.match(text):
            self._echoing = level in ("D", "T")
            self._unread.clear()
        # Whether a line echoes a request takes long to find out, and is asked only when one that matters follows.
        if not self._echoing:
            self._unread.append(text)
        if len(self._unread) > _UNREAD_MAX:
            self._catch_up()
        if not (_has(text, _OF_INFO) if level == "I" else worth_a_look(text)):
            return None
        self._catch_up()
        return None if self._echoing else _classify(level, text)

    def _catch_up(self) -> None:
        self._echoing = self._echoing or any(_echoes(text) for text in self._unread)
        self._unread.clear()


def cause(lines: Iterable[str]) -> Verdict | None:
    """Give the line that tells most about why a child failed, the first of equals; None when no line tells."""
    reader = Classifier()
    best: Verdict | None = None
    for line in lines:
        verdict = reader.feed(line)
        if verdict and verdict.pattern.kind and (best is None or verdict.pattern.rank > best.pattern.rank):
            best = verdict
    return best


_SIGNALS: dict[str, tuple[str, str, str]] = {
    "SIGKILL": ("killed", "killed by the system or from outside (SIGKILL)", f"most often memory ran out: {SMALLER}"),
    "SIGABRT": ("crash", "aborted (SIGABRT): a check inside failed", "the last lines say which; update llama.cpp"),
    "SIGSEGV": ("crash", "crashed (SIGSEGV)", "update llama.cpp"),
    "SIGBUS": (
        "crash",
        "crashed (SIGBUS): was the model's file changed or cut while in use?",
        "check the file and the disk",
    ),
    "SIGTRAP": ("crash", "crashed (SIGTRAP)", "update llama.cpp"),
    "SIGILL": (
        "crash",
        "crashed (SIGILL): built for another processor",
        "use another llama-server (--llama-server PATH)",
    ),
    "SIGTERM": ("killed", "ended from outside (SIGTERM)", ""),
    "SIGINT": ("killed", "ended from outside (SIGINT)", ""),
    "SIGHUP": ("killed", "ended from outside (SIGHUP)", ""),
}
"""Signal to kind, message and hint."""


def _by_status(code: int | None, signal: int | None) -> tuple[str, str, str]:
    if code is not None and 128 < code < 160:  # a shell in between
        signal = code - 128
    if signal is not None:
        try:
            name = signals.Signals(signal).name
        except ValueError:
            name = f"signal {signal}"
        return _SIGNALS.get(name, ("crash", f"ended by {name}", ""))
    if code in (126, 127):
        return (
            "not_found",
            "could not be run",
            "check the path of llama-server (--llama-server PATH) or the cmd of the preset",
        )
    return ("crash", f"exited with status {code}", "")


def exit_failure(lines: Sequence[str], *, code: int | None, signal: int | None, ready: bool) -> Failure:
    """Say why a child that nobody had asked to leave is gone.

    Args:
        lines: Its kept lines, oldest first.
        code: Exit status, None if a signal ended it.
        signal: Signal number, None if it exited.
        ready: It had been ready: what was said during its load is no cause then.
    """
    kind, message, hint = _by_status(code, signal)
    found = cause(lines)
    if found and not (ready and found.pattern.kind in ("bad_file", "bad_argument", "port")):
        # A kill from outside stays one, unless the child itself said that memory had run out.
        if kind != "killed" or found.pattern.oom:
            kind = found.pattern.kind
        message, hint = f"{found.text} ({message})", found.pattern.hint or hint
    elif told := _last_told(lines):
        message = f"{message}: {told}"
    else:
        message += " without a message"
    return _failure(kind, message, hint, lines, code, signal)


def line_failure(lines: Sequence[str], verdict: Verdict) -> Failure:
    """Say why a child that still lives will not do any more: the most telling line, at least ``verdict``."""
    found = cause(lines)
    if found is None or found.pattern.rank < verdict.pattern.rank:
        found = verdict
    return _failure(found.pattern.kind or "sick", found.text, found.pattern.hint, lines)


def failure(kind: str, message: str, hint: str = "", lines: Sequence[str] = ()) -> Failure:
    """A failure that no line told."""
    return _failure(kind, message, hint, lines)


def _failure(
    kind: str, message: str, hint: str, lines: Sequence[str], code: int | None = None, signal: int | None = None
) -> Failure:
    return Failure(
        kind=kind,
        message=safe_text(message),
        exit_code=code,
        signal=signal,
        lines=tuple(lines[-_LAST_LINES:]),
        at=time.time(),
        hint=hint,
    )


def _last_told(lines: Sequence[str]) -> str:
    errors = (text for level, text in map(strip_prefix, reversed(lines)) if level == "E")
    return next(errors, "") or next((strip_prefix(line)[1] for line in reversed(lines) if line.strip()), "")
