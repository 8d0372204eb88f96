"""Logs and certificates for tests of replication."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.replication.certificates import Authority


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opens, the last thing first."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The authority of primaries, replicas and readers."""
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Another one."""
    return Authority(tmp_path_factory.mktemp("theirs"))
