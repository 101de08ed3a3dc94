"""Which model a request body names, without reading megabytes twice."""

from __future__ import annotations

import re
from typing import Any, Protocol

import msgspec

from llmtop.errors import Refusal, Refused
from llmtop.frontdoor.body import Spool
from llmtop.frontdoor.gate import Gate
from llmtop.frontdoor.head import bad

_FIELD_BYTES_MAX = 256 * 1024
_BOM = b"\xef\xbb\xbf"
"""What shells on Windows write in front; the child's parser passes over it."""


class Peek(msgspec.Struct):
    """The two members of a body that matter here; of a repeated one the last counts, as in the child's parser."""

    model: Any = None
    stream: Any = None


_decoder = msgspec.json.Decoder(Peek)


class Scanner(Protocol):
    """Finds the two members in a body that comes in pieces."""

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        ...

    @property
    def so_far(self) -> Peek:
        """What was found in what has come."""
        ...

    def finish(self) -> Peek:
        """What was found once the body is whole; raises ``Refused`` where it is not what it should be."""
        ...


def scanner(content_type: bytes) -> Scanner:
    """The scanner for a body too large to be decoded at once."""
    boundary = _boundary(content_type)
    return JsonScanner() if boundary is None else MultipartScanner(boundary)


def peek(body: bytes, content_type: bytes) -> Peek:
    """Look into a body that is whole.

    Raises:
        Refused: It is neither a JSON object nor a form.
    """
    boundary = _boundary(content_type)
    if boundary is not None:
        form = MultipartScanner(boundary)
        form.feed(body)
        return form.finish()
    try:
        return _decoder.decode(body[3:] if body[:3] == _BOM else body)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise bad(
            f"the body is not a JSON object: {str(error)[:200]}" if body else "the body is empty: want a JSON object"
        ) from None


def checked_name(found: Any) -> str | None:
    """A model name as found in a body; None when there is none.

    Raises:
        Refused: It is not a string, or empty.
    """
    if found is None:
        return None
    if not isinstance(found, str) or not found:
        raise bad("model must be a non-empty string")
    return found


def model_of(found: Peek, query_model: str, gate: Gate) -> str:
    """The id of the model that a request is for: its body's, else its query's.

    Raises:
        Refused: It names none, or none that is known.
    """
    name = checked_name(found.model) or query_model
    if not name:
        raise bad('the request names no model: want "model" in its JSON body, a form field, or ?model=')
    model = gate.resolve(name)
    if model is None:
        shown = name if len(name) <= 100 else name[:100] + "…"
        raise Refused(Refusal("model_not_found", f"no model is named {shown!r}; see /v1/models"))
    return model


class Finder:
    """Looks into one body: at once where it is small, piece by piece where it outgrows the memory.

    Args:
        content_type: Of the body.
        tolerant: ``feed`` takes one that cannot be read for one in which nothing is found.
    """

    def __init__(self, content_type: bytes, *, tolerant: bool = False) -> None:
        self._content_type = content_type
        self._scanner: Scanner | None = None
        self._tolerant = tolerant

    def feed(self, data: bytes, spool: Spool) -> None:
        """Told of each piece once the spool holds it."""
        try:
            if self._scanner is not None:
                self._scanner.feed(data)
            elif spool.in_file:
                self._scan(spool).feed(data)
        except Refused:
            if not self._tolerant:
                raise
            self._give_up()

    def asks_for_stream(self, spool: Spool) -> bool:
        """The body asks for a stream, as far as it has come; a ``tolerant`` finder can tell."""
        try:
            return (self._scanner or self._scan(spool)).so_far.stream is True
        except Refused:
            self._give_up()
            return False

    def _scan(self, spool: Spool) -> Scanner:
        self._scanner = scanner(self._content_type)
        self._scanner.feed(spool.whole())
        return self._scanner

    def _give_up(self) -> None:
        self._scanner = JsonScanner()
        self._scanner.feed(b"[")  # no object: nothing is found in whatever follows

    def find(self, spool: Spool, *, lenient: bool) -> Peek:
        """What is in the body, now that it is whole; ``lenient`` takes one that cannot be read for an empty one.

        Raises:
            Refused: It cannot be read.
        """
        try:
            return self._scanner.finish() if self._scanner else peek(spool.whole(), self._content_type)
        except Refused:
            if lenient:
                return Peek()
            raise


def _boundary(content_type: bytes) -> bytes | None:
    if not content_type[:20].lower().startswith(b"multipart/form-data"):
        return None
    match = re.search(rb';\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))', content_type, re.IGNORECASE)
    if not match:
        raise bad("multipart body without a boundary")
    return match[1] or match[2]


_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_NESTED = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PLAIN = re.compile(rb'[^"{}\[\],:]*+')


class JsonScanner:
    """Follows the top level of a JSON object; what lies deeper is skipped by regular expressions at memory speed.

    It trusts that the text is JSON: a malformed one is refused by the child, whichever model it is sent to.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._key: str | None = None
        self._kept: bytearray | None = bytearray()
        self._found: dict[str, Any] = {}
        self._is_object = False
        self._over = False

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        at, size = 0, len(data)
        while at < size and not self._over:
            if self._in_string:
                at = self._string(data, at)
            elif self._depth >= 2:
                at = _NESTED.match(data, at).end()  # type: ignore[union-attr]  # it matches the empty string too
                if at < size:
                    self._in_string = data[at] == 0x22
                    self._depth += {0x7B: 1, 0x5B: 1, 0x7D: -1, 0x5D: -1}.get(data[at], 0)
                    at += 1
            else:
                at = self._top(data, at)

    @property
    def so_far(self) -> Peek:
        """What was found until now."""
        return Peek(self._found.get("model"), self._found.get("stream"))

    def finish(self) -> Peek:
        """What was found."""
        if not self._is_object or self._depth:
            raise bad("the body is not a JSON object")
        return self.so_far

    def _keep(self, piece: bytes) -> None:
        if self._kept is not None:
            self._kept += piece
            if len(self._kept) > _FIELD_BYTES_MAX:
                if self._key in ("model", "stream"):
                    raise bad(f"{self._key} is longer than {_FIELD_BYTES_MAX} bytes")
                self._kept = None  # a key of that length is none of ours

    def _string(self, data: bytes, at: int) -> int:
        if self._escaped:
            self._escaped = False
            if self._depth == 1:
                self._keep(data[at : at + 1])
            return at + 1
        end = _STRING.match(data, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        stop = end + 1 if end < len(data) else end
        if end < len(data):
            self._in_string = data[end] != 0x22
            self._escaped = self._in_string  # a backslash was the last byte
        if self._depth == 1:
            self._keep(data[at:stop])
        return stop

    def _top(self, data: bytes, at: int) -> int:
        end = _PLAIN.match(data, at).end()  # type: ignore[union-attr]  # it matches the empty string too
        if self._depth == 1:
            self._keep(data[at:end])
        if end == len(data):
            return end
        byte = data[end]
        if byte in b"{[":
            if not self._depth:
                self._is_object = byte == 0x7B
                self._over = not self._is_object
                self._kept = bytearray()
            else:
                self._keep(b"[]")
            self._depth += 1
        elif byte == 0x22:
            self._in_string = True
            if self._depth == 1:
                self._keep(b'"')
        elif byte == 0x3A and self._depth == 1:
            key = self._value()
            self._key = key if isinstance(key, str) else ""
            self._kept = bytearray() if self._key in ("model", "stream") else None
        elif self._depth == 1:  # a comma, or the end of the object
            self._member()
            if byte != 0x2C:
                self._depth, self._over = 0, True
        return end + 1

    def _member(self) -> None:
        if self._key in ("model", "stream"):
            self._found[self._key] = self._value()
        self._key, self._kept = None, bytearray()

    def _value(self) -> Any:
        """The kept text as a value; where it is no JSON the child will say so."""
        if self._kept is None:
            return ""
        try:
            return msgspec.json.decode(bytes(self._kept))
        except (msgspec.DecodeError, UnicodeError):
            return ""


_DISPOSITION = re.compile(rb"^content-disposition:([^\r\n]*)", re.IGNORECASE | re.MULTILINE)
_PARAMETER = re.compile(rb';[ \t]*([^=;" \t]+)[ \t]*=[ \t]*(?:"((?:[^"\\]|\\.)*+)"|([^;"]*))')


def _field_name(head: bytes) -> str:
    """The name of a form's field by the head of its part; what looks like one inside a quoted file name is none."""
    line = _DISPOSITION.search(head.lstrip())
    for parameter in _PARAMETER.finditer(line[1]) if line else ():
        if parameter[1].lower() == b"name":
            return str(parameter[2] or (parameter[3] or b"").strip(), "utf-8", "replace")
    return ""


class MultipartScanner:
    """Finds the fields ``model`` and ``stream`` of a form; keeps no more than one field's bytes."""

    def __init__(self, boundary: bytes) -> None:
        self._mark = b"\r\n--" + boundary
        self._kept = bytearray(b"\r\n")  # the first boundary has no line before it
        self._state = "seek"
        self._field = ""
        self._found: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        """Take the next piece."""
        self._kept += data
        while self._step():
            pass

    @property
    def so_far(self) -> Peek:
        """What was found until now."""
        return Peek(self._found.get("model"), self._found.get("stream") in ("true", "True", "1") or None)

    def finish(self) -> Peek:
        """What was found."""
        return self.so_far

    def _step(self) -> bool:
        """Go on by one part of a part; False when more bytes are needed."""
        kept = self._kept
        if self._state == "head":
            end = kept.find(b"\r\n\r\n")
            if end < 0:
                if len(kept) > 16384:
                    raise bad("a form field has a head larger than 16384 bytes")
                return False
            self._field = _field_name(bytes(kept[:end]))
            del kept[: end + 2]  # the empty line's end may begin the next boundary
            self._state = "value" if self._field in ("model", "stream") else "seek"
            return True
        end = kept.find(self._mark)
        if self._state == "value":
            if end < 0:
                if len(kept) > _FIELD_BYTES_MAX:
                    raise bad(f"the form field {self._field} is longer than {_FIELD_BYTES_MAX} bytes")
                return False
            self._note(bytes(kept[2:end]))
        elif end < 0:
            del kept[: max(0, len(kept) - len(self._mark))]
            return False
        del kept[: end + len(self._mark)]
        self._state = "head"
        return True

    def _note(self, value: bytes) -> None:
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise bad(f"the form field {self._field} is not UTF-8") from None
        if self._found.setdefault(self._field, text) != text:
            raise bad(f"the form has several fields named {self._field}")
