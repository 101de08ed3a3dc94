"""Who may ask for what, and where it goes: keys, Origin, Host, and the table of routes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from llmtop.frontdoor.gate import Upstream
from llmtop.testing.frontdoor import House, house, plain, request

pytestmark = pytest.mark.anyio
ASK = {"model": "A"}
INFERENCE = [
    *("chat/completions", "completions", "responses", "messages", "messages/count_tokens", "embeddings", "rerank"),
    *("infill", "tokenize", "detokenize", "apply-template", "audio/transcriptions", "images/generations"),
]


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path) as it:
        yield it


@pytest.fixture
async def locked(tmp_path: Path) -> AsyncIterator[House]:
    async with house(tmp_path, api_keys=("sekret", "other")) as it:
        yield it


PATHS = [
    *(
        "/",
        "/models",
        "/v1/models",
        "/v1/models/A",
        "/v1/models?reload=1",
        "/models/load",
        "/models/sse",
        "/props",
        "/props?model=A",
    ),
    *(
        "/slots?model=A",
        "/metrics",
        "/metrics?model=A",
        "/api/state",
        "/api/events",
        "/api/models/A/kill",
        "/upstream/A/props",
    ),
    *(
        "//models",
        "/models/",
        "/v1/../models/load",
        "/%2e%2e/api/state",
        "/API/state",
        "/health/../api/state",
        "/health/",
    ),
    *(
        "/health%2f..%2fapi/state",
        "/health;/api/state",
        "/nowhere",
        "*",
        "http://127.0.0.1/api/state",
        "http://127.0.0.1/health",
    ),
    *(f"{v}/{name}" for v in ("", "/v1") for name in INFERENCE),
]
WRONG = [
    *(
        "",
        "Authorization: Bearer wrong\r\n",
        "Authorization: Bearer \r\n",
        "Authorization: sekret\r\n",
        "Authorization: Basic sekret\r\n",
    ),
    *("X-Api-Key: nope\r\n", "X-Api-Key:\r\n", "X-Api-Key: sekre\r\n", "X-Api-Key: sekrett\r\n", "Cookie: sekret\r\n"),
]


@pytest.mark.parametrize("header", WRONG)
async def test_with_a_key_nothing_but_health_is_open(locked: House, header: str) -> None:
    client = await locked.client()
    for path in PATHS:
        for method in ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            await client.send(request(method, path, ASK if method == "POST" else b"", header))
            reply = await client.reply(head_only=method == "HEAD")
            assert reply.status == 401, (method, path)
    await client.send(request("GET", "/health", b"", header))
    assert (await client.reply()).json() == {"status": "ok"}
    assert not locked.child.requests
    assert not locked.gate.tickets


async def test_a_wrong_key_is_refused_before_a_byte_of_the_body(locked: House) -> None:
    client = await locked.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
    reply = await client.reply()
    assert (reply.status, reply.error["type"], reply.headers["connection"]) == (401, "unauthorized", "close")


async def test_a_refusal_reaches_a_client_that_is_still_sending(locked: House) -> None:
    client = await locked.client()
    await client.send(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n\r\n")
    for _ in range(5):
        await client.send(bytes(100_000))
    assert (await client.reply()).status == 401
    assert await client.reader.read() == b"", "an end, not a reset"


@pytest.mark.parametrize(
    "header", ["Authorization: Bearer sekret\r\n", "authorization: bearer other\r\n", "X-Api-Key: sekret\r\n"]
)
async def test_any_of_the_keys_opens_and_none_reaches_the_child(locked: House, header: str) -> None:
    reply = await locked.ask(
        "POST", "/v1/completions", ASK, header + "Origin: https://evil.example\r\n", host="evil.example"
    )
    assert reply.status == 200, "a valid key answers all questions of Host and Origin"
    assert (await locked.ask("GET", "/api/state", b"", header, host="evil.example")).status == 200
    for seen in locked.child.requests:
        assert seen.headers["authorization"] == "Bearer child-key"
        assert "x-api-key" not in seen.headers
        assert not any("sekret" in value or "other" in value for value in seen.headers.values())


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/api/state", "/props?model=A", "/nowhere"])
@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://localhost:3000", "http://127.0.0.1.evil.example", "127.0.0.1", ""],
)
async def test_without_a_key_foreign_origins_are_refused_everywhere(place: House, path: str, origin: str) -> None:
    reply = await place.ask("GET", path, b"", f"Origin: {origin}\r\n")
    assert (reply.status, reply.error["type"]) == (403, "forbidden")
    assert "access-control-allow-origin" not in reply.headers
    assert (await place.ask("POST", "/v1/completions", ASK, f"Origin: {origin}\r\n")).status == 403
    assert not place.child.requests


async def test_a_name_bound_to_this_address_is_no_own_origin(place: House) -> None:
    """DNS rebinding: the page's origin and the Host are the same, and neither is known."""
    extra = "Origin: http://evil.example:8080\r\n"
    assert (await place.ask("POST", "/v1/completions", ASK, extra, host="evil.example:8080")).status == 403


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1", "[::1]:8080", "LOCALHOST"])
async def test_the_own_origin_and_hosts_are_open(place: House, host: str) -> None:
    assert (await place.ask("GET", "/v1/models", b"", f"Origin: http://{host}\r\n", host=host)).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "evil.example:127", "", "[::2]"]
)
async def test_a_foreign_host_may_infer_but_not_manage(place: House, host: str) -> None:
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/models?reload=1"),
        ("POST", "/models/unload"),
        ("GET", "/api/state"),
        ("GET", "/"),
        ("GET", "/slots?model=A"),
        ("POST", "/upstream/A/x"),
    ):
        reply = await place.ask(method, path, ASK if method == "POST" else b"", host=host)
        assert (reply.status, reply.error["type"]) == (403, "forbidden"), path
    assert (await place.ask("POST", "/v1/completions", ASK, host=host)).status == 200
    assert (await place.ask("GET", "/health", host=host)).status == 200
    assert len(place.child.requests) == 1


async def test_an_image_on_another_sites_page_asks_for_no_reload(place: House) -> None:
    assert (await place.ask("GET", "/v1/models?reload=1", b"", "Sec-Fetch-Site: cross-site\r\n")).status == 403
    assert (await place.ask("GET", "/v1/models?reload=1", b"", "Sec-Fetch-Site: same-origin\r\n")).status == 200


async def test_hosts_and_origins_can_be_allowed(tmp_path: Path) -> None:
    async with house(tmp_path, allow_hosts=("box.lan",), allow_origins=("https://app.example",)) as place:
        assert (await place.ask("GET", "/v1/models", host="box.lan:8080")).status == 200
        reply = await place.ask("POST", "/v1/completions", ASK, "Origin: https://app.example\r\n")
        assert (reply.status, reply.headers["access-control-allow-origin"], reply.headers["vary"]) == (
            200,
            "https://app.example",
            "Origin",
        )
        asked = "Origin: https://app.example\r\nAccess-Control-Request-Method: POST\r\n"
        reply = await place.ask("OPTIONS", "/v1/completions", b"", asked)
        assert (reply.status, reply.headers["access-control-allow-origin"]) == (204, "https://app.example")
        assert (await place.ask("OPTIONS", "/v1/completions", b"", asked.replace("app.", "evil."))).status == 403


@pytest.mark.parametrize(
    "kind",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/jsonx",
    ],
)
async def test_management_asks_for_json(place: House, kind: str) -> None:
    reply = await place.ask("POST", "/models/unload", ASK, f"Content-Type: {kind}\r\n")
    assert (reply.status, reply.error["type"]) == (415, "invalid_request")
    reply = await place.ask("POST", "/api/queue/hold", b"")
    assert reply.status == 415
    reply = await place.ask("POST", "/models/unload", ASK, "Content-Type: Application/JSON; charset=utf-8\r\n")
    assert reply.status == 200
    assert len(place.child.requests) == 1


CROOKED = [
    *(
        "//models",
        "//v1/models",
        "/models/",
        "/v1/models/",
        "/v1/../models/load",
        "/%2e%2e/api/state",
        "/API/state",
        "/Health",
        "/health/",
    ),
    *(
        "/health/../api/state",
        "/health%2f..%2fapi/state",
        "/health;/api/state",
        "/%68ealth",
        "/api/../health",
        "/api//state",
        "/api/./state",
    ),
    *(
        "/api/%2e%2E/x",
        "/api/x/..",
        "/v1/models/../../x",
        "/v1/v1/completions",
        "/v1/completions/",
        "/v1/slots",
        "/upstream/",
        "/api/",
        "*",
    ),
    *(
        "http://127.0.0.1/health",
        "http://127.0.0.1/api/state",
        "/upstream/A/..%2fx",
        "/upstream/A/../x",
        "/upstream//A/x",
        "/api/a\\b",
        "/nowhere",
    ),
]


@pytest.mark.parametrize("path", CROOKED)
async def test_a_path_that_is_not_in_the_table_leads_nowhere(place: House, path: str) -> None:
    for method in ("GET", "POST"):
        reply = await place.ask(method, path, ASK if method == "POST" else b"")
        assert (reply.status, reply.error["type"]) == (404, "not_found"), method
    assert not place.child.requests


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *(
            ("GET", "/v1/completions"),
            ("DELETE", "/tokenize"),
            ("POST", "/health"),
            ("POST", "/v1/models"),
            ("GET", "/models/load"),
        ),
        *(
            ("POST", "/props?model=A"),
            ("PUT", "/api/state"),
            ("POST", "/slots?model=A"),
            ("TRACE", "/"),
            ("OPTIONS", "/v1/models"),
        ),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(place: House, method: str, path: str) -> None:
    reply = await place.ask(method, path)
    assert (reply.status, reply.error["type"]) == (405, "method_not_allowed")
    assert reply.headers["allow"]
    assert not place.child.requests


@pytest.mark.parametrize("path", [f"{v}/{name}" for v in ("", "/v1") for name in INFERENCE])
async def test_inference_goes_to_the_child_of_the_model_that_the_body_names(place: House, path: str) -> None:
    reply = await place.ask("POST", path + "?autoload=false", {"model": "alias"})
    assert reply.status == 200
    (ticket,) = place.gate.tickets
    assert ticket.model == "A"
    assert ticket.asked == {"path": path, "client": "127.0.0.1", "stream": False, "autoload": False}
    assert place.child.requests[0].target == path + "?autoload=false"


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/models",
        "/v1/models",
        "/v1/models/org/m",
        "/models/sse",
        "/props",
        "/metrics",
        "/api/state",
        "/api/models/org%2Fm/log",
    ],
)
async def test_what_is_ours_goes_to_the_control_api(place: House, path: str) -> None:
    place.gate.control_upstream = Upstream("control", port=place.gate.upstream.port)
    reply = await place.ask("GET", path)
    assert reply.status == 200
    assert reply.headers["x-llmtop-request-id"]
    (seen,) = place.child.requests
    assert seen.target == path
    assert "authorization" not in seen.headers
    assert not place.gate.tickets


@pytest.mark.parametrize(
    ("path", "model", "target"),
    [
        ("/upstream/A/v1/x?y=z", "A", "/v1/x?y=z"),
        ("/upstream/alias/x", "A", "/x"),
        ("/upstream/org/m/x", "org/m", "/x"),
        ("/upstream/org%2Fm/x", "org/m", "/x"),
        ("/upstream/org/n/x", "org", "/n/x"),
        ("/upstream/A", "A", "/"),
    ],
)
async def test_under_upstream_the_longest_known_id_wins(place: House, path: str, model: str, target: str) -> None:
    assert (await place.ask("POST", path, {"stream": True})).status == 200
    assert place.gate.tickets[0].model == model
    assert place.gate.tickets[0].asked["stream"] is True
    assert place.child.requests[0].target == target


async def test_under_upstream_an_unknown_model_is_a_404(place: House) -> None:
    for path in ("/upstream/nope/x", "/upstream/%FF/x"):
        reply = await place.ask("POST", path, ASK)
        assert (reply.status, reply.error["type"]) == (404, "model_not_found")


async def test_a_read_under_upstream_reaches_a_loaded_child_only(place: House) -> None:
    assert (await place.ask("GET", "/upstream/A/slots")).status == 200
    assert not place.gate.tickets, "and asks no leave for it"
    for observed in ("unloaded", "loading", Upstream("child-1", port=place.gate.upstream.port, asleep=True)):
        place.gate.observed = observed
        for method in ("GET", "HEAD", "OPTIONS"):
            reply = await place.ask(method, "/upstream/A/sw.js")
            assert reply.status == 409
    assert len(place.child.requests) == 1


async def test_reads_by_model_answer_what_was_last_known_of_an_idle_child(place: House) -> None:
    place.child.script = plain(body=b"[1]")
    for path in ("/slots?model=A", "/metrics?model=A", "/lora-adapters?model=alias"):
        reply = await place.ask("GET", path)
        assert (reply.status, reply.error["type"]) == (409, "model_not_loaded")
        place.gate.is_busy = True
        assert (await place.ask("GET", path)).body == b"[1]"
        place.gate.is_busy = False
        reply = await place.ask("GET", path)
        assert (reply.status, reply.body, reply.headers["age"]) == (200, b"[1]", "0")
        assert (await place.ask("HEAD", path)).status == 200
    assert len(place.child.requests) == 3
    place.gate.observed = Upstream("child-2", port=place.gate.upstream.port)
    assert (await place.ask("GET", "/slots?model=A")).status == 409, "another instance is another child"
    place.gate.observed = "sleeping"
    reply = await place.ask("GET", "/slots?model=A")
    assert reply.status == 409
    assert "sleeping" in reply.error["message"]
    assert not place.gate.tickets


async def test_neutral_reads_go_to_the_child_idle_or_asleep(place: House) -> None:
    place.gate.observed = Upstream("child-1", port=place.gate.upstream.port, asleep=True)
    assert (await place.ask("GET", "/props?model=A")).status == 200
    assert place.child.requests[0].target == "/props?model=A"


@pytest.mark.parametrize(
    ("path", "status"),
    [("/slots", 400), ("/slots?model=", 400), ("/slots?model=nope", 404), ("/slots?model=A&model=B", 400)],
)
async def test_reads_by_model_need_a_known_one(place: House, path: str, status: int) -> None:
    assert (await place.ask("GET", path)).status == status
