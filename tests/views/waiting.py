"""Waiting for a page: in a test nothing but the test refreshes it."""

from __future__ import annotations

import time
from collections.abc import Callable

from walkit.views.page_inspector import InspectorPage
from walkit.views.page_runs import RunsPage
from walkit.views.page_states import StatesPage


def eventually(what: Callable[[], object], detail: str = "") -> None:
    """Wait until `what()` holds; AssertionError after two minutes. The processes that it waits for get the cores."""
    deadline = time.monotonic() + 120.0
    while not what():
        assert time.monotonic() < deadline, detail or what
        time.sleep(0.02)


def until(page: InspectorPage | RunsPage | StatesPage, what: Callable[[], object]) -> None:
    """Refresh the page until `what()` holds; AssertionError with the page's sentence after two minutes."""
    deadline = time.monotonic() + 120.0
    while not what():
        assert time.monotonic() < deadline, f"never true; the page says {page.status.object}"
        time.sleep(0.01)
        page.refresh()
