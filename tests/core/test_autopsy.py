"""A load that failed without a word: the files and the port are asked."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from llmtop.children.autopsy import cause_of
from llmtop.children.classify import exit_failure
from llmtop.children.ports import free_port
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.snapshot import Failure


def died(*lines: str, code: int | None = 1, signum: int | None = None) -> Failure:
    return exit_failure(lines, code=code, signal=signum, ready=False)


pytestmark = pytest.mark.anyio


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.gguf"
    write_tiny(path)
    return path


@pytest.fixture
def free() -> int:
    return free_port()


async def test_a_damaged_file_is_the_cause(tmp_path: Path, whole: Path, free: int) -> None:
    junk, cut, missing = tmp_path / "junk.gguf", tmp_path / "cut.gguf", tmp_path / "missing.gguf"
    junk.write_bytes(b"version https://git-lfs.github.com/spec/v1\n" * 4)
    cut.write_bytes(whole.read_bytes()[:-100])  # noqa: ASYNC240
    for path, words in ((junk, "not a GGUF file"), (cut, "cut short"), (missing, "No such file")):
        why = await cause_of(died("srv  start: binding port"), (str(whole), str(path)), free)
        assert why.kind == "bad_file"
        assert why.message.startswith(f"{path.name}: {words}")
        assert why.message.endswith("(exited with status 1)")
        assert "download" in why.hint
        assert (why.exit_code, why.lines) == (1, ("srv  start: binding port",))


async def test_what_the_child_said_stands(tmp_path: Path, free: int) -> None:
    said = died("E ggml_aligned_malloc: insufficient memory (attempted to allocate 99.00 MB)")
    assert said.kind == "oom"
    assert await cause_of(said, (str(tmp_path / "missing.gguf"),), free) is said


async def test_whole_files_and_files_of_other_servers_are_no_cause(tmp_path: Path, whole: Path, free: int) -> None:
    why = died()
    assert await cause_of(why, (), free) is why
    assert await cause_of(why, (str(whole), str(tmp_path / "weights.safetensors")), free) is why


async def test_a_port_that_a_stranger_has_is_the_cause(whole: Path, free: int) -> None:
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", free))
        stranger.listen()
        why = await cause_of(died(), (str(whole),), free)
        assert (why.kind, why.message) == ("port", f"port {free} is taken (exited with status 1)")
        killed = died(code=None, signum=11)
        assert await cause_of(killed, (str(whole),), free) is killed
    assert (await cause_of(died(), (str(whole),), free)).kind == "crash"
