"""Keeps a replica's log small: claims, trim, retention and their parts, as for any open log.

A replica drops only its own copy: the primary keeps or drops the records by its own rules. The parts are those of a log
that appends; they see this log's end instead of a commit path.
"""

from __future__ import annotations

from walkit.config import LogOptions
from walkit.events import EventSink
from walkit.log.live_log import Lifetime, LogContents, LogMarks
from walkit.log.log_parts import MaintenanceParts, maintenance_parts
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


def replica_maintenance(
    storage: Storage,
    manifest_store: ManifestStore,
    segments: SegmentSet,
    marks: LogMarks,
    lifetime: Lifetime,
    options: LogOptions,
    events: EventSink,
) -> MaintenanceParts:
    """Put the parts together, and begin the work of `options.retention`. Starts no thread."""
    contents = LogContents(storage, manifest_store, segments, marks)
    orphan_files = OrphanFiles(storage, manifest_store)
    maintenance = maintenance_parts(
        storage, options, manifest_store, segments, contents, marks, orphan_files, lifetime, events
    )
    maintenance.trimmer.state_lsn = 0  # a replica keeps a state: nothing goes that is in no snapshot
    maintenance.retention.begin()
    return maintenance
