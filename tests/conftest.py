"""Fixtures for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# The same examples each time, so that a red run is about what was changed; LLMTOP_NIGHTLY=1 looks for new ones.
settings.register_profile("llmtop", derandomize=not os.environ.get("LLMTOP_NIGHTLY"))
settings.load_profile("llmtop")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give what runs in real time (processes, sockets, terminals) a second try, counted in the closing line.

    A machine shared with others stands still for seconds now and then, and no deadline of a test is long enough for
    that. What is decided by values alone gets one try.
    """
    for item in items:
        if "anyio_backend" in getattr(item, "fixturenames", ()) or item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.flaky(reruns=1))
