"""Clients that people use, unchanged, against a whole llmtop: their calls work, and its errors are theirs."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from llmtop.children.binary import wheel_binary
from llmtop.demo.tiny_gguf import write_tiny
from llmtop.testing.rig import Rig, rig

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

KEY = "sesame-open-2"
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},
}
HELLO: Any = [{"role": "user", "content": "hi"}]
SERVER = """
import json, sys, http.server

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{\\"a\\": 1}"}}
CHAT = {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "usage":
    {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}}
SAID = {"role": "assistant", "content": "grüße"}
PARTS = [{"role": "assistant", "content": ""}, {"content": "grü"}, {"content": "ße"}]
CALLS = [{"role": "assistant", "tool_calls": [dict(CALL, index=0)]}]
MESSAGE = {"id": "m1", "type": "message", "role": "assistant", "model": "m", "content": [],
    "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 0}}
TEXT = {"type": "text", "text": "grüße"}
EVENTS = [("message_start", {"message": MESSAGE}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "grü"}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "ße"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}), ("message_stop", {})]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args): pass

    def give(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def events(self, lines):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            data = line.encode() + b"\\n\\n"
            self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(data), data))
        self.wfile.write(b"0\\r\\n\\r\\n")

    def do_GET(self): self.give({"status": "ok"})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        chunk = dict(CHAT, object="chat.completion.chunk")
        if self.path == "/v1/embeddings":
            found = [{"object": "embedding", "index": i, "embedding": [0.25, i]} for i, _ in enumerate(asked["input"])]
            self.give({"object": "list", "model": "m", "data": found, "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        elif self.path == "/v1/messages" and asked.get("stream"):
            self.events(f"event: {n}\\ndata: {json.dumps(dict(d, type=n))}" for n, d in EVENTS)
        elif self.path == "/v1/messages":
            usage = {"input_tokens": 3, "output_tokens": 2}
            self.give(dict(MESSAGE, content=[TEXT], stop_reason="end_turn", usage=usage))
        elif asked.get("stream") and asked["messages"][0]["content"] == "break":
            error = {"code": 500, "message": "Compute error.", "type": "server_error"}
            self.events(["data: " + json.dumps({"error": error}, separators=(",", ":"))])
        elif asked.get("stream"):
            parts = CALLS if asked.get("tools") else PARTS
            chunks = [dict(chunk, choices=[{"index": 0, "delta": p, "finish_reason": None}]) for p in parts]
            self.events([*("data: " + json.dumps(c) for c in chunks), "data: [DONE]"])
        else:
            said = dict(SAID, content=None, tool_calls=[CALL]) if asked.get("tools") else SAID
            self.give(dict(CHAT, choices=[{"index": 0, "message": said, "finish_reason": "stop"}]))


http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
"""A server of another make, which a preset starts by ``cmd``."""


@pytest.fixture
async def scripted(tmp_path: Path) -> AsyncIterator[Rig]:
    """A llmtop with a scripted server as model ``S``, a simulated one as ``A``, and ``bad`` that never loads."""
    (tmp_path / "server.py").write_text(SERVER)
    preset = f"version = 1\n[S]\ncmd = {sys.executable} {tmp_path / 'server.py'} ${{PORT}}\nmemory = 1MiB\n"
    (tmp_path / "preset.ini").write_text(preset)
    models = {"A": {"tok_rate": 100}, "bad": {"exit_at_load": 3}}
    async with rig(tmp_path, models, "--models-preset", str(tmp_path / "preset.ini"), key=KEY) as r:
        yield r


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def openai_client(r: Rig, retries: int = 0, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{r.port}/v1", api_key=key, max_retries=retries, timeout=30)


def anthropic_client(r: Rig, key: str = KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=f"http://127.0.0.1:{r.port}", api_key=key, max_retries=0, timeout=30)


async def test_openais_client_chats_streams_embeds_and_calls_tools(scripted: Rig) -> None:
    async with openai_client(scripted) as c:
        said = await c.chat.completions.create(model="S", messages=HELLO)
        assert said.choices[0].message.content == "grüße"
        assert said.usage is not None
        assert said.usage.completion_tokens == 5
        text = ""
        async for part in await c.chat.completions.create(model="S", messages=HELLO, stream=True):
            text += part.choices[0].delta.content or ""
        assert text == "grüße"
        vectors = await c.embeddings.create(model="S", input=["a", "b"], encoding_format="float")
        assert [v.embedding for v in vectors.data] == [[0.25, 0.0], [0.25, 1.0]]
        called: Any = await c.chat.completions.create(model="S", messages=HELLO, tools=[TOOL])  # type: ignore[list-item]
        assert json.loads(called.choices[0].message.tool_calls[0].function.arguments) == {"a": 1}
        streamed: Any = await c.chat.completions.create(model="S", messages=HELLO, tools=[TOOL], stream=True)  # type: ignore[list-item]
        calls = [call async for part in streamed for call in part.choices[0].delta.tool_calls or ()]
        assert [call.function.name for call in calls] == ["add"]
        ids = {m.id async for m in c.models.list()}
        assert ids == {"A", "S", "bad"}
        assert (await c.models.retrieve("S")).id == "S"
        raw = await c.chat.completions.with_raw_response.create(model="A", messages=HELLO, max_tokens=2)
        assert int(raw.headers["x-llmtop-load-ms"]) > 0


async def test_errors_are_exceptions_of_openais_client(scripted: Rig) -> None:
    async with openai_client(scripted) as c, openai_client(scripted, key="wrong") as stranger:
        with pytest.raises(openai.NotFoundError) as unknown:
            await c.chat.completions.create(model="nobody", messages=HELLO)
        assert unknown.value.type == "model_not_found"
        with pytest.raises(openai.AuthenticationError):
            await stranger.chat.completions.create(model="A", messages=HELLO)
        with pytest.raises(openai.BadRequestError) as nameless:
            await c.chat.completions.create(model="", messages=HELLO)
        assert nameless.value.type == "invalid_request"
        refused = [await refusal(c, "bad") for _ in range(2)]
        for error in refused:
            assert (error.status_code, error.type) == (503, "load_failed")
            assert isinstance(error.body, dict)
            assert error.body["exit_code"] == 3
        assert int(refused[1].response.headers["retry-after"]) >= 1


async def refusal(c: openai.AsyncOpenAI, model: str) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as failed:
        await c.chat.completions.create(model=model, messages=HELLO)
    return failed.value


async def test_openais_client_comes_back_when_it_is_told_to_and_is_served(scripted: Rig) -> None:
    async with openai_client(scripted, retries=4) as c:
        asked = asyncio.create_task(c.chat.completions.create(model="bad", messages=HELLO, max_tokens=2))
        await scripted.until(lambda: failed_once(scripted), "the first load failed")
        (scripted.models / "bad.json").write_text(json.dumps({"load_ms": 20, "tokens": 2}))
        assert (await asked).choices[0].message.content


async def failed_once(r: Rig) -> bool:
    return bool((await r.model("bad"))["failure"])


async def rest(stream: openai.AsyncStream[Any]) -> list[Any]:
    return [part async for part in stream]


async def test_a_stream_that_is_cut_is_an_exception_and_no_short_answer(scripted: Rig) -> None:
    async with openai_client(scripted) as c, scripted.client() as operator:
        stream = await c.chat.completions.create(model="A", messages=HELLO, max_tokens=500, stream=True)
        for _ in range(3):
            assert (await anext(stream)).choices
        await scripted.say(operator, "/api/models/A/kill")
        with pytest.raises(openai.APIError, match="killed by the operator"):
            await rest(stream)
        stream = await c.chat.completions.create(model="A", messages=HELLO, max_tokens=500, stream=True)
        request = next(q for q in (await scripted.state())["requests"] if q["model"] == "A")
        await operator.delete(f"/api/requests/{request['id']}")
        with pytest.raises(openai.APIError, match="cancelled by the operator"):
            await rest(stream)


async def test_a_child_that_breaks_inside_a_stream_is_told_and_replaced(scripted: Rig) -> None:
    async with openai_client(scripted) as c:
        assert (await c.chat.completions.create(model="S", messages=HELLO)).choices
        first = (await scripted.model("S"))["pid"]
        stream = await c.chat.completions.create(
            model="S", messages=[{"role": "user", "content": "break"}], stream=True
        )
        with pytest.raises(openai.APIError, match=r"Compute error\."):
            await rest(stream)
        assert (await c.chat.completions.create(model="S", messages=HELLO)).choices
        second = (await scripted.model("S"))["pid"]
        assert second != first, "a backend that said so answers nothing any more"
        async with scripted.client() as http:
            assert 'llmtop_failures_total{class="sick"} 1.0' in (await http.get("/metrics")).text


async def test_a_request_that_the_operator_cancels_is_a_503_of_its_own_kind(scripted: Rig) -> None:
    async with openai_client(scripted) as c, scripted.client() as operator:
        asked = asyncio.create_task(c.chat.completions.create(model="A", messages=HELLO, max_tokens=500))

        async def runs() -> bool:
            return any(q["phase"] == "running" for q in (await scripted.state())["requests"])

        await scripted.until(runs, "the request runs")
        request = (await scripted.state())["requests"][0]
        assert (await operator.delete(f"/api/requests/{request['id']}")).status_code == 200
        with pytest.raises(openai.APIStatusError) as cancelled:
            await asked
        assert (cancelled.value.status_code, cancelled.value.type) == (503, "request_cancelled")
        counted = (await operator.get("/metrics")).text
        assert 'llmtop_refusals_total{type="request_cancelled"} 1.0' in counted


async def test_anthropics_client_talks_streams_counts_and_gets_its_errors(scripted: Rig) -> None:
    async with anthropic_client(scripted) as c, anthropic_client(scripted, key="wrong") as stranger:
        said = await c.messages.create(model="S", max_tokens=5, messages=HELLO)
        assert said.content[0].type == "text"
        assert said.content[0].text == "grüße"
        async with c.messages.stream(model="S", max_tokens=5, messages=HELLO) as stream:
            assert "".join([piece async for piece in stream.text_stream]) == "grüße"
            assert (await stream.get_final_message()).usage.output_tokens == 2
        counted = await c.messages.count_tokens(model="A", messages=HELLO)
        assert counted.input_tokens == 3
        with pytest.raises(anthropic.NotFoundError):
            await c.messages.create(model="nobody", max_tokens=5, messages=HELLO)
        with pytest.raises(anthropic.AuthenticationError):
            await stranger.messages.create(model="S", max_tokens=5, messages=HELLO)
        with pytest.raises(anthropic.APIStatusError) as failed:
            await c.messages.create(model="bad", max_tokens=5, messages=HELLO)
        assert failed.value.status_code == 503
    async with scripted.client() as client:
        counted_tokens = (await client.get("/metrics")).text
    assert 'llmtop_tokens_generated_total{model="S"} 4.0' in counted_tokens, "two answers of two tokens each"


async def curl(r: Rig, *args: str, feed: bytes = b"") -> tuple[int, str]:
    """Run curl; gives the HTTP status and the body."""
    argv = ["curl", "-sS", "-w", "\\n%{http_code}", "--max-time", "20", "-H", f"Authorization: Bearer {KEY}", *args]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate(feed)
    assert process.returncode == 0, err
    body, _, status = out.decode().rpartition("\n")
    return int(status), body


async def test_curl_gets_what_it_asks_for_however_it_sends_it(scripted: Rig) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    url = f"http://127.0.0.1:{scripted.port}/v1/chat/completions"
    ask = json.dumps({"model": "A", "messages": HELLO, "max_tokens": 3})
    status, body = await curl(scripted, url, "-d", ask)  # as a form, by its content type
    assert (status, len(json.loads(body)["choices"])) == (200, 1)
    status, body = await curl(scripted, url, "--http2", "-d", ask)
    assert status == 200, "the offer to upgrade is passed over"
    status, body = await curl(scripted, url, "--http1.0", "-d", ask)
    assert status == 200
    status, body = await curl(scripted, url, "-T", "-", "-X", "POST", feed=ask.encode())  # chunked, 100-continue
    assert status == 200
    large = json.dumps({"model": "A", "max_tokens": 1, "messages": [{"role": "user", "content": "x" * 3_000_000}]})
    status, body = await curl(scripted, url, "-H", "Expect: 100-continue", "--data-binary", "@-", feed=large.encode())
    assert status == 200
    status, body = await curl(scripted, url, "-N", "-d", ask[:-1] + ', "stream": true}')
    assert (status, body.count("data: ")) == (200, 5)
    assert body.rstrip().endswith("data: [DONE]")
    form = ("-F", "file=@-;filename=x; name=model", "-F", "model=A")
    status, body = await curl(scripted, url.replace("chat/completions", "audio/transcriptions"), *form, feed=b"RIFF")
    assert status == 200
    status, body = await curl(scripted, "-I", url)
    assert status == 405


@pytest.fixture
def real() -> str:
    path = wheel_binary()
    if path is None:
        pytest.skip("the demo extra (a real llama-server) is not installed")
    return path


async def test_both_clients_are_served_by_a_real_llama_server(tmp_path: Path, real: str) -> None:
    (tmp_path / "models").mkdir()
    for seed, name in enumerate(("ash", "elm")):
        write_tiny(tmp_path / "models" / f"{name}.gguf", seed=seed)
    preset = "version = 1\n[elm]\nembeddings = true\npooling = mean\n"
    (tmp_path / "preset.ini").write_text(preset)
    options = ("--models-preset", str(tmp_path / "preset.ini"), "--", "-c", "1024", "--no-warmup", "--jinja")
    async with rig(tmp_path, None, *options, server=real) as r, openai_client(r, key="none") as c:
        said = await c.chat.completions.create(model="ash", messages=HELLO, max_tokens=8)
        assert said.choices[0].message.content
        pieces = 0
        async for part in await c.chat.completions.create(model="ash", messages=HELLO, max_tokens=8, stream=True):
            pieces += bool(part.choices and part.choices[0].delta.content)
        assert pieces > 3
        vectors = await c.embeddings.create(model="elm", input=["a", "b"])
        assert len({len(v.embedding) for v in vectors.data}) == 1
        assert len(vectors.data) == 2
        told = await c.responses.create(model="ash", input="hi", max_output_tokens=8)
        assert told.output_text
        assert (await c.responses.input_tokens.count(model="ash", input="hi")).input_tokens > 2
        with pytest.raises(openai.BadRequestError):  # the child's own error, passed on as it is
            await c.chat.completions.create(model="ash", messages=HELLO, max_tokens=8, n=-1, temperature=0, stop=[7])  # type: ignore[list-item]
        async with anthropic_client(r, key="none") as a:
            message = await a.messages.create(model="ash", max_tokens=8, messages=HELLO)
            assert message.content
            async with a.messages.stream(model="ash", max_tokens=8, messages=HELLO) as stream:
                assert [event async for event in stream]
        async with r.client() as http:
            text = (await http.get("/metrics")).text
        line = next(line for line in text.splitlines() if line.startswith('llmtop_tokens_generated_total{model="ash"}'))
        assert float(line.split()[-1]) == 40, "five answers of eight tokens each, as the child itself counts them"
