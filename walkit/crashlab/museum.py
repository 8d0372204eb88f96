"""Historic bugs of write-ahead logs, each put back into walkit: the bugs that an exploration has to find.

An oracle's silence proves little unless it finds known bugs. Some bugs of the same kind have no place
here: walkit never writes into a segment after a recovery, nor uses one twice, so that nothing can be appended after a
torn tail, and no stale frame be taken for a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import signature
from typing import Any
from weakref import WeakKeyDictionary

from walkit.commit.frame import SealedFrame
from walkit.commit.frame_writer import FrameWriter
from walkit.crashlab.mutant import Mutant, Patch
from walkit.errors import StorageError
from walkit.format import frame as frame_format
from walkit.log.trim import Trimmer
from walkit.models import FaultyStorage
from walkit.models.faults import OperationName
from walkit.models.wrapper import PassingFile
from walkit.recovery import apply, decision, log_scan
from walkit.recovery.decision import Decision
from walkit.segments import manifest_store, rewrite
from walkit.segments.active_segment import OpenSegment
from walkit.segments.index_file import files_of
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.segment_set import SegmentSet
from walkit.state.checkpoint import Checkpointer
from walkit.state.snapshot import SnapshotWrite
from walkit.storage.interface import Buffer, Storage

Function = Callable[..., Any]


def _without(storage: Storage, operation: OperationName) -> FaultyStorage:
    """Return the storage with one kind of sync doing nothing."""
    lying = FaultyStorage(storage)
    lying.skip(operation)
    return lying


class _UnsyncedHeader(PassingFile):
    """A segment's file of which the header is written without a sync."""

    def read(self, offset: int, size: int) -> bytes:
        """See `StorageFile`."""
        return self.inner.read(offset, size)

    def write(self, offset: int, buffers: Sequence[Buffer], *, sync: bool = False) -> None:
        """See `StorageFile`."""
        self.inner.write(offset, buffers, sync=sync and offset > 0)

    def sync(self) -> None:
        """See `StorageFile`."""
        self.inner.sync()


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


def _seal_unsynced(own: Function) -> Function:
    def seal(self: SegmentSet, segment: OpenSegment) -> None:
        for each in self.open_segments:
            each.unsynced = False
            if each is segment:
                break
        own(self, segment)

    return seal


def _passing(**changed: Callable[[Any], object]) -> Callable[[Function], Function]:
    """Return a change of a constructor: it is given something else for these of its parameters."""

    def change(own: Function) -> Function:
        def begin(*given: Any, **named: Any) -> None:
            bound = signature(own).bind(*given, **named)
            for name, port in changed.items():
                bound.arguments[name] = port(bound.arguments[name])
            own(*bound.args, **bound.kwargs)

        return begin

    return change


_ROTATE_UNSYNCED = Patch(FrameWriter, "__init__", _passing(sync=lambda sync: lambda: None))


def _write_whole_without(operation: OperationName) -> Callable[[Function], Function]:
    def change(own: Function) -> Function:
        def write_whole(storage: Storage, name: str, temporary: str, data: bytes) -> None:
            own(_without(storage, operation), name, temporary, data)

        return write_whole

    return change


_orphans: WeakKeyDictionary[Trimmer, OrphanFiles] = WeakKeyDictionary()


def _note_orphans(own: Function) -> Function:
    def begin(*given: Any, **named: Any) -> None:
        bound = signature(own).bind(*given, **named)
        _orphans[bound.arguments["self"]] = bound.arguments["orphan_files"]
        own(*given, **named)

    return begin


def _remove_first(own: Function) -> Function:
    def move_watermark(self: Trimmer, up_to_lsn: int, checkpoint_lsn: int = 0) -> Any:
        orphans = _orphans[self]
        orphans.add(files_of(self.preview(max(up_to_lsn, checkpoint_lsn)).segments))
        orphans.remove()
        return own(self, up_to_lsn, checkpoint_lsn)

    return move_watermark


def _rewrite_unsynced(own: Function) -> Function:
    return lambda storage, temporary, write: own(_without(storage, "sync"), temporary, write)


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
        "a recovery trusts the bytes it reads of the last segment, which after a failed sync may not be on the disk",
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
        (Patch(OpenSegment, "__init__", _passing(file=_UnsyncedHeader)),),
    ),
    Mutant(
        "sealed-unsynced",
        "a full segment is called complete before it was synced, while the next one is",
        "LevelDB #193",
        "unsynced",
        ("kept", "verified"),
        (
            _ROTATE_UNSYNCED,
            Patch(SegmentSet, "seal", _seal_unsynced),
        ),
    ),
    Mutant(
        "hole-accepted",
        "a segment is taken for the next one although the one before it lost its end",
        "memgraph #4528; RocksDB with wal_bytes_per_sync",
        "parallel-unsynced",
        ("dense", "kept"),
        (
            _ROTATE_UNSYNCED,
            Patch(log_scan, "follows_exactly", _constant(True)),
        ),
    ),
    Mutant(
        "manifest-unsynced",
        "the manifest takes its name before its bytes are on the disk",
        "persist-queue #180",
        "append",
        ("verified",),
        (Patch(manifest_store, "write_whole", _write_whole_without("sync")),),
    ),
    Mutant(
        "directory-unsynced",
        "a rename is not followed by a sync of its directory",
        "LevelDB #196",
        "trim",
        ("verified", "held"),
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
        "hard-cap",
        ("verified",),
        (Patch(Trimmer, "__init__", _note_orphans), Patch(Trimmer, "move_watermark", _remove_first)),
    ),
    Mutant(
        "snapshot-unsynced",
        "a snapshot takes its name before its bytes are on the disk, and the log that it replaces is dropped",
        "turbokv #8",
        "checkpoint",
        ("verified",),
        (Patch(SnapshotWrite, "__init__", _passing(storage=lambda storage: _without(storage, "sync"))),),
    ),
    Mutant(
        "snapshot-ahead",
        "a snapshot is durable before the records that it holds: the log ends before it after a cut",
        "a hazard of every state machine that is faster than its log",
        "checkpoint-unsynced",
        ("opens", "verified"),
        (Patch(Checkpointer, "__init__", _passing(make_durable=lambda make: lambda lsn: None)),),
    ),
    Mutant(
        "compaction-unsynced",
        "a compacted segment is named in the manifest before it is on the disk",
        "Litestream #1323, #1028 (a gap that shows at the restore)",
        "compaction",
        ("verified",),
        (Patch(rewrite, "write_segment", _rewrite_unsynced),),
    ),
)
MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
"""By name."""
