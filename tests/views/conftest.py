"""The dashboard over the folder of a test's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from walkit.views import Shell
from walkit.views.page import PAGES
from walkit.views.workspace import DataRoot, Workspace


@pytest.fixture
def shell(log: Path) -> Iterator[Shell]:
    """A dashboard whose data root has the log of the test."""
    made = Shell(Workspace(DataRoot(log.parent)), PAGES, first="inspector")  # the figures of Live take 0.3 s
    yield made
    made.close()
