"""What recovery and scanning found, in a form to read, draw and test."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from walkit._html import COLOURS, Part, bar, join, swatch, tag
from walkit._html import facts as fact_table
from walkit._text import counted, lsn_range
from walkit.format.manifest import HoleRecord, LostRecord

LOST_SHOWN_MAX = 3
"""Most lost ranges that the first line of a salvage names; the lines below it name all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One timed part of a recovery. Seconds, from the beginning of the recovery."""

    name: str
    started_s: float
    duration_s: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """A torn or unacknowledged tail: bytes from `position` in `segment` that are not of the log."""

    segment: str
    position: int
    bytes: int
    first_lsn: int
    reason: str
    kept_as: str | None = None
    """Name of the file in lost+found that keeps the bytes; None where they were all zero."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SegmentDecision:
    """What was decided on one segment: the row of `walkit.recovery_table()` that applied, and the facts it matched."""

    segment: str
    row: str
    decision: str
    meaning: str
    facts: dict[str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryReport:
    """What one opening found and did."""

    location: str
    policy: str
    """The policy that was applied: "holes" instead of "prefix" where the log acknowledges in completion order."""
    verdict: str
    """created: a new log. clean: closed in order. recovered: frames were found after the last seal, or cut."""
    phases: tuple[Phase, ...]
    cuts: tuple[Cut, ...]
    holes: tuple[HoleRecord, ...]
    """Frames that never came to the disk while later ones did, which were kept; none was acknowledged."""
    lost: tuple[LostRecord, ...]
    """Ranges that policy "salvage" gave up in this opening; earlier ones stand in the manifest."""
    records_left: int = 0
    """Records in the log after a loss."""
    damaged_frames: int = 0
    """How many damaged frames were lost; 0 if that is not known."""
    decisions: tuple[SegmentDecision, ...]
    """One per segment that was decided on: those after the last seal and, with "salvage", the damaged sealed ones."""
    segments: int
    segments_scanned: int
    frames_scanned: int
    records_scanned: int
    bytes_scanned: int
    last_lsn: int
    end_position: int
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
        said = [f"recovery of {self.location}: {self.verdict}", last, read, self.not_read]
        first = "; ".join([*filter(None, said), f"{self.duration_s * 1000:.1f} ms"])
        loss = [loss_text(self.records_left, self.lost, self.damaged_frames)] if self.lost else []
        return "\n".join([*loss, first, *outcome_lines(self.decisions, self.lost, self.cuts, self.holes)])

    def _repr_html_(self) -> str:
        loss = loss_text(self.records_left, self.lost, self.damaged_frames) + ". " if self.lost else ""
        return report_html(
            f"{loss}Recovery of {self.location}: {self.verdict}",
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
            cuts=self.cuts,
        )


class PhaseClock:
    """Collects phases while they happen."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.phases: list[Phase] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """Time a block; facts put into the yielded dict stand in the report."""
        started = time.perf_counter()
        detail: dict[str, Any] = {}
        try:
            yield detail
        finally:
            now = time.perf_counter()
            self.phases.append(
                Phase(name=name, started_s=started - self.began, duration_s=now - started, detail=detail)
            )

    def split_off(self, name: str, duration_s: float) -> None:
        """Make a phase of its own of so many seconds of the last one, which went on in turns with it."""
        last = self.phases.pop()
        duration_s = min(max(duration_s, 0.0), last.duration_s)
        first_s = last.duration_s - duration_s
        self.phases.append(replace(last, duration_s=first_s))
        self.phases.append(Phase(name=name, started_s=last.started_s + first_s, duration_s=duration_s))


def loss_text(records_left: int, lost: Sequence[LostRecord], damaged_frames: int) -> str:
    """Return what a salvage cost: records left, LSNs lost, and in how many damaged frames or ranges."""
    lsns = sum(g.lsns for g in lost)
    if not lsns:
        return f"no record lost; {counted(len(lost), 'damaged range')} given up"
    named = [lsn_range(g.first_lsn, g.last_lsn) for g in lost if g.lsns]
    more = f" and {counted(len(named) - LOST_SHOWN_MAX, 'range')} more" if len(named) > LOST_SHOWN_MAX else ""
    what = counted(damaged_frames, "damaged frame") if damaged_frames else counted(len(lost), "damaged range")
    where = ", ".join(named[:LOST_SHOWN_MAX]) + more
    return (
        f"{records_left:,} of {counted(records_left + lsns, 'record')} left; {where} lost "
        f"({'one' + what[1:] if what.startswith('1 ') else what})"
    )


def outcome_lines(
    decisions: Iterable[SegmentDecision],
    lost: Iterable[LostRecord],
    cuts: Iterable[Cut],
    holes: Iterable[HoleRecord],
) -> list[str]:
    """Return one line of text for each decision, loss, cut and hole."""
    return [
        *(f"segment {d.segment}: row {d.row}, {d.decision}: {d.meaning}" for d in decisions),
        *(
            f"lost: {lsn_range(g.first_lsn, g.last_lsn)}, positions {g.start_position:,} to {g.end_position:,} of "
            f"{g.segment}: {g.reason}"
            for g in lost
        ),
        *(
            f"cut: position {c.position:,} of {c.segment} ({counted(c.bytes, 'byte')})"
            f"{f', kept as {c.kept_as}' if c.kept_as else ''}: {c.reason}"
            for c in cuts
        ),
        *(f"hole: positions {h.start_position:,} to {h.end_position:,}" for h in holes),
    ]


def report_html(
    title: str,
    facts: list[tuple[str, str]],
    *,
    phases: tuple[Phase, ...] = (),
    cuts: tuple[Cut, ...] = (),
) -> str:
    """Return a table of facts, a bar of phases and the list of cuts; readable on dark and on light."""
    parts = [tag("b", title), fact_table(facts)]
    if phases:
        paint = [COLOURS[i % len(COLOURS)] for i in range(len(phases))]
        names = [f"{p.name} {p.duration_s * 1000:.2f} ms" for p in phases]
        parts.append(bar([Part(p.duration_s, c, n) for p, c, n in zip(phases, paint, names, strict=True)]))
        parts.append(
            tag("small", *(join([swatch(c), " ", n, " "]) for c, n in zip(paint, names, strict=True)))
        )
    for cut in cuts:
        kept = f"; kept as {cut.kept_as}" if cut.kept_as else ""
        where = f"cut at position {cut.position:,} of {cut.segment} ({counted(cut.bytes, 'byte')})"
        parts.append(tag("div", f"{where}: {cut.reason}{kept}"))
    return tag("div", *parts)
