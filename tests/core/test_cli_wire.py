"""The command line's own little client: whole answers, or a word about what is wrong."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from llmtop.cli.caller import Caller, Target
from llmtop.cli.wire import exchange
from llmtop.errors import StartError

Serve = Callable[[bytes], int]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves one answer, byte for byte, to whoever asks next; gives the port. What was asked is in ``asked``."""
    threads: list[threading.Thread] = []

    def start(answer: bytes) -> int:
        listener = socket.create_server(("127.0.0.1", 0))

        def run() -> None:
            with listener, listener.accept()[0] as connection:
                while not connection.recv(65536).endswith((b"\r\n\r\n", b"{}")):
                    pass
                with contextlib.suppress(OSError):  # it may have seen enough
                    for i in range(0, len(answer), 7):
                        connection.sendall(answer[i : i + 7])

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return int(listener.getsockname()[1])

    yield start
    for thread in threads:
        thread.join()


def ask(port: int, host: str = "127.0.0.1", **headers: str) -> tuple[int, bytes]:
    return exchange(host, port, "GET", "/x", headers, None, 5.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello and more",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello",
    ],
)
def test_an_answer_is_read_to_its_end_however_it_is_told(serve: Serve, answer: bytes) -> None:
    assert ask(serve(answer)) == (200, b"hello")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nConte",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
    ],
)
def test_half_an_answer_and_what_is_no_http_are_errors_of_one_line(serve: Serve, answer: bytes) -> None:
    with pytest.raises(OSError, match=r"its answer (ended early|is no HTTP)"):
        ask(serve(answer))
    with pytest.raises(StartError, match="does not answer as a llmtop") as error:
        Caller(Target(f"http://127.0.0.1:{serve(answer)}", "", "--url")).get("/api/state")
    assert "\n" not in str(error.value)


def test_a_body_goes_with_its_length_and_a_name_is_looked_up(serve: Serve) -> None:
    port = serve(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert exchange("localhost", port, "POST", "/x", {}, b"{}", 5.0) == (204, b"")


def test_a_key_with_a_line_end_adds_no_header() -> None:
    with pytest.raises(ValueError, match="line end"):
        ask(1, Authorization="Bearer x\r\nX-Other: 1")
    with pytest.raises(StartError, match="line end"):
        Caller(Target("http://127.0.0.1:1", "x\ny", "--url")).get("/api/state")
