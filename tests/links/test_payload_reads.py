"""Reading values of a payload log whose values are freed, damaged or slow meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.links.made import OVER, Watched, is_fetch, linked, value_of
from walkit.models import CrashingStorage
from walkit.models.faults import Operation

SIZE = 18_000


def overwrite(store: walkit.Store) -> None:
    """Write each key again, often enough that the segments of the first values are dropped."""
    for number in range(10, 50, 10):
        for key in range(3):
            store.put(b"%d" % key, value_of(number + key, SIZE))
        store.checkpoint()
        assert store.log.wait_idle(30)


NEWEST = {b"%d" % key: value_of(40 + key, SIZE) for key in range(3)}
READS: dict[str, Callable[[walkit.Store], Any]] = {
    "get": lambda store: {key: store.get(key) for key in NEWEST},
    "item": lambda store: {key: store[key] for key in NEWEST},
    "items": lambda store: dict(store.items()),
    "to_arrow": lambda store: {row["key"]: row["value"] for row in store.to_arrow().to_pylist()},
    "diff": lambda store: {
        row["key"]: row["right_value"] for row in walkit.diff(walkit.state.KeyedTable(), store).to_pylist()
    },
}


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("read", READS)
def test_value_freed_between_table_and_payload_log_is_the_newer_one(read: str) -> None:
    """Goal: a key that is written again meanwhile has a value. Method: write and checkpoint before the fetch."""
    payloads, pending = Watched(), [True]
    with walkit.Store.open(storage=CrashingStorage(), options=linked(payloads)) as store:
        for key in range(3):
            store.put(b"%d" % key, value_of(key, SIZE))
        old = [record.link for record in store.log.read(resolve="link")]

        def late(operation: Operation) -> None:
            if is_fetch(operation) and pending:
                pending.clear()
                overwrite(store)

        payloads.seen = late
        assert READS[read](store) == NEWEST and not pending
        with pytest.raises(walkit.PayloadGoneError):
            store.log.payloads.value(1, old[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [300, 300_000])
def test_damaged_payload_is_lost_alone_and_by_its_name(tmp_path: Path, size: int) -> None:
    """Goal: damage costs the values of its frame alone. Method: damage one of 20, read in order, alone and in bulk."""
    options = walkit.LogOptions(link_over=OVER, payload_log=tmp_path / "p")
    with walkit.open(tmp_path / "log", options=options) as log:
        for number in range(1, 21):
            log.append(value_of(number, size))
    (segment,) = (tmp_path / "p").glob("*.segment")
    data = bytearray(segment.read_bytes())
    data[data.index(value_of(10, size)) + size // 2] ^= 1
    segment.write_bytes(data)
    with walkit.open(tmp_path / "log", mode="r") as log:
        wanted = {lsn: value_of(lsn, size) for lsn in range(1, 21) if lsn != 10}
        for records in (log.read(), (next(log.read(lsn, lsn)) for lsn in range(1, 21))):
            found = {}
            for record in records:
                if record.lsn == 10:
                    with pytest.raises(walkit.PayloadGoneError) as caught:
                        _ = record.value
                    assert caught.value.lsn == 10
                else:
                    found[record.lsn] = record.value
            assert found == wanted
        bulks: list[Callable[[], object]] = [log.to_arrow, lambda: log.read_batches(7, 12).read_all()]
        for bulk in bulks:
            with pytest.raises(walkit.PayloadGoneError) as caught:
                bulk()
            assert caught.value.lsn == 10 and caught.value.link == tuple(next(log.read(10, 10)).link or ())
