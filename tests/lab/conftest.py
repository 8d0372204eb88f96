"""One JupyterLab for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.labs import GUARD_S, Served, dashboards, lab, write_settings


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
