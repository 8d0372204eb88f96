"""Snapshot files: their content, and that damage of any kind is reported and never believed."""

from __future__ import annotations

import json
import pickle
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import walkit
from tests.support.examples import examples
from walkit.errors import CorruptionError, FormatVersionError, SnapshotError
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameFault, FrameHeader, FrameIdentity
from walkit.format.layout import FORMAT_VERSION
from walkit.format.manifest import EpochRecord, Manifest
from walkit.models import CrashingStorage
from walkit.record import Batch
from walkit.state import (
    KeyedTable,
    SnapshotInfo,
    StateImage,
    identity_at,
    read_snapshot,
    snapshot_lsns,
    snapshot_name,
    take_image,
    verify_snapshot,
    write_snapshot,
)
from walkit.state.snapshot import FRAME_GOAL_BYTES, HEADER_BYTES, snapshot_batches
from walkit.testing.state import CountingMachine, random_records

IDENTITY = FrameIdentity(7, 3, 99)
LSN = 40


def place() -> CrashingStorage:
    """A storage that is ready for files."""
    storage = CrashingStorage()
    storage.create()
    return storage


def table_at(lsn: int = LSN, seed: int = 1) -> KeyedTable:
    """A table that has applied so many random records."""
    table = KeyedTable()
    table.apply(random_records(seed, lsn))
    return table


def save(storage: CrashingStorage, table: KeyedTable, codec: str | None = None) -> SnapshotInfo:
    """Write a snapshot of the table with nothing to make durable."""
    return write_snapshot(
        storage, take_image(table), identity=IDENTITY, make_durable=lambda lsn: None, codec=codec
    )


def bytes_of(storage: CrashingStorage, name: str) -> bytes:
    """All bytes of a file."""
    file = storage.open(name, "read")
    return file.read(0, file.size())


def overwrite(storage: CrashingStorage, name: str, data: bytes) -> None:
    """Replace a file by other bytes."""
    storage.remove(name)
    storage.open(name, "create").write(0, [data])


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_snapshot_comes_back(codec: str | None) -> None:
    """Values, absent and empty ones, and the LSN of each key survive; the header describes the file."""
    storage, table = place(), table_at()
    info = save(storage, table, codec)
    assert (info.lsn, info.records, info.identity, info.name) == (
        LSN,
        len(table),
        IDENTITY,
        snapshot_name(LSN),
    )
    assert info.size_bytes == len(bytes_of(storage, info.name))
    restored = KeyedTable()
    assert read_snapshot(storage, LSN, restored, identity=IDENTITY) == info
    assert restored.to_arrow() == table.to_arrow()
    assert restored.applied_lsn == LSN
    assert verify_snapshot(storage, LSN) == info
    assert [len(b) for b in snapshot_batches(storage, LSN)] == [len(table)]
    assert "records" in info._repr_html_()


def test_an_empty_state_has_a_snapshot() -> None:
    """No keys at all: a header without frames, at LSN 0 as at any other."""
    storage = place()
    for lsn in (0, 5):
        info = write_snapshot(
            storage, take_image(KeyedTable(), lsn), identity=IDENTITY, make_durable=lambda at: None
        )
        table = table_at()
        read_snapshot(storage, lsn, table)
        assert (len(table), table.applied_lsn, info.records, info.frames) == (0, lsn, 0, 0)


def test_bytes_depend_on_the_state_alone() -> None:
    """Written twice, and after other ways to the same state, the file has the same bytes; another LSN has not."""
    storage, batch = place(), random_records(1, LSN)
    first = bytes_of(storage, save(storage, table_at()).name)
    second = KeyedTable()
    for row in batch.rows():
        second.apply(Batch([row[0]], [row[1]], [row[2]], [row[3]]))
    assert bytes_of(storage, save(storage, second).name) == first
    restored = KeyedTable()
    read_snapshot(storage, LSN, restored)
    assert bytes_of(storage, save(storage, restored).name) == first
    restored.apply(Batch([LSN + 1], 1, None, [b"event"]))
    assert bytes_of(storage, save(storage, restored).name) != first


def test_frames_are_cut_by_size() -> None:
    """Values over the goal have frames of their own, small ones share; the result is whole."""
    storage, table = place(), KeyedTable()
    sizes = [10, FRAME_GOAL_BYTES + 1, 10, FRAME_GOAL_BYTES // 2, FRAME_GOAL_BYTES // 2 - 100, 60, 70]
    keys = [b"%d" % i for i in range(len(sizes))]
    table.apply(Batch(range(1, len(sizes) + 1), 1, keys, [bytes([i]) * size for i, size in enumerate(sizes)]))
    info = save(storage, table)
    assert info.frames == 4
    assert [len(batch) for batch in snapshot_batches(storage, info.lsn)] == [1, 1, 4, 1]
    restored = KeyedTable()
    read_snapshot(storage, info.lsn, restored)
    assert restored.items() == table.items()


def test_lsns_far_apart_survive() -> None:
    """LSNs more than 2**32 apart, in an order that is not that of the keys."""
    storage, table = place(), KeyedTable()
    table.apply(Batch([5, 1 << 33, 1 << 40], 1, [b"c", b"a", b"b"], [b"1", b"2", b"3"]))
    read_snapshot(storage, save(storage, table).lsn, restored := KeyedTable())
    assert [restored.lsn_of(key) for key in (b"a", b"b", b"c")] == [1 << 33, 1 << 40, 5]


def test_a_cut_at_every_byte_is_noticed() -> None:
    """Every shorter file, and a longer one, is a SnapshotError, and the machine is as it was."""
    storage = place()
    name = save(storage, table_at(12)).name
    whole = bytes_of(storage, name)
    machine = table_at(5, seed=2)
    before = machine.to_arrow()
    for size in [*range(len(whole)), len(whole) + 1]:
        overwrite(storage, name, whole[:size].ljust(size, b"\0"))
        with pytest.raises(SnapshotError) as caught:
            read_snapshot(storage, 12, machine)
        assert caught.value.stage == "header"
        assert isinstance(caught.value.__cause__, CorruptionError)
    assert machine.to_arrow() == before


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_a_flip_of_every_byte_is_noticed(codec: str | None) -> None:
    """One bit of each byte: a typed error every time, with the place, and the machine is as it was."""
    storage = place()
    name = save(storage, table_at(12), codec).name
    whole = bytes_of(storage, name)
    machine = table_at(5, seed=2)
    before = machine.to_arrow()
    stages = set()
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        overwrite(storage, name, bytes(flipped))
        with pytest.raises(SnapshotError) as caught:
            read_snapshot(storage, 12, machine)
        stages.add((caught.value.stage, at < HEADER_BYTES))
        with pytest.raises(SnapshotError):
            verify_snapshot(storage, 12)
    assert stages == {("header", True), ("verify", False)}
    assert machine.to_arrow() == before


def test_a_frame_of_another_snapshot_is_noticed() -> None:
    """Intact frames of a twin, same log, LSN, keys and sizes, mixed in at frame borders: the chain tells."""
    storage, keys = place(), [b"%02d" % i for i in range(30)]
    tables = []
    for value in (b"x", b"y"):
        table = KeyedTable()
        table.apply(Batch(range(1, 31), 1, keys, [value * (FRAME_GOAL_BYTES // 10)] * 30))
        tables.append(table)
    info = save(storage, tables[0])
    assert info.frames > 2
    first = bytes_of(storage, info.name)
    second = bytes_of(storage, save(storage, tables[1]).name)
    border = HEADER_BYTES + FrameHeader.parse(second, HEADER_BYTES).footprint
    for mixed, text in (
        (second[:HEADER_BYTES] + first[HEADER_BYTES:], "contradicts its header"),
        (second[:border] + first[border:], FrameFault.CHAIN.value),
        (first[:border] + second[border:], FrameFault.CHAIN.value),
    ):
        overwrite(storage, info.name, mixed)
        with pytest.raises(SnapshotError, match=text):
            verify_snapshot(storage, info.lsn)


def with_header(whole: bytes, offset: int, field: bytes) -> bytes:
    """Change a field of the header and make its checksum right again."""
    block = bytearray(whole[:HEADER_BYTES])
    block[offset : offset + len(field)] = field
    block[-4:] = crc32c(bytes(block[:-4])).to_bytes(4, "little")
    return bytes(block) + whole[HEADER_BYTES:]


def test_newer_formats_are_known_by_version() -> None:
    """A higher version, an unknown critical feature: FormatVersionError; an unknown optional one is ignored."""
    storage = place()
    info = save(storage, table_at())
    whole = bytes_of(storage, info.name)
    for offset, field in ((8, (FORMAT_VERSION + 1).to_bytes(2, "little")), (12, b"\1")):
        overwrite(storage, info.name, with_header(whole, offset, field))
        with pytest.raises(FormatVersionError):
            read_snapshot(storage, LSN, KeyedTable())
    overwrite(storage, info.name, with_header(whole, 16, b"\1"))
    assert verify_snapshot(storage, LSN).records == info.records


@pytest.mark.parametrize(
    ("offset", "field", "text"),
    [
        (0, b"WALKITXX", "magic"),
        (24, b"[", "cannot be understood"),
        (20, b"\xff\xff\xff\xff", "cannot be understood"),
        (20, b"\0\0\0\0", "cannot be understood"),
    ],
)
def test_a_header_with_impossible_values_is_damage(offset: int, field: bytes, text: str) -> None:
    """A right checksum over a wrong magic, a wrong length or broken facts: a typed error, not a crash."""
    storage = place()
    info = save(storage, table_at())
    overwrite(storage, info.name, with_header(bytes_of(storage, info.name), offset, field))
    with pytest.raises(SnapshotError, match=text):
        verify_snapshot(storage, LSN)


def test_a_header_with_false_facts_is_damage() -> None:
    """Facts of the right form that the frames do not bear out: fewer records, another chain, another end."""
    storage = place()
    info = save(storage, table_at())
    whole = bytes_of(storage, info.name)
    for old, new in (
        (f'"records":{info.records}', f'"records":{info.records - 1}'),
        (f'"end_chain":{info.end_chain}', f'"end_chain":{info.end_chain ^ 1}'),
        ('"frames":1', '"frames":2'),
        ('"epoch":3', '"epoch":4'),
        ('"frame_bytes_max"', '"frame_bytes_mix"'),
    ):
        block = whole[24 : whole.index(b"}") + 1].decode()
        assert old in block
        facts = block.replace(old, new).encode()
        changed = with_header(with_header(whole, 24, facts), 20, len(facts).to_bytes(4, "little"))
        overwrite(storage, info.name, changed)
        with pytest.raises(SnapshotError):
            read_snapshot(storage, LSN, KeyedTable())


def test_foreign_snapshots_are_distinguished() -> None:
    """Of another log, of another epoch, under another's name, of another machine, absent: each its own words."""
    storage = place()
    info = save(storage, table_at())
    for identity, text in (
        (FrameIdentity(8, 3, 99), "another log"),
        (FrameIdentity(7, 4, 98), "another history"),
    ):
        with pytest.raises(SnapshotError, match=text) as caught:
            read_snapshot(storage, LSN, KeyedTable(), identity=identity)
        assert caught.value.stage == "identity"
        with pytest.raises(SnapshotError, match=text):
            list(snapshot_batches(storage, LSN, identity))
    assert list(snapshot_batches(storage, LSN, IDENTITY))
    with pytest.raises(SnapshotError, match="keyed-table/1") as caught:
        read_snapshot(storage, LSN, CountingMachine())
    assert caught.value.stage == "format"
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(storage, LSN + 1, KeyedTable())
    assert caught.value.stage == "open"
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.stage, again.retry, str(again)) == ("open", caught.value.retry, str(caught.value))
    storage.replace(info.name, snapshot_name(LSN + 1))
    with pytest.raises(SnapshotError, match="another one"):
        verify_snapshot(storage, LSN + 1)


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([Batch([1, 2], 1, [b"b", b"a"], [b"", b""])], "ascending"),
        ([Batch([1, 2], 1, [b"a", b"a"], [b"", b""])], "ascending"),
        ([Batch([1], 1, [b"b"], [b""]), Batch([2], 1, [b"a"], [b""])], "ascending"),
        ([Batch([1], 1, [b"b"], [b""]), Batch([2], 1, [b"b"], [b""])], "ascending"),
        ([Batch([1], 1, None, [b""])], "has a key"),
        ([Batch([1, 2], 1, [b"a", None], [b"", b""])], "has a key"),
        ([Batch([10], 1, [b"a"], [b""])], "LSN 10"),
    ],
)
def test_a_machine_that_breaks_its_contract_is_refused(batches: list[Batch], text: str) -> None:
    """Keys out of order or absent, LSNs from the future: ValueError, and no file is left."""
    storage = place()
    image = StateImage(9, "mine/1", iter(batches))
    with pytest.raises(ValueError, match=text):
        write_snapshot(storage, image, identity=IDENTITY, make_durable=lambda lsn: None)
    assert storage.names() == []


def test_verify_knows_the_files_of_the_state_by_their_names() -> None:
    """Verify a log with snapshots, and the remains of two works after a power cut: each is named, nothing else."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage) as store:
        for key in (b"a", b"b"):
            store.put(key, b"v")
            store.snapshot()
    for left in ("snapshot.new", "compaction.new"):
        storage.open(left, "create").write(0, [b"half"])
    notes = walkit.verify(storage).notes
    assert "snapshots of the state are beside the log, at LSN 1, 2" in notes
    assert [n.partition(" ")[0] for n in notes if "cut short" in n] == ["compaction.new", "snapshot.new"]
    assert not [n for n in notes if "not the log's" in n]
    storage.open("snapshot-2", "create")
    assert "1 file is not the log's: snapshot-2" in walkit.verify(storage).notes


def test_names() -> None:
    """LSNs are read from file names of exactly twenty digits, and sorted; other files are let alone."""
    storage = place()
    for name in (snapshot_name(30), snapshot_name(4), "snapshot-5", "snapshot.new", f"x{snapshot_name(6)}"):
        storage.open(name, "create")
    storage.open(f"{snapshot_name(7)}.old", "create")
    assert snapshot_lsns(storage) == [4, 30]
    assert snapshot_name(4) == "snapshot-00000000000000000004"


def test_the_identity_of_a_record_is_that_of_its_epoch() -> None:
    """The newest epoch that began at or below the LSN, even if an epoch wrote nothing; none below the first."""
    epochs = [(1, 1, 11), (2, 10, 12), (3, 10, 13), (5, 20, 15)]
    lineage = tuple(EpochRecord(number=n, id=i, first_lsn=lsn, position=0, chain=0) for n, lsn, i in epochs)
    manifest = Manifest(log_id=7, lineage=lineage)
    found = {lsn: identity_at(manifest, lsn) for lsn in (0, 1, 9, 10, 19, 20, 1000)}
    assert found == {
        0: (7, 0, 0),
        1: (7, 1, 11),
        9: (7, 1, 11),
        10: (7, 3, 13),
        19: (7, 3, 13),
        20: (7, 5, 15),
        1000: (7, 5, 15),
    }


def test_an_image_has_an_lsn_that_the_machine_reached() -> None:
    """An image may be taken at a later LSN than the last record, never at an earlier one."""
    table = table_at(10)
    assert take_image(table).lsn == 10
    assert take_image(table, 12).lsn == 12
    with pytest.raises(ValueError, match="no image at 9"):
        take_image(table, 9)


def facts_block(facts: bytes, length: int | None = None) -> bytes:
    """A header block of these facts with a right checksum."""
    length = len(facts) if length is None else length
    head = b"WALKITSN" + FORMAT_VERSION.to_bytes(2, "little") + HEADER_BYTES.to_bytes(2, "little") + bytes(8)
    block = (head + length.to_bytes(4, "little") + facts[: HEADER_BYTES - 28]).ljust(HEADER_BYTES - 4, b"\0")
    return block + crc32c(block).to_bytes(4, "little")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=8) | st.integers(-(1 << 70), 1 << 70),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from([f.name for f in fields(SnapshotInfo)]) | st.text(max_size=8)


@pytest.fixture(scope="module")
def checkpointed() -> CrashingStorage:
    """A closed store with a snapshot, and all of its records still in the log."""
    storage = CrashingStorage()
    with walkit.Store.open(storage) as store:
        for n in range(30):
            store.put(b"%d" % (n % 7), b"%d" % n)
        store.log.hold("all", 1)
        store.checkpoint()
    return storage


@settings(max_examples=examples(40))
@given(changes=st.dictionaries(NAMES, PLAIN, min_size=1, max_size=3), dropped=st.sets(NAMES, max_size=1))
@example(changes={"end_position": -64}, dropped=set())
@example(changes={"lsn": "30"}, dropped=set())
@example(changes={"lsn": None}, dropped=set())
@example(changes={"lsn": 30.0, "records": 7.0, "frames": True}, dropped=set())
@example(changes={"snapshot_format": [1]}, dropped=set())
@example(changes={"frame_bytes_max": 1 << 63}, dropped=set())
def test_facts_of_any_type_give_a_typed_error_or_the_right_state(
    checkpointed: CrashingStorage, changes: dict[str, Any], dropped: set[str]
) -> None:
    """F-13.5: change facts under a right checksum: verifying is a SnapshotError, a Store comes to the right state."""
    image = checkpointed.process_kill()
    (lsn,) = snapshot_lsns(image)
    whole = bytes_of(image, snapshot_name(lsn))
    facts = json.loads(whole[24 : whole.index(b"}") + 1]) | changes
    facts = {name: value for name, value in facts.items() if name not in dropped}
    overwrite(image, snapshot_name(lsn), facts_block(json.dumps(facts).encode()) + whole[HEADER_BYTES:])
    check_crafted(image, lsn)


@settings(max_examples=examples(30))
@given(facts=st.binary(max_size=4068), length=st.none() | st.integers(0, (1 << 32) - 1))
@example(facts=b"[" * 4068, length=None)
@example(facts=b'{"a":' * 800, length=None)
@example(facts=b"5", length=None)
@example(facts=b"null", length=None)
@example(facts=b"{}", length=4069)
def test_bytes_of_any_kind_for_facts_give_a_typed_error(
    checkpointed: CrashingStorage, facts: bytes, length: int | None
) -> None:
    """F-13.5: replace the facts by any bytes, checksum right: a SnapshotError, and the state of the log."""
    image = checkpointed.process_kill()
    (lsn,) = snapshot_lsns(image)
    whole = bytes_of(image, snapshot_name(lsn))
    overwrite(image, snapshot_name(lsn), facts_block(facts, length) + whole[HEADER_BYTES:])
    with pytest.raises(SnapshotError) as refused:
        verify_snapshot(image, lsn)
    assert isinstance(refused.value.__cause__, CorruptionError)
    check_crafted(image, lsn)


def check_crafted(image: CrashingStorage, lsn: int) -> None:
    """Verify the snapshot and open the Store: a typed error, or the log's own state."""
    with suppress(SnapshotError):
        verify_snapshot(image, lsn)
    with walkit.Store.open(image) as store:
        assert {key: store[key] for key in store} == {b"%d" % (n % 7): b"%d" % n for n in range(23, 30)}


def test_a_snapshot_of_frames_that_no_state_has_is_damage() -> None:
    """Records of an LSN above the snapshot's: a right checksum over them, and a typed error all the same."""
    storage = place()
    info = save(storage, table_at())
    whole = bytes_of(storage, info.name)
    facts = json.loads(whole[24 : whole.index(b"}") + 1]) | {"lsn": 5}
    crafted = facts_block(json.dumps(facts).encode()) + whole[HEADER_BYTES:]
    storage.open(snapshot_name(5), "create").write(0, [crafted])
    with pytest.raises(SnapshotError, match="LSNs that are not its own"):
        verify_snapshot(storage, 5)
