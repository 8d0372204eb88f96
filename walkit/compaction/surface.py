"""The part of a store's surface that compacts its log."""

from __future__ import annotations

from walkit.compaction.compactor import CompactionProgress, Compactor
from walkit.compaction.report import CompactionReport


class CompactingSurface:
    """What can be asked of a store whose log is compacted."""

    _compactor: Compactor

    def compact(
        self,
        *,
        exact_from_lsn: int | None = None,
        waste_ratio: float = 0.0,
        bytes_per_s: float | None = None,
        progress: CompactionProgress | None = None,
    ) -> CompactionReport:
        """Rewrite the sealed log with the newest record of each key; its state stays the same.

        Records without a key are events, and stay. Tombstones stay until every snapshot is newer. The newest sealed
        segment, and every segment that a claim needs, stays as it is. Writers and readers continue; a reader
        that comes upon a segment that is gone continues in the new one, or gets a GapError where that would give
        another state.

        History is exact from the newest record on that superseded a dropped one (`exact_from_lsn` of the report): up to
        the end of the log at most, and never past a claim. With `exact_from_lsn` states from there on stay
        exact: nothing newer supersedes then, and only segments that end at or below it are rewritten. `log.read`
        shows what is left below `log.complete_from_lsn`; `log.follow` begins only above it.

        Segments of which less than `waste_ratio` (0 to 1, by records) can be dropped are left alone. At most about
        `bytes_per_s` are read and written a second; closing the store does not wait for that. `progress` is called with
        ("survey", bytes done, bytes in all), then ("rewrite", ...); what it raises ends the compaction.

        LogClosedError, StorageError, CorruptionError: each segment is then the old one or the new, and compacting again
        continues. A log compacted in part has the same state.
        """
        return self._compactor.compact(
            exact_from_lsn, waste_ratio=waste_ratio, bytes_per_s=bytes_per_s, progress=progress
        )
