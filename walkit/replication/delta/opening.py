"""Whose frames an answer has: they are used where the opening that wrote them is one of the shared log's."""

from __future__ import annotations

from dataclasses import replace

from walkit.errors import DivergenceError
from walkit.replication.delta.loader import Reached, check_history
from walkit.replication.delta.messages import PollAnswer
from walkit.segments.identity import lies_in
from walkit.segments.manifest_store import load_manifest
from walkit.storage.interface import Storage

GRACE_MS = 5_000.0
"""So long a manifest may lack an opening whose frames come: on a mounted folder it may be read late."""


class Opening:
    """The opening of the log whose answers are used. Not thread-safe. Times are milliseconds of the caller's clock.

    A copy of a log has its id, and a primary of the copy answers as if it were the log's own; what tells them apart is
    the epoch that each opening begins.
    """

    def __init__(self, storage: Storage, log_id: int) -> None:
        self._storage, self._log_id = storage, log_id
        self._epoch_id: int | None = None
        """Of the opening whose history was compared."""
        self._is_there = False
        """Whether the manifest has it, up to the end that was answered: the first frame puts it there."""
        self._missed_ms: float | None = None
        """Since when frames come of one that the manifest does not have."""

    def checked(self, answer: PollAnswer, asked_lsn: int, reached: Reached, now_ms: float) -> PollAnswer:
        """Return what can be used of an answer: without its frames where the manifest does not have their opening yet.

        DivergenceError where its log is not the one that the reader has followed. Another error says that the manifest
        cannot be read: then nothing of the answer can be used. `asked_lsn` is what was applied when it was asked for:
        it may be late, and the reader further by now.
        """
        if answer.epoch_id is None:
            return answer
        known = answer.epoch_id == self._epoch_id and self._missed_ms is None
        if known and (self._is_there or not answer.delta):
            return answer
        is_there = self._look(answer, asked_lsn, reached)
        if answer.epoch_id != self._epoch_id or is_there:
            self._missed_ms = None
        self._epoch_id, self._is_there = answer.epoch_id, is_there
        if is_there or not (answer.delta or self._missed_ms is not None):
            return answer
        since_ms = self._missed_ms = now_ms if self._missed_ms is None else self._missed_ms
        if now_ms - since_ms >= GRACE_MS:
            raise DivergenceError(
                f"the primary's frames are of epoch {answer.epoch_id:#018x}, and the log at {self._storage.location} "
                "has none of that epoch there: the primary serves another copy of it",
                first_lsn=reached.lsn + 1,
            )
        return replace(answer, first=None, delta=None, crc=None)

    def _look(self, answer: PollAnswer, asked_lsn: int, reached: Reached) -> bool:
        """Compare the histories; return whether the record at the answer's end is of its opening in the manifest."""
        is_there = False
        if answer.log_id == self._log_id:
            manifest = load_manifest(self._storage)
            check_history(manifest, self._log_id, reached)
            # A later epoch that began before this end has taken its records' place.
            is_there = any(epoch.id == answer.epoch_id for epoch in manifest.lineage)
            is_there &= lies_in(manifest, answer.end.lsn, answer.epoch_id or 0)
        if answer.end.lsn < asked_lsn:
            raise DivergenceError(
                f"the log ends with LSN {answer.end.lsn:,} now, and the reader has applied {asked_lsn:,}",
                first_lsn=answer.end.lsn + 1,
            )
        return is_there
