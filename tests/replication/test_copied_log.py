"""A copy of a log beside replication: a replica begins with it, and a copy that was written to is refused."""

from __future__ import annotations

from pathlib import Path

import walkit
from tests.support.logs import lsns, tiny
from tests.support.stores import SMALL
from walkit.replication import Primary, Replica
from walkit.store import Store


def test_a_replica_begins_with_a_copy_of_an_open_log(tmp_path: Path) -> None:
    """Copy a log that is open, append, and follow it from the copy: the replica gets what came since, and no more."""
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append_many([bytes(3000)] * 80)
        walkit.copy(tmp_path / "log", tmp_path / "replica")
        log.append_many([bytes(3000)] * 10)
        with Primary(log) as primary, Replica(tmp_path / "replica", source=primary.address) as replica:
            replica.wait_for(90, timeout=30)
            assert lsns(replica.log.read()) == lsns(log.read())
    assert walkit.verify(tmp_path / "replica").ok


def test_a_replica_begins_with_a_copy_of_a_compacted_store(tmp_path: Path) -> None:
    """Copy a compacted Store, write to it, and follow it from the copy: the replica's records are the Store's."""
    with Store.open(tmp_path / "log", options=SMALL) as store:
        for i in range(120):
            store.put(b"%d" % (i % 10), bytes(3000))
        store.checkpoint(trim=False)
        store.compact()
        walkit.copy(tmp_path / "log", tmp_path / "replica")
        for i in range(10):
            store.put(b"%d" % i, b"new")
        with Primary(store.log) as primary, Replica(tmp_path / "replica", source=primary.address) as replica:
            replica.wait_for(130, timeout=30)
        items = store.items()
    with Store.open(tmp_path / "replica", options=SMALL) as copied:
        assert copied.items() == items
