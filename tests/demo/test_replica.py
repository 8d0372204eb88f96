"""The replica of the demo: its error, and when it counts as caught up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import walkit
from walkit.demo.followed_step import Followed, FollowedReplica, caught_up_at
from walkit.replication import Primary, ReplicaFailedError


def test_a_failed_replica_reports_its_error(tmp_path: Path) -> None:
    """Follow another log into a replica's folder: waiting ends with its error, and no process is left."""
    for name in ("one", "other"):
        with walkit.Store.open(tmp_path / name) as store, Primary(store) as primary:
            store.put(b"key", name.encode())
            with FollowedReplica(Followed(), store, primary.address, tmp_path / "r") as replica:
                replica.start()
                if name == "one":
                    replica.wait(1)
                    assert replica.sample() == (1, 1)
                else:
                    with pytest.raises(ReplicaFailedError, match="The first difference is LSN 1"):
                        replica.wait(2)  # LSN 1 is there from the first log


def test_a_replica_has_caught_up_when_it_is_a_tenth_of_a_second_behind() -> None:
    """Of samples of a replica that comes nearer: the first one that has what the primary had 0.1 s before."""
    at = np.arange(0.0, 2.0, 0.05)
    primary = np.round(at * 1_000)
    for delay, expected in ((0.05, 1.0), (0.09, 1.0), (0.15, 1.95)):
        replica = np.where(at < 0.975, 0.0, primary - delay * 1_000)
        found = caught_up_at(np.column_stack([at, primary, replica]), 0.5)
        assert found == pytest.approx(expected)
