"""The reading half of a log's surface, the same for the writer's object and for readers in other processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from walkit._internal.arguments import as_lsn, check_choice
from walkit._internal.arrow import numbers_of, pa
from walkit.errors import GapError
from walkit.events import EventSink
from walkit.read.damage_seen import DamageSeen, Seen
from walkit.read.resumable_scan import Batches, ResumableScan
from walkit.read.view import LogView, PayloadSource, View, segments_of
from walkit.record import Batch, Kind, Record, record_schema

if TYPE_CHECKING:
    import pandas as pd

    from walkit.read.payloads import Payloads


Resolve: TypeAlias = Literal["value", "link"]
"""Whether a record whose value is in a payload log comes with the value, or with the link to it."""


LINK = int(Kind.LINK)


def has_links(batch: pa.RecordBatch) -> bool:
    """Say whether a batch of RECORD_SCHEMA has a link record."""
    return bool((numbers_of(batch.column("kind"), np.int8) == LINK).any())


class ReadApi(ABC):
    """The read methods of every log. Bounds are LSNs, inclusive; None is the oldest or the newest one."""

    @abstractmethod
    def _now(self) -> tuple[View, int]:
        """Return the readable view of this moment, and its last LSN; LogClosedError once closed."""

    _payloads: Payloads | None = None
    open_payloads: Callable[[Any], PayloadSource] | None = None
    """Opens a payload log at a place; one that is given only opens what it can."""
    _payload_log: Any = None

    @property
    def payloads(self) -> Payloads:
        """The values that are kept in payload logs."""
        if self._payloads is None:
            from walkit.read.payloads import Payloads, names_of

            location = self._now()[0].storage.location
            self._payloads = Payloads(
                location,
                lambda: names_of(self._now()[0].manifest, location),
                self.open_payloads,
                self._payload_log,
            )
        return self._payloads

    @property
    def first_lsn(self) -> int:
        """The oldest LSN that can still be read; one more than the last if the log is empty."""
        return self._now()[0].first_lsn

    @property
    def exact_from_lsn(self) -> int:
        """From this LSN on the log alone gives the state exactly, its snapshot or its whole length below it given.

        Trimming and compaction move it. `complete_from_lsn` is where every record is still there.
        """
        return self._now()[0].manifest.exact_from_lsn

    @property
    def complete_from_lsn(self) -> int:
        """From this LSN on every record is still there; below, compaction may have left only the newest of each key."""
        return self._now()[0].manifest.complete_from_lsn

    def _range(self, first_lsn: int | None, last_lsn: int | None) -> tuple[View, int, int]:
        """Return (view, first, last): all of one moment, so that a trim in between is a GapError and never a skip."""
        view, newest = self._now()
        oldest = view.first_lsn
        first = oldest if first_lsn is None else max(as_lsn(first_lsn, "first_lsn"), 1)
        if first < oldest:
            raise GapError(first, oldest)
        return view, first, newest if last_lsn is None else min(as_lsn(last_lsn, "last_lsn"), newest)

    @property
    @abstractmethod
    def events(self) -> EventSink:
        """Where events go."""

    def _with_damage(self, seen: Seen) -> LogView:
        """Return the segments in which the records of damaged frames are looked for."""
        return segments_of(self._now()[0], "damaged frames are looked for in them")

    def read(
        self,
        first_lsn: int | None = None,
        last_lsn: int | None = None,
        *,
        damaged: Literal["unverified"] | None = None,
        resolve: Resolve = "value",
    ) -> Iterator[Record]:
        """Yield the records of [first_lsn, last_lsn] as they are at the call; every frame is verified.

        Below `complete_from_lsn` LSNs may be missing: compaction dropped records that newer ones of a key supersede.
        `follow` refuses to begin there. If a compaction takes segments away meanwhile, reading continues in their
        replacement; without a `last_lsn` up to the newest record of that time, if the log's state needs newer ones.
        GapError while reading if that would give another state (a tombstone after yielded records has been dropped, or
        a state at `last_lsn` is no longer known), and if the next record was trimmed; GapError at the call if
        `first_lsn` has been trimmed; CorruptionError when the damage is reached.

        With `damaged="unverified"` damage raises no error: the records that the columns of damaged frames still hold
        come in their places, each with `verified` False. Event `walkit.read.damage` counts those of each place, and
        gives the reason if some are lost. Logs that an opening refuses are read, too. OptionsError for other words.

        A value that is kept in a payload log is fetched when `record.value` is first used: PayloadGoneError or
        PayloadUnreachableError then. With `resolve="link"`, and with `damaged`, such a record has kind link.
        """
        check_choice(resolve, ("value", "link"), "resolve")
        if damaged is not None:
            return self._read_damaged(damaged, first_lsn, last_lsn)
        batches = self._scan(first_lsn, last_lsn, lambda view, *bounds: view.batches(*bounds, records=4096))
        if resolve == "value":
            return resolved(self, batches)
        return (record for batch in batches for record in Batch.from_arrow(batch))

    def _read_damaged(self, word: str, first_lsn: int | None, last_lsn: int | None) -> Iterator[Record]:
        from walkit.read.damaged import records_with_damage

        check_choice(word, ("unverified",), "damaged", " or None")
        first = 1 if first_lsn is None else max(as_lsn(first_lsn, "first_lsn"), 1)
        last = None if last_lsn is None else as_lsn(last_lsn, "last_lsn")

        def seen(damage: DamageSeen) -> None:
            self.events.emit(
                "walkit.read.damage",
                segment=damage.segment,
                position=damage.position,
                first_lsn=damage.first_lsn,
                records=damage.records,
                error=damage.reason,
            )

        view = self._with_damage(seen)
        return records_with_damage(view, max(first, view.manifest.low_watermark + 1), last, seen)

    def read_batches(
        self, first_lsn: int | None = None, last_lsn: int | None = None, *, resolve: Resolve = "value"
    ) -> pa.RecordBatchReader:
        """Return the same records as Arrow batches of `walkit.RECORD_SCHEMA`, streamed.

        Values in payload logs are fetched in parallel, some megabytes at a time; see `read` for `resolve`.
        """
        check_choice(resolve, ("value", "link"), "resolve")
        batches: Iterator[pa.RecordBatch] = iter(self._scan(first_lsn, last_lsn, View.batches))
        if resolve == "value":
            batches = with_values(self, batches)
        return pa.RecordBatchReader.from_batches(record_schema(), batches)

    def _scan(self, first_lsn: int | None, last_lsn: int | None, batches: Batches) -> ResumableScan:
        view, first, last = self._range(first_lsn, last_lsn)
        return ResumableScan(self._now, view, first, last, batches, to_newest=last_lsn is None)

    def __arrow_c_stream__(self, requested_schema: object = None) -> Any:
        """Export all records by the Arrow C stream interface, for pyarrow, pandas, polars and DuckDB."""
        return self.read_batches().__arrow_c_stream__(requested_schema)

    def to_arrow(self, first_lsn: int | None = None, last_lsn: int | None = None) -> pa.Table:
        """Return the records of [first_lsn, last_lsn] as an Arrow table."""
        return self.read_batches(first_lsn, last_lsn).read_all()

    def to_pandas(self, first_lsn: int | None = None, last_lsn: int | None = None) -> pd.DataFrame:
        """Return the records of [first_lsn, last_lsn] as a pandas DataFrame."""
        frame: pd.DataFrame = self.to_arrow(first_lsn, last_lsn).to_pandas()
        return frame

    def __iter__(self) -> Iterator[Record]:
        """Yield all records as they are now."""
        return self.read()


def with_values(log: ReadApi, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a log with the values of links, fetched some megabytes at a time."""
    for batch in batches:
        yield from log.payloads.batches(batch) if has_links(batch) else (batch,)


def resolved(log: ReadApi, batches: Iterable[pa.RecordBatch]) -> Iterator[Record]:
    """Yield the records of batches of a log; those of links with the values that they stand for."""
    for batch in batches:
        yield from log.payloads.records(batch) if has_links(batch) else Batch.from_arrow(batch)
