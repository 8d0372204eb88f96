"""Retention: the segments that may go by limits, and a log that refuses at its capacity. A pure plan, and its use.

A limit of age, bytes or records, or "what every claim has passed", is enough to drop a segment; a claim is enough to
keep it, until the log is over its hard cap. Kevo's retention, which lets age and count
delete what a replica still needs, is the fault to avoid; Quiver's is the source of the caps.

A log that refuses at its capacity (`Retention.at_capacity`) checks it only when a segment is full and the next one is
due: a frame that fits the segment in use costs nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

from walkit._internal.arguments import check_kind, check_progress
from walkit._internal.locks import once
from walkit._internal.report import report_html
from walkit._main_thread import ending_early, run_uninterrupted
from walkit.commit.ports import FrameSink
from walkit.config import LogOptions, Retention
from walkit.errors import LogFullError
from walkit.events import EventSink
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import SegmentRecord
from walkit.log.claims import BACKGROUND_WAIT_S, ClaimTable
from walkit.log.live_log import Contents, Segments, segments_now
from walkit.log.trim import Trimmed, Trimmer
from walkit.segments.consumer_files import ClaimFact
from walkit.segments.manifest_store import Manifests
from walkit.segments.orphan_files import Orphans

CLOCK_STEP_US = 1_000_000
"""A smaller step of the clock causes no event."""
RetentionProgress = Callable[[int, int], None]
"""Called with (segment files removed, segment files to remove)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionFacts:
    """The facts that a plan is made from."""

    sealed: tuple[SegmentRecord, ...]
    """In position order."""
    begun_us: int | None
    """When the open segment was started, microseconds since 1970; None if it has no frame."""
    open_bytes: int
    """Bytes of the segments that are not sealed, as far as they are used."""
    open_records: int
    claims: tuple[ClaimFact, ...]
    """Those that count."""
    bound_lsn: int
    """Nothing above it may go: later records are not durable, or not in the newest snapshot of the log's state."""
    now_us: int
    opened_us: int = 0
    """When the log was opened."""
    new_from: int = 0
    """The number of the first segment made since; other processes stamped those before it."""


@dataclass(frozen=True, slots=True)
class RetentionPlan:
    """Which segments go, oldest first, why, and which claims are in the way of the hard cap."""

    segments: tuple[SegmentRecord, ...] = ()
    reasons: tuple[str, ...] = ()
    """Of "age", "bytes", "records", "claims" and "hard cap": those that ask for any of the segments."""
    dropped_claims: tuple[str, ...] = ()
    kept_by: tuple[str, ...] = ()
    """The reasons to keep the next segment, though a limit wants it gone: "claim NAME", "state"; () if no limit
    does."""

    @property
    def up_to_lsn(self) -> int:
        """The low watermark that the plan asks for; 0 if nothing goes."""
        return self.segments[-1].last_lsn if self.segments else 0


def plan_retention(limits: Retention, facts: RetentionFacts) -> RetentionPlan:
    """Return the plan. Pure. Whole segments from the oldest on, and never the newest one that holds a record."""
    bytes_left = facts.open_bytes + sum(_file_bytes(s) for s in facts.sealed)
    records_left = facts.open_records + sum(s.records for s in facts.sealed)
    begun = [*(s.created_us for s in facts.sealed), facts.begun_us]
    newest_us = 0
    count = len(facts.sealed) - (facts.begun_us is None)
    taken: list[SegmentRecord] = []
    reasons: dict[str, None] = {}
    dropped: dict[str, None] = {}

    def plan(kept_by: tuple[str, ...] = ()) -> RetentionPlan:
        return RetentionPlan(tuple(taken), tuple(reasons), tuple(dropped), kept_by)

    for index, segment in enumerate(facts.sealed[: max(count, 0)]):
        # Its newest record is older than the first one of the segment after it. No segment is older than an earlier
        # one, even if a clock that was back stamped it; and one from before the opening is as old as that at least.
        newest_us = max(newest_us, *(_began_us(facts, i, begun) for i in (index, index + 1)))
        age_us = facts.now_us - newest_us
        over = limits.hard_bytes_max is not None and bytes_left > limits.hard_bytes_max
        exceeded = {
            "age": limits.age_s is not None and age_us > limits.age_s * 1e6,
            "bytes": limits.at_capacity == "drop"
            and limits.bytes_max is not None
            and bytes_left > limits.bytes_max,
            "records": limits.records_max is not None and records_left > limits.records_max,
            "claims": limits.below_claims
            and bool(facts.claims)
            and all(claim.needed_lsn > segment.last_lsn for claim in facts.claims),
            "hard cap": over,
        }
        if not any(exceeded.values()):
            break
        if segment.last_lsn > facts.bound_lsn:
            return plan(("state",))
        in_the_way = [claim.name for claim in facts.claims if claim.needed_lsn <= segment.last_lsn]
        waiting = [] if over else [name for name in in_the_way if name not in dropped]
        if waiting:
            return plan(tuple(f"claim {name}" for name in waiting))
        dropped.update(dict.fromkeys(in_the_way))
        reasons.update(dict.fromkeys(name for name, is_exceeded in exceeded.items() if is_exceeded))
        taken.append(segment)
        bytes_left -= _file_bytes(segment)
        records_left -= segment.records
    return plan()


def _began_us(facts: RetentionFacts, index: int, begun: list[int | None]) -> int:
    began_us = begun[index]
    assert began_us is not None
    was_there = index < len(facts.sealed) and facts.sealed[index].number < facts.new_from
    return min(began_us, facts.opened_us) if was_there else began_us


def _file_bytes(segment: SegmentRecord) -> int:
    return SEGMENT_HEADER_BYTES + segment.size_bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionReport:
    """The result of one enforcement of retention."""

    location: str
    low_watermark: int
    """LSNs up to here are dropped, now or earlier."""
    segments: int
    """Segments that were dropped."""
    records: int
    """Records in them."""
    size_bytes: int
    """Bytes of their files."""
    reasons: tuple[str, ...]
    """Which limits asked for it: of "age", "bytes", "records", "claims" and "hard cap"."""
    claims_dropped: tuple[str, ...]
    """Claims that were in the way of the hard cap: their consumers get a GapError."""
    kept_by: tuple[str, ...]
    """The reasons to keep the next segment though a limit wants it gone: "claim NAME", or "state" (its newest snapshot
    is older)."""
    duration_s: float

    def _repr_html_(self) -> str:
        return report_html(
            f"Retention of {self.location}",
            [
                ("low watermark", f"{self.low_watermark:,}"),
                ("segments dropped", f"{self.segments:,}"),
                ("records in them", f"{self.records:,}"),
                ("bytes of their files", f"{self.size_bytes:,}"),
                ("asked for by", ", ".join(self.reasons) or "no limit"),
                ("claims dropped", ", ".join(self.claims_dropped) or "none"),
                ("kept back by", ", ".join(self.kept_by) or "nothing"),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
        )


class Retainer:
    """Carries out the retention of an open log. Safe from any thread."""

    def __init__(
        self,
        limits: Retention,
        manifest_store: Manifests,
        segments: Segments,
        claims: ClaimTable,
        trimmer: Trimmer,
        orphan_files: Orphans,
        events: EventSink,
    ) -> None:
        self._limits = limits
        self._manifest_store = manifest_store
        self._segments = segments
        self._claims = claims
        self._trimmer = trimmer
        self._orphan_files = orphan_files
        self._events = events
        self._new_from = manifest_store.current.next_segment
        self._ahead_us = 0
        """By how much the wall clock was set since the opening, when an event last said so."""
        self._is_first = True

    def enforce(
        self,
        limits: Retention | None = None,
        *,
        now_us: int | None = None,
        progress: RetentionProgress | None = None,
        wait_s: float | None = None,
    ) -> RetentionReport:
        """Drop segments beyond the limits: the manifest first, then the files.

        The claims' lock is waited for up to `wait_s` seconds. A StorageError leaves the log as it was, or with files
        that no manifest names; doing it again does the rest.
        """
        check_kind(limits, Retention, "limits")
        check_progress(progress, "(files removed, files to remove)")

        def work() -> RetentionReport:
            return self._enforce(limits, now_us, ending_early(progress), wait_s)

        return run_uninterrupted(work, "retain", events=self._events)

    def _enforce(
        self,
        limits: Retention | None,
        now_us: int | None,
        progress: RetentionProgress | None,
        wait_s: float | None,
    ) -> RetentionReport:
        began = time.perf_counter()
        self._segments.settle()
        if (limits or self._limits).age_s is not None:
            self._report_clock()
        trimmed = Trimmed(self._manifest_store.current.low_watermark, ())
        plan = plan_retention(limits or self._limits, self._facts(now_us))
        with (
            self._events.held(),
            self._claims.shut(wait_s) if plan.segments else nullcontext() as shut,
            once(self._orphan_files.lock),
            self._orphan_files.lock,
        ):
            if shut is not None:
                # Once more: from here on no claim comes.
                plan = plan_retention(limits or self._limits, self._facts(now_us))
                with shut.dropping(plan.dropped_claims):
                    trimmed = self._trimmer.move_watermark(plan.up_to_lsn)
                shut.reopen()
            self._orphan_files.remove(progress)
        report = RetentionReport(
            location=self._segments.storage.location,
            low_watermark=trimmed.low_watermark,
            segments=len(trimmed.segments),
            records=sum(s.records for s in trimmed.segments),
            size_bytes=trimmed.size_bytes,
            reasons=plan.reasons,
            claims_dropped=plan.dropped_claims,
            kept_by=plan.kept_by,
            duration_s=time.perf_counter() - began,
        )
        if trimmed.segments:
            self._trimmer.emit_trim(trimmed)
            self._trimmer.on_dropped()
            self._events.emit(
                "walkit.retention.drop",
                segments=report.segments,
                bytes=report.size_bytes,
                low_watermark=report.low_watermark,
                reasons=report.reasons,
            )
        return report

    def _facts(self, now_us: int | None) -> RetentionFacts:
        manifest, begun = segments_now(self._manifest_store, self._segments)
        used = [(segment, header) for segment, header in begun if segment.records]
        return RetentionFacts(
            sealed=manifest.sealed,
            begun_us=min((header.created_us for _, header in used), default=None),
            open_bytes=sum(header.offset_of(segment.end_position) for segment, header in used),
            open_records=sum(segment.records for segment, _ in used),
            claims=self._claims.live(manifest),
            bound_lsn=self._trimmer.bound_lsn(manifest.checkpoint_lsn),
            now_us=self._segments.time.us() if now_us is None else now_us,
            opened_us=self._segments.time.opened_us,
            new_from=self._new_from,
        )

    def _report_clock(self) -> None:
        """Send an event for each step of the wall clock, and for segments that were stamped while it was wrong."""
        ahead_us, opened_us = self._segments.time.ahead_us(), self._segments.time.opened_us
        steps = list[int]()
        if abs(ahead_us - self._ahead_us) >= CLOCK_STEP_US:
            self._ahead_us = ahead_us
            steps.append(ahead_us)
        if self._is_first:
            self._is_first = False
            old = [s.created_us for s in self._manifest_store.current.sealed if s.number < self._new_from]
            ahead_us = max(old, default=0) - opened_us
            behind_us = min((after - before for before, after in pairwise(old)), default=0)
            steps += [step for step in (max(ahead_us, 0), min(behind_us, 0)) if abs(step) >= CLOCK_STEP_US]
        for step_us in steps:
            self._events.emit("walkit.retention.clock", ahead_s=step_us / 1e6)

    def begin(self) -> None:
        """Enforce the log's own limits from now on, on the maintenance thread.

        After each seal and, where age is limited, from time to time.
        """
        if self._limits == Retention():
            return
        maintenance = self._segments.maintenance
        self._segments.on_seal = lambda: maintenance.submit("retain", self.enforce_beside_frames)
        period = period_s(self._limits)
        if period is not None:
            maintenance.every(period, self.enforce_beside_frames)

    def enforce_beside_frames(self) -> None:
        """Enforce the log's own limits, on the maintenance thread: frames may wait there for a segment.

        The wait for the claims' lock is short: if a consumer has it, the next seal tries again.
        """
        self.enforce(wait_s=BACKGROUND_WAIT_S)


def period_s(limits: Retention) -> float | None:
    """Return how often the limits are looked at beside the seals, in seconds; None if time alone changes nothing."""
    return None if limits.age_s is None else min(max(limits.age_s / 10, 1.0), 60.0)


class BoundedSink:
    """The segments of a log; it starts the next one only if that fits the capacity. A FrameSink."""

    def __init__(
        self,
        sink: FrameSink,
        segments: Segments,
        contents: Contents,
        options: LogOptions,
        retention: Retainer,
        events: EventSink,
    ) -> None:
        self._segments = segments
        self._contents = contents
        self._options = options
        self._retention = retention
        self._events = events
        self._refusing = self._retaining = False
        self._sink = sink
        self.assign, self.write, self.passed = sink.assign, sink.write, sink.passed
        self.sync, self.publish = sink.sync, sink.publish

    def begin_segment(self, *, position: int, first_lsn: int, chain: int) -> int:
        """See FrameSink. LogFullError (reason "retention") if it does not fit; nothing has changed then."""
        self._require_room()
        return self._sink.begin_segment(position=position, first_lsn=first_lsn, chain=chain)

    def _require_room(self) -> None:
        limit, size = self._options.retention.bytes_max, self._options.segment_bytes
        assert limit is not None
        used = self._contents.used_bytes()
        if used + size <= limit:
            self._refusing = False
            return
        self._retain()
        location = self._segments.storage.location
        if not self._refusing:  # reported once, and again after there was room
            self._refusing = True
            self._events.emit("walkit.retention.refuse", location=location, bytes=used, limit=limit)
        raise LogFullError(
            f"the log at {location} is at its capacity: its files have {used:,} bytes, a new segment needs {size:,} "
            f"and bytes_max is {limit:,}; nothing was written. Trim records that are no longer needed and append again",
            reason="retention",
            limit_bytes=limit,
        )

    def _retain(self) -> None:
        """Let the other limits be looked at, on the maintenance thread: no seal comes that would make them be."""
        if self._retaining or not drops_by_itself(self._options.retention):
            return
        self._retaining = True

        def retain() -> None:
            try:
                self._retention.enforce_beside_frames()
            finally:
                self._retaining = False

        self._segments.maintenance.submit("retain", retain)


def drops_by_itself(limits: Retention) -> bool:
    """Return whether anything may go without being asked for."""
    return limits.age_s is not None or limits.records_max is not None or limits.below_claims
