"""What a replica gathers of its primary's log beside its own, until it is whole and takes its place (FORMAT.md F-19).

The parts stand in the replica's folder under names that no log reads. A part that is there is not fetched again. Each
frame and each chain is checked before the log is replaced, from the device and not from the page cache, so nothing has
to be believed of a part, and none is synced before. The replacement itself is `bootstrap_switch.switch_to_gathered`:
an opening does it, under the writer's lock, and the next one does it again where a crash comes in between.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

from walkit.copier.segment_check import check_segment
from walkit.errors import CorruptionError, DivergenceError, NotALogError, StorageError, WalkitError
from walkit.events import EventSink
from walkit.format.layout import MANIFEST_BYTES_MAX, POSITION_MAX, SEGMENT_HEADER_BYTES
from walkit.format.manifest import (
    MANIFEST_NAME,
    EpochRecord,
    Manifest,
    SegmentRecord,
)
from walkit.format.manifest_file import decode_manifest, encode_base
from walkit.format.names import BOOTSTRAP_PLAN_NAME, BOOTSTRAP_PREFIX, BOOTSTRAP_READY_NAME
from walkit.format.segment import SegmentHeader
from walkit.replication.core.bootstrap import Want
from walkit.replication.protocol.checks import first_difference
from walkit.replication.protocol.messages import Chunk, Plan
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.gathered import SNAPSHOT_KEY
from walkit.state.snapshot import identity_at, verify_snapshot
from walkit.storage.interface import LimitedSpace, Storage, StorageFile
from walkit.storage.whole_file import read_if_there, write_whole

FREE_LEFT_BYTES = 64 << 20
"""So much of the disk stays free of what is gathered: for the replica's own log, and for its neighbours."""


def part_name(number: int) -> str:
    """Return the name of what is gathered of the primary's segment of this number."""
    return f"{BOOTSTRAP_PREFIX}{number:020d}.part"


def snapshot_part_name(lsn: int) -> str:
    """Return the name of what is gathered of the primary's snapshot at this LSN."""
    return f"{BOOTSTRAP_PREFIX}snapshot-{lsn:020d}.part"


class BootstrapFolder:
    """What is gathered of one plan in a replica's folder. Used by one thread, which has the writer's lock."""

    def __init__(self, storage: Storage, events: EventSink) -> None:
        self._storage, self._events = storage, events
        self._manifest = Manifest(log_id=0)
        self._snapshot_lsn = 0
        self._names: list[str] = []
        self._file: StorageFile | None = None
        self._index = -1

    def prepare(self, plan: Plan, log_id: int, lineage: tuple[EpochRecord, ...]) -> tuple[Want, ...]:
        """Begin to gather this plan, and return what is missing of it; what is there of an earlier one is used.

        DivergenceError where it is another history than the replica's; CorruptionError for a plan that cannot be;
        StorageError, of a disk that has no room for all of it, too: nothing is fetched then.
        """
        manifest = _checked_plan(plan)
        if manifest.log_id != log_id or manifest.lineage[: len(lineage)] != lineage:
            first = first_difference(lineage, manifest.lineage) if manifest.log_id == log_id else 1
            raise DivergenceError(
                f"the primary's plan is of another history than this replica's, from LSN {first:,} on. Nothing was "
                "changed",
                first_lsn=first,
            )
        before = self._gathered()
        self._manifest, self._snapshot_lsn = manifest, plan.snapshot_lsn
        self._names = [part_name(record.number) for record in manifest.sealed]
        if plan.snapshot_lsn:
            self._names.append(snapshot_part_name(plan.snapshot_lsn))
        usable = {part_name(r.number) for r in manifest.sealed if _begins_as(before.get(r.number), r)}
        usable |= set(self._names[len(manifest.sealed) :])
        self._clear({*self._names} & usable)
        facts = replace(manifest, extra={SNAPSHOT_KEY: plan.snapshot_lsn})
        write_whole(self._storage, BOOTSTRAP_PLAN_NAME, f"{BOOTSTRAP_PLAN_NAME}.new", encode_base(facts))
        there = {name: self._size(name) for name in self._names if name in usable}
        wants = tuple(
            Want(index, min(there.get(name, 0), size), size)
            for index, (name, size) in enumerate(zip(self._names, plan.sizes, strict=True))
        )
        _require_room(self._storage, sum(want.size - want.offset for want in wants))
        return wants

    def store(self, chunk: Chunk) -> None:
        """Write bytes into their part; not on stable storage on return. StorageError."""
        if self._index != chunk.file:
            self.close()
            name = self._names[chunk.file]
            there = name in self._storage.names()
            self._file = self._storage.open(name, "write" if there else "create")
            self._index = chunk.file
        assert self._file is not None
        self._file.write(chunk.offset, [chunk.data])

    def finish(self) -> None:
        """Check every frame, chain and checksum of what was gathered, and say that it is ready; durable on return.

        CorruptionError where something is damaged: that part is removed, to be fetched again. StorageError.
        """
        self.close()
        for record in self._manifest.sealed:
            self._check_part(part_name(record.number), record)
        _check_chain(self._manifest)
        if self._snapshot_lsn:
            self._check_snapshot()
        self._storage.sync_directory()
        self._storage.replace(BOOTSTRAP_PLAN_NAME, BOOTSTRAP_READY_NAME)
        self._storage.sync_directory()

    def clear(self) -> None:
        """Remove all that is gathered: the replica's own log is continued after all."""
        self.close()
        self._clear(set())

    def close(self) -> None:
        """Close the part that is open."""
        file, self._file, self._index = self._file, None, -1
        if file is not None:
            file.close()

    def _gathered(self) -> dict[int, SegmentRecord]:
        """Return the segments of the plan that was gathered before, by number; none where that cannot be read."""
        data = read_if_there(self._storage, BOOTSTRAP_PLAN_NAME, MANIFEST_BYTES_MAX + 1)
        if data is None:
            return {}
        try:
            manifest = decode_manifest(data, BOOTSTRAP_PLAN_NAME)
        except WalkitError:
            return {}
        return {record.number: record for record in manifest.sealed}

    def _clear(self, keep: set[str]) -> None:
        for name in self._storage.names():
            if name.startswith(BOOTSTRAP_PREFIX) and name not in keep:
                self._storage.remove(name)

    def _size(self, name: str) -> int:
        try:
            file = self._storage.open(name, "read")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def _settle(self, name: str) -> None:
        """Put a part on stable storage and drop its cached pages: what is checked is then what the device has.

        A part whose sync fails is removed, to be fetched again: its pages look clean after that, here and to the next
        sync (FORMAT.md F-19.2). StorageError.
        """
        file = self._storage.open(name, "write")
        try:
            file.sync()
            file.drop_cached()
        except StorageError:
            with suppress(StorageError):
                self._storage.remove(name)
            raise
        finally:
            file.close()

    def _check_part(self, name: str, record: SegmentRecord) -> None:
        self._settle(name)
        try:
            fault = _other_facts(record, *check_segment(self._storage, self._manifest, record, name=name))
            if fault:
                raise CorruptionError(
                    f"{name} came with {fault}. It is fetched again", segment=name, found=fault
                )
        except StorageError:
            raise
        except WalkitError:
            self._storage.remove(name)
            raise

    def _check_snapshot(self) -> None:
        lsn = self._snapshot_lsn
        name = snapshot_part_name(lsn)
        self._settle(name)
        try:
            verify_snapshot(self._storage, lsn, identity=identity_at(self._manifest, lsn), name=name)
        except WalkitError as error:
            if isinstance(error.__cause__, StorageError):
                raise
            self._storage.remove(name)
            raise CorruptionError(
                f"the snapshot at LSN {lsn:,} came damaged: {error}. It is fetched again", segment=name
            ) from error


def _require_room(storage: Storage, missing_bytes: int) -> None:
    """StorageError where a storage that knows its room has none for what is missing of a plan.

    Frames bear out the sizes of segments; how large a state is that a snapshot holds, nothing in a plan tells.
    """
    free = storage.free_bytes() if isinstance(storage, LimitedSpace) else None
    if free is not None and missing_bytes > max(free - FREE_LEFT_BYTES, 0):
        raise StorageError(
            f"{storage.location} has {free:,} bytes free, and the primary's log takes {missing_bytes:,} more; "
            f"{FREE_LEFT_BYTES:,} stay free. Nothing was fetched",
            errno=errno.ENOSPC,
        )


def _checked_plan(plan: Plan) -> Manifest:
    """Return the manifest of a plan; CorruptionError where it is none, or the sizes are not those of its files."""
    try:
        manifest = decode_manifest(plan.manifest, "the primary's plan")
    except NotALogError as error:  # no word about this folder, as it would be of an opening
        raise CorruptionError(f"{error}", segment=MANIFEST_NAME) from error
    wrong = _wrong_files(plan, manifest) or _wrong_facts(plan, manifest)
    if wrong:
        raise CorruptionError(
            f"the primary's plan has {wrong}. Nothing of it was used", segment=MANIFEST_NAME
        )
    return manifest


def _wrong_files(plan: Plan, manifest: Manifest) -> str:
    """Return what is wrong with the files of a plan, of which a replica stores no more than their sizes; or ""."""
    sealed, sizes = manifest.sealed, plan.sizes
    if len(sealed) != len(manifest.segments) or manifest.log_id == 0:
        return "segments that are not sealed"
    if len(sizes) != len(sealed) + (plan.snapshot_lsn > 0):
        return f"{len(sizes):,} sizes for {len(sealed):,} segments"
    if len({r.number for r in sealed}) != len(sealed) or max(sizes, default=0) > POSITION_MAX:
        return "numbers or sizes that no log has"
    of_segments = list(zip(sealed, sizes, strict=False))
    if any(size < SEGMENT_HEADER_BYTES for _, size in of_segments):
        return "a segment without a header"
    if any(size > SEGMENT_HEADER_BYTES + record.size_bytes for record, size in of_segments):
        return "a segment's file that is larger than its frames"
    return "a snapshot without bytes" if plan.snapshot_lsn and not sizes[-1] else ""


def _wrong_facts(plan: Plan, manifest: Manifest) -> str:
    """Return what a plan's manifest says that no log of these segments says; or "". All it has ends at its end."""
    end, sealed = manifest.end, manifest.sealed
    if plan.snapshot_lsn > end.last_lsn or manifest.low_watermark > end.last_lsn:
        return "a snapshot or a low watermark after its end"
    if manifest.checkpoint_lsn > end.last_lsn:
        return "a checkpoint after its end"
    if max(manifest.exact_from_lsn, manifest.tombstones_from_lsn) > end.last_lsn + 1:
        return "a history that begins after its end"
    if manifest.exact_from_lsn > end.last_lsn > manifest.low_watermark:
        return "records of which no state can be made"
    if 0 < plan.snapshot_lsn < max(manifest.low_watermark, manifest.tombstones_from_lsn - 1):
        return "a snapshot that is older than what was dropped"
    if any(gap.end_position > end.position or gap.last_lsn > end.last_lsn for gap in manifest.gaps):
        return "a hole or a lost range after its end"
    if any(e.position > end.position or e.first_lsn > end.last_lsn + 1 for e in manifest.lineage):
        return "an epoch after its end"
    if sealed and _end_of(sealed[-1]) != (end.last_lsn, end.position, end.chain):
        return "another end than its last segment"
    return ""


def _end_of(record: SegmentRecord) -> tuple[int, int, int]:
    return record.last_lsn, record.end_position, record.end_chain


def _other_facts(record: SegmentRecord, header: SegmentHeader, walk: FrameWalk) -> str:
    """Return in what a manifest's record of a segment differs from its frames, all of which were walked; or ""."""
    facts = {
        "chain": (record.start_chain, header.chain),
        "flags": (record.flags, int(header.flags)),
        "last LSN": (record.last_lsn, (walk.next_lsn or 1) - 1),
        "number of frames": (record.frames, walk.frames),
        "number of records": (record.records, walk.records),
    }
    for what, (said, found) in facts.items():
        if said != found:
            return f"{what} {found:,}, where the primary's plan says {said:,}"
    return ""


def _check_chain(manifest: Manifest) -> None:
    """CorruptionError where a segment does not follow the one before it; a known gap may lie between them."""
    for before, after in pairwise(manifest.sealed):
        at = manifest.gap_after(before.end_position)
        follows = before.last_lsn < after.first_lsn and at <= after.start_position
        if not follows or (at == before.end_position and after.start_chain != before.end_chain):
            raise CorruptionError(
                f"the primary's plan has segment {after.name} after {before.name}, which it does not follow",
                segment=after.name,
                position=after.start_position,
                expected=before.end_chain,
                found=after.start_chain,
            )


def _begins_as(before: SegmentRecord | None, record: SegmentRecord) -> bool:
    """Say whether what was gathered of a segment is the beginning of this one: it may have been in use then."""
    if before is None:
        return False
    same = ("start_position", "first_lsn", "start_chain", "epoch", "created_us", "flags")
    return all(getattr(before, name) == getattr(record, name) for name in same)
