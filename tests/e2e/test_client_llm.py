"""The ``llm`` command line as a client: set up by its own files alone, it is served, and shows an error as a line."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from llmtop.children.binary import wheel_binary
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "sesame-open-3"
SHORT = ("-o", "max_tokens", "8")
MODEL = """
- model_id: {id}
  model_name: {name}
  api_base: http://127.0.0.1:{port}/v1
  api_key_name: {key}
  {more}
"""


class Llm:
    """One user's ``llm``, set up for a llmtop by nothing but its own files.

    Args:
        r: Where.
        home: ``LLM_USER_PATH``.
    """

    def __init__(self, r: Rig, home: Path) -> None:
        self._home = home
        home.mkdir()
        kinds = {
            "ash": ("ash", "mine", ""),
            "elm": ("elm", "mine", "can_stream: false"),
            "ash-responses": ("ash", "mine", "responses: true"),
            "ash-plain": ("ash", "mine", "completion: true"),
            "nobody": ("nobody", "mine", ""),
            "broken": ("broken", "mine", ""),
            "stranger": ("ash", "wrong", ""),
        }
        entries = (MODEL.format(id=i, name=n, port=r.port, key=k, more=m) for i, (n, k, m) in kinds.items())
        (home / "extra-openai-models.yaml").write_text("".join(entries))
        (home / "keys.json").write_text(json.dumps({"mine": KEY, "wrong": "not-it"}))

    async def __call__(self, *args: str, feed: str = "", env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        """Run it; gives exit code, output and errors."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "LLM"))}
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "llm", *args),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**outside, "LLM_USER_PATH": str(self._home), "NO_PROXY": "127.0.0.1", **(env or {})},
        )
        out, err = await asyncio.wait_for(process.communicate(feed.encode()), 60)
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def error(self, model: str) -> str:
        """What it says when a prompt fails."""
        code, out, err = await self("-m", model, "hi", *SHORT)
        assert (code, out.strip()) == (1, "")
        assert "Traceback" not in err
        return err


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[tuple[Rig, Llm]]:
    real = wheel_binary()
    if real is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    (tmp_path / "models").mkdir()
    for seed, name in enumerate(("ash", "elm")):
        write_tiny(tmp_path / "models" / f"{name}.gguf", seed=seed)
    whole = (tmp_path / "models" / "ash.gguf").read_bytes()
    (tmp_path / "models" / "broken.gguf").write_bytes(whole[: len(whole) // 2])
    options = ("--api-key", KEY, "--models-max", "1", "--", "-c", "1024", "--no-warmup", "--jinja")
    async with rig(tmp_path, None, *options, server=real) as r:
        r.key = KEY
        llm = Llm(r, tmp_path / "llm")
        yield r, llm


async def test_it_is_served_with_and_without_a_stream_and_swaps_models(place: tuple[Rig, Llm]) -> None:
    r, llm = place
    for model, how in (("ash", ()), ("elm", ()), ("ash", ("--no-stream",))):
        code, out, err = await llm("-m", model, "-s", "be brief", *SHORT, *how, feed="hi, from a pipe")
        assert (code, err) == (0, ""), f"{model} {how}: {err}"
        assert out.strip()
    state = await r.state()
    assert state["swaps"]["count"] == 3, "one model at a time, each at its turn"
    assert state["errors_total"] == 0


async def test_it_is_served_by_the_other_ways_to_ask(place: tuple[Rig, Llm]) -> None:
    _, llm = place
    for model in ("ash-responses", "ash-plain"):
        code, out, err = await llm("-m", model, "hi", *SHORT)
        assert (code, bool(out.strip())) == (0, True), f"{model}: {err}"
    code, out, _ = await llm("logs", "list", "--json", "-n", "1")
    assert code == 0
    assert json.loads(out)[0]["model"] == "ash-plain"


async def test_its_errors_are_a_line_that_says_what_is_wrong(place: tuple[Rig, Llm]) -> None:
    r, llm = place
    assert "no model is named 'nobody'" in await llm.error("nobody")
    assert "a valid key is needed" in await llm.error("stranger")
    told = await llm.error("broken")
    assert "broken" in told
    assert len(told.strip().splitlines()) == 1
    assert (await r.model("broken"))["failure"]["kind"] == "bad_file"
    assert KEY not in told
