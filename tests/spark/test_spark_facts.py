"""The records and the states that a load of a trimmed or compacted log gives. Without a Spark session."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import walkit
from tests.spark.loading import plan_scan
from tests.spark.trimmed import OPTIONS, STEPS, Step, Told, make_store, told_in_process, values_of
from tests.support.examples import examples
from walkit.errors import (
    DivergenceError,
    GapError,
    HistoryTrimmedError,
    SnapshotError,
    WalkitError,
)
from walkit.segments.history import LogPoint
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.facts import LogFacts
from walkit.spark.source import WalkitReader, plan_load
from walkit.state.latest_reducer import FinalState
from walkit.state.snapshot import snapshot_lsns, snapshot_name
from walkit.storage import FileStorage
from walkit.store import Store


def told(path: Path, lsn: int, **options: object) -> Told:
    """The state at an LSN that the data source gives with these options, or its refusal."""
    try:
        scan = plan_scan({"path": path, **options})
        scan.facts.require_state(min(lsn, scan.facts.last_lsn))
    except HistoryTrimmedError as error:
        return error.wanted, error.exact_from_lsn
    reader, state = WalkitReader(replace(scan, last_lsn=min(lsn, scan.last_lsn)), RECORD_STRUCT), FinalState()
    for part in reader.partitions():
        for batch in reader.read(part):
            assert batch.schema.names == RECORD_STRUCT.names
            state.add(batch.filter(batch.column("key").is_valid()))
    return {row["key"]: (row["value"], row["lsn"]) for row in state.live().to_pylist()}


@settings(max_examples=examples(60), deadline=None)
@given(steps=STEPS, shares=st.lists(st.floats(0, 1), min_size=1, max_size=4))
def test_states_of_a_load_equal_those_in_process(steps: list[Step], shares: list[float]) -> None:
    """Any history: with and without the snapshot a state is right, or refused as in process; none is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store"
        past = make_store(path, steps)
        with Store.open(path, options=OPTIONS) as store:
            border = store.exact_from_lsn
        lsns = sorted(past)
        for lsn in {lsns[-1], *(lsns[int(share * (len(lsns) - 1))] for share in shares)}:
            in_process = told_in_process(path, lsn)
            assert isinstance(in_process, tuple) or values_of(in_process) == past[lsn]
            if lsn:
                assert told(path, lsn, snapshot=True, lastLsn=lsn) == in_process
            found = {snapshot: told(path, lsn, snapshot=snapshot) for snapshot in (True, False)}
            for state in found.values():
                # A snapshot at the very LSN tells a state that the records of another base do not.
                assert state == in_process or isinstance(state, tuple)
            assert found[True] == in_process or 0 < lsn < border


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with two snapshots that are both of use: the log was held back at the first."""
    path = tmp_path_factory.mktemp("store") / "trimmed"
    with Store.open(path, options=OPTIONS) as store:
        for n in range(1, 41):
            store.put(b"%d" % (n % 7), b"%d" % n)
        hold = store.log.hold("reader", 41)
        store.checkpoint()
        store.log.append_many([b"a", b"b", b"c"], keys=[b"0", b"1", b"2"])
        store.delete(b"3")
        for n in range(45, 61):
            store.put(b"%d" % (n % 5), b"%d" % n)
        store.checkpoint()
        hold.release()
        store.put(b"new", b"61")
    assert snapshot_lsns(FileStorage(path)) == [40, 60]
    return path


def lsns_of(path: Path, **options: object) -> list[int]:
    """The LSNs that the data source reads, in its order."""
    reader = WalkitReader(plan_scan({"path": path, **options}), RECORD_STRUCT)
    return [lsn for p in reader.partitions() for b in reader.read(p) for lsn in b.column("lsn").to_pylist()]


def test_the_oldest_snapshot_serves_unless_an_lsn_is_given(trimmed: Path) -> None:
    """Snapshots at 40 and 60 of a log from 41 on: all of the log with the first, and up to an LSN with the nearest."""
    assert plan_scan({"path": trimmed}).facts == LogFacts(
        log_id=plan_scan({"path": trimmed}).facts.log_id,
        first_lsn=41,
        last_lsn=61,
        exact_from_lsn=41,
        snapshot_lsn=0,
        from_lsn=0,
        path=str(trimmed),
        partitions=0,
        epoch_id=f"{LogPoint.of(plan_scan({'path': trimmed}).manifest, 61).epoch_id:016x}",
    )
    for options, base in [({}, 40), ({"lastLsn": 59}, 40), ({"lastLsn": 60}, 60), ({"lastLsn": 999}, 60)]:
        assert plan_scan({"path": trimmed, "snapshot": True, **options}).facts.snapshot_lsn == base
    assert plan_scan({"path": trimmed, "snapshot": "TRUE", "lastLsn": 40}).ranges == ()
    assert lsns_of(trimmed) == list(range(41, 62))
    assert lsns_of(trimmed, snapshot=True) == [*(35, 36, 37, 38, 39, 40, 34), *range(41, 62)]


def test_records_below_the_watermark_are_not_read(tmp_path: Path) -> None:
    """Trim in the middle of a frame: the data source begins where `read` does, and not with the frame."""
    with walkit.open(tmp_path / "log", options=OPTIONS) as log:
        log.append_many([b"v"] * 20, keys=[b"k"] * 20)
        log.sync()
        log.trim(7)
        assert [record.lsn for record in log.read()] == list(range(8, 21))
    assert lsns_of(tmp_path / "log") == list(range(8, 21))


def test_an_earlier_load_bounds_a_snapshot_too(trimmed: Path) -> None:
    """Load again what was noted, up to LSNs across snapshot and log, of some keys: these rows, of one moment."""
    noted = asdict(plan_scan({"path": trimmed, "snapshot": True}).facts)
    for end, first, only, expected in (
        (0, 1, None, []),
        (40, 1, None, [34, 35, 36, 37, 38, 39, 40]),
        (42, 1, None, [34, 35, 36, 37, 38, 39, 40, 41, 42]),
        (61, 42, None, list(range(42, 62))),
        (61, 1, "36,6e6577", [34, 61]),
    ):
        own = {"path": str(trimmed), "planned": json.dumps([[noted, end]]), "firstLsn": str(first)}
        found: Any = plan_load(own | ({"only": only} if only else {})).reader(RECORD_STRUCT)
        batches = [b for p in found.partitions() for b in found.read(p)]
        assert sorted(lsn for b in batches for lsn in b.column("lsn").to_pylist()) == expected
    for field, changed, error in (
        ("first_lsn", 7, GapError),
        ("exact_from_lsn", 7, GapError),
        ("epoch_id", "7", DivergenceError),
    ):
        with pytest.raises(error):
            plan_load({"path": str(trimmed), "planned": json.dumps([[{**noted, field: changed}, 61]])})
    with pytest.raises(GapError, match="record 40 is gone"):
        plan_scan({"path": trimmed, "lastLsn": 40})


def test_a_snapshot_of_no_use(trimmed: Path, tmp_path: Path) -> None:
    """Damage the first of two, then both, then remove them: the other serves, then the load is refused by name."""
    log = tmp_path / "log"
    log.mkdir()
    for file in trimmed.iterdir():
        (log / file.name).write_bytes(file.read_bytes())
    before = plan_scan({"path": log, "snapshot": True})
    for lsn, expected in ((40, 60), (60, None)):
        file = log / snapshot_name(lsn)
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        if expected is not None:
            assert plan_scan({"path": log, "snapshot": True}).facts.snapshot_lsn == expected
    with pytest.raises(SnapshotError, match="LSN 40"):
        plan_scan({"path": log, "snapshot": True})
    for lsn in (40, 60):
        (log / snapshot_name(lsn)).unlink()
    with pytest.raises(HistoryTrimmedError):
        plan_scan({"path": log, "snapshot": True})
    reader = WalkitReader(before, RECORD_STRUCT)
    with pytest.raises(SnapshotError, match="stage 'open'"):
        list(reader.read(reader.partitions()[0]))


def test_a_snapshot_of_another_log_is_not_read(trimmed: Path, tmp_path: Path) -> None:
    """Plan, then put another log in the place: the snapshot there is refused, though its LSN is the same."""
    log = tmp_path / "log"
    with Store.open(log, options=OPTIONS) as store:
        for n in range(40):
            store.put(b"%d" % n, b"other")
        store.snapshot()
    scan = plan_scan({"path": trimmed, "snapshot": True})
    assert scan.snapshot is not None
    foreign = WalkitReader(scan, RECORD_STRUCT)
    object.__setattr__(scan, "path", str(log))
    with pytest.raises(SnapshotError, match="belongs to another log"):
        list(foreign.read(foreign.partitions()[0]))


def test_an_empty_log_needs_no_snapshot(tmp_path: Path) -> None:
    """A store in which nothing was written: no snapshot, no ranges, and its state is told."""
    Store.open(tmp_path / "store", options=OPTIONS).close()
    scan = plan_scan({"path": tmp_path / "store", "snapshot": True})
    assert (scan.snapshot, scan.ranges) == (None, ())
    scan.facts.require_state(0)


def test_the_refusal_names_the_remedy(trimmed: Path) -> None:
    """The error of a state that the records do not tell names the option that may bring it."""
    with pytest.raises(WalkitError) as caught:
        plan_scan({"path": trimmed}).facts.require_state(61)
    assert "snapshot=true" in caught.value.__notes__[0]
