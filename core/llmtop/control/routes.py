"""The routes of the control API, as one Starlette application."""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import cast, get_args

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from llmtop import __version__
from llmtop.client import ModelVerb, QueueVerb
from llmtop.control import feeds
from llmtop.control.answers import InstanceBody, ModelBody, NoBody, as_json, body_as, refused, replied, shown
from llmtop.control.listing import entry, listing
from llmtop.control.port import ControlPort
from llmtop.errors import Refusal, Refused

log = logging.getLogger(__name__)

Handler = Callable[[Request], Awaitable[Response]]

_ONE_LINE = (
    '<!doctype html><meta charset="utf-8"><title>llmtop</title><p>llmtop {version} at {url}: the state is at '
    '<a href="/api/state">/api/state</a>, the models at <a href="/v1/models">/v1/models</a>.</p>\n'
)


class FeedResponse(StreamingResponse):
    """A stream whose feed is closed with it, however it ends: who has left must not stay subscribed."""

    def __init__(self, feed: AsyncGenerator[bytes], headers: dict[str, str]) -> None:
        super().__init__(feed, media_type="text/event-stream", headers=headers)
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the feed until its reader has left or it is over."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._feed.aclose()


class ControlRoutes:
    """The handlers, over one core.

    Args:
        core: Whom they ask.
        closing: Set when the server ends; ends the streams.
        pace: How often the streams speak.
    """

    def __init__(self, core: ControlPort, closing: asyncio.Event, pace: feeds.Pace) -> None:
        self._core = core
        self._closing = closing
        self._pace = pace

    def application(self) -> Starlette:
        """The application, with every refusal in llmtop's own error envelope."""
        app = Starlette(
            routes=self._routes(),
            exception_handlers={Refused: _on_refused, HTTPException: _on_http, Exception: _on_bug},
        )
        app.router.redirect_slashes = False
        return app

    def _routes(self) -> list[BaseRoute]:
        reads: dict[str, Handler] = {
            "/": self.root,
            "/models": self.models,
            "/v1/models": self.models,
            "/models/sse": self.model_events,
            "/v1/models/{id:path}": self.model,
            "/props": self.props,
            "/metrics": self.metrics,
            "/api/state": self.state,
            "/api/events": self.state_events,
            "/api/swaps": self.swaps,
            "/api/models/{id:path}/log": self.model_log,
        }
        writes: dict[str, Handler] = {
            "/models/load": self._named("load"),
            "/models/unload": self._named("evict"),
            "/api/oom/acknowledge": self.acknowledge_oom,
            **{f"/api/models/{{id:path}}/{verb}": self._on_model(verb) for verb in get_args(ModelVerb)},
            **{f"/api/queue/{verb}": self._on_queue(verb) for verb in get_args(QueueVerb)},
        }
        return [
            *(Route(path, handler, methods=["GET"]) for path, handler in reads.items()),
            *(Route(path, handler, methods=["POST"]) for path, handler in writes.items()),
            Route("/api/requests/{id}", self.cancel, methods=["DELETE"]),
        ]

    # What there is to read

    async def root(self, _request: Request) -> Response:
        """One line for a browser that came to look."""
        text = _ONE_LINE.format(version=html.escape(__version__), url=html.escape(self._core.snapshot().url))
        return Response(text, media_type="text/html")

    async def models(self, request: Request) -> Response:
        """All models; ``?reload=1`` reads presets and folders first."""
        if request.query_params.get("reload", "0").lower() in ("1", "true"):
            reply = await self._core.reload()
            if not reply.success:
                return replied(reply)
        return as_json(listing(self._core))

    async def model(self, request: Request) -> Response:
        """One model, by id or alias."""
        model_id = self._resolve(request.path_params["id"])
        snapshot = self._core.snapshot()
        for model in snapshot.models:
            if model.id == model_id:
                return as_json(entry(self._core, snapshot, model))
        raise Refused(Refusal("model_not_found", f"model {shown(model_id)} has just left the list"))

    async def props(self, _request: Request) -> Response:
        """What a llama.cpp client asks to learn that this is a router."""
        snapshot = self._core.snapshot()
        return as_json(
            {
                "role": "router",
                "max_instances": snapshot.models_max,
                "models_autoload": self._core.settings.autoload,
                "model_alias": "llmtop",
                "model_path": "none",
                "default_generation_settings": {"params": None, "n_ctx": 0},
                "build_info": snapshot.server or f"llmtop {__version__}",
            }
        )

    async def metrics(self, _request: Request) -> Response:
        """All counters, for Prometheus."""
        return Response(self._core.metrics_text(), media_type="text/plain; version=0.0.4")

    async def state(self, _request: Request) -> Response:
        """The snapshot that every view shows."""
        return as_json(self._core.snapshot())

    async def swaps(self, _request: Request) -> Response:
        """The swaps still remembered, newest last."""
        return as_json({"swaps": self._core.swaps()})

    async def model_log(self, request: Request) -> Response:
        """Output of the model's last child; ``?after=SEQ`` gives what is newer than that line."""
        model_id = self._resolve(request.path_params["id"])
        after = _number(request.query_params.get("after"), "?after=", -1)
        return as_json({"model": model_id, "lines": self._core.log(model_id, after)})

    # Streams

    async def state_events(self, request: Request) -> Response:
        """The state and the journal, as they change."""
        after = _last_event_id(request)
        return self._stream(request, feeds.state_feed(self._core, after, self._closing, self._pace))

    async def model_events(self, request: Request) -> Response:
        """What llama.cpp's router sends about its models."""
        return self._stream(request, feeds.model_feed(self._core, self._closing, self._pace))

    def _stream(self, request: Request, feed: AsyncGenerator[bytes]) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        if request.method == "HEAD":  # the head alone: the feed has not begun, so there is nothing to close
            return Response(media_type="text/event-stream", headers=headers)
        return FeedResponse(feed, headers)

    # What there is to do

    def _named(self, verb: ModelVerb) -> Handler:
        async def handle(request: Request) -> Response:
            body = await body_as(request, ModelBody)
            return replied(self._core.model_verb(verb, self._resolve(body.model), None))

        return handle

    def _on_model(self, verb: ModelVerb) -> Handler:
        async def handle(request: Request) -> Response:
            model_id = self._resolve(request.path_params["id"])
            body = await body_as(request, InstanceBody)
            return replied(self._core.model_verb(verb, model_id, body.instance))

        return handle

    def _on_queue(self, verb: QueueVerb) -> Handler:
        async def handle(request: Request) -> Response:
            await body_as(request, NoBody)
            return replied(self._core.queue_verb(verb))

        return handle

    async def cancel(self, request: Request) -> Response:
        """End one request, queued or running."""
        return replied(self._core.cancel(request.path_params["id"]))

    async def acknowledge_oom(self, request: Request) -> Response:
        """The operator has seen the out-of-memory line."""
        await body_as(request, NoBody)
        return replied(self._core.acknowledge_oom())

    def _resolve(self, name: str) -> str:
        model_id = self._core.resolve(name)
        if model_id is None:
            raise Refused(Refusal("model_not_found", f"there is no model {shown(name)}; GET /v1/models lists them"))
        return model_id


def _number(text: str | None, what: str, default: int) -> int:
    if text is None:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
        raise Refused(Refusal("invalid_request", f"{what} takes a whole number, got {shown(text)}"))
    return int(text)


def _last_event_id(request: Request) -> int | None:
    """Where a reader left off. A wrong number counts as none: an ``EventSource`` cannot be told errors."""
    text = request.headers.get("last-event-id", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _on_refused(_request: Request, error: Exception) -> Response:
    return refused(cast("Refused", error).refusal)


def _on_http(request: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or not with this method."""
    known = cast("HTTPException", error)
    where = f"{request.method} {shown(request.url.path)}"
    if known.status_code == 405:
        allow = (known.headers or {}).get("Allow", "")
        refusal = Refusal("method_not_allowed", f"{where} is not possible here; allowed: {allow}")
        return refused(refusal, {"Allow": allow})
    if known.status_code == 404:
        return refused(Refusal("not_found", f"{where}: llmtop has no such route"))
    return refused(Refusal("invalid_request", f"{where}: {known.detail}", status=known.status_code))


def _on_bug(request: Request, error: Exception) -> Response:
    log.error("a bug in the control API at %s %s", request.method, request.url.path, exc_info=error)
    return refused(Refusal("internal_error", "llmtop failed to answer; its log says where"))
