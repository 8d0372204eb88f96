"""The rules that judge a crash state: they hold for every state after a power cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar

from walkit.config import LogOptions
from walkit.copier.log_copy import copy_into
from walkit.crashlab.promises import Promise, Row
from walkit.errors import GapError
from walkit.format.manifest import MANIFEST_NAME
from walkit.log.wal import WriteAheadLog
from walkit.models import CrashingStorage
from walkit.objects.entrance import open_log
from walkit.objects.verify import verify
from walkit.record import Kind, Record
from walkit.recovery.repair import repair
from walkit.segments.manifest_store import LOST_FOLDER, load_manifest
from walkit.segments.orphan_files import temporary_in
from walkit.state.snapshot import snapshot_lsns
from walkit.storage.address import AnyPlace
from walkit.store import Store

RULES = {
    "runs": "the scenario ends without an unexpected error",
    "opens": "the state opens for writing without an error",
    "kept": "every promised record is there",
    "genuine": "each record is the one appended under its LSN",
    "dense": "no record is missing between others, except trimmed, compacted, or unpromised ones",
    "whole": "a transaction is there as a whole, or not at all",
    "state": "a Store's state is that of the records up to its last LSN",
    "readers": "a reader before the recovery sees the same records",
    "tidy": "an opening leaves no half-written file and no unnamed segment",
    "again": "opening it once more gives the same",
    "next": "later appends survive the next power cut, with everything before them",
    "repeat": "an interrupted trim, checkpoint or compaction can be repeated",
    "stands": "a cursor or claim is at its LSN, and reading from a cursor skips nothing",
    "held": "a trim after the recovery respects claims",
    "aside": "files that a repair put under lost+found are there; an interrupted, repeated repair leaves the same",
    "verified": "verify finds no fault in it, before and after the recovery",
    "fenced": "on object storage a second writer takes the log from the first, which acknowledges nothing more",
}
"""By name."""
PROBE = b"appended after the recovery"


class BrokenRuleError(Exception):
    """A rule that a crash state breaks."""

    def __init__(self, rule: str, text: str) -> None:
        super().__init__(f"{rule}: {text}")
        self.rule, self.text = rule, text


@dataclass(frozen=True)
class Oracle:
    """Judges a scenario's log after a power cut."""

    options: LogOptions
    is_store: bool = False
    """Whether the log is a Store's, with snapshots beside it."""
    manifest_name: ClassVar[str] = MANIFEST_NAME

    def judge(self, image: CrashingStorage, promise: Promise) -> None:
        """Raise BrokenRuleError if a rule is broken. The image is used up."""
        rule = "verified"
        try:
            self._finish(image, promise)
            if missing := promise.aside.difference(image.names(LOST_FOLDER) if promise.aside else ()):
                raise BrokenRuleError("aside", f"{min(missing)} is not there")
            if not promise.is_damaged:
                self._verify(image, "before the recovery")
            rule = "readers"
            seen = None if promise.is_damaged else self._read(image)
            rule = "opens"
            if promise.is_damaged and self.options.recovery != "salvage":
                repair(image, policy="salvage")
            with self._recovered(image, promise) as (_, rows):
                pass
            if seen is not None and seen != rows:
                raise BrokenRuleError(
                    "readers", f"{len(seen)} records before the recovery, {len(rows)} after it"
                )
            rule = "tidy"
            self._check_names(image)
            if promise.is_damaged and promise.repaired not in (None, repaired_in(image)):
                raise BrokenRuleError(
                    "aside", f"a repeated repair leaves {repaired_in(image)}, and not {promise.repaired}"
                )
            rule = "again"
            with self._recovered(image, promise) as (log, again):
                if again != rows:
                    raise BrokenRuleError(
                        "again", f"{len(rows)} records at first, {len(again)} the second time"
                    )
                rule = "next"
                lsn = log.append(PROBE).first_lsn
                if lsn <= promise.kept:
                    raise BrokenRuleError(
                        "next", f"LSN {lsn:,} was given again: {promise.kept:,} was promised"
                    )
                log.sync()
                after = image.crash(keep="none")
            self._verify(image, "after the recovery")
            self._check_after(after, promise, rows, lsn)
        except BrokenRuleError:
            raise
        except (
            Exception
        ) as error:  # whatever a recovery raises is a finding, one without a type of walkit's the more
            raise BrokenRuleError(rule, f"{type(error).__name__}: {error}") from error

    def _finish(self, image: CrashingStorage, promise: Promise) -> None:
        """Continue an unfinished copy of a log."""
        if promise.source is not None and MANIFEST_NAME not in image.names():
            copy_into(promise.source.process_kill(), image, None, "the copy")

    def _verify(self, image: CrashingStorage, when: str) -> None:
        if not image.exists() or self.manifest_name not in image.names():
            return
        report = verify(self._place(image))
        if not report.ok:
            raise BrokenRuleError("verified", f"{when}: {report.problems[0]}")

    def _read(self, image: CrashingStorage) -> dict[int, Row] | None:
        """Return a reader's rows; None without a log, or if the log takes another way through holes."""
        if not image.exists() or self.manifest_name not in image.names() or passes_holes(self.options):
            return None
        with open_log(storage=self._place(image), mode="r", events=quiet) as reader:
            return {r.lsn: _row(r) for r in reader.read()}

    def _place(self, image: CrashingStorage) -> AnyPlace:
        """Return the place of the log in an image."""
        return image

    def _open(self, image: CrashingStorage) -> WriteAheadLog | Store:
        options = replace(self.options, idle_marker_ms=0)
        if self.is_store:
            return Store.open(storage=self._place(image), options=options, events=quiet)
        return open_log(storage=self._place(image), options=options, events=quiet)

    @contextmanager
    def _recovered(
        self, image: CrashingStorage, promise: Promise
    ) -> Iterator[tuple[WriteAheadLog, dict[int, Row]]]:
        """Open the log for the block, with its records; it keeps the promise."""
        with self._open(image) as opened:
            log = _log_of(opened)
            rows = {r.lsn: _row(r) for r in log.read()}
            last = log.acked_lsn
            self._check_rows(rows, log.first_lsn, last, promise)
            if isinstance(opened, Store) and dict(opened.items()) != promise.state_at(last):
                raise BrokenRuleError("state", f"at LSN {last:,} it is not that of the records up to it")
            if promise.places:
                _check_places(log, promise, rows)
            yield log, rows

    def _check_rows(self, rows: dict[int, Row], first: int, last: int, promise: Promise) -> None:
        if last > promise.submitted:
            raise BrokenRuleError("genuine", f"LSN {last:,}, and {promise.submitted:,} records were appended")
        if first > promise.trimmed + 1:
            raise BrokenRuleError(
                "kept", f"the log begins at LSN {first:,}; {promise.trimmed:,} were trimmed"
            )
        if last < promise.kept:
            raise BrokenRuleError("kept", f"it ends at LSN {last:,}, and {promise.kept:,} was promised")
        for lsn, row in rows.items():
            if row != promise.rows[lsn - 1]:
                raise BrokenRuleError("genuine", f"LSN {lsn:,} holds another record")
        if lost := promise.also.difference(rows):
            raise BrokenRuleError("kept", f"LSN {min(lost):,} was acknowledged")
        missing = [lsn for lsn in range(first, last + 1) if lsn not in rows]
        missing = [lsn for lsn in missing if lsn not in promise.lost]
        if passes_holes(self.options):
            missing = [lsn for lsn in missing if lsn <= promise.kept]
        if promise.compacted:
            missing = [lsn for lsn in missing if not _is_superseded(promise.rows, lsn, last)]
        if missing:
            rule = "kept" if missing[0] <= promise.kept else "dense"
            raise BrokenRuleError(rule, f"LSN {missing[0]:,} is missing, and {last:,} is there")
        for begin, end in promise.transactions:
            there = sum(lsn in rows for lsn in range(begin, end + 1))
            if begin >= first and there not in (0, end - begin + 1) and not promise.compacted:
                raise BrokenRuleError("whole", f"{there} records of LSN {begin:,} to {end:,} are there")

    def _check_after(self, after: CrashingStorage, promise: Promise, rows: dict[int, Row], lsn: int) -> None:
        """Judge the log, with the record appended to it, after the next power cut."""
        with self._open(after) as opened:
            log = _log_of(opened)
            found = {r.lsn: _row(r) for r in log.read()}
            if found != rows | {lsn: (1, None, PROBE)}:
                what = "that record" if lsn not in found else "records before it"
                raise BrokenRuleError(
                    "next", f"after LSN {lsn:,} was appended and synced, {what} did not survive"
                )
            _repeat(opened, promise, lsn)
        self._check_names(after)

    def _check_names(self, image: CrashingStorage) -> None:
        """Judge the names that an opening has left in a folder."""
        named = {segment.name for segment in load_manifest(image).segments}
        left = {n for n in image.names() if n.endswith(".segment")} - named
        left |= {*temporary_in(image, image.names())}
        if left:
            raise BrokenRuleError("tidy", f"{min(left)} is there after an opening")


def _repeat(opened: WriteAheadLog | Store, promise: Promise, lsn: int) -> None:
    """Trim, compact or take a checkpoint, if that was under way or done before the cut."""
    log = _log_of(opened)
    if promise.compacted and isinstance(opened, Store):
        state, needed = dict(opened.items()), promise.held or lsn
        kept = [r.lsn for r in log.read(needed)]
        opened.compact()
        if dict(opened.items()) != state or [r.lsn for r in log.read(needed)] != kept:
            raise BrokenRuleError("repeat", "a compaction drops needed records")
    if promise.held:
        log.trim(lsn)
        if log.first_lsn > promise.held:
            raise BrokenRuleError(
                "held", f"LSN {promise.held:,} is kept, and a trim to {lsn:,} left {log.first_lsn:,}"
            )
    elif promise.trimmed and isinstance(opened, Store):
        opened.checkpoint()
        if snapshot_lsns(log.parts.storage) != [lsn] and log.first_lsn == lsn + 1:
            raise BrokenRuleError("repeat", "a checkpoint leaves an older snapshot")
    elif promise.trimmed:
        low = min(promise.trimmed, lsn)
        report = log.trim(low, waste_ratio=0)
        if report.rewritten.failure or (log.first_lsn <= low and not report.limit):
            raise BrokenRuleError("repeat", f"a trim to LSN {low:,} left {log.first_lsn:,} ({report})")


def passes_holes(options: LogOptions) -> bool:
    """Say whether a recovery keeps the records after a hole."""
    return options.ack_order == "completion" or options.recovery == "holes"


def repaired_in(image: CrashingStorage) -> object:
    """Return the results of a repair: the names under lost+found, and the ranges that the manifest calls lost."""
    ranges = [(g.first_lsn, g.last_lsn, g.start_position, g.end_position) for g in load_manifest(image).lost]
    return frozenset(image.names(LOST_FOLDER)), tuple(ranges)


def _check_places(log: WriteAheadLog, promise: Promise, rows: dict[int, Row]) -> None:
    """Judge the cursors and claims of a log by their promises."""
    found = {f"cursor {fact.name}": (fact.lsn, fact.fault) for fact in log.cursors()}
    found |= {f"claim {fact.name}": (fact.first_lsn, fact.fault) for fact in log.claims()}
    for place, low, high in promise.places:
        lsn, fault = found.get(place, (0, None))
        if lsn is None or not low <= lsn <= high:
            raise BrokenRuleError("stands", f"{place} is at {lsn}, not {low:,} to {high:,} ({fault})")
        kind, _, name = place.partition(" ")
        if kind == "claim" or not lsn:
            continue
        cursor = log.cursor(name)
        try:
            seen = [record.lsn for record in cursor.read()]
        except GapError:
            if lsn >= promise.trimmed and not promise.compacted:
                raise
            continue
        if seen != [other for other in rows if other > lsn]:
            raise BrokenRuleError("stands", f"{place} is at {lsn:,}, and reads {len(seen)} records after it")


def quiet(name: str, fields: object) -> None:
    """Take an event that a crash is expected to bring: the oracle judges the results."""


def _log_of(opened: WriteAheadLog | Store) -> WriteAheadLog:
    return opened.log if isinstance(opened, Store) else opened


def _row(record: Record) -> Row:
    return int(record.kind), record.key, record.value


def _is_superseded(rows: list[Row], lsn: int, last: int) -> bool:
    """Say whether a compaction may have dropped a record: a newer one has its key, or it is a deletion."""
    kind, key, _ = rows[lsn - 1]
    return key is not None and (kind == Kind.DELETE or any(key == other for _, other, _ in rows[lsn:last]))
