"""The dashboard, served as a person serves it, and the machine's browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from scripts.browsing import Server, find_browser, open_browser, serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser

IMPATIENT = ("--unused-session-lifetime", "3000", "--check-unused-sessions", "250")
"""A session whose page was closed ends after three seconds instead of fifteen to thirty."""


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """The literal command `panel serve dashboards/app.py`, from the checkout, for all files of this folder."""
    with serve(*IMPATIENT, app="dashboards/app.py") as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, for a module alone: until it ends, Playwright keeps an event loop running in this thread."""
    path = find_browser()
    if path is None:
        missing = (
            "no Chromium on this machine: install it (Debian: apt-get install chromium) to test the dashboard"
        )
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with open_browser(path) as running:
        yield running
