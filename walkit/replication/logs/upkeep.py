"""Keeps a replica's log small: claims, trim, retention and their parts, as for any open log.

A replica drops only its own copy: the primary keeps or drops the records by its own rules. The parts are those of a log
that appends; they see this log's end instead of a commit path.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from walkit.config import LogOptions
from walkit.events import EventSink
from walkit.log.claims import ClaimTable, OwnClaims
from walkit.log.live_log import Lifetime, LogContents, LogMarks
from walkit.log.retention import Retainer
from walkit.log.trim import Trimmer
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicaUpkeep:
    """The parts of a replica's log beside the importing. Safe from any thread."""

    contents: LogContents
    leftovers: OrphanFiles
    claims: ClaimTable
    own_claims: OwnClaims
    trimmer: Trimmer
    retention: Retainer

    @classmethod
    def on(
        cls,
        storage: Storage,
        manifest_store: ManifestStore,
        segments: SegmentSet,
        marks: LogMarks,
        lifetime: Lifetime,
        options: LogOptions,
        events: EventSink,
    ) -> Self:
        """Put the parts together, and begin what `options.retention` asks for. Starts no thread."""
        contents = LogContents(storage, manifest_store, segments, marks)
        leftovers = OrphanFiles(storage, manifest_store)
        claims = ClaimTable(storage, manifest_store, events)
        own_claims = OwnClaims(claims, contents, marks, lifetime, segments.maintenance)
        trimmer = Trimmer(
            storage, manifest_store, marks, segments.maintenance, claims, leftovers, lifetime, events
        )
        trimmer.state_lsn = 0  # a replica keeps a state: nothing goes that is in no snapshot
        retention = Retainer(options.retention, manifest_store, segments, claims, trimmer, leftovers, events)
        retention.begin()
        return cls(
            contents=contents,
            leftovers=leftovers,
            claims=claims,
            own_claims=own_claims,
            trimmer=trimmer,
            retention=retention,
        )

    def forget(self) -> None:
        """In a forked child: forget locks that a thread of the parent may hold."""
        self.leftovers.forget()
        self.claims.forget()
