"""A delta reader over a log on object storage."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import walkit
from tests.objects.made_log import MadeLog
from tests.support.object_servers import OddS3
from walkit.errors import DivergenceError
from walkit.objects.open import open_object_writer
from walkit.replication import DeltaReader, Primary
from walkit.replication.delta.reader_loop import LOOK_MS
from walkit.storage.object_memory import MemoryObjectStore

NOBODY = "127.0.0.1:1"
WAIT_S = 20.0


def test_a_delta_reader_reads_the_objects_by_itself(tmp_path: Path) -> None:
    """No primary answers: the reader looks at the log itself, over two openings, and continues from its checkpoint."""
    made = MadeLog()
    expected: dict[bytes, bytes | None] = {}

    def append(at: int) -> int:
        expected[b"k%d" % (at % 5)] = b"%d" % at
        return made.append([b"%d" % at], [b"k%d" % (at % 5)]).lsn

    for at in range(20):
        append(at)
    for begun in (1, 2):
        with ExitStack() as stack:
            reader = stack.enter_context(
                DeltaReader(made.store.client(), NOBODY, checkpoint=tmp_path / "own", insecure=True)
            )
            for at in range(20 * begun, 20 * begun + 3):
                reader.wait_for(append(at), WAIT_S)
            made.fence()
            reader.wait_for(append(30 * begun), WAIT_S)
            assert reader.state == expected and reader.status().claim.endswith("held")
            assert [r.lsn for r in reader.records_of(b"k0", 1)][-1] > 20


def test_another_log_in_its_place_ends_a_delta_reader() -> None:
    """Make another log over the one that is followed: DivergenceError."""
    made = MadeLog()
    made.append([b"1"], [b"a"])
    with DeltaReader(made.store.client(), NOBODY, insecure=True) as reader:
        reader.wait_for(1, WAIT_S)
        other = MadeLog(made.store, log_id=0x99)
        for _ in range(3):
            other.append([b"2"], [b"a"])
        with pytest.raises(DivergenceError):
            reader.wait_for(3, WAIT_S)


def test_frames_come_with_the_polls_of_a_primary() -> None:
    """The writer's process serves polls: nearly all frames come with the answers, and few bulks are read."""
    with ExitStack() as stack:
        store = MemoryObjectStore()
        log = stack.enter_context(open_object_writer(store))
        primary = stack.enter_context(Primary(log, insecure=True))
        reader = stack.enter_context(DeltaReader(store.client(), primary.address, insecure=True))
        for at in range(40):
            reader.wait_for(log.append(b"%d" % at, key=b"k%d" % (at % 5)), WAIT_S)
        assert reader.state == {b"k%d" % key: b"%d" % (35 + key) for key in range(5)}
        assert reader.statistics().deltas > 30 and reader.status().state == "following"


def test_records_that_come_with_polls_cost_no_request() -> None:
    """A server counts 100 waits for records that polls bring: without a look or a load none asks for an object."""
    with ExitStack() as stack:
        server = stack.enter_context(OddS3(lambda method, path: None))
        url, options = "s3://bucket/folder", server.options
        log = stack.enter_context(walkit.open(url, storage_options=options))
        primary = stack.enter_context(Primary(log, insecure=True))
        store = walkit.storage.open_store(url, options)
        reader = stack.enter_context(DeltaReader(store, primary.address, insecure=True))
        reader.wait_for(log.append(b"first", key=b"k"), WAIT_S)
        began, before, at_first = time.monotonic(), len(server.requests), reader.statistics()
        for at in range(100):
            reader.wait_for(log.append(b"%d" % at, key=b"k"), WAIT_S)
        asked = [made for made in server.requests[before:] if made.startswith("GET")]
        took_s, looks = time.monotonic() - began, asked.count("GET /bucket/folder/claims")
        deltas, loads = (
            getattr(reader.statistics(), name) - getattr(at_first, name) for name in ("deltas", "loads")
        )
        assert looks <= 1 + took_s * 1000 / LOOK_MS
        # On a busy machine a poll may bring a record late, which is read from the log then.
        assert loads <= max(100 - deltas, 0)
        assert looks + loads or not asked
        assert deltas > 75 and reader.state[b"k"] == b"99"
