"""One request over plain HTTP, with as little as it takes: the standard library's client loads mail and TLS first."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import cast

import httptools


class _Answer:
    """Takes what the parser finds."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.whole = False
        self.begun = False
        self.sized = False

    def on_header(self, name: bytes, _: bytes) -> None:
        self.sized = self.sized or name.lower() in {b"content-length", b"transfer-encoding"}

    def on_headers_complete(self) -> None:
        self.begun = True

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.whole = True


def exchange(
    host: str, port: int, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:
    """Ask, and read the whole answer.

    Args:
        host: Name or address.
        port: TCP port.
        method: In capitals.
        path: With its query.
        headers: Beyond Host, Connection and Content-Length.
        body: What is sent; None for a request without one.
        timeout_s: For connecting, and for each read [s].

    Returns:
        Status and body.

    Raises:
        OSError: Nobody answers, the answer is no HTTP, or it ends early.
        ValueError: Path or headers hold a line end.
    """
    name = f"[{host}]" if ":" in host else host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {name}:{port}", "Connection: close"]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError("a header cannot hold a line end")
    answer = _Answer()
    parser = httptools.HttpResponseParser(answer)
    where = cast("str", host.encode()) if host.isascii() else host  # text would load the tables of other names
    with socket.create_connection((where, port), timeout=timeout_s) as connection:
        connection.sendall("\r\n".join((*lines, "", "")).encode("latin-1") + (body or b""))
        try:
            while not answer.whole:
                data = connection.recv(1 << 16)
                if not data:
                    break
                parser.feed_data(data)
        except httptools.HttpParserError as error:
            if answer.whole:  # what follows an answer is nobody's
                return int(parser.get_status_code()), bytes(answer.body)
            raise OSError(f"its answer is no HTTP: {error}") from None
    if not answer.whole and (answer.sized or not answer.begun):  # without a length it ends with the connection
        raise OSError("its answer ended early")
    return int(parser.get_status_code()), bytes(answer.body)
