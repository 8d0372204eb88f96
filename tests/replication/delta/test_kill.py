"""Writer and delta reader as processes that are killed with SIGKILL: each checkpoint is the log's state at its LSN."""

from __future__ import annotations

import random
import time
from pathlib import Path

import walkit
from tests.replication.blocking_callers import until
from tests.replication.delta.test_reader import expected
from tests.replication.processes import free_address, is_open, processes
from walkit.replication import DeltaReader, Primary
from walkit.replication.core.backoff import Backoff
from walkit.state.snapshot import read_snapshot, snapshot_lsns
from walkit.state.table import KeyedTable
from walkit.storage import FileStorage

WAIT_S = 60.0
KILLS = 4


def check_checkpoints(log: Path, own: Path) -> int:
    """Compare each snapshot of a reader that is dead with the log's records up to there; return the newest LSN."""
    newest = 0
    with walkit.open(log, mode="r") as reader:
        for lsn in snapshot_lsns(FileStorage(str(own))):
            table = KeyedTable()
            read_snapshot(FileStorage(str(own)), lsn, table)
            assert lsn <= reader.durable_lsn
            assert table.to_dict() == expected(reader, lsn)
            newest = lsn
    return newest


def newest_of(own: Path) -> int:
    """Return the LSN of the newest checkpoint; 0 where there is none."""
    return max(snapshot_lsns(FileStorage(str(own))), default=0) if own.exists() else 0


def test_killed_at_random_moments_the_reader_is_never_wrong_and_ends_equal(tmp_path: Path) -> None:
    """Kill writer or reader four times: its checkpoints are states of the log each time; in the end it is equal."""
    log, own, address = tmp_path / "log", tmp_path / "own", free_address()
    makers: dict[str, tuple[object, ...]] = {
        "writer": ("write", str(log), address),
        "reader": ("delta", str(log), address, str(own)),
    }
    chance = random.Random(7)
    checked = 0
    with processes() as started:
        living = {"writer": started.start(*makers["writer"])}
        until(lambda: is_open(address), "the primary")
        living["reader"] = started.start(*makers["reader"])
        until(lambda: newest_of(own) > 0, "a checkpoint")
        for turn in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.3))
            victim = ("writer", "reader")[turn % 2]
            started.kill(living[victim])
            if victim == "reader":
                newest = check_checkpoints(log, own)
                assert newest >= checked
                checked = newest
            living[victim] = started.start(*makers[victim])
        assert checked > 0
        started.kill(living["reader"])
        started.end(living["writer"])
    check_checkpoints(log, own)
    with (
        walkit.open(log) as opened,
        Primary(opened) as primary,
        DeltaReader(log, primary.address, checkpoint=own, backoff=Backoff(5, 50)) as reader,
    ):
        assert reader.applied_lsn >= checked
        lsn = opened.append(b"the last", key=b"last").last_lsn
        reader.wait_for(lsn, WAIT_S)
        assert dict(reader.state.items()) == expected(opened, lsn)
