"""What stands on the screen is what would be drawn now, whatever part of a core's picture changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from tests.tui.conftest import stale_panels

from llmtop.snapshot import EventLine, Failure, LogLine, Memory, Model, OomLine, Progress, Snapshot
from llmtop_tui.scenes import SCENES

pytestmark = pytest.mark.anyio
replace = msgspec.structs.replace
ANOTHER: dict[type[Any], Any] = {bool: True, int: 3 << 30, float: 4000.0, str: "another"}
OF_MODELS: dict[str, Any] = {
    "state": "sleeping", "aliases": ("another",), "args": ("-c", "9"), "footprint_bytes": 5 << 30,
    "estimate_bytes": 5 << 30, "idle_s": 4000.0, "kill_in_s": 7.0, "slots": 7, "pid": 7, "port": 7, "instance": 7,
    "progress": Progress("another", 0.9, 9.0, 99.0), "failure": Failure("oom", "another"),
}  # fmt: skip
OF_MEMORY: dict[str, Any] = {"sources": {"limit": "another"}, "pressure": "critical"}


def changed(struct: Any, given: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The struct with each of its fields another in turn."""
    for field in msgspec.structs.fields(struct):
        now = getattr(struct, field.name)
        other = given.get(field.name, ANOTHER.get(type(now), 3 << 30 if now is None else None))
        if isinstance(now, bool):
            other = not now
        if other is not None and other != now:
            yield field.name, replace(struct, **{field.name: other})


def pictures(scene: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """The scene with one thing changed in each."""
    for name, picture in changed(scene, {"server": "another"}):
        yield name, picture
    for name, model in changed(scene.models[0], OF_MODELS):
        yield f"model {name}", replace(scene, models=(model, *scene.models[1:]))
    for name, memory in changed(scene.memory, OF_MEMORY):
        yield f"memory {name}", replace(scene, memory=memory)
    for name, entry in changed(scene.queue[0], {}):
        yield f"queue {name}", replace(scene, queue=(entry, *scene.queue[1:]))
    for name, request in changed(scene.requests[0], {"phase": "queued"}):
        yield f"request {name}", replace(scene, requests=(request, *scene.requests[1:]))
    for name, swap in changed(scene.swaps.recent[-1], {"evicted": ("another",), "result": "failed"}):
        yield f"swap {name}", replace(scene, swaps=replace(scene.swaps, recent=(*scene.swaps.recent[:-1], swap)))
    yield "no model", replace(scene, models=())
    yield "a model more", replace(scene, models=(*scene.models, Model("another")))
    yield "no memory", replace(scene, memory=Memory())
    yield "nobody waits", replace(scene, queue=(), requests=(), next_swap="")
    yield "an event", replace(scene, events=(*scene.events, EventLine(9999, scene.at, "load", "another", "another")))
    yield "a line", replace(scene, log=(*scene.log, LogLine(1 << 40, scene.at, "another", "another")))
    yield "out of memory", replace(scene, oom=replace(scene.oom, last=OomLine(scene.at, "another", "another", 1)))
    yield "a fault", replace(scene, faults=("another",))
    for ago in (1, 4, 61, 700, 4000):
        yield f"{ago} s later", replace(scene, at=scene.at + ago, uptime_s=scene.uptime_s + ago)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
@pytest.mark.parametrize("name", ["full", "loading"])
async def test_whatever_changes_is_drawn(name: str, size: tuple[int, int], open_screen: Any) -> None:
    scene = SCENES[name]()
    seen: dict[str, list[str]] = {}
    async with open_screen(scene, size=size) as (app, _, _pilot):
        for what, picture in pictures(scene):
            for shown in (picture, scene):  # and back
                app.watch_core.arrived(shown)
                seen[what] = seen.get(what, []) + stale_panels(app)  # sizes stay while nothing is awaited
        spike = replace(scene.memory, used=(scene.memory.used or 0) + (8 << 30))
        for ago in range(5001, 5060):  # seen, but not shown: nothing else happened
            app.view.history.add(replace(scene, at=scene.at + ago, memory=spike if ago % 7 == 0 else scene.memory))
            app.watch_core.arrived(replace(scene, at=scene.at + ago))
            seen["a spike"] = seen.get("a spike", []) + stale_panels(app)
    assert {what: panels for what, panels in seen.items() if panels} == {}
    assert len(seen) > 60
