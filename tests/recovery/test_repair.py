"""`walkit.repair`: with a manifest and without one, twice, during a crash, and its refusals."""

from __future__ import annotations

import os
from itertools import cycle, pairwise, product
from typing import Any

import pytest

import walkit
from tests.recovery.test_unreadable import BadPages
from tests.support.damaged_logs import (
    DAMAGES,
    HEAD,
    OPTIONS,
    Damage,
    both,
    contents,
    crash_image,
    flip,
    frames_of,
    gone,
    in_frame,
    opened,
    overwrite,
    patch,
    read,
    rows_of,
    rows_without,
    shorten,
    value_of,
)
from tests.support.logs import TINY, lsns, reopened
from walkit.errors import CorruptionError, FormatVersionError, LogLockedError, OptionsError, StorageError
from walkit.format.layout import SegmentFlag
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.segment import segment_name
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import DURABLE_NAME, load_manifest


def without_manifest(image: CrashingStorage) -> None:
    """Take the manifest away, durably."""
    image.remove(MANIFEST_NAME)
    image.sync_directory()


def with_damaged_manifest(image: CrashingStorage) -> None:
    """Flip a bit in the manifest's payload."""
    flip(image, MANIFEST_NAME, 100)


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda h: h.name)
def test_repair_does_what_the_salvaging_opening_does(damage: Damage) -> None:
    """Repair each damage by salvage, dry, for real, and again: the losses of an opening, then nothing more."""
    image = crash_image(closed=damage.closed)
    damage.do(image)
    other = image.process_kill()
    before = contents(image)
    dry = walkit.repair(image, policy="salvage", dry_run=True)
    assert contents(image) == before and dry.dry_run
    done = walkit.repair(image, policy="salvage")
    assert (done.lost, done.decisions, done.cuts, done.changed) == (
        dry.lost,
        dry.decisions,
        dry.cuts,
        dry.changed,
    )
    assert done.ok is not bool(done.lost) and done.summary() and done.to_dict()["ok"] is done.ok
    with opened(other, "salvage") as log:
        assert log.recovery.lost == done.lost
    after = contents(image)
    again = walkit.repair(image, policy="salvage")
    assert (again.changed, again.lost, contents(image)) == (False, (), after)
    assert walkit.verify(image).ok
    with opened(image, "absolute") as log:
        assert rows_of(log) == rows_without(*damage.lost) and log.recovery.verdict == "clean"


MANIFESTS = {"missing": without_manifest, "damaged": with_damaged_manifest}
PLACED = ("the header of another segment", "the header of a segment that is missing")
"""Only a manifest knows where the frames after such a header belong."""


@pytest.mark.parametrize(
    ("damage", "spoil"),
    [
        pytest.param(damage, spoil, id=f"{damage.name}, {spoil}")
        for damage, spoil in zip((d for d in DAMAGES if d.name not in PLACED), cycle(MANIFESTS), strict=False)
    ],
)
def test_a_manifest_is_rebuilt_beside_every_damage(damage: Damage, spoil: str) -> None:
    """Take the manifest as well, and repair: intact records are read, the losses are the same as with a manifest."""
    image = crash_image(closed=damage.closed)
    damage.do(image)
    MANIFESTS[spoil](image)
    with pytest.raises(CorruptionError):
        opened(image, "salvage")
    done = walkit.repair(image, policy="salvage")
    assert done.manifest_rebuilt and done.notes and done.changed
    with opened(image, "absolute") as log:
        assert rows_of(log) == rows_without(*damage.lost)
        next_lsn = log.append(b"next").first_lsn
    first_missing = damage.name == "the first segment missing"
    told = {n for g in done.lost for n in range(g.first_lsn, g.last_lsn + 1)}
    assert told == (set() if damage.given_again or first_missing else set(damage.lost))
    assert next_lsn == (damage.given_again or 9)
    assert walkit.verify(image).ok
    if spoil == "damaged":
        assert any(n.startswith("lost+found/manifest") for n in contents(image))


def test_repair_without_loss_is_what_prefix_does() -> None:
    """Repair a whole log without its manifest by every policy: all records, next LSN after them, nothing lost."""
    for policy, closed in product(("prefix", "holes", "absolute", "salvage"), (True, False)):
        image = crash_image(closed=closed)
        old = load_manifest(image)
        without_manifest(image)
        done = walkit.repair(image, policy=policy)  # type: ignore[arg-type]
        assert done.ok and done.last_lsn == 8
        new = load_manifest(image)
        assert (new.log_id, new.lineage) == (old.log_id, old.lineage)
        assert new.sealed[: len(old.sealed)] == old.sealed and new.next_segment >= max(
            s.number for s in new.sealed
        )
        with opened(image) as log:
            assert rows_of(log) == rows_without() and log.append(b"next").first_lsn == 9


@pytest.mark.parametrize("policy", ["prefix", "holes", "absolute"])
def test_other_policies_refuse_losses_that_salvage_accepts(policy: str) -> None:
    """Repair each damage that costs a promised record without salvage: CorruptionError, and not a byte is changed."""
    for damage in DAMAGES:
        if not (damage.lost or damage.mended) or damage.given_again:
            continue
        image = crash_image(closed=damage.closed)
        damage.do(image)
        before = contents(image)
        with pytest.raises(CorruptionError):
            walkit.repair(image, policy=policy)  # type: ignore[arg-type]
        assert contents(image) == before, damage.name


def compacted_log() -> CrashingStorage:
    """Return a closed log whose front was compacted, with a tombstone and keys that were written many times."""
    storage = CrashingStorage()
    with walkit.Store.open(storage, options=OPTIONS) as store:
        for i in range(12):
            store[b"key %d" % (i % 2)] = value_of(i)
        del store[b"key 1"]
        store.log.append(b"event")
        for i in range(4):
            store[b"last"] = value_of(i)
        store.log.wait_idle()
        store.compact()
    return storage.process_kill()


def test_a_manifest_of_a_compacted_log_is_rebuilt() -> None:
    """Take the manifest of a compacted log: verify tells its segments as they are, repair gives back its state."""
    image = compacted_log()
    old = load_manifest(image)
    assert any(s.flags & SegmentFlag.COMPACTED for s in old.sealed)
    with walkit.open(None, mode="r", storage=image) as reader:
        rows = rows_of(reader)
    with_damaged_manifest(image)
    told = walkit.verify(image)
    assert [p.segment for p in told.problems] == [MANIFEST_NAME]
    done = walkit.repair(image)
    new = load_manifest(image)
    assert done.ok and new.sealed == old.sealed and new.end == old.end
    assert new.exact_from_lsn == old.end.last_lsn and new.tombstones_from_lsn >= old.tombstones_from_lsn
    with walkit.Store.open(image) as store:
        assert rows_of(store.log) == rows and dict(store.items()) == {
            b"key 0": value_of(10),
            b"last": value_of(3),
        }
    assert walkit.verify(image).ok


def test_originals_beside_their_compacted_segment_are_kept_and_not_read_twice() -> None:
    """Put the originals back beside the compacted segment, without a manifest: each record once, the originals kept."""
    storage = CrashingStorage()
    with walkit.Store.open(storage, options=OPTIONS) as store:
        for i in range(12):
            store[b"key %d" % (i % 2)] = value_of(i)
        store.log.wait_idle()
        before = storage.process_kill()
        store.compact()
    image = storage.process_kill()
    names = [s.name for s in load_manifest(before).sealed if s.name not in image.names()]
    assert names
    for name in names:
        file = image.open(name, "create")
        file.write(0, [read(before, name)], sync=True)
        file.close()
    without_manifest(image)
    with walkit.open(None, mode="r", storage=storage) as reader:
        rows = rows_of(reader)
    walkit.repair(image)
    with walkit.open(None, mode="r", storage=image) as reader:
        assert rows_of(reader) == rows
    assert {f"lost+found/{n}" for n in names} <= set(contents(image))


def test_repair_refuses_what_it_must_not_touch() -> None:
    """Repair a live log, a newer format, wrong arguments, and manifests without a segment: a typed error, no change."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        log.append(b"x")
        for dry_run in (False, True):
            with pytest.raises(LogLockedError, match="in this process") as locked:
                walkit.repair(storage, dry_run=dry_run)
            assert locked.value.pid == os.getpid()
    with pytest.raises(OptionsError, match="hope"):
        walkit.repair(storage, policy="hope")  # type: ignore[arg-type]
    with pytest.raises(walkit.LogNotFoundError):
        walkit.repair(CrashingStorage())
    image = crash_image(closed=True)
    name = segment_name(2)
    data = bytearray(read(image, name)[:4096])
    from walkit.format.checksum import crc32c

    data[8] = 9
    patch(image, name, 0, bytes(data[:4092]) + crc32c(bytes(data[:4092])).to_bytes(4, "little"))
    before = contents(image)
    with pytest.raises(FormatVersionError):
        walkit.repair(image, policy="salvage")
    assert contents(image) == before
    empty = CrashingStorage()
    walkit.open(storage=empty).close()
    flip(empty, MANIFEST_NAME, 100)
    with pytest.raises(CorruptionError):
        walkit.repair(empty, policy="salvage")


@pytest.mark.parametrize("name", [f"{10**20 - 1}.segment", f"snapshot-{10**20 - 1}"])
def test_a_number_that_no_writer_gives_does_not_reach_a_manifest(name: str) -> None:
    """Rename the manifest to a segment or snapshot of a number beyond the limit, and repair: all is there."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=TINY) as log:
        log.append_many([b"x"] * 9)
    storage.replace("manifest", name)
    assert walkit.repair(storage).ok is not False
    assert len(reopened(storage)) == 9


def test_pages_that_cannot_be_read_are_lost_and_the_others_are_not() -> None:
    """Fail reads of a frame's pages, and the opening of another segment: prefix refuses, salvage names both."""
    image = crash_image(closed=True)
    offset, _ = frames_of(image, segment_name(2))[0]
    faulty = BadPages(image, segment_name(2), range(offset + 4096, offset + 8192))
    faulty.fail("open", segment_name(3), times=None)
    with pytest.raises(StorageError) as refused:
        opened(faulty)
    assert refused.value.name == segment_name(3)
    with opened(faulty, "salvage") as log:
        assert rows_of(log) == rows_without(3, 5, 6)
        first, second = log.recovery.lost
        assert (first.segment, second.segment) == (segment_name(2), segment_name(3))
        assert "unreadable" in first.reason and "cannot open" in second.reason
        assert {d.row for d in log.recovery.decisions} == {"P", "M"}
    assert f"lost+found/{segment_name(3)}" in image.names("lost+found")
    with opened(faulty) as log:
        assert rows_of(log) == rows_without(3, 5, 6)


def test_a_tail_without_an_intact_frame_is_kept() -> None:
    """Tear the first frame of an open segment that nothing promised: the cut says where its bytes are, and they are."""
    image = crash_image(closed=False, without_cell=True)
    in_frame(4, 1, 41)(image)
    in_frame(4, 0, 41)(image)
    with opened(image) as log:
        (cut,) = log.recovery.cuts
        assert rows_of(log) == rows_without(7, 8) and cut.kept_as is not None
    assert len(contents(image)[cut.kept_as]) == cut.bytes > 40_000


def test_a_short_file_differs_from_a_missing_one() -> None:
    """Cut one segment and remove another: two lost ranges, each with its own segment and reason."""
    image = crash_image(closed=True)
    shorten(image, segment_name(1), 40_000)
    gone(3)(image)
    done = walkit.repair(image, policy="salvage")
    assert [(g.segment, g.first_lsn, g.last_lsn) for g in done.lost] == [
        (segment_name(1), 2, 2),
        (segment_name(3), 5, 6),
    ]
    assert "missing" in done.lost[1].reason and "missing" not in done.lost[0].reason


def epochs_log() -> CrashingStorage:
    """Return a log with a compacted front, an original after it, and two more epochs, the last left by a kill."""
    storage = compacted_log()
    with walkit.open(storage=storage, options=OPTIONS) as log:
        log.append(b"second epoch")
    log = walkit.open(storage=storage, options=OPTIONS)
    for i in range(3):
        log.append(value_of(i))
    log.wait_idle()
    image = storage.process_kill()
    log.close()
    return image


@pytest.mark.parametrize("which", ["behind the compacted", "first of an epoch", "open"])
def test_a_headless_segment_without_a_manifest_is_placed_by_its_frames(which: str) -> None:
    """Damage one header and take the manifest, in a log of many epochs: every record is read, and verify agrees."""
    image = epochs_log()
    manifest = load_manifest(image)
    with walkit.open(None, mode="r", storage=image) as reader:
        rows = rows_of(reader)
    front = sum(bool(s.flags & SegmentFlag.COMPACTED) for s in manifest.sealed)
    record = {
        "behind the compacted": manifest.sealed[front],
        "first of an epoch": next(s for s in manifest.sealed if s.epoch == 2),
        "open": manifest.unsealed[0],
    }[which]
    flip(image, record.name, 50)
    without_manifest(image)
    done = walkit.repair(image, policy="salvage")
    assert done.ok and [d.row for d in done.decisions if d.segment == record.name] == ["N"]
    with walkit.open(None, mode="r", storage=image) as reader:
        assert rows_of(reader) == rows
    assert walkit.verify(image).ok
    assert [e.id for e in load_manifest(image).lineage] == [e.id for e in manifest.lineage]


def test_a_lost_epoch_does_not_contradict() -> None:
    """Lose the only segment of an epoch in the middle: one lost range, and verify takes the next epoch as it is."""
    image = epochs_log()
    record = next(s for s in load_manifest(image).sealed if s.epoch == 2)
    image.remove(record.name)
    image.sync_directory()
    done = walkit.repair(image, policy="salvage")
    assert [(g.first_lsn, g.last_lsn) for g in done.lost] == [(record.first_lsn, record.last_lsn)]
    assert walkit.verify(image).ok


def test_what_is_missing_before_a_segment_without_header_and_first_frame_is_recorded() -> None:
    """Lose manifest, third segment, and the fourth's header and first frame: repaired, the log is in order again."""
    image = crash_image(closed=False)
    both(gone(3), in_frame(4, 0, 300), lambda s: flip(s, segment_name(4), HEAD), with_damaged_manifest)(image)
    done = walkit.repair(image, policy="salvage")
    assert [(g.first_lsn, g.last_lsn) for g in done.lost if g.lsns] == [(5, 7)]
    gaps = [(g.start_position, g.end_position) for g in done.lost]
    assert all(end == start for (_, end), (start, _) in pairwise(gaps)), "positions from end to end"
    assert walkit.verify(image).ok
    with opened(image) as log:
        assert rows_of(log) == rows_without(5, 6, 7)


@pytest.mark.parametrize("policy", ["prefix", "salvage"])
@pytest.mark.parametrize("missing", [1, 2])
def test_a_rebuilt_manifest_misses_the_segments_at_the_front(policy: Any, missing: int) -> None:
    """Lose the manifest and the first segments: repair names the unaccounted LSNs, and is not ok."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=TINY) as log:
        log.append_many([bytes(7000)] * 60)
    manifest = load_manifest(storage)
    last_lost = manifest.sealed[missing - 1].last_lsn
    for record in manifest.sealed[:missing]:
        storage.remove(record.name)
    storage.remove("manifest")
    for dry_run in (True, False):
        report = walkit.repair(storage, policy=policy, dry_run=dry_run)
        assert not report.ok and report.manifest_rebuilt and not report.lost
        assert report.unaccounted_lsns == last_lost == report.to_dict()["unaccounted_lsns"]
        assert any(f"LSN 1 to {last_lost}" in note for note in report.notes)
        assert f"LSN 1 to {last_lost} were trimmed, or are missing" in report.summary()
    with walkit.open(storage=storage, mode="r") as reader:
        assert lsns(reader.read()) == list(range(last_lost + 1, 61))


def test_what_a_snapshot_holds_is_not_missing() -> None:
    """Lose the manifest of a store that trimmed up to its snapshot: all is accounted for, and the snapshot not read."""
    storage = CrashingStorage()
    with walkit.Store.open(storage, TINY) as store:
        for n in range(40):
            store.put(b"%d" % n, bytes(7000))
        store.checkpoint()
        assert store.log.first_lsn > 1
        store.put(b"after", b"1")
    storage.remove("manifest")
    report = walkit.repair(storage)
    assert report.ok is None and report.not_read and report.manifest_rebuilt and not report.unaccounted_lsns
    with walkit.Store.open(storage, TINY) as store:
        assert len(store) == 41


def test_the_slot_of_an_epoch_without_segments_does_not_stop_a_repair() -> None:
    """Trim an epoch away, lose the manifest, and leave its old slot: the rebuilt manifest does not know the epoch."""
    storage = CrashingStorage()
    with opened(storage) as log:
        log.append(value_of(1))
    old = read(storage, DURABLE_NAME)
    with opened(storage) as log:
        for lsn in range(2, 6):
            log.append(value_of(lsn))
        log.wait_idle()
        log.trim(1)
        log.wait_idle()
        image = storage.process_kill()
    overwrite(image, DURABLE_NAME, old)
    without_manifest(image)
    report = walkit.repair(image)
    assert report.manifest_rebuilt and report.last_lsn == 5
    assert walkit.verify(image).ok
    with opened(image, "absolute") as log:
        assert [lsn for lsn, _ in rows_of(log)] == [2, 3, 4, 5]


def test_space_before_a_rebuilt_segment_is_recorded() -> None:
    """Give up the end of a file, then lose the manifest and the next segment's header: no contradiction is left."""
    image = crash_image(closed=False, without_cell=True)
    last = load_manifest(image).unsealed[-1].name
    offset, header = frames_of(image, last)[-1]
    shorten(image, last, offset + header.footprint)
    with opened(image, "salvage") as log:
        log.append(value_of(9))
        rows = rows_of(log)
    with_damaged_manifest(image)
    flip(image, max(n for n in image.names() if n.endswith(".segment")), HEAD)
    report = walkit.repair(image, policy="salvage")
    assert report.manifest_rebuilt
    assert not walkit.verify(image).problems
    with opened(image, "absolute") as log:
        assert rows_of(log) == rows
