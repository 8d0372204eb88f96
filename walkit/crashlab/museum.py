"""Historic bugs of write-ahead logs, each put back into walkit: what an exploration has to find.

What an oracle finds shows little until it is known what it would have found. Some bugs of the same kind have no place
here: walkit never writes into a segment after a recovery, nor uses one twice, so that nothing can be appended after a
torn tail, and no stale frame be taken for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from walkit.commit.frame import SealedFrame
from walkit.commit.frame_writer import FrameWriter
from walkit.compaction import rewriter
from walkit.crashlab.mutant import Mutant, Patch
from walkit.errors import StorageError
from walkit.format import frame as frame_format
from walkit.log.trim import Trimmer
from walkit.models import FaultyStorage
from walkit.models.faults import OperationName
from walkit.models.passing import PassingFile
from walkit.recovery import apply, decision, findings
from walkit.recovery.decision import Decision
from walkit.segments import manifest_store
from walkit.segments.active_segment import OpenSegment
from walkit.segments.index_file import files_of
from walkit.segments.segment_set import SegmentSet
from walkit.state.checkpoint import Checkpointer
from walkit.state.snapshot import SnapshotWrite
from walkit.storage.interface import Buffer, Storage, remove_if_there

Function = Callable[..., Any]


def _without(storage: Storage, operation: OperationName) -> FaultyStorage:
    """Return the storage with one kind of sync doing nothing."""
    lying = FaultyStorage(storage)
    lying.skip(operation)
    return lying


class _UnsyncedFile(PassingFile):
    """A file whose sync does nothing."""

    def read(self, offset: int, size: int) -> bytes:
        """See `StorageFile`."""
        return self.inner.read(offset, size)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See `StorageFile`."""
        self.inner.write(offset, buffers)

    def sync(self) -> None:
        """Do nothing."""


def _write_unsynced(own: Function) -> Function:
    def write(self: SegmentSet, frame: SealedFrame, *, sync: bool) -> None:
        own(self, frame, sync=False)

    return write


def _retry(own: Function) -> Function:
    def write(self: SegmentSet, frame: SealedFrame, *, sync: bool) -> None:
        try:
            own(self, frame, sync=sync)
        except StorageError:
            segment: OpenSegment = frame.target
            segment.failed = None
            segment.file.sync()  # it reports no error, as the failed pages look clean

    return write


def _promise_first(own: Function) -> Function:
    def write(self: SegmentSet, frame: SealedFrame, *, sync: bool) -> None:
        self.publish(frame.next_position, frame.last_lsn)
        own(self, frame, sync=sync)

    return write


def _header_unsynced(own: Function) -> Function:
    def begin_segment(self: SegmentSet, **where: int) -> int:
        prepared = self._take_prepared()
        prepared.file = _UnsyncedFile(prepared.file)
        self._prepared = prepared
        end: int = own(self, **where)
        prepared.file = prepared.file.inner
        return end

    return begin_segment


def _seal_unsynced(own: Function) -> Function:
    def seal_one(self: SegmentSet, segment: OpenSegment) -> None:
        segment.unsynced = False
        own(self, segment)

    return seal_one


def _rotate_unsynced(own: Function) -> Function:
    def begin(self: FrameWriter, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        self._sync = lambda: None

    return begin


def _write_whole_without(operation: OperationName) -> Callable[[Function], Function]:
    def change(own: Function) -> Function:
        def write_whole(storage: Storage, name: str, temporary: str, data: bytes) -> None:
            own(_without(storage, operation), name, temporary, data)

        return write_whole

    return change


def _remove_first(own: Function) -> Function:
    def move_watermark(self: Trimmer, up_to_lsn: int, checkpoint_lsn: int = 0) -> Any:
        storage: Storage = self._orphan_files._storage
        for name in files_of(self.preview(max(up_to_lsn, checkpoint_lsn)).segments):
            remove_if_there(storage, name)
        return own(self, up_to_lsn, checkpoint_lsn)

    return move_watermark


def _snapshot_unsynced(own: Function) -> Function:
    def write(self: SnapshotWrite) -> Any:
        storage, self._storage = self._storage, _without(self._storage, "sync")
        try:
            return own(self)
        finally:
            self._storage = storage

    return write


def _never_durable(own: Function) -> Function:
    def begin(self: Checkpointer, *given: Any, **named: Any) -> None:
        own(self, *given, **named)
        self._make_durable = lambda lsn: None

    return begin


def _compact_unsynced(own: Function) -> Function:
    def rewrite(file: Any, *given: Any, **named: Any) -> Any:
        return own(_UnsyncedFile(file), *given, **named)

    return rewrite


def _refuse_torn(own: Function) -> Function:
    def decide(given: tuple[bool, ...]) -> Any:
        row = own(given)
        return replace(row, decision=Decision.REFUSE_TAIL) if row.decision is Decision.CUT else row

    return decide


def _constant(value: object) -> Callable[[Function], Function]:
    return lambda own: lambda *given, **named: value


_ALL = (
    Mutant(
        "acknowledged-unsynced",
        "a record is acknowledged when it was written, and not when it is on stable storage",
        "etcd #14370",
        "append",
        ("kept",),
        (Patch(SegmentSet, "write", _write_unsynced),),
    ),
    Mutant(
        "failed-sync-retried",
        "a failed sync is done again and believed: the kernel reports a failed page once, and it looks clean then",
        "PostgreSQL (fsyncgate, 2018), LevelDB, SQLite, Redis: Rebello et al., ATC 2020",
        "failed-sync",
        ("kept",),
        (Patch(SegmentSet, "write", _retry),),
    ),
    Mutant(
        "page-cache-believed",
        "a recovery trusts what reads show of the last segment, which after a failed sync may not be on the disk",
        "etcd, TigerBeetle's reading of Alagappan et al., FAST 2018",
        "failed-sync",
        ("verified",),
        (Patch(apply, "sync_unsealed", _constant(None)),),
    ),
    Mutant(
        "promise-first",
        "the durable position is published before the write that it speaks of: a cut in between is called corruption",
        "raft-wal #10 (a last index that an unsynced record has moved)",
        "append",
        ("verified",),
        (Patch(SegmentSet, "write", _promise_first),),
    ),
    Mutant(
        "segment-header-unsynced",
        "the header of a new segment is written without a sync, as if the sync of the first frame covered it",
        "every log that takes O_DSYNC for more than its own bytes",
        "rotation",
        ("kept", "verified"),
        (Patch(SegmentSet, "begin_segment", _header_unsynced),),
    ),
    Mutant(
        "sealed-unsynced",
        "a full segment is called complete before it was synced, while the next one is",
        "LevelDB #193",
        "unsynced",
        ("kept", "verified"),
        (
            Patch(FrameWriter, "__init__", _rotate_unsynced),
            Patch(SegmentSet, "_seal_one", _seal_unsynced),
        ),
    ),
    Mutant(
        "hole-accepted",
        "a segment is taken for the next one although the one before it lost its end",
        "memgraph #4528; RocksDB with wal_bytes_per_sync",
        "parallel-unsynced",
        ("dense", "kept"),
        (
            Patch(FrameWriter, "__init__", _rotate_unsynced),
            Patch(findings, "follows_exactly", _constant(True)),
        ),
    ),
    Mutant(
        "manifest-unsynced",
        "the file that says what the log is takes its name before its bytes are on the disk",
        "persist-queue #180",
        "append",
        ("verified",),
        (Patch(manifest_store, "write_whole", _write_whole_without("sync")),),
    ),
    Mutant(
        "directory-unsynced",
        "a rename is not followed by a sync of its directory",
        "LevelDB #196",
        "append",
        ("verified",),
        (Patch(manifest_store, "write_whole", _write_whole_without("sync_directory")),),
    ),
    Mutant(
        "body-unchecked",
        "a frame whose header is right is taken as a whole, without a look at the checksum of its body",
        "samyama-graph #1335; LevelDB #251",
        "recovery",
        ("genuine",),
        (Patch(frame_format, "check_body", _constant(None)),),
    ),
    Mutant(
        "torn-tail-refused",
        "a torn tail, which every power cut may leave, is treated as corruption: the log does not start",
        "malachite #1594, SmartBFT #101",
        "recovery",
        ("verified",),
        (Patch(decision, "decide", _refuse_torn),),
    ),
    Mutant(
        "removed-first",
        "the files of a trim are removed before the manifest without them is durable",
        "turbokv #8, Litestream (retention)",
        "trim",
        ("verified",),
        (Patch(Trimmer, "move_watermark", _remove_first),),
    ),
    Mutant(
        "snapshot-unsynced",
        "a snapshot takes its name before its bytes are on the disk, and the log that it replaces is dropped",
        "turbokv #8",
        "checkpoint",
        ("verified",),
        (Patch(SnapshotWrite, "_write", _snapshot_unsynced),),
    ),
    Mutant(
        "snapshot-ahead",
        "a snapshot is durable before the records that it holds: the log ends before it after a cut",
        "a hazard of every state machine that is faster than its log",
        "checkpoint-unsynced",
        ("opens", "verified"),
        (Patch(Checkpointer, "__init__", _never_durable),),
    ),
    Mutant(
        "compaction-unsynced",
        "a compacted segment is named in the manifest before it is on the disk",
        "Litestream #1323, #1028 (a gap that shows at the restore)",
        "compaction",
        ("verified",),
        (Patch(rewriter, "rewrite", _compact_unsynced),),
    ),
)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
"""By name."""
