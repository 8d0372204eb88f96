"""The log as recovery puts it together: segment after segment, with what is missing between their frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from walkit.format.layout import SegmentFlag
from walkit.format.manifest import (
    Gap,
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    sealed_record,
    segment_order,
)
from walkit.recovery.findings import SegmentFinding, start_of
from walkit.recovery.survey import Region


@dataclass(slots=True)
class LogAssembly:
    """The sealed segments and the gaps of the log after recovery, and where it ends so far."""

    manifest: Manifest
    """As it was before."""
    promised: int
    """How far the log was promised: what is missing below is lost, beyond it a hole."""
    end: LogEnd = field(default_factory=LogEnd)
    records: list[SegmentRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def seal(
        self, finding: SegmentFinding, pieces: list[Region], missing: tuple[str, str] = ("", "")
    ) -> SegmentRecord | None:
        """Take these intact regions of a segment into the log; None where there is none, and so no segment.

        What is missing between them becomes a gap, and what is missing before the segment, of which `missing` says the
        segment and the reason.
        """
        header = finding.header
        assert header is not None
        if not pieces:
            return None
        if header.previous_end > self.end.position:
            self.add_gap(replace(start_of(header), position=header.previous_end), *missing)
        self.end = start_of(header)
        for region, reason in reasons(finding, pieces):
            if region.before.position > self.end.position:
                self.add_gap(region.before, finding.name, reason)
            self.end = region.after
        if header.flags & SegmentFlag.COMPACTED:
            self.end = replace(self.end, chain=header.end_chain)
        record = sealed_record(
            header, self.end, records=sum(p.records for p in pieces), frames=sum(p.frames for p in pieces)
        )
        self.records.append(record)
        return record

    def add_gap(self, to: LogEnd, segment: str, reason: str) -> None:
        """Record what is missing from the end of the log so far up to `to`: lost where it was promised, else a hole."""
        lost = lost_range(self.end, to, segment, reason)
        if self.end.position < self.promised:
            self.gaps.append(lost)
            return
        self.gaps.append(
            HoleRecord(
                start_position=lost.start_position,
                end_position=lost.end_position,
                first_lsn=lost.first_lsn,
                last_lsn=lost.last_lsn,
                chain=lost.chain,
            )
        )

    def manifest_after(self) -> Manifest:
        """Return the manifest that says all this: the same object where nothing changes."""
        old = self.manifest
        gaps = sorted(self.gaps, key=lambda g: g.start_position)
        lost = tuple(g for g in gaps if isinstance(g, LostRecord))
        known = set(old.lost)
        exact = [min(g.last_lsn + 1, self.end.last_lsn) for g in lost if g.lsns and g not in known]
        new = replace(
            old,
            segments=tuple(sorted(self.records, key=segment_order)),
            end=self.end,
            holes=tuple(g for g in gaps if isinstance(g, HoleRecord)),
            lost=lost,
            exact_from_lsn=max([old.exact_from_lsn, *exact]),
        )
        return old if new == old else replace(new, generation=old.generation + 1)


def reasons(finding: SegmentFinding, pieces: list[Region]) -> Iterator[tuple[Region, str]]:
    """Yield each of these regions of a segment, and what is wrong with what stands before it."""
    taken = {piece.start_position: piece for piece in pieces}
    reason = finding.reason
    for region in finding.regions:
        piece = taken.get(region.start_position)
        if piece is None:
            reason = finding.why(region)
        else:
            yield piece, reason


def lost_range(end: LogEnd, to: LogEnd, segment: str, reason: str) -> LostRecord:
    """Return the record of what is lost between `end` and `to`."""
    return LostRecord(
        start_position=end.position,
        end_position=to.position,
        first_lsn=end.last_lsn + 1,
        last_lsn=max(to.last_lsn, end.last_lsn),
        chain=to.chain,
        segment=segment,
        reason=reason,
    )
