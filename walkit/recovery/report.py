"""Findings of recovery and scanning, in a form to read, draw and test."""

from __future__ import annotations

from dataclasses import dataclass, replace

from walkit._internal.report import Phase, report_html
from walkit._internal.text import counted, lsn_range
from walkit.format.manifest import HoleRecord, LostRecord

LOST_SHOWN_MAX = 3
"""Most lost ranges that the first line of a salvage names; the lines below it name all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A torn or unacknowledged tail: bytes from `position` in `segment` that are not of the log."""

    segment: str
    position: int
    bytes: int
    first_lsn: int
    reason: str
    kept_as: str | None = None
    """Name of the file in lost+found that keeps the bytes; None if they were all zero."""

    def text(self) -> str:
        """Return the cut for people, in one line."""
        kept = f"; kept as {self.kept_as}" if self.kept_as else ""
        where = f"cut at position {self.position:,} of {self.segment} ({counted(self.bytes, 'byte')})"
        return f"{where}: {self.reason}{kept}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentDecision:
    """The decision on one segment: the row of `walkit.recovery_table()` that applied, and the facts it matched."""

    segment: str
    row: str
    decision: str
    meaning: str
    facts: dict[str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a recovery plan, of an opening or a repair. LSNs are inclusive, positions half-open."""

    location: str
    policy: str
    """The policy that was applied: "holes" instead of "prefix" if the log acknowledges in completion order."""
    cuts: tuple[Cut, ...]
    holes: tuple[HoleRecord, ...]
    """Frames that never came to the disk while later ones did, which were kept; none was acknowledged."""
    lost: tuple[LostRecord, ...]
    """Ranges that policy "salvage" gave up this time; the manifest has those of earlier times."""
    records_left: int = 0
    """Records in the log after it."""
    damaged_frames: int = 0
    """How many damaged frames were given up; 0 if that is not known."""
    decisions: tuple[SegmentDecision, ...]
    """One per segment that was decided on: those after the last seal and, with "salvage", the damaged sealed ones."""
    last_lsn: int
    end_position: int

    def loss(self) -> str:
        """Return the cost for people: records left, LSNs lost, in how many frames or ranges; empty if none is lost."""
        if not self.lost:
            return ""
        lsns = sum(g.lsns for g in self.lost)
        if not lsns:
            return f"no record lost; {counted(len(self.lost), 'damaged range')} given up"
        named = [lsn_range(g.first_lsn, g.last_lsn) for g in self.lost if g.lsns]
        left_out = len(named) - LOST_SHOWN_MAX
        more = f" and {counted(left_out, 'range')} more" if left_out > 0 else ""
        broken = self.damaged_frames
        what = counted(broken, "damaged frame") if broken else counted(len(self.lost), "damaged range")
        return (
            f"{self.records_left:,} of {counted(self.records_left + lsns, 'record')} left; "
            f"{', '.join(named[:LOST_SHOWN_MAX])}{more} lost ({'one' + what[1:] if what.startswith('1 ') else what})"
        )

    def outcome_lines(self) -> list[str]:
        """Return one line of text for each decision, loss, cut and hole."""
        return [
            *(f"segment {d.segment}: row {d.row}, {d.decision}: {d.meaning}" for d in self.decisions),
            *(
                f"lost: {lsn_range(g.first_lsn, g.last_lsn)}, positions {g.start_position:,} to {g.end_position:,} of "
                f"{g.segment}: {g.reason}"
                for g in self.lost
            ),
            *(
                f"cut: position {c.position:,} of {c.segment} ({counted(c.bytes, 'byte')})"
                f"{f', kept as {c.kept_as}' if c.kept_as else ''}: {c.reason}"
                for c in self.cuts
            ),
            *(f"hole: positions {h.start_position:,} to {h.end_position:,}" for h in self.holes),
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryReport(Outcome):
    """The findings and actions of one opening."""

    verdict: str
    """created: a new log. clean: closed in order. recovered: frames were found after the last seal, or cut."""
    phases: tuple[Phase, ...]
    segments: int
    segments_scanned: int
    frames_scanned: int
    records_scanned: int
    bytes_scanned: int
    promised_position: int

    @property
    def not_read(self) -> str:
        """The segments whose frames this opening did not read, for people; empty if it read all."""
        left = self.segments - self.segments_scanned
        return (
            f"{counted(left, 'segment')} not read, as a seal or a close vouches for them" if left > 0 else ""
        )

    @property
    def next_lsn(self) -> int:
        """The LSN that the next record gets."""
        return self.last_lsn + 1

    @property
    def duration_s(self) -> float:
        """Seconds from the beginning to ready."""
        return max((p.started_s + p.duration_s for p in self.phases), default=0.0)

    def with_phase(self, phase: Phase) -> RecoveryReport:
        """Return the report with one more phase (the Store adds its replay)."""
        return replace(self, phases=(*self.phases, phase))

    def __str__(self) -> str:
        """Return the report as text: the outcome, then one line for each decision, loss, cut and hole."""
        read = (
            f"{counted(self.frames_scanned, 'frame')} in {counted(self.segments_scanned, 'segment')} scanned"
        )
        last = f"last LSN {self.last_lsn:,}" if self.last_lsn else "no records"
        parts = [f"recovery of {self.location}: {self.verdict}", last, read, self.not_read]
        first = "; ".join([*filter(None, parts), f"{self.duration_s * 1000:.1f} ms"])
        return "\n".join([*filter(None, [self.loss()]), first, *self.outcome_lines()])

    def _repr_html_(self) -> str:
        loss = self.loss()
        return report_html(
            f"{loss}{'. ' if loss else ''}Recovery of {self.location}: {self.verdict}",
            [
                ("last LSN", f"{self.last_lsn:,}"),
                ("end position", f"{self.end_position:,}"),
                ("promised position", f"{self.promised_position:,}"),
                ("segments (scanned)", f"{self.segments:,} ({self.segments_scanned:,})"),
                ("frames scanned", f"{self.frames_scanned:,}"),
                *([("not read", self.not_read)] if self.not_read else []),
                ("records scanned", f"{self.records_scanned:,}"),
                ("bytes scanned", f"{self.bytes_scanned:,}"),
                ("policy", self.policy),
                *(
                    (f"hole from position {h.start_position:,}", lsn_range(h.first_lsn, h.last_lsn))
                    for h in self.holes
                ),
                *(
                    (
                        f"lost from position {g.start_position:,}",
                        f"{lsn_range(g.first_lsn, g.last_lsn)}: {g.reason}",
                    )
                    for g in self.lost
                ),
                *((f"segment {d.segment}", f"row {d.row}: {d.decision}") for d in self.decisions),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
            phases=self.phases,
            lines=[cut.text() for cut in self.cuts],
        )
