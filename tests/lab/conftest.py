"""One JupyterLab for all tests of this folder, and the machine's browser that shows it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scripts.browsing import find_browser, open_browser
from tests.lab.labs import GUARD_S, Served, dashboards, lab, write_settings

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A Lab that asks for a token, below a long TMPDIR; at its end its dashboard, session and socket are gone."""
    folder = tmp_path_factory.mktemp("long" * 20)
    write_settings(folder, "Light")
    with lab(folder, token="let-me-in") as running:
        yield running
        mine = dashboards()
        sockets = [Path(process.cmdline()[-1]) for process in mine]
    for process in mine:
        process.wait(GUARD_S)
    assert list(folder.glob("walkit-dashboard-*")) == []
    assert not any(socket.parent.exists() for socket in sockets)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = find_browser()
    if path is None:
        missing = "no Chromium on this machine: install it (Debian: apt-get install chromium)"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    with open_browser(path) as running:
        yield running
