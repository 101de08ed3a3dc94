"""The control API's routes, over a core that is told what to say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from llmtop.client import Reply
from llmtop.config.spec import ModelSpec
from llmtop.control.feeds import Pace
from llmtop.control.listing import preset_section
from llmtop.control.routes import ControlRoutes
from llmtop.errors import Refusal
from llmtop.snapshot import Failure, LogLine, Model, Progress, Swap
from llmtop.testing.control import FakeControl

pytestmark = pytest.mark.anyio

SLASHED = "org/model:Q4"


@pytest.fixture
def core() -> FakeControl:
    return FakeControl(
        Model("A", "loaded", instance=7, pid=11, port=12, args=("llama-server", "-c", "512"), aliases=("a-alias",)),
        Model("B", "loading", instance=8, progress=Progress("text_model", 0.61)),
        Model("C", failure=Failure("oom", "out of memory", signal=9)),
        Model(SLASHED),
    )


@pytest.fixture
async def api(core: FakeControl) -> AsyncIterator[httpx.AsyncClient]:
    app = ControlRoutes(core, asyncio.Event(), Pace()).application()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://core") as client:
        yield client


def rows(answer: httpx.Response) -> dict[str, dict[str, Any]]:
    assert answer.status_code == 200
    return {row["id"]: row for row in answer.json()["data"]}


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
async def test_model_list_has_the_shape_of_llama_cpps_router(
    api: httpx.AsyncClient, core: FakeControl, path: str
) -> None:
    core.infos["A"] = {"n_ctx": 512}
    core.specs["C"] = ModelSpec("C", args=("--ctx-size", "512", "--no-warmup"), source_args=("-m", "/models/C.gguf"))
    answer = await api.get(path)
    assert answer.json()["object"] == "list"
    listed = rows(answer)
    assert list(listed) == ["A", "B", "C", SLASHED]
    a = listed["A"]
    assert (a["object"], a["owned_by"], a["created"], a["source"]) == ("model", "llamacpp", 990, "models_dir")
    assert a["aliases"] == ["a-alias"]
    assert a["meta"] == {"n_ctx": 512}
    assert a["status"]["value"] == "loaded"
    assert a["status"]["args"] == ["llama-server", "-c", "512"]
    assert a["status"]["failed"] is False
    assert a["llmtop"]["instance"] == 7
    progress = {"stages": ["text_model"], "current": "text_model", "value": 0.61}
    assert listed["B"]["status"]["progress"] == progress
    assert "meta" not in listed["B"]
    c = listed["C"]["status"]
    assert (c["value"], c["failed"], c["exit_code"]) == ("unloaded", True, -9)
    assert c["args"] == ["--ctx-size", "512", "--no-warmup", "-m", "/models/C.gguf"]
    assert c["preset"] == "[C]\nctx-size = 512\nno-warmup = true\nm = /models/C.gguf\n\n"


async def test_a_projector_makes_a_model_see(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.specs["A"] = ModelSpec("A", source_args=("-m", "a.gguf", "--mmproj", "mmproj-a.gguf"))
    listed = rows(await api.get("/models"))
    assert listed["A"]["architecture"]["input_modalities"] == ["text", "image"]
    assert listed["B"]["architecture"]["input_modalities"] == ["text"]


def test_preset_section_tells_negative_numbers_from_options() -> None:
    args = ("-ngl", "-1", "--temp", "0.5", "--mlock", "--seed=-3", "-c", "512")
    assert preset_section("m", args) == "[m]\nngl = -1\ntemp = 0.5\nmlock = true\nseed = -3\nc = 512\n\n"


async def test_secrets_stay_out_of_every_read(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.specs["A"] = ModelSpec("A", args=("--hf-token", "hf-secret"), env=(("HF_TOKEN", "env-secret"),))
    for path in ("/models", "/v1/models/A", "/props", "/api/state", "/api/swaps", "/api/models/A/log", "/metrics", "/"):
        answer = await api.get(path)
        assert answer.status_code == 200
        text = answer.text
        for secret in ("hf-secret", "env-secret", "front-door-key"):
            assert secret not in text, path


@pytest.mark.parametrize("name", ["A", "a-alias", SLASHED, "org%2Fmodel:Q4", "org%2fmodel%3AQ4"])
async def test_one_model_is_found_by_id_or_alias_raw_or_percent_encoded(api: httpx.AsyncClient, name: str) -> None:
    answer = await api.get(f"/v1/models/{name}")
    assert answer.status_code == 200
    assert answer.json()["id"] == (SLASHED if "org" in name else "A")


async def test_reload_is_asked_for_and_its_refusal_is_told(api: httpx.AsyncClient, core: FakeControl) -> None:
    assert (await api.get("/models")).status_code == 200
    assert core.asked == []
    assert (await api.get("/v1/models?reload=1")).status_code == 200
    assert core.asked == [("reload",)]
    core.answer = Reply(False, refusal=Refusal("invalid_request", "p.ini line 3: no such key"))
    answer = await api.get("/models?reload=1")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "p.ini line 3: no such key")


@pytest.mark.parametrize(("path", "verb"), [("/models/load", "load"), ("/models/unload", "evict")])
async def test_router_verbs_take_the_name_from_the_body(
    api: httpx.AsyncClient, core: FakeControl, path: str, verb: str
) -> None:
    answer = await api.post(path, json={"model": "a-alias"})
    assert (answer.status_code, answer.json()) == (200, {"success": True, "changed": True})
    assert core.asked == [(verb, "A", None)]


@pytest.mark.parametrize("verb", ["load", "evict", "pin", "unpin", "kill"])
@pytest.mark.parametrize("body", [b"", b"{}", b" \n", b'{"instance": null}', b'{"instance": 7}'])
async def test_model_verbs_take_an_instance_or_no_body(
    api: httpx.AsyncClient, core: FakeControl, verb: str, body: bytes
) -> None:
    answer = await api.post(f"/api/models/A/{verb}", content=body)
    assert (answer.status_code, answer.json()) == (200, {"success": True, "changed": True})
    assert core.asked == [(verb, "A", 7 if b"7" in body else None)]


async def test_the_verb_is_the_last_segment_of_an_id_with_slashes(api: httpx.AsyncClient, core: FakeControl) -> None:
    tricky = "x/load"
    core.specs[tricky] = ModelSpec(tricky)
    core.say(models=(*core.state.models, Model(tricky)))
    for name in (SLASHED, "org%2Fmodel:Q4"):
        assert (await api.post(f"/api/models/{name}/pin")).status_code == 200
    assert (await api.post(f"/api/models/{tricky}/evict")).status_code == 200
    assert core.asked == [("pin", SLASHED, None), ("pin", SLASHED, None), ("evict", tricky, None)]


@pytest.mark.parametrize("verb", ["evict", "kill"])
async def test_a_verb_for_an_older_child_is_a_conflict(api: httpx.AsyncClient, verb: str) -> None:
    answer = await api.post(f"/api/models/A/{verb}", json={"instance": 6})
    assert answer.status_code == 409
    assert answer.json()["error"]["type"] == "conflict"


async def test_what_was_so_already_is_success_without_change(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.answer = Reply(True, False)
    assert (await api.post("/api/models/A/load")).json() == {"success": True, "changed": False}


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (3.1, "4"), (60.0, "60"), (None, None)])
async def test_a_refusal_says_when_trying_again_may_help(
    api: httpx.AsyncClient, core: FakeControl, seconds: float | None, header: str | None
) -> None:
    refusal = Refusal("load_failed", "B: exit code 1", seconds, details={"exit_code": 1})
    core.answer = Reply(False, refusal=refusal)
    answer = await api.post("/models/load", json={"model": "B"})
    error = {"code": 503, "message": "B: exit code 1", "type": "load_failed", "exit_code": 1}
    assert (answer.status_code, answer.json()) == (503, {"error": error})
    assert answer.headers.get("retry-after") == header


@pytest.mark.parametrize("verb", ["hold", "resume", "step"])
async def test_queue_verbs_need_no_body(api: httpx.AsyncClient, core: FakeControl, verb: str) -> None:
    assert (await api.post(f"/api/queue/{verb}")).json()["success"]
    assert (await api.post(f"/api/queue/{verb}", json={})).json()["success"]
    assert core.asked == [(verb,), (verb,)]


async def test_requests_are_cancelled_and_the_oom_line_is_acknowledged(
    api: httpx.AsyncClient, core: FakeControl
) -> None:
    assert (await api.delete("/api/requests/r-17")).json()["success"]
    assert (await api.post("/api/oom/acknowledge")).json()["success"]
    assert core.asked == [("cancel", "r-17"), ("acknowledge",)]


async def test_state_is_the_snapshot_itself(api: httpx.AsyncClient) -> None:
    answer = await api.get("/api/state")
    state = answer.json()
    assert (state["pid"], state["models_max"], state["hold"]) == (1, 4, False)
    assert [m["state"] for m in state["models"]] == ["loaded", "loading", "unloaded", "unloaded"]
    assert state["swaps"] == {"count": 0, "last": None, "recent": []}
    assert answer.headers["cache-control"] == "no-store"


async def test_swaps_come_newest_last_with_all_their_phases(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.done = (Swap(1, "A", "cap", 1.0), Swap(2, "B", "cap", 2.0, evicted=("A",)))
    swaps = (await api.get("/api/swaps")).json()["swaps"]
    assert [s["id"] for s in swaps] == [1, 2]
    assert swaps[1]["evicted"] == ["A"]
    assert set(swaps[0]["phases"]) == {"queued_s", "drain_s", "stop_s", "settle_s", "spawn_s", "load_s"}


async def test_log_gives_what_is_newer_than_the_line_named(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.lines = [LogLine(n, 1.0, "A", f"line {n}") for n in (0, 1, 2)]
    assert [line["seq"] for line in (await api.get("/api/models/a-alias/log")).json()["lines"]] == [0, 1, 2]
    assert [line["text"] for line in (await api.get("/api/models/A/log?after=1")).json()["lines"]] == ["line 2"]
    assert len((await api.get("/api/models/A/log?after=-1")).json()["lines"]) == 3
    for wrong in ("x", "", "-", "1.5", "--1", "9" * 30):
        assert (await api.get("/api/models/A/log", params={"after": wrong})).status_code == 400


async def test_props_says_that_this_is_a_router(api: httpx.AsyncClient, core: FakeControl) -> None:
    core.say(models_max=2, server="llama-server b10434")
    props = (await api.get("/props")).json()
    expected = {"role": "router", "max_instances": 2, "models_autoload": True, "build_info": "llama-server b10434"}
    assert props.items() >= expected.items()


async def test_root_says_in_a_line_what_this_is(api: httpx.AsyncClient) -> None:
    answer = await api.get("/")
    assert answer.headers["content-type"].startswith("text/html")
    assert answer.text.count("\n") == 1
    assert "/api/state" in answer.text


async def test_metrics_are_for_prometheus(api: httpx.AsyncClient) -> None:
    answer = await api.get("/metrics")
    assert answer.text == "llmtop_requests_total 3\n"
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


UNKNOWN = [
    ("POST", "/api/models/nope/evict", "model_not_found"),
    ("GET", "/v1/models/nope", "model_not_found"),
    ("GET", "/v1/models/", "model_not_found"),
    ("GET", "/api/models/nope/log", "model_not_found"),
    ("POST", "/api/models/A/explode", "not_found"),
    ("POST", "/api/queue/explode", "not_found"),
    ("GET", "/api/nothing", "not_found"),
    ("GET", "/api/state/", "not_found"),
    ("GET", "/nothing", "not_found"),
]


@pytest.mark.parametrize(("method", "path", "kind"), UNKNOWN)
async def test_what_is_not_there_is_404_in_the_error_envelope(
    api: httpx.AsyncClient, method: str, path: str, kind: str
) -> None:
    answer = await api.request(method, path)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["type"]) == (404, 404, kind)
    assert error["message"]


async def test_load_of_an_unknown_model_is_404(api: httpx.AsyncClient, core: FakeControl) -> None:
    answer = await api.post("/models/load", json={"model": "x" * 10_000 + "\x1b[2J"})
    assert answer.status_code == 404
    assert len(answer.text) < 400
    assert core.asked == []


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/models/A/evict"),
        ("POST", "/api/state"),
        ("GET", "/models/load"),
        ("GET", "/api/requests/1"),
        ("DELETE", "/models"),
    ],
)
async def test_a_wrong_method_is_405_and_names_the_right_one(api: httpx.AsyncClient, method: str, path: str) -> None:
    answer = await api.request(method, path)
    assert (answer.status_code, answer.json()["error"]["type"]) == (405, "method_not_allowed")
    assert answer.headers["allow"]


BAD = [
    b"{",
    b"[]",
    b"null",
    b'"A"',
    b"7",
    b"\xff\xfe",
    b'{"model": 7}',
    b'{"prompt": 1}',
    b"",
    b'{"a": ' * 5000,
    b'{"model": "\\ud800"}',
]


@pytest.mark.parametrize("body", BAD)
async def test_a_body_that_is_not_what_the_route_takes_is_400(
    api: httpx.AsyncClient, core: FakeControl, body: bytes
) -> None:
    answer = await api.post("/models/load", content=body)
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request")
    assert core.asked == []


NO_INSTANCE = ('"7"', "7.5", "true", "1e2", "NaN", "1" * 400, "-" + "9" * 30, "1" * 5000, str(2**53))


@pytest.mark.parametrize("body", [b"{", b"[]", *(b'{"instance": %b}' % n.encode() for n in NO_INSTANCE)])
async def test_an_instance_is_a_whole_number(api: httpx.AsyncClient, core: FakeControl, body: bytes) -> None:
    assert (await api.post("/api/models/A/kill", content=body)).status_code == 400
    assert core.asked == []


async def test_a_byte_order_mark_before_a_body_is_passed_over(api: httpx.AsyncClient, core: FakeControl) -> None:
    assert (await api.post("/models/load", content=b'\xef\xbb\xbf{"model": "A"}')).json()["success"]
    assert core.asked == [("load", "A", None)]


async def test_a_body_too_long_for_a_verb_is_413(api: httpx.AsyncClient, core: FakeControl) -> None:
    answer = await api.post("/api/models/A/kill", content=b" " * 70_000)
    assert (answer.status_code, answer.json()["error"]["type"]) == (413, "payload_too_large")
    assert core.asked == []


async def test_a_bug_is_told_without_its_traceback(
    api: httpx.AsyncClient, core: FakeControl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(core, "swaps", lambda: 1 / 0)
    answer = await api.get("/api/swaps")
    assert (answer.status_code, answer.json()["error"]["type"]) == (500, "internal_error")
    assert "ZeroDivisionError" not in answer.text
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize(
    "path", ["/", "/models", "/v1/models/A", "/props", "/api/state", "/api/events", "/models/sse", "/metrics"]
)
async def test_head_is_answered_where_get_is(api: httpx.AsyncClient, core: FakeControl, path: str) -> None:
    assert (await api.head(path)).status_code == 200
    assert core.subscribers == 0
