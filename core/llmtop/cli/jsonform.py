"""The ``--json`` forms: one JSON object, ``schema_version`` first, so that a program can tell what it reads."""

from __future__ import annotations

from llmtop.errors import StartError

SCHEMA_VERSION = 1
"""Raised when a field of a ``--json`` form is renamed or removed; a new field raises nothing."""


def versioned(text: bytes) -> str:
    """Put the version in front of an object that is JSON already, on one line; nothing of it is decoded.

    Raises:
        StartError: It is no object.
    """
    body = text.strip()
    if not (body.startswith(b"{") and body.endswith(b"}")):
        raise StartError("the answer is no JSON object: is it a llmtop? (--url says which)")
    head, rest = f'{{"schema_version":{SCHEMA_VERSION}'.encode(), body[1:].lstrip()
    whole = head + (b"," if rest != b"}" else b"") + rest
    return whole.decode().replace("\n", " ").replace("\r", " ")  # inside its strings line ends are escaped


def encoded(value: dict[str, object]) -> str:
    """A ``--json`` form for a reader of either kind: indented, the version first."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **value})).decode()
