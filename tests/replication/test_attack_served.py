"""Attacks on a log that is served from its folder: what takes its place is noticed by those who follow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from walkit.replication import Primary, Replica
from walkit.replication.replica.rewind import rewind


@pytest.mark.parametrize("how", ["rewind", "backup"])
def test_a_replica_of_a_served_log_that_was_cut_diverges_by_name(tmp_path: Path, how: str) -> None:
    """Cut a served log, or put it back from a copy, and append less than it had: the replica ends, a new one joins."""
    place, backup = tmp_path / "log", tmp_path / "backup"
    with walkit.open(place) as log:
        log.append_many([b"common"] * 80)
    shutil.copytree(place, backup)
    with walkit.open(place) as log:
        log.append_many([b"old"] * 20)
    with Primary(place) as primary, Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
        replica.wait_for(100, WAIT_S)
        if how == "rewind":
            rewind(place, 81, force=True)
        else:
            place.rename(tmp_path / "spoiled")  # its server still writes its claims there
            shutil.copytree(backup, place)
        with walkit.open(place) as log:
            log.append_many([b"new"] * 10)
            until(lambda: replica.error is not None, "the end of the replica")
            assert isinstance(replica.error, walkit.DivergenceError) and replica.error.first_lsn == 81
            assert primary.status().durable_lsn == log.durable_lsn == 90
            with Replica(tmp_path / "new", primary.address, backoff=quick()) as joined:
                joined.wait_for(90, WAIT_S)
                assert [r.value for r in joined.log.read(81)] == [b"new"] * 10
