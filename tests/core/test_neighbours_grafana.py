"""The dashboard asks for metrics that a running llmtop really has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from llmtop.cli.app import main
from llmtop.testing.rig import rig

NAME = re.compile(r"\bllmtop_[a-z0-9_]+")
LABELS = re.compile(r"(?:by|count by|sum by) \(([a-z_, ]+)\)|\{\{([a-z_]+)\}\}")
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}
OF_PROMETHEUS = {"le", "instance"}


@pytest.fixture
def dashboard(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert main(["export", "grafana"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def expressions(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Each expression with its legend."""
    return [(t["expr"], t["legendFormat"]) for panel in dashboard["panels"] for t in panel["targets"]]


def test_panels_have_numbers_titles_places_and_a_source_that_can_be_chosen(dashboard: dict[str, Any]) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["targets"] for panel in panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        grid = panel["gridPos"]
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells
        assert {t["datasource"]["uid"] for t in panel["targets"]} == {"${datasource}"}
    assert {variable["name"] for variable in dashboard["templating"]["list"]} == {"datasource", "instance"}


@pytest.mark.slow
@pytest.mark.anyio
async def test_every_metric_and_label_that_is_asked_for_is_in_the_real_exposition(
    dashboard: dict[str, Any], tmp_path: Path
) -> None:
    async with rig(tmp_path, {"A": {}, "B": {}}, "--models-max", "1", "--memory-budget", "8GiB") as r, r.client() as c:
        for name in ("A", "B", "nobody"):
            await r.ask(c, name)
        families = list(text_string_to_metric_families((await c.get("/metrics")).text))
    have: dict[str, set[str]] = {}
    for family in families:
        for suffix in SUFFIXES.get(family.type, ("",)):
            name = family.name + suffix
            have[name] = {label for sample in family.samples if sample.name == name for label in sample.labels}
    asked = expressions(dashboard)
    query = dashboard["templating"]["list"][1]["query"]["query"]
    for text, legend in (*asked, (query, "")):
        names = set(NAME.findall(text))
        assert names, text
        assert names <= have.keys(), text
        told = " ".join(part.replace(",", " ") for pair in LABELS.findall(f"{text} {legend}") for part in pair)
        for name in names:
            if have[name]:  # a family without a sample yet tells no labels
                assert set(told.split()) <= have[name] | OF_PROMETHEUS, text
