"""The inventory of a log: its content and consumers, as the manifest, the files and the state have it."""

from __future__ import annotations

import walkit
from tests.support.logs import tiny
from tests.support.stores import memory_store
from walkit.models import CrashingStorage


def test_an_inventory_agrees_with_the_log_and_its_files() -> None:
    """Trim, hold and save progress: segments, bytes, marks, claims, cursors are the log's; a reader sees them too."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([bytes(7000)] * 44)
        log.wait_idle()
        log.trim(10)
        log.hold("slow", 19)
        log.hold("fast", 40).advance(41)
        log.cursor("c").advance(30)
        storage.open("cursor-bad", "create").write(0, [b"?"])
        found = log.inventory()
        assert (found.first_lsn, found.last_lsn, found.low_watermark, found.checkpoint_lsn) == (11, 44, 10, 0)
        sealed = log.parts.manifest_store.current.sealed
        assert [s.name for s in found.segments[:-1]] == [s.name for s in sealed]
        assert [s.state for s in found.segments] == ["sealed"] * len(sealed) + ["open"]
        for one, following in zip(found.segments, found.segments[1:], strict=False):
            assert one.last_lsn + 1 == following.first_lsn
            assert one.records == 8 and one.size_bytes == storage.open(one.name, "read").size()
        assert found.segments[-1].last_lsn == 44 and found.segments[-1].records is None
        assert found.slowest is not None and found.slowest.name == "slow"
        assert [(c.name, c.first_lsn) for c in found.claims] == [("fast", 41), ("slow", 19)]
        assert found.held_bytes == sum(s.size_bytes for s in found.segments if s.last_lsn >= 19)
        assert [(c.name, c.lsn, c.fault is None) for c in found.cursors] == [
            ("bad", None, False),
            ("c", 30, True),
        ]
        assert "claim slow" in found._repr_html_() and "cursor c" in found._repr_html_()
        with walkit.open(storage=storage, mode="r") as reader:
            seen = reader.inventory()
            assert (seen.first_lsn, seen.last_lsn, seen.cursors) == (11, 44, found.cursors)
    with walkit.open(storage=CrashingStorage(), options=tiny()) as log:
        empty = log.inventory()
        assert (empty.segments, empty.size_bytes, empty.held_bytes, empty.slowest) == ((), 0, 0, None)
        assert "cursor" not in empty._repr_html_()


def test_the_live_keys_of_each_segment() -> None:
    """Overwrite, delete and compact in a store: every live key is counted once, in the segment of its newest record."""
    with memory_store() as store:
        for n in range(60):
            store.put(b"%d" % (n % 25), bytes(5000))
        store.delete(b"3")
        store.log.wait_idle()
        for compacted in (False, True):
            if compacted:
                store.compact()
            found = store.inventory()
            assert any(s.state == "compacted" for s in found.segments) == compacted
            live = [store.lsn_of(k) or 0 for k in store]
            counts = [sum(s.first_lsn <= lsn <= s.last_lsn for lsn in live) for s in found.segments]
            assert [s.live_keys for s in found.segments] == counts and sum(counts) == 24
