"""Values that are kept in payload logs, for readers of links: one at a time, or many in bulk.

A log of links names its payload logs in its manifest (FORMAT.md F-22). A value is accepted only if log, epoch, LSN,
length and CRC-32C are those of its link. Nothing here changes a byte of a payload log, or takes a claim on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, Final, NamedTuple, TypeVar

from walkit._internal.arrow import pa
from walkit._internal.locks import WORK, marked
from walkit.errors import (
    CorruptionError,
    GapError,
    PayloadError,
    PayloadGoneError,
    PayloadUnreachableError,
    WalkitError,
)
from walkit.format.checksum import crc32c
from walkit.format.manifest import Manifest
from walkit.read.view import PayloadSource, View
from walkit.record import SHOWN_BYTES, Batch, Kind, Link, LinkedRecord, Record

LINK: Final = int(Kind.LINK)
LOGS_KEY: Final = "payload_logs"
"""Where the manifest of a log names its payload logs: their places by their ids, as text."""
RUN_BYTES: Final = 2 << 20
"""Values that stand next to each other are read together, up to about so many bytes."""
AHEAD_BYTES: Final = 8 << 20
"""Values of a batch that are fetched at a time, in bytes, if one is larger: one value."""
PARALLEL: Final = 8


Opener = Callable[[Any], PayloadSource]
Columns = TypeVar("Columns", "pa.RecordBatch", "pa.Table")


def place_beside(location: str, place: str) -> str:
    """Return the place of a payload log as the manifest of the log at `location` names it."""
    is_path = "://" not in place and not place.startswith("objects:")
    if is_path and "://" not in location and not location.startswith("objects:"):
        return os.path.normpath(os.path.join(location, place))
    return place


def stored_place(location: str, payload_location: str) -> str:
    """Return a payload log's place as the manifest of the log at `location` names it: relative, for two folders."""
    if os.path.isabs(location) and os.path.isabs(payload_location):
        return os.path.relpath(payload_location, location)
    return payload_location


def names_of(manifest: Manifest, location: str) -> dict[int, str]:
    """Return the places of the payload logs that a manifest names, by their ids."""
    named = manifest.extra.get(LOGS_KEY, {})
    return {int(log_id, 16): place_beside(location, place) for log_id, place in named.items()}


def is_in_lineage(link: Link, payload_log: Manifest) -> bool:
    """Say whether the epoch of a link is the one that has written its LSN to this payload log."""
    epochs = [e.id for e in payload_log.lineage if e.first_lsn <= link.lsn]
    return link.log_id == payload_log.log_id and epochs[-1:] == [link.epoch_id]


class PayloadUsage(NamedTuple):
    """The space of a payload log; dead values are freed with those before them."""

    floor_lsn: int
    """The payload log is freed up to here."""
    live: int
    """Values that a record or a snapshot has."""
    live_bytes: int
    dead: int
    """Values after the floor that nothing has: of superseded, withdrawn and failed records."""
    dead_bytes: int
    """About the bytes that dead values occupy: all of the payload log but live values; 0 if none is dead."""


class _Wanted(NamedTuple):
    row: int
    lsn: int
    link: Link


class Payloads:
    """The payload logs of one log, opened when they are first needed. Safe from any thread.

    `open_log` opens a place; `given` is a place to look at before those that the manifest names.
    """

    def __init__(
        self,
        location: str,
        named: Callable[[], Mapping[int, str]],
        open_log: Opener | None = None,
        given: Any = None,
    ) -> None:
        self.location, self._named, self._open, self._given = location, named, open_log, given
        # Guards the two fields that follow; a payload log is opened under it.
        self._lock: Any = threading.RLock()
        self._sources: dict[int, PayloadSource] = {}
        self._views: dict[int, tuple[View, int]] = {}

    def adopt(self, log_id: int, source: PayloadSource) -> None:
        """Read this log through a source that is open already, and stays its owner's."""
        with marked(WORK), self._lock:
            self._sources[log_id] = source._replace(close=lambda: None)
            self._views.pop(log_id, None)

    def close(self) -> None:
        """Close the payload logs; they are opened again when they are needed again.

        Takes no lock: a reader may have it, and wait for a payload log that does not answer.
        """
        sources, self._sources, self._views = self._sources, {}, {}
        for source in sources.values():
            source.close()

    # -- values

    def value(self, lsn: int, link: Link) -> bytes:
        """Return the value of the link of record `lsn`. PayloadGoneError, PayloadUnreachableError."""
        return self.values([lsn], [link])[0]

    def values(self, lsns: Sequence[int], links: Sequence[Link]) -> list[bytes]:
        """Return the values of the links of these records; read in parallel, and all or none: see `value`."""
        wanted = [_Wanted(row, lsn, link) for row, (lsn, link) in enumerate(zip(lsns, links, strict=True))]
        wanted.sort(key=lambda each: each.link[:3:2])
        runs = list(_runs(wanted))
        found: dict[int, bytes] = {}
        if len(runs) == 1:
            found.update(self._run(runs[0]))
        elif runs:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(min(PARALLEL, len(runs)), "walkit-payloads") as pool:
                try:
                    for part in pool.map(self._run, runs):
                        found.update(part)
                        del part
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    found.clear()  # the error's traceback must not keep what was fetched
                    raise
        return [found.pop(row) for row in range(len(wanted))]

    def _run(self, run: list[_Wanted]) -> dict[int, bytes]:
        """Return the values of links to one payload log that stand next to each other, by their rows."""
        log_id, first, last = run[0].link.log_id, run[0].link.lsn, run[-1].link.lsn
        found: dict[int, bytes] = {}
        try:
            view = self._view(run[0], last)
            by_lsn = {each.link.lsn: each for each in run}
            for record in view.records(first, last):
                each = by_lsn.get(record.lsn)
                if each is not None:
                    found[each.row] = self._checked(each, record, view.manifest)
        except PayloadError:
            raise
        except WalkitError as error:
            with marked(WORK), self._lock:
                self._views.pop(log_id, None)
            is_gone = isinstance(error, GapError | CorruptionError)
            kind = PayloadGoneError if is_gone else PayloadUnreachableError
            lost = next(each for each in run if each.row not in found)
            raise self._error(kind, lost, str(error)) from error
        for each in run:
            if each.row not in found:
                raise self._error(PayloadGoneError, each, "its LSN is not in the payload log")
        return found

    def _view(self, wanted: _Wanted, last_lsn: int) -> View:
        """Return a view of a payload log that reaches to an LSN."""
        log_id = wanted.link.log_id
        with marked(WORK), self._lock:
            known = self._views.get(log_id)
            if known is None or known[1] < last_lsn:
                source = self._sources.get(log_id)
                if source is None:
                    source = self._sources[log_id] = self._opened(wanted)
                known = self._views[log_id] = source.now()
        return known[0]

    def _opened(self, wanted: _Wanted) -> PayloadSource:
        log_id, detail = wanted.link.log_id, list[str]()
        cause: WalkitError | None = None
        for place in (self._given, self._named().get(log_id)):
            if place is None or self._open is None:
                continue
            try:
                source = self._open(place)
                there = source.now()[0].manifest.log_id
                if there == log_id:
                    return source
                source.close()
                detail.append(f"another log, {there:016x}, is at {source.location}")
            except WalkitError as error:
                cause = cause or error
                detail.append(str(error))
        raise self._error(
            PayloadUnreachableError, wanted, "; ".join(detail) or "no place of it is known"
        ) from cause

    def _checked(self, wanted: _Wanted, record: Record, manifest: Manifest) -> bytes:
        link, value = wanted.link, record.value
        if not is_in_lineage(link, manifest):
            raise self._error(PayloadGoneError, wanted, "another epoch has written this LSN")
        if value is None or len(value) != link.length or crc32c(value) != link.crc32c:
            raise self._error(PayloadGoneError, wanted, "the value has another length or checksum")
        return value

    def _error(self, kind: type[PayloadError], wanted: _Wanted, detail: str) -> PayloadError:
        where = f"payload log {wanted.link.log_id:016x}, LSN {wanted.link.lsn}"
        what = f"the value of record {wanted.lsn} of {self.location} cannot be had: {detail} ({where})"
        return kind(what, location=self.location, lsn=wanted.lsn, link=tuple(wanted.link))

    # -- records

    def records(self, batch: pa.RecordBatch) -> Iterator[Record]:
        """Yield the records of a batch; those with a value elsewhere are LinkedRecords, whose values are read ahead."""
        records = list(Batch.from_arrow(batch))
        linked = [r for r in records if r.kind is Kind.LINK]
        links = [self.link_of(r.lsn, r.value) for r in linked]
        ahead, rows = _Ahead(self, [r.lsn for r in linked], links), count()
        for record in records:
            if record.kind is not Kind.LINK:
                yield record
                continue
            row = next(rows)
            yield LinkedRecord.of(record, links[row], ahead.value_of(row))

    def record(self, record: Record) -> Record:
        """Return the record that a record of kind link stands for."""
        link = self.link_of(record.lsn, record.value)
        return LinkedRecord.of(record, link, lambda: self.value(record.lsn, link))

    def batches(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the records of a batch with all values, in batches of about `AHEAD_BYTES` of values or one record."""
        start = size = 0
        columns = (batch.column(name).to_pylist() for name in ("lsn", "kind", "value"))
        for row, (lsn, kind, value) in enumerate(zip(*columns, strict=True)):
            more = self.link_of(lsn, value).length if kind == LINK else 0
            if size + more > AHEAD_BYTES and row > start:
                yield self.with_values(batch.slice(start, row - start))
                start, size = row, 0
            size += more
        yield self.with_values(batch.slice(start))

    def with_values(self, rows: Columns, kept: Container[int] = ()) -> Columns:
        """Return records (lsn, kind, value and more) with values instead of links, except in the kept rows."""
        kinds, lsns, values = (rows.column(name).to_pylist() for name in ("kind", "lsn", "value"))
        at = [row for row, kind in enumerate(kinds) if kind == LINK and row not in kept]
        links = [self.link_of(lsns[row], values[row]) for row in at]
        found = self.values([lsns[row] for row in at], links)
        for row, link, value in zip(at, links, found, strict=True):
            kinds[row], values[row] = int(link.kind), value
        for name, column in (("kind", kinds), ("value", values)):
            index = rows.schema.get_field_index(name)
            field = rows.schema.field(index)
            rows = rows.set_column(index, field, pa.array(column, field.type))
        return rows

    def link_of(self, lsn: int, value: bytes | None) -> Link:
        """Return the link of a record of kind link; CorruptionError if it has none."""
        try:
            return Link.decode(value)
        except ValueError as error:
            raise CorruptionError(
                f"record {lsn} of {self.location} is a link that cannot be decoded",
                first_lost_lsn=lsn,
                expected="a link",
                found=value,
            ) from error


class LinkFacts(NamedTuple):
    """A link of a record, with the beginning of its value, or why the value cannot be had."""

    lsn: int
    link: Link
    value: bytes | None
    error: str

    @classmethod
    def all_of(cls, records: Iterable[Record]) -> Iterator[LinkFacts]:
        """Yield the facts of each record with a link. Once a payload log cannot be reached, it is not tried again."""
        away: dict[int, str] = {}
        for record in records:
            link = record.link
            if link is None:
                continue
            value, error = None, away.get(link.log_id, "")
            try:
                value = None if error else (record.value or b"")[:SHOWN_BYTES]
            except PayloadError as caught:
                error = str(caught)
                if isinstance(caught, PayloadUnreachableError):
                    away[link.log_id] = "its payload log cannot be reached"
            yield cls(record.lsn, link, value, error)

    def cells(self, words: Callable[[bytes], str]) -> tuple[str, ...]:
        """Return them as text for the columns `LINK_HEAD`; `words` makes text of a value."""
        link = self.link
        ids, crc = (f"{link.log_id:016x}", f"{link.epoch_id:016x}"), f"{link.crc32c:08x}"
        said = self.error if self.value is None else words(self.value)
        return f"{self.lsn:,}", str(link.kind), *ids, f"{link.lsn:,}", f"{link.length:,}", crc, said


LINK_HEAD = ("LSN", "stands for", "payload log", "epoch", "LSN there", "bytes", "CRC-32C", "value")


def _runs(wanted: list[_Wanted]) -> Iterator[list[_Wanted]]:
    """Yield the wanted values in parts that are read together, in order of log and LSN."""
    run: list[_Wanted] = []
    size = 0
    for each in wanted:
        follows = run and each.link.log_id == run[0].link.log_id and each.link.lsn == run[-1].link.lsn + 1
        if run and (not follows or size + each.link.length > RUN_BYTES):
            yield run
            run, size = [], 0
        run.append(each)
        size += each.link.length
    if run:
        yield run


class _Ahead:
    """The values of the links of one batch: fetched one by one, and more at a time if they are used in order."""

    def __init__(self, payloads: Payloads, lsns: list[int], links: list[Link]) -> None:
        self._payloads, self._lsns, self._links = payloads, lsns, links
        # Guards the three fields that follow, and is held while values are fetched.
        self._lock: Any = threading.RLock()
        self._ready: dict[int, bytes] = {}
        self._next, self._count = 0, 1

    def value_of(self, row: int) -> Callable[[], bytes]:
        """Return what fetches the value of a link."""
        return lambda: self._value(row)

    def _value(self, row: int) -> bytes:
        with marked(WORK), self._lock:
            if row not in self._ready:
                self._ready.clear()
                self._count = min(2 * self._count, len(self._links)) if row == self._next else 1
                end, size = row, 0
                for link in islice(self._links, row, row + self._count):
                    if end > row and size + link.length > AHEAD_BYTES:
                        break
                    end, size = end + 1, size + link.length
                try:
                    found = self._payloads.values(self._lsns[row:end], self._links[row:end])
                except PayloadError:
                    if end == row + 1:
                        raise
                    end = row + 1  # a later value that is lost takes none with it
                    found = self._payloads.values(self._lsns[row:end], self._links[row:end])
                self._ready.update(zip(range(row, end), found, strict=True))
                self._next = end
            return self._ready.pop(row)
