"""What llmtop raises on purpose, and the errors a client can be told."""

from __future__ import annotations

from typing import Any

import msgspec

STATUS: dict[str, int] = {
    "invalid_request": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "model_not_loaded": 400,
    "payload_too_large": 413,
    "headers_too_large": 431,
    "not_implemented": 501,
    "upstream_error": 502,
    "all_slots_pinned": 503,
    "insufficient_memory": 503,
    "load_cancelled": 503,
    "load_failed": 503,
    "model_too_large": 503,
    "queue_full": 503,
    "request_cancelled": 503,
    "shutting_down": 503,
    "slot_stuck": 503,
    "too_busy": 503,
    "internal_error": 500,
}
"""Error type to HTTP status: the whole list of what a client can be told."""


class LlmtopError(Exception):
    """Root of everything llmtop raises on purpose; its text is one line for the user."""


class ConfigError(LlmtopError):
    """The user can fix it: option or file, key and reason are in the message. Exit code 2."""


class StartError(LlmtopError):
    """llmtop cannot start here and now (port or state folder taken, no llama-server). Exit code 1."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request or a command is refused or cut, as data; one shape for HTTP, screen and journal.

    Args:
        type: A key of ``STATUS``.
        message: One sentence with the numbers.
        retry_after_s: Seconds after which trying again may help [s]; None where waiting does not help.
        status: HTTP status where it differs from ``STATUS[type]``; 0 takes that.
        details: More fields of the error object (failure class, exit code, last lines).
    """

    type: str
    message: str
    retry_after_s: float | None = None
    status: int = 0
    details: dict[str, Any] = {}

    @property
    def code(self) -> int:
        """HTTP status of this refusal."""
        return self.status or STATUS[self.type]

    def body(self) -> dict[str, Any]:
        """The error envelope, as OpenAI clients expect it."""
        return {"error": {"code": self.code, "message": self.message, "type": self.type, **self.details}}


class Refused(LlmtopError):
    """Carries a ``Refusal`` up to whoever answers the client."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
