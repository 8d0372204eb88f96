"""Processes under faults of all kinds: what was acknowledged stays, and in the end all have the same."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.replication.chaos_rounds import Chaos
from tests.replication.processes import processes


@pytest.mark.parametrize(
    ("seed", "faults"),
    # slow: 150 faults take some twenty minutes
    [(0, 15), pytest.param(1, 150, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])],
)
def test_a_cluster_under_faults_loses_nothing_and_ends_equal(
    tmp_path: Path, stack: ExitStack, seed: int, faults: int
) -> None:
    """Kill, stop and cut off processes and fail over: each promise is kept on any two replicas, then all are equal."""
    world = Chaos(tmp_path, seed, stack.enter_context(processes()), stack)
    world.run(faults)
    assert sum(world.done.values()) == faults and world.done["fail over"] >= faults // 15
    assert world.tally["kills"] >= faults and world.tally["trims"] >= faults // 15
