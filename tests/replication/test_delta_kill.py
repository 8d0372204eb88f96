"""Writer and delta reader as processes that are killed with SIGKILL: each checkpoint is the log's state at its LSN."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import walkit
from tests.replication.processes import free_address
from tests.replication.test_delta_reader import expected
from tests.replication.test_kill import Process
from walkit.replication import DeltaReader, Primary
from walkit.replication.backoff import Backoff
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


def test_killed_at_random_moments_the_reader_is_never_wrong_and_ends_equal(tmp_path: Path) -> None:
    """Kill writer or reader four times: its checkpoints are states of the log each time; in the end it is equal."""
    log, own, address = tmp_path / "log", tmp_path / "own", free_address()
    makers: dict[str, Callable[[], Process]] = {
        "writer": lambda: Process("-m", "tests.replication.writer", str(log), address),
        "reader": lambda: Process("-m", "tests.replication.delta_child", str(log), address, str(own)),
    }
    chance = random.Random(7)
    living = {name: make() for name, make in makers.items()}
    checked = 0
    try:
        for turn in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.3))
            victim = ("writer", "reader")[turn % 2]
            living[victim].kill()
            if victim == "reader":
                newest = check_checkpoints(log, own)
                assert newest >= checked
                checked = newest
            living[victim] = makers[victim]()
        assert checked > 0
        living.pop("reader").kill()
        assert living.pop("writer").end() == 0
    finally:
        for process in living.values():
            process.kill()
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
