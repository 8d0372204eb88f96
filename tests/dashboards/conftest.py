"""The dashboard, served as a person serves it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.browsing import Server, serve

IMPATIENT = ("--unused-session-lifetime", "3000", "--check-unused-sessions", "250")
"""A session whose page was closed ends after three seconds instead of fifteen to thirty."""


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    """The literal command `panel serve dashboards/app.py`, from the checkout, for all files of this folder."""
    with serve(*IMPATIENT, app="dashboards/app.py") as running:
        yield running
