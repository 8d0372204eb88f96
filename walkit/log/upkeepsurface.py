"""What keeps a log small, and what keeps it from becoming smaller: holds, trim, drain, retention."""

from __future__ import annotations

from collections.abc import Iterator

from walkit.config import Retention, as_lsn
from walkit.log.engine import LogEngine
from walkit.log.holds import LEASE_S_DEFAULT, Hold, make_hold
from walkit.log.reader import LogView
from walkit.log.retention import RetentionProgress, RetentionReport, enforce
from walkit.log.trim import WASTE_RATIO_DEFAULT, TrimReport, drain, trim
from walkit.record import Record


class UpkeepSurface:
    """The part of the log that drops what is not needed any more. All methods from any thread."""

    _engine: LogEngine

    def hold(self, name: str, first_lsn: int, lease_s: float = LEASE_S_DEFAULT) -> Hold:
        """Keep records from `first_lsn` on from being trimmed, under a name; persisted on return."""
        self._refuse_closed()
        return make_hold(self._engine, name, first_lsn, lease_s)

    def trim(self, up_to_lsn: int, *, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
        """Drop records at or below `up_to_lsn`, never past a hold, never what is not durable.

        Moves the low watermark, and removes the segments that lie wholly below it. Of one that straddles it, the frames
        above are copied as they are into one that takes its place, where those below are at least `waste_ratio` (0 to
        1) of its bytes; 1 leaves it as it is, and a compacted or the newest sealed segment stays as it is anyway.
        Returns the new low watermark, with what went. Where a store keeps a state beside the log, never past its newest
        snapshot either. StorageError: what is not trimmed is by the next trim; of a copy that fails the report tells.
        """
        self._refuse_closed()
        return trim(self._engine, as_lsn(up_to_lsn, "up_to_lsn"), waste_ratio)

    def drain(self, up_to_lsn: int) -> Iterator[Record]:
        """Yield the records up to `up_to_lsn`, and trim up to there once the last of them has been taken.

        Not before: an iterator that is left alone, or that an error ends, removes nothing, and draining again yields
        all of it again. What is acknowledged and not durable is made durable first; what is appended after the call is
        not touched. Of a log with holds, or with a store's state, some of what was yielded may stay: see `trim`.

        GapError where another trim or compaction takes a segment away meanwhile; StorageError where the trim fails.
        """
        view, newest = self._now()
        last_lsn = min(as_lsn(up_to_lsn, "up_to_lsn"), newest)
        self._make_durable(last_lsn)
        return drain(self._engine, view, last_lsn)

    def enforce_retention(
        self, limits: Retention | None = None, *, progress: RetentionProgress | None = None
    ) -> RetentionReport:
        """Drop the segments that the log's `retention` asks for, or these limits; durable on return. Any thread.

        With `LogOptions(retention=...)` that is done by itself after each seal, on the upkeep thread. `progress` is
        called with (files removed, files to remove). Never past a hold, unless the log is over its hard cap: then the
        hold is dropped, with the event `walkit.hold.drop`. Never the newest segment that holds a record, never what is
        not durable, and where a state is kept, nothing that its newest snapshot does not hold.

        StorageError: what was left undone is done by the next call. LogClosedError.
        """
        self._refuse_closed()
        return enforce(self._engine, limits, progress=progress)

    def _refuse_closed(self) -> None:
        raise NotImplementedError

    def _now(self) -> tuple[LogView, int]:
        raise NotImplementedError

    def _make_durable(self, lsn: int) -> int:
        raise NotImplementedError
