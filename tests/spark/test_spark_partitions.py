"""The reading of a partition: little, and once. Without a Spark session."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.spark.loading import plan_scan
from tests.support.logs import view_of
from walkit.format.body import to_arrow
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import read_manifest
from walkit.format.segment import SegmentHeader
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.index_file import read_index
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.options import read_options
from walkit.spark.source import WalkitReader, plan_load
from walkit.spark.stream import WalkitStreamReader
from walkit.spark.tables import STRUCTS, TableReader, plan_table

RECORDS = 6000
OPTIONS = walkit.LogOptions(durability="none", segment_bytes=64 * 1024, frame_bytes_max=16 * 1024)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed log of more than 20 segments."""
    path = tmp_path_factory.mktemp("log") / "many"
    with walkit.open(path, options=OPTIONS) as log:
        for start in range(0, RECORDS, 100):
            numbers = range(start, start + 100)
            log.append_many([b"%0250d" % n for n in numbers], keys=[b"key-%d" % (n % 50) for n in numbers])
    assert len(list(path.glob("*.segment"))) > 20
    return path


def counted(monkeypatch: pytest.MonkeyPatch, function: Callable[..., Any], *modules: str) -> list[object]:
    """The first arguments of every call of a function from here on, under its name in these modules."""
    calls: list[object] = []

    def counting(first: Any, *others: Any, **named: Any) -> Any:
        calls.append(first)
        return function(first, *others, **named)

    for module in modules:
        monkeypatch.setattr(f"{module}.{function.__name__}", counting)
    return calls


@pytest.mark.parametrize("parts", [1, 3])
def test_the_manifest_is_decoded_once_a_load(many: Path, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read many ranges in few partitions: one decoded manifest, by the plan, and every record."""
    decoded = counted(monkeypatch, read_manifest, "walkit.segments.manifest_store")
    reader = WalkitReader(plan_scan({"path": many, "partitions": parts}), RECORD_STRUCT)
    partitions = reader.partitions()
    assert len(partitions) == parts and sum(len(p.value.ranges) for p in partitions) > 20
    assert all(len(p.value.planned.manifest.segments) <= len(p.value.ranges) for p in partitions)
    lsns = [lsn for p in partitions for batch in reader.read(p) for lsn in batch.column("lsn").to_pylist()]
    assert lsns == list(range(1, RECORDS + 1))
    assert len(decoded) == 1


def test_small_sealed_segments_are_planned_from_the_manifest(
    many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plan a log of many sealed segments: each becomes a range, and neither frames nor indexes are read."""
    scan = plan_scan({"path": many})
    walked = counted(monkeypatch, FrameWalk, "walkit.read.view")
    again = plan_scan({"path": many})
    assert again.ranges == scan.ranges and len(again.ranges) == len(list(many.glob("*.segment")))
    monkeypatch.setattr("walkit.read.ranges.RANGE_BYTES", 1 << 14)
    monkeypatch.setattr("walkit.spark.scan.PARTITION_BYTES", 1 << 17)
    opened = counted(monkeypatch, read_index, "walkit.read.ranges")
    assert plan_scan({"path": many}).ranges == scan.ranges
    assert walked == opened == []
    assert again.ranges[-1].last_lsn - again.ranges[0].first_lsn + 1 == RECORDS


def test_a_batch_without_a_wanted_key_is_not_made(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for two keys that are there, and for one that is not: their records, and of the other no Arrow batch."""
    made = counted(monkeypatch, to_arrow, "walkit.format.batch_builder")
    for keys, expected in (([b"key-7", b"key-9"], [7, 9]), ([b"key-70"], [])):
        made.clear()
        reader = WalkitReader(
            plan_scan({"path": many, "only": ",".join(map(bytes.hex, keys))}), RECORD_STRUCT
        )
        batches = [batch for p in reader.partitions() for batch in reader.read(p)]
        lsns = [lsn for batch in batches for lsn in batch.column("lsn").to_pylist()]
        assert lsns == [n + 1 for n in range(RECORDS) if n % 50 in expected]
        assert bool(made) == bool(expected) and all(map(len, batches))


def test_neighbouring_ranges_share_batches(many: Path) -> None:
    """Batches are as large as those of a reader in process: one for each few segments, and not one for each."""
    reader = WalkitReader(plan_scan({"path": many, "partitions": 1}), RECORD_STRUCT)
    (partition,) = reader.partitions()
    with walkit.open(many, mode="r") as log:
        expected = [len(batch) for batch in log.read_batches()]
    assert [len(batch) for batch in reader.read(partition)] == expected
    assert len(expected) < len(partition.value.ranges) / 10


def test_what_a_worker_is_sent_does_not_grow_with_the_log(many: Path) -> None:
    """Pickle a reader: its size is that of one for a single range, and it reads a partition all the same."""
    whole, part = (
        WalkitReader(plan_scan({"path": many, **options}), RECORD_STRUCT) for options in ({}, {"lastLsn": 1})
    )
    assert len(whole.scan.ranges) > 20 * len(part.scan.ranges)
    sent, little = (pickle.dumps(reader) for reader in (whole, part))
    assert len(sent) < len(little) + 100
    received: WalkitReader = pickle.loads(sent)
    assert sum(len(batch) for p in whole.partitions() for batch in received.read(p)) == RECORDS


def test_a_log_that_is_compacted_while_a_partition_is_read(tmp_path: Path) -> None:
    """Compact after the first batch of a partition: a GapError as of any reader, by the new manifest."""
    path, options = (
        tmp_path / "store",
        walkit.LogOptions(durability="none", segment_bytes=1 << 20, frame_bytes_max=1 << 19),
    )
    with walkit.Store.open(path, options=options) as store:
        for start in range(0, 2400, 50):
            numbers = range(start, start + 50)
            store.log.append_many([b"%08000d" % n for n in numbers], keys=[b"%d" % (n % 7) for n in numbers])
        reader = WalkitReader(plan_scan({"path": path, "partitions": 1}), RECORD_STRUCT)
        (partition,) = reader.partitions()
        batches = reader.read(partition)
        read = len(next(batches))
        assert 0 < read < 2300
        assert store.compact().segments_rewritten > 10
        named = {s.name for s in view_of(store.log).manifest.segments}
        for file in path.glob("*.segment"):
            if file.name not in named:
                file.unlink()
        with pytest.raises(walkit.GapError):
            list(batches)


def _filled(path: Path, value: bytes, kept: Path | None = None) -> None:
    """A closed log of 50 equal records; with `kept`, one that continues a copy of that log."""
    if kept is not None:
        shutil.copytree(kept, path)
    with walkit.open(path) as log:
        log.append_many([value] * 50)


@pytest.mark.parametrize("history", [False, True], ids=["another log", "another history"])
@pytest.mark.parametrize("reading", ["records", "frames", "stream"])
def test_what_took_the_place_of_a_planned_log_is_not_read(
    tmp_path: Path, reading: str, history: bool
) -> None:
    """Plan a read, put a log of the same shape in the place: DivergenceError from the worker, and no record of it."""
    path, kept = tmp_path / "log", tmp_path / "kept"
    _filled(kept, b"common")
    _filled(path, b"A" * 9, kept if history else None)
    partitions: Any
    reader: Any
    if reading == "stream":
        reader = WalkitStreamReader(read_options({"path": str(path)}), RECORD_STRUCT)
        start = reader.initialOffset()
        partitions = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    elif reading == "records":
        reader = WalkitReader(plan_scan({"path": path}), RECORD_STRUCT)
        partitions = reader.partitions()
    else:
        reader = TableReader(
            plan_table(str(path), read_options({"path": path, "view": "frames"})), STRUCTS["frames"]
        )
        partitions = reader.partitions()
    assert sum(len(batch) for part in partitions for batch in reader.read(part))
    shutil.rmtree(path)
    _filled(path, b"B" * 9, kept if history else None)
    for part in partitions:
        with pytest.raises(walkit.DivergenceError) as caught:
            list(reader.read(part))
        assert caught.value.first_lsn == (51 if history else 1)


FACTS = [
    ("log_id", "is not the one that the manifest names"),
    ("epoch_id", "is not the one that the manifest names"),
    ("number", "says it is another segment"),
    ("start_position", "is not the one that the manifest names"),
    ("manifest_generation", "was trimmed or compacted since it was loaded: load it again"),
]


@pytest.mark.parametrize(("fact", "text"), FACTS, ids=[fact for fact, _ in FACTS])
@pytest.mark.parametrize("view", ["records", "frames"])
def test_a_task_proves_its_segment_before_its_first_row(
    tmp_path: Path, view: str, fact: str, text: str
) -> None:
    """Change one fact in a planned segment's header, its checksum right: no row, and an error that names the cause."""
    _filled(tmp_path / "log", b"value")
    (file,) = (tmp_path / "log").glob("*.segment")
    reader: Any = plan_load({"path": str(tmp_path / "log"), "view": view}).reader(
        STRUCTS["frames"] if view == "frames" else RECORD_STRUCT
    )
    (partition,) = reader.partitions()
    block = file.read_bytes()
    header = SegmentHeader.decode(block[:SEGMENT_HEADER_BYTES], file.name)
    assert header is not None
    other = replace(header, **{fact: getattr(header, fact) + 4096})
    file.write_bytes(other.encode() + block[SEGMENT_HEADER_BYTES:])
    with pytest.raises(walkit.WalkitError) as caught:
        next(reader.read(partition))
    assert text in "".join([str(caught.value), *caught.value.__notes__])
    assert isinstance(
        caught.value, walkit.GapError if fact == "manifest_generation" else walkit.CorruptionError
    )
