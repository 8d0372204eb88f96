"""The dashboard over the folder of a test's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from walkit.views import Shell
from walkit.views.page import make_shell


@pytest.fixture
def shell(log: Path) -> Iterator[Shell]:
    """A dashboard whose data root has the log of the test."""
    made = make_shell(root=log.parent)
    yield made
    made.close()
