"""Checking the values in the payload logs of a log, for `walkit.verify(payloads=True)`. Changes nothing."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Final

import pyarrow.compute as pc

from walkit._internal.arguments import check_progress
from walkit._internal.arrow import pa
from walkit._internal.text import counted
from walkit.errors import (
    CorruptionError,
    GapError,
    PayloadError,
    PayloadUnreachableError,
    StorageError,
    WalkitError,
)
from walkit.format.file_names import lsn_of_name
from walkit.objects.entrance import reader_at
from walkit.read.payloads import AHEAD_BYTES, LINK
from walkit.read.reader import LogReader
from walkit.record import Link
from walkit.recovery.log_scan import Progress
from walkit.recovery.scan_report import Problem, ScanReport
from walkit.recovery.snapshot_reader import read_frames, read_header
from walkit.segments.history import identity_at
from walkit.storage.address import AnyPlace

LINKS_MAX: Final = 4096
"""Most links whose values are fetched at a time; their bytes have the bound `AHEAD_BYTES`, if one has no more."""
LISTED_MAX: Final = 1000
"""Most values that a report lists as gone; it counts the others."""
LOOKS_MAX: Final = 8
"""So often a log is read on whose records are dropped meanwhile."""


def check_payloads(
    report: ScanReport,
    path: AnyPlace,
    progress: Progress | None = None,
    *,
    payload_log: AnyPlace | None = None,
) -> ScanReport:
    """Return the report on a log with the findings about the values of its links: see `walkit.verify`."""
    check_progress(progress, "(LSNs passed, LSNs to pass)")
    found = _Findings()
    try:
        with reader_at(path, payload_log=payload_log) as reader:
            _Check(reader, found, progress or (lambda done, total: None)).run()
    except WalkitError as error:  # the log's own damage, which verify has found
        found.notes.append(
            f"the values after LSN {found.passed_lsn:,} in payload logs were not checked: {error}"
        )
        if not report.problems:
            found.problems.append(Problem.of(error))
    for log_id, count in found.away.items():
        found.notes.append(f"{counted(count, 'value')} of payload log {log_id:016x} could not be checked")
    if found.unlisted:
        found.notes.append(f"{counted(found.unlisted, 'more value')} cannot be had from payload logs")
    return replace(
        report,
        problems=(*report.problems, *found.problems),
        notes=(*report.notes, *found.notes),
        payloads_checked=found.checked,
        payload_bytes_checked=found.bytes,
    )


class _Findings:
    """Results of one check."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.checked = self.bytes = self.unlisted = self.passed_lsn = 0
        self.away: Counter[int] = Counter()
        """Values that were not checked, by their payload logs, which cannot be reached."""


class _Check:
    """One reading of all live links of a log: those of its records, then those that only its snapshots have."""

    def __init__(self, reader: LogReader, found: _Findings, progress: Progress) -> None:
        self._reader, self._found, self._progress = reader, found, progress
        self._snapshot = ""
        """The snapshot whose links are checked; empty while those of records are."""

    def run(self) -> None:
        for links in (self._of_log, self._of_snapshots):
            part: list[tuple[int, Link]] = []
            size = 0
            for lsn, link in links():
                if part and (size + link.length > AHEAD_BYTES or len(part) == LINKS_MAX):
                    self._check(part)
                    part, size = [], 0
                part.append((lsn, link))
                size += link.length
            self._check(part)

    def _check(self, part: list[tuple[int, Link]]) -> None:
        """Fetch the values of some links. Of those that fail together, each half is fetched by itself."""
        found = self._found
        found.away.update(link.log_id for _, link in part if link.log_id in found.away)
        part = [(lsn, link) for lsn, link in part if link.log_id not in found.away]
        if not part:
            return
        try:
            self._reader.payloads.values(*zip(*part, strict=True))
        except PayloadUnreachableError as error:
            found.away[(error.link or part[0][1])[0]] = 0
            self._note(error)
            self._check(part)
        except PayloadError as error:
            if len(part) > 1:
                for half in (part[: len(part) // 2], part[len(part) // 2 :]):
                    self._check(half)
            elif len(found.problems) >= LISTED_MAX:
                found.unlisted += 1
            elif self._is_live(*part[0]):
                self._note(error)
        else:
            found.checked += len(part)
            found.bytes += sum(link.length for _, link in part)

    def _note(self, error: PayloadError) -> None:
        reference = error.link and Link(*error.link)
        self._found.problems.append(Problem(error=error, expected=reference, first_lost_lsn=error.lsn))

    def _is_live(self, lsn: int, link: Link) -> bool:
        """Say whether a link is still there: its writer may have dropped it since, and then the value."""
        if self._snapshot:
            return self._snapshot in self._reader.source.folder().names()
        try:
            return any(record.link == link for record in self._reader.read(lsn, lsn, resolve="link"))
        except GapError:
            return False

    def _of_log(self) -> Iterator[tuple[int, Link]]:
        first, last = self._reader.first_lsn, self._reader.last_lsn
        wanted = first
        for left in reversed(range(LOOKS_MAX)):
            try:
                for batch in self._reader.read_batches(wanted, resolve="link"):
                    yield from self._of(batch)
                    if len(batch):
                        self._found.passed_lsn = batch.column("lsn")[-1].as_py()
                        wanted = self._found.passed_lsn + 1
                        self._progress(wanted - first, max(last, wanted - 1) - first + 1)
                return
            except GapError:
                if not left:
                    raise
                wanted = max(wanted, self._reader.first_lsn)

    def _of_snapshots(self) -> Iterator[tuple[int, Link]]:
        """Yield the links that are in snapshots of this history, and perhaps in no record."""
        view, folder = self._reader.source.now().view, self._reader.source.folder()
        for name in folder.names():
            lsn = lsn_of_name(name)
            if lsn is None:
                continue
            self._snapshot = name
            try:
                with closing(folder.open(name, "read")) as file:
                    info = read_header(file)
                    if info.identity != identity_at(view.manifest, lsn):
                        continue
                    for batch in read_frames(file, info):
                        yield from self._of(
                            batch.filter(pc.less(batch.column("lsn"), view.complete_from_lsn))
                        )
            except StorageError as error:
                if error.errno != errno.ENOENT:  # a checkpoint may have removed it since
                    raise

    def _of(self, batch: pa.RecordBatch) -> Iterator[tuple[int, Link]]:
        """Yield the LSN and the link of each record of kind link; one that cannot be decoded is a problem."""
        rows = batch.filter(pc.equal(batch.column("kind"), LINK))
        for lsn, value in zip(rows.column("lsn").to_pylist(), rows.column("value").to_pylist(), strict=True):
            try:
                link = self._reader.payloads.link_of(lsn, value)
            except CorruptionError as error:
                self._found.problems.append(Problem.of(error))
            else:
                yield lsn, link
