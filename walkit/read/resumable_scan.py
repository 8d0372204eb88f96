"""A scan that continues while trims and compactions take away segments that it has not read yet.

A view names the segments of one moment. If one of them has been compacted when its turn comes, its records are read
from its replacement, unless the older part already yielded and the newer rest would together give another state than
the log: then the reader gets a GapError, and has to start again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from walkit._internal.arrow import numbers_of, pa
from walkit.errors import GapError
from walkit.read.view import View
from walkit.segments.history import LogPoint

Now = Callable[[], tuple[View, int]]
"""Returns what can be read at this moment, and its last LSN."""
Batches: TypeAlias = "Callable[[View, int, int], Iterator[pa.RecordBatch]]"
"""Yields the batches of a view in LSN order, within bounds, and those before an error before it is raised."""


class ResumableScan:
    """Yields batches of RECORD_SCHEMA from `first_lsn` to `last_lsn`, inclusive; one thread at a time.

    `view` is its start and `now` returns the current view. With `to_newest` the upper bound is not a caller's choice
    but the newest record of the moment: it moves on if compaction has dropped superseded records. With `exact` a state
    is made of the records, so the rest must give it from its first record on.

    Raises the errors of `batches`; GapError only if a trim has passed the next record, or the state would be wrong;
    DivergenceError if another log, or another history of this one, has taken the name.
    """

    def __init__(
        self,
        now: Now,
        view: View,
        first_lsn: int,
        last_lsn: int,
        batches: Batches,
        *,
        to_newest: bool,
        exact: bool = False,
        started: bool = False,
    ) -> None:
        self.last_lsn = last_lsn
        """The upper bound as it is by now."""
        self._now, self._view, self._batches = now, view, batches
        self._wanted = first_lsn
        self._to_newest, self._exact = to_newest, exact
        self._started = started
        """Whether records below the wanted one are with the reader, or in a state that it continues from."""

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the batches that are left."""
        while self._wanted <= self.last_lsn:
            try:
                for batch in self._batches(self._view, self._wanted, self.last_lsn):
                    if len(batch):
                        self._wanted = int(numbers_of(batch.column("lsn"), np.int64)[-1]) + 1
                        self._started = True
                        taken = [batch]
                        del batch  # a wait for the next one must not keep this one
                        yield taken.pop()
                return
            except GapError as gap:
                if self._wanted <= self.last_lsn:
                    self._go_on(gap)

    def _go_on(self, gap: GapError) -> None:
        """Replace a view that lost a segment by the current one; GapError if that will not do."""
        view, newest = self._now()
        manifest = view.manifest
        if manifest.generation == self._view.manifest.generation:
            raise gap
        LogPoint.of(self._view.manifest, self._wanted - 1 if self._started else 0).require(
            manifest, view.storage.location
        )
        if self._wanted < view.first_lsn:
            raise GapError(self._wanted, view.first_lsn) from gap
        if self._to_newest and self.last_lsn < manifest.exact_from_lsn:
            self.last_lsn = max(self.last_lsn, newest)
        # The reader may have a put whose tombstone is dropped by now, or a record whose successor is.
        lives_again = self._started and manifest.tombstones_from_lsn > self._wanted
        is_older = (self._started or self._exact) and manifest.exact_from_lsn > self.last_lsn
        if lives_again or is_older:
            raise GapError(self._wanted, view.complete_from_lsn) from gap
        self._view = view
