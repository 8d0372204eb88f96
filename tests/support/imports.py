"""Shared by the tests of imported logs and of replication: frames of a log, and a replica's log that takes them."""

from __future__ import annotations

from collections.abc import Iterator

import walkit
from tests.support.crashes import SMALL, Script
from walkit.format.frame import FrameHeader, FrameIdentity
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import LogEnd, Manifest
from walkit.format.segment import SegmentHeader
from walkit.models import CrashingStorage
from walkit.read.reader import view_of
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun, check_run
from walkit.segments.frame_walk import FrameWalk
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore


def log_of_epochs(*steps: int) -> CrashingStorage:
    """Return a closed log of so many epochs, each of so many steps of the crash tests' script."""
    storage = CrashingStorage()
    for count in steps:
        with walkit.open(storage=storage, options=SMALL) as log:
            Script().run(log, lambda: None, count)
    return storage


def frames_of(storage: Storage) -> list[tuple[SegmentHeader, FrameHeader, bytes]]:
    """Every frame of a log, marks included, with the header of its segment."""
    found = []
    view, _ = view_of(storage)
    for span in view.spans:
        file = storage.open(span.record.name, "read")
        header = SegmentHeader.decode(file.read(0, SEGMENT_HEADER_BYTES), span.record.name)
        assert header is not None
        walk = FrameWalk(
            file, header, position=header.start_position, end_position=span.end_position,
            next_lsn=header.first_lsn, chain=header.chain,
        )  # fmt: skip
        found += [(header, frame, bytes(data)) for frame, data in walk]
        file.close()
        assert walk.fault is None
    return found


def runs_after(storage: Storage, end: LogEnd, frames_max: int) -> Iterator[FrameRun]:
    """The frames of a log behind `end`, as runs of up to so many frames that were checked like any that arrive."""
    rest = [f for f in frames_of(storage) if f[1].position >= end.position]
    while rest:
        segment = rest[0][0]
        group = [f for f in rest[:frames_max] if f[0].epoch == segment.epoch]
        rest = rest[len(group) :]
        identity = FrameIdentity(segment.log_id, segment.epoch, segment.epoch_id)
        limits = FrameLimits(segment.alignment, segment.frame_bytes_max)
        data = b"".join(f[2] for f in group)
        run, fault, _ = check_run(data, identity, limits, end, group[0][1].position)
        assert run is not None, fault
        yield run
        end = run.end


def replica_on(storage: Storage | ObjectStore, primary: Manifest) -> ImportedLog:
    """Open a replica's log, adopted by this primary."""
    log = ImportedLog(storage, SMALL)
    if not log.adopted:
        log.adopt(primary.log_id, created_us=primary.created_us, ack_order=primary.ack_order, extra={})
    return log


def import_all(log: ImportedLog, primary: Storage, frames_max: int = 3) -> int:
    """Import what is missing; returns how many runs."""
    lineage = load_manifest(primary).lineage
    runs = 0
    for run in runs_after(primary, log.end, frames_max):
        log.import_run(run, tuple(e for e in lineage if e.number <= run.identity.epoch))
        runs += 1
    return runs


def bytes_of(storage: Storage) -> list[tuple[FrameHeader, bytes]]:
    return [(header, data) for _, header, data in frames_of(storage)]
