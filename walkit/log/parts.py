"""The parts of an open log, for what is built on one: each part is handed to what needs it."""

from __future__ import annotations

from dataclasses import dataclass

from walkit.commit.core import OrderingCore
from walkit.commit.driver import CommitDriver
from walkit.commit.ticket import Submitted
from walkit.config import LogOptions
from walkit.events import EventSink
from walkit.log.claims import ClaimTable, OwnClaims
from walkit.log.contents import LogContents
from walkit.log.lifetime import Lifetime
from walkit.log.retention import Retainer
from walkit.log.trim import Trimmer
from walkit.segments.manifest_store import ManifestStore
from walkit.segments.orphan_files import OrphanFiles
from walkit.segments.segment_set import SegmentSet
from walkit.storage.interface import Storage


@dataclass(frozen=True, kw_only=True, slots=True)
class LogParts:
    """What an open log consists of. No part knows the log's public object, so that one can be dropped and collected."""

    storage: Storage
    options: LogOptions
    events: EventSink
    manifest_store: ManifestStore
    segments: SegmentSet
    core: OrderingCore[Submitted]
    driver: CommitDriver
    records_max: int
    """Most records of one call that stay together."""
    contents: LogContents
    lifetime: Lifetime
    orphan_files: OrphanFiles
    claims: ClaimTable
    own_claims: OwnClaims
    trimmer: Trimmer
    retention: Retainer
