"""Finds the llmtop that runs, and asks it over HTTP. It imports little: ``llmtop ps`` is to be quick."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from llmtop.children.text import safe_text
from llmtop.cli import wire
from llmtop.errors import STATUS, ConfigError, StartError

TIMEOUT_S = 10.0
OWNER_FILE = "owner.json"
DEFAULT_URL = "http://127.0.0.1:8080"


@dataclass(frozen=True)
class Target:
    """A llmtop to talk to.

    Args:
        url: Where its front door is.
        key: Sent with every request; empty for none.
        found: How it was found, for messages.
    """

    url: str
    key: str
    found: str


def find(url: str | None, key: str | None, state_dir: str | None, env: Mapping[str, str]) -> Target:
    """Find the running llmtop: the named one, else the one that holds the state folder, else the default port.

    Args:
        url: ``--url``.
        key: ``--api-key``.
        state_dir: ``--state-dir``.
        env: Environment.

    Returns:
        Where it should be; nothing was asked yet.

    Raises:
        ConfigError: The URL is none, or the key cannot be one.
    """
    key = key or env.get("LLMTOP_API_KEY") or env.get("LLAMA_API_KEY") or ""
    key = next((part.strip() for part in key.split(",") if part.strip()), "")
    if not key.isprintable():
        raise ConfigError("the key is no line of plain text: look at --api-key and LLAMA_API_KEY")
    named = url or env.get("LLMTOP_URL")
    if named:
        return Target(checked_url(named), key, "--url" if url else "LLMTOP_URL")
    recorded = _recorded(Path(state_dir or env.get("LLMTOP_STATE_DIR") or _default_state_dir(env)).expanduser())
    if recorded:
        return Target(recorded, key, "the state folder's record")
    port = env.get("LLMTOP_PORT") or env.get("LLAMA_ARG_PORT") or ""
    return Target(f"http://127.0.0.1:{port}" if port.isdigit() else DEFAULT_URL, key, "the default port")


def _default_state_dir(env: Mapping[str, str]) -> str:
    from llmtop.config.options import default_state_dir

    return default_state_dir(env)


def checked_url(url: str) -> str:
    """A URL with scheme and host, without what would be in the way at its end.

    Raises:
        ConfigError: It is none.
    """
    whole = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(whole)
        good = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{url!r} is not a URL of a llmtop: write http://HOST:PORT")
    return whole.rstrip("/")


def _recorded(folder: Path) -> str:
    """The URL in the state folder's record, if the process that wrote it lives."""
    try:
        record = json.loads((folder / OWNER_FILE).read_bytes())
        pid, url = int(record["pid"]), str(record["url"])
        if pid <= 0:
            return ""
        os.kill(pid, 0)
    except PermissionError:
        return ""  # another user's process has that pid by now, or the folder is not ours
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return url if url.startswith("http://") else ""


class KeyWanted(StartError):
    """A llmtop answers, and wants a key, or another one."""


class Caller:
    """Asks one llmtop, one request at a time.

    Args:
        target: Whom.
        timeout_s: For connecting, and for each read [s].
    """

    def __init__(self, target: Target, timeout_s: float = TIMEOUT_S) -> None:
        self.target = target
        self._timeout_s = timeout_s

    def get(self, path: str) -> bytes:
        """The body of a GET.

        Raises:
            StartError: Nothing answers there, or the answer is an error.
        """
        return self._ask("GET", path, None)

    def pid(self) -> int:
        """The process of the llmtop there.

        Raises:
            KeyWanted: It wants its key.
            StartError: Nothing answers there, or what does is no llmtop.
        """
        try:
            return int(json.loads(self.get("/api/state"))["pid"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise StartError(f"{self.target.url} answers, but not as a llmtop ({self.target.found})") from None

    def post(self, path: str, body: Mapping[str, object] | None = None) -> dict[str, Any]:
        """The answer to a POST with a JSON body. Raises as ``get`` does."""
        return dict(json.loads(self._ask("POST", path, json.dumps(body or {}).encode()) or b"{}"))

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        headers = {"Accept": "application/json"}
        if self.target.key:
            headers["Authorization"] = f"Bearer {self.target.key}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        parts = urlsplit(self.target.url)
        exchange = _exchange_tls if parts.scheme == "https" else wire.exchange
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            status, text = exchange(
                parts.hostname or "", port, method, parts.path + path, headers, body, self._timeout_s
            )
        except (OSError, ValueError) as error:
            raise StartError(self._nobody(error)) from None
        if status == 401:
            kind = KeyWanted if b'"unauthorized"' in text else StartError
            raise kind(f"{self.target.url} wants its key: give --api-key, or set LLAMA_API_KEY")
        if status >= 400:
            raise StartError(self._refused(status, text))
        return text

    def _nobody(self, error: Exception) -> str:
        place = f"{self.target.url} ({self.target.found})"
        if isinstance(error, ConnectionRefusedError):
            return f"no llmtop answers at {place}: start one with llmtop, or name it with --url"
        return f"{place} does not answer as a llmtop: {type(error).__name__} {error}".rstrip()

    def _refused(self, status: int, text: bytes) -> str:
        try:
            error = json.loads(text)["error"]
            if error["type"] in STATUS:
                return safe_text(f"{error['message']} ({error['type']})")
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        return f"{self.target.url} answers {status}: is it a llmtop? ({self.target.found})"


def _exchange_tls(
    host: str, port: int, method: str, path: str, headers: Mapping[str, str], body: bytes | None, timeout_s: float
) -> tuple[int, bytes]:
    """``wire.exchange`` to a llmtop behind TLS."""
    import http.client

    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s)
    try:
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:
        raise OSError(f"{type(error).__name__} {error}") from None
    finally:
        connection.close()
