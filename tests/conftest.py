"""Fixtures for all tests."""

from __future__ import annotations

import pytest


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
