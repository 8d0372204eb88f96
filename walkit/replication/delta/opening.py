"""Checks the opening of an answer's frames: they are used if it belongs to the shared log."""

from __future__ import annotations

from dataclasses import replace

from walkit.errors import DivergenceError
from walkit.replication.delta.loader import Reached, check_history
from walkit.replication.delta.messages import PollAnswer
from walkit.replication.logs.source import SharedLog
from walkit.segments.history import lies_in

GRACE_MS = 5_000.0
"""How long a manifest may lack an opening whose frames come: on a mounted folder it may be read late."""


class Opening:
    """The opening of the log whose answers are used. Not thread-safe. Times are milliseconds of the caller's clock.

    A copy of a log has its id, and a primary of the copy answers as if it were the log's own; they differ only by the
    epoch that each opening begins.
    """

    def __init__(self, log: SharedLog, log_id: int) -> None:
        self._log, self._log_id = log, log_id
        self._epoch_id: int | None = None
        """Of the opening whose history was compared."""
        self._is_there = False
        """Whether the manifest has it, up to the end that was answered: the first frame puts it there."""
        self._missed_ms: float | None = None
        """Since when one writes that the manifest does not have: it sent frames, or its end has moved."""
        self._end_lsn = 0
        """The end of its newest answer. An opening that is not in the manifest has written nothing: its end stays."""
        self._passed_ms: float | None = None
        """Since when the log itself ends elsewhere than an opening says that the manifest does not have."""

    @property
    def is_unproven(self) -> bool:
        """Whether the opening that answers is not in the manifest, so that it may be one of another copy."""
        return self._epoch_id is not None and not self._is_there

    def checked(self, answer: PollAnswer, asked_lsn: int, reached: Reached, now_ms: float) -> PollAnswer:
        """Return the usable part of an answer: without its frames if the manifest does not have their opening yet.

        DivergenceError if the reader has followed another log. Any other error means that the manifest cannot be read,
        and nothing of the answer can be used. `asked_lsn` is the LSN applied at the time of the request; the reader may
        be further by now.
        """
        same = answer.epoch_id == self._epoch_id
        wrote = bool(answer.delta) or (same and answer.end.lsn != self._end_lsn)
        if same and self._missed_ms is None and (self._is_there or not wrote):
            return answer
        is_there = self._compare_histories(answer, asked_lsn, reached)
        if answer.epoch_id != self._epoch_id or is_there:
            self._missed_ms = None
        self._epoch_id, self._is_there, self._end_lsn = answer.epoch_id, is_there, answer.end.lsn
        if is_there or not (wrote or self._missed_ms is not None):
            return answer
        since_ms = self._missed_ms = now_ms if self._missed_ms is None else self._missed_ms
        if now_ms - since_ms >= GRACE_MS:
            raise self._other_copy(reached)
        return replace(answer, first=None, delta=None, crc=None)

    def passed(self, end_lsn: int, reached: Reached, now_ms: float) -> None:
        """Compare the log's own end, which was looked at, with an unproven opening that answers meanwhile.

        DivergenceError if they have differed for a time: then another opening writes the log.
        """
        if not self.is_unproven or end_lsn == self._end_lsn:
            self._passed_ms = None
            return
        self._passed_ms = now_ms if self._passed_ms is None else self._passed_ms
        if now_ms - self._passed_ms >= GRACE_MS:
            raise self._other_copy(reached)

    def _other_copy(self, reached: Reached) -> DivergenceError:
        return DivergenceError(
            f"the primary answers for epoch {self._epoch_id or 0:#018x} with LSN {self._end_lsn:,}, and the log at "
            f"{self._log.location} has nothing of that epoch there: the primary serves another copy of it",
            first_lsn=reached.lsn + 1,
        )

    def _compare_histories(self, answer: PollAnswer, asked_lsn: int, reached: Reached) -> bool:
        """Compare the histories; return whether the manifest has the answer's end in the same opening."""
        is_there = False
        if answer.log_id == self._log_id:
            manifest = self._log.manifest()
            check_history(manifest, self._log_id, reached)
            # A later epoch that began before this end has taken its records' place.
            is_there = any(epoch.id == answer.epoch_id for epoch in manifest.lineage)
            is_there &= lies_in(manifest, answer.end.lsn, answer.epoch_id)
        if answer.end.lsn < asked_lsn:
            raise DivergenceError(
                f"the log ends with LSN {answer.end.lsn:,} now, and the reader has applied {asked_lsn:,}",
                first_lsn=answer.end.lsn + 1,
            )
        return is_there
