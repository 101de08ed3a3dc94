"""How a client is pointed at a running llmtop: one text for each kind, with a placeholder where the key goes."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit

from llmtop.config.options import is_loopback

KEY = "YOUR-LLMTOP-KEY"
"""Stands for the key. A llmtop without one takes any, and most clients want some."""


def openwebui(url: str, models: Sequence[str]) -> str:
    """Open WebUI in a container. It asks for the list of models itself."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    lines = ["# Open WebUI at http://localhost:3000; it lists the models by itself"]
    if is_loopback(host):
        lines += [
            "# on Linux: the container shares this machine's network, and so reaches 127.0.0.1",
            *_webui(url, "--network host -e PORT=3000"),
            "# on macOS: a container has its own network; start llmtop with --allow-host host.docker.internal or a key",
            *_webui(f"{parts.scheme}://host.docker.internal:{parts.port or 80}", "-p 3000:8080"),
        ]
    else:
        lines += _webui(url, "-p 3000:8080")
    return "\n".join(lines)


def _webui(url: str, network: str) -> list[str]:
    return [
        f"docker run -d --name open-webui {network} -v open-webui:/app/backend/data \\",
        f"  -e OPENAI_API_BASE_URL={shlex.quote(url + '/v1')} -e OPENAI_API_KEY={KEY} \\",
        "  ghcr.io/open-webui/open-webui:main",
    ]


def opencode(url: str, models: Sequence[str]) -> str:
    """A provider for ``opencode.json``."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "llmtop",
        "options": {"baseURL": f"{url}/v1", "apiKey": KEY},
        "models": {model: {"name": model} for model in models},
    }
    whole = {"$schema": "https://opencode.ai/config.json", "provider": {"llmtop": provider}}
    return json.dumps(whole, indent=2, ensure_ascii=False)


def aider(url: str, models: Sequence[str]) -> str:
    """Variables and a call for aider; one of the models, the others as comments."""
    calls = [f"aider --model {shlex.quote('openai/' + model)}" for model in models]
    return "\n".join(
        [
            f"export OPENAI_API_BASE={shlex.quote(url + '/v1')}",
            f"export OPENAI_API_KEY={KEY}",
            *calls[:1],
            *(f"# {call}" for call in calls[1:]),
        ]
    )


def continue_(url: str, models: Sequence[str]) -> str:
    """``config.yaml`` of Continue. Strings of JSON are strings of YAML."""
    lines = ["name: llmtop", "version: 0.0.1", "schema: v1", "models:"]
    for model in models:
        lines += [
            f"  - name: {json.dumps(model)}",
            "    provider: openai",
            f"    model: {json.dumps(model)}",
            f"    apiBase: {json.dumps(url + '/v1')}",
            f"    apiKey: {KEY}",
            "    roles: [chat, edit, apply]",
        ]
    return "\n".join(lines)


def curl(url: str, models: Sequence[str]) -> str:
    """Two calls: the list, and a question to the first model."""
    key = f"-H 'Authorization: Bearer {KEY}'"
    body = {
        "model": models[0],
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 32,
    }
    return "\n".join(
        [
            f"curl -s {key} {shlex.quote(url + '/v1/models')}",
            f"curl -s {key} -H 'Content-Type: application/json' \\",
            f"  -d {shlex.quote(json.dumps(body, ensure_ascii=False))} \\",
            f"  {shlex.quote(url + '/v1/chat/completions')}",
        ]
    )


CLIENTS: dict[str, Callable[[str, Sequence[str]], str]] = {
    "openwebui": openwebui,
    "opencode": opencode,
    "aider": aider,
    "continue": continue_,
    "curl": curl,
}
"""Kind to its text, made from the URL without a slash at its end, and at least one model's id."""
