"""Policy "salvage": what cannot be read is given up and recorded, and every intact frame stays readable.

Every frame is read, those of sealed segments too. What lies between intact frames, and was promised, becomes a lost
range of the manifest, with its LSNs, the segment and the reason; so readers, `verify`, replicas and Spark know it from
silent loss, and its LSNs are not given again. Nothing is written into a segment: a damaged one stays as it is, with the
range beside it; only one with a damaged header is replaced by a copy with a header made anew (`walkit.recovery.apply`).

This module decides; it changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from walkit.format.durable_slot import DurableMark
from walkit.format.layout import ALIGNMENT_DIRECT, SEGMENT_HEADER_BYTES, SegmentFlag
from walkit.format.manifest import (
    Gap,
    HoleRecord,
    LogEnd,
    LostRecord,
    Manifest,
    SegmentRecord,
    sealed_record,
)
from walkit.format.segment import SegmentHeader
from walkit.recovery.damaged_segment import Wreck, look_at, refuse_misnamed, survey
from walkit.recovery.decision import Decision, Facts, decide
from walkit.recovery.examine.survey import Stretch
from walkit.recovery.findings import LogFindings
from walkit.recovery.plan import RecoveryPlan, Step, start_of
from walkit.recovery.scan import Progress
from walkit.recovery.tail_scan import follows_exactly
from walkit.segments.sealing import segment_order
from walkit.storage.interface import Storage


def make_salvage_plan(
    storage: Storage, findings: LogFindings, progress: Progress | None = None
) -> RecoveryPlan:
    """Decide what to keep and what to give up. `findings` tells the manifest, the durable cell and other files.

    Raises FormatVersionError where a segment or frame is of a newer format, CorruptionError where segments stand under
    each other's names (nothing of them is lost), and StorageError for an error that may pass; changes nothing.
    """
    return _Salvage(storage, findings.manifest, findings.mark, findings).plan(progress)


@dataclass(slots=True)
class _Salvage:
    storage: Storage
    manifest: Manifest
    mark: DurableMark
    around: LogFindings
    """What stands beside the segments."""
    end: LogEnd = field(default_factory=LogEnd)
    """Where the log ends, as far as it has been put together."""
    promised: int = 0
    records: list[SegmentRecord] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    culprits: list[Wreck] = field(default_factory=list)
    """Unsealed segments of which nothing can be placed: what is missing elsewhere may have been in them."""
    short: set[str] = field(default_factory=set)
    """Unsealed segments whose file was cut short, where the log does not go on behind their frames."""

    def plan(self, progress: Progress | None) -> RecoveryPlan:
        """Look at everything, because a later frame may promise an earlier one; then put the log together."""
        manifest = self.manifest
        wrecks = [look_at(self.storage, manifest, record) for record in manifest.segments]
        refuse_misnamed(manifest, wrecks)
        sealed = [w for w in wrecks if w.sealed]
        placed = sorted(
            (w for w in wrecks if not w.sealed and w.header is not None),
            key=lambda w: (w.start, w.finding.record.number),
        )
        self.culprits = [w for w in wrecks if not w.sealed and w.header is None]
        total = sum(w.finding.file_bytes for w in wrecks)
        done = 0
        for index, wreck in enumerate([*sealed, *placed]):
            later = placed[max(index - len(sealed) + 1, 0) :]
            survey(self.storage, manifest, wreck, None if wreck.sealed else _next_start(later, wreck.start))
            done += wreck.finding.file_bytes
            if progress is not None:
                progress(done, total)
        self.promised = self._promised(wrecks)
        self._suspect_ends(placed)
        self.gaps = [*manifest.holes, *manifest.lost]
        findings = replace(self.around, sealed=[], unsealed=[])
        before: SegmentRecord | None = None
        for wreck in sealed:
            if self._keep_sealed(wreck, before):
                findings.sealed.append(wreck.finding)
            before = wreck.finding.record
        self.end = manifest.end
        for index, wreck in enumerate(placed):
            self._keep_unsealed(wreck, last=index == len(placed) - 1)
        for wreck in self.culprits:
            self._give_up(wreck)
        self._end_as_promised()
        findings.unsealed = [w.finding for w in wrecks if not w.sealed]
        return RecoveryPlan(findings, "salvage", tuple(self.steps), self._after())

    def _promised(self, wrecks: list[Wreck]) -> int:
        known = {e.id for e in self.manifest.lineage}
        marked = self.mark.position if self.mark.epoch_id in known else 0
        return max([self.manifest.end.position, marked, *(w.finding.promised_position for w in wrecks)])

    def _suspect_ends(self, placed: list[Wreck]) -> None:
        """Take what a file has lost at its end for promised: no crash shortens it, and frames may have stood there."""
        end = self.manifest.end
        for index, wreck in enumerate(placed):
            header, finding = wreck.header, wreck.finding
            assert header is not None
            following = placed[index + 1].header if index + 1 < len(placed) else None
            last = next((s.last for s in reversed(wreck.stretches) if s.last is not None), None)
            if last is not None:
                end = LogEnd(last_lsn=last.last_lsn, position=last.end_position, chain=last.header_crc)
            if not finding.cut_short or (following is not None and follows_exactly(following, end)):
                continue
            reserved_end = header.start_position + finding.record.reserved_bytes - SEGMENT_HEADER_BYTES
            next_start = _next_start(placed[index + 1 :], header.start_position)
            until = reserved_end if next_start is None else min(reserved_end, next_start)
            self.promised = max(self.promised, until)
            self.short.add(finding.name)
        self.short |= {w.finding.name for w in self.culprits if w.finding.cut_short}

    # -- sealed segments: the manifest says where they end

    def _keep_sealed(self, wreck: Wreck, before: SegmentRecord | None) -> bool:
        """Record what is lost of a sealed segment; False where it leaves the log."""
        record, finding = wreck.finding.record, wreck.finding
        lost, frames, count = self._losses(wreck)
        if not lost and not finding.mended:
            self.records.append(record)
            return True
        facts = Facts(
            header_right=finding.header is not None and not finding.mended,
            follows=True,
            bytes_behind=finding.unopenable or finding.nonzero_until > 0,
            promised_beyond=True,
            keeps_frames=frames > 0,
            absolute=False,
            salvage=True,
            cut_short=False,
        )
        row = decide(facts)
        if row.decision is Decision.LOSE:
            start = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
            if before is not None:
                start = LogEnd(last_lsn=before.last_lsn, position=before.end_position)
            for gap in sorted(self.gaps, key=_position):
                if gap.start_position == start.position and gap.end_position <= record.start_position:
                    start = LogEnd(last_lsn=gap.last_lsn, position=gap.end_position)
            end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
            inside = self.manifest.gaps_of(record)
            self.gaps = [g for g in self.gaps if g not in inside]
            self.gaps.append(_lost(start, end, record.name, wreck.reason))
            self.steps.append(Step(finding, row, facts, None))
            return False
        taken_in = [
            g for g in self.gaps for n in lost if n.start_position <= g.start_position < n.end_position
        ]
        self.gaps = [*(g for g in self.gaps if g not in taken_in), *lost]
        if finding.mended and finding.header is not None:
            finding.header = self._placed(wreck, finding.header, before)
        kept = replace(record, frames=frames, records=count)
        self.records.append(kept)
        self.steps.append(Step(finding, row, facts, kept))
        return True

    def _placed(self, wreck: Wreck, header: SegmentHeader, before: SegmentRecord | None) -> SegmentHeader:
        """Return the header made anew of a sealed segment, with what only its neighbour and its last frame know."""
        record = wreck.finding.record
        previous_end = (
            header.start_position if before is None else self.manifest.gap_after(before.end_position)
        )
        last = next((s.last for s in reversed(wreck.stretches) if s.last is not None), None)
        own = last.header_crc if last is not None and last.end_position == record.end_position else 0
        compacted = bool(header.flags & SegmentFlag.COMPACTED)
        return replace(
            header,
            previous_end=min(previous_end, header.start_position),
            own_end_chain=own if compacted else 0,
        )

    def _losses(self, wreck: Wreck) -> tuple[list[LostRecord], int, int]:
        """Return what lies between the intact frames of a sealed segment, and how many frames and records are left."""
        record, lost = wreck.finding.record, []
        at = LogEnd(last_lsn=record.first_lsn - 1, position=record.start_position)
        frames = records = 0
        reason = ""
        for stretch in wreck.stretches:
            gap, first = stretch.gap, stretch.first
            if gap is None and (first is None or first.first_lsn <= at.last_lsn):
                reason = wreck.why(stretch)
                continue
            if gap is not None:
                began = LogEnd(last_lsn=gap.first_lsn - 1, position=gap.start_position, chain=at.chain)
                behind = LogEnd(last_lsn=gap.last_lsn, position=gap.end_position, chain=gap.chain)
            else:
                began, behind = _ends_of(stretch)
                frames, records = frames + stretch.frames, records + stretch.records
            if began.position > at.position:
                lost.append(_lost(at, began, record.name, reason or wreck.reason))
                reason = ""
            at = behind
        if at.position < record.end_position:
            end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
            reason = reason or wreck.reason or "the file ends before its frames do"
            lost.append(_lost(at, end, record.name, reason))
        return lost, frames, records

    # -- unsealed segments: their frames say where they end

    def _keep_unsealed(self, wreck: Wreck, *, last: bool) -> None:
        finding = wreck.finding
        header = wreck.fitted(self.end) if finding.mended else finding.header
        assert header is not None
        finding.header = header
        follows = follows_exactly(header, self.end)
        fits = follows or (header.previous_end > self.end.position and header.first_lsn > self.end.last_lsn)
        pieces = _that_fit(wreck.stretches, self.end.last_lsn) if fits else []
        finding.follows = follows
        ahead = pieces[:1] if follows and pieces and pieces[0].start_position == header.start_position else []
        finding.end_position = ahead[0].end_position if ahead else header.start_position
        finding.last_lsn = header.first_lsn - 1 if not ahead else _ends_of(ahead[0])[1].last_lsn
        reach = pieces[-1].end_position if pieces else self.end.position
        facts = Facts(
            header_right=not finding.mended,
            follows=follows,
            bytes_behind=finding.mended or finding.nonzero_until > (finding.end_offset if follows else 0),
            promised_beyond=last and reach < self.promised,
            keeps_frames=bool(pieces),
            absolute=False,
            salvage=True,
            cut_short=finding.name in self.short,
        )
        row = decide(facts)
        kept = None if row.decision is Decision.LOSE else self._seal(wreck, header, follows, pieces)
        self.steps.append(Step(finding, row, facts, kept))

    def _seal(
        self, wreck: Wreck, header: SegmentHeader, follows: bool, pieces: list[Stretch]
    ) -> SegmentRecord | None:
        """Take a segment into the sealed log, with what is missing before and between its frames."""
        if not follows:
            self._jump(
                LogEnd(last_lsn=header.first_lsn - 1, position=header.previous_end, chain=header.chain)
            )
        self.end = start_of(header)
        reason = wreck.reason
        for stretch in wreck.stretches:
            if stretch not in pieces:
                reason = wreck.why(stretch)
                continue
            began, behind = _ends_of(stretch)
            if began.position > self.end.position:
                self._gap(began, wreck.finding.name, reason)
            self.end = behind
        if not pieces:
            return None
        if header.flags & SegmentFlag.COMPACTED:
            self.end = replace(self.end, chain=header.end_chain)
        record = sealed_record(
            header,
            self.end,
            records=sum(s.records for s in pieces),
            frames=sum(s.frames for s in pieces),
        )
        self.records.append(record)
        return record

    def _jump(self, to: LogEnd) -> None:
        """Record what is missing between the log so far and the next segment."""
        missing = next((w for w in self.culprits if w.finding.nonzero_until or w.finding.unopenable), None)
        if missing is not None:
            self._gap(to, missing.finding.name, missing.reason)
            return
        name = self.records[-1].name if self.records else ""
        self._gap(to, name, "the frames behind its last intact one are missing")

    def _gap(self, to: LogEnd, segment: str, reason: str) -> None:
        """Record what is missing behind the log so far: lost where it was promised, else a hole."""
        if self.end.position < self.promised:
            self.gaps.append(_lost(self.end, to, segment, reason))
            return
        lost = _lost(self.end, to, segment, reason)
        self.gaps.append(
            HoleRecord(
                start_position=lost.start_position,
                end_position=lost.end_position,
                first_lsn=lost.first_lsn,
                last_lsn=lost.last_lsn,
                chain=lost.chain,
            )
        )

    def _give_up(self, wreck: Wreck) -> None:
        """Decide on an unsealed segment without a header, in which nothing can be placed."""
        wreck.finding.end_position, wreck.finding.last_lsn = self.end.position, self.end.last_lsn
        facts = Facts(
            header_right=False,
            follows=False,
            bytes_behind=wreck.finding.unopenable or wreck.finding.nonzero_until > 0,
            promised_beyond=self.end.position < self.promised,
            keeps_frames=False,
            absolute=False,
            salvage=True,
            cut_short=wreck.finding.name in self.short,
        )
        self.steps.append(Step(wreck.finding, decide(facts), facts, None))

    # -- the end

    def _end_as_promised(self) -> None:
        """Record as lost what was promised behind the last intact frame, so that its LSNs are not given again."""
        manifest, end = self.manifest, self.end
        told = max(manifest.low_watermark, manifest.checkpoint_lsn, end.last_lsn)
        lost_headers = [w.finding.record for w in self.culprits if w.finding.name in self.short]
        for record in lost_headers:  # where it began cannot be told: behind all that is there, at the latest
            self.promised = max(self.promised, end.position + record.reserved_bytes - SEGMENT_HEADER_BYTES)
        if end.position >= self.promised and told == end.last_lsn:
            return
        position = max(
            self.promised, end.position + (ALIGNMENT_DIRECT if self.promised <= end.position else 0)
        )
        known = {e.id for e in manifest.lineage}
        marked = self.mark.position if self.mark.epoch_id in known else 0
        lsn = self.mark.lsn if end.position < marked <= position else 0
        to = LogEnd(last_lsn=max(told, lsn), position=position, chain=end.chain)
        named = next((w.finding.name for w in self.culprits), self.records[-1].name if self.records else "")
        reason = "the log ends before what was promised"
        if self.short:
            named = max(self.short)
            reason = (
                "the file was cut short: it was larger before it was used, and records may have stood there"
            )
        self.gaps.append(_lost(end, to, named, reason))
        self.end = to

    def _after(self) -> Manifest:
        """Return the manifest after the plan: the same object where nothing changes."""
        old = self.manifest
        gaps = sorted(self.gaps, key=_position)
        lost = tuple(g for g in gaps if isinstance(g, LostRecord))
        exact = [min(g.last_lsn + 1, self.end.last_lsn) for g in lost if g not in old.lost and g.lsns]
        new = replace(
            old,
            segments=tuple(sorted(self.records, key=segment_order)),
            end=self.end,
            holes=tuple(g for g in gaps if isinstance(g, HoleRecord)),
            lost=lost,
            exact_from_lsn=max([old.exact_from_lsn, *exact]),
        )
        return old if new == old else replace(new, generation=old.generation + 1)


def _position(gap: Gap) -> int:
    return gap.start_position


def _lost(end: LogEnd, to: LogEnd, segment: str, reason: str) -> LostRecord:
    return LostRecord(
        start_position=end.position,
        end_position=to.position,
        first_lsn=end.last_lsn + 1,
        last_lsn=max(to.last_lsn, end.last_lsn),
        chain=to.chain,
        segment=segment,
        reason=reason,
    )


def _ends_of(stretch: Stretch) -> tuple[LogEnd, LogEnd]:
    """Return what the first of these intact frames follows, and where the last of them ends."""
    first, last = stretch.first, stretch.last
    assert first is not None and last is not None
    return (
        LogEnd(last_lsn=first.first_lsn - 1, position=stretch.start_position, chain=first.chain),
        LogEnd(last_lsn=last.last_lsn, position=stretch.end_position, chain=last.header_crc),
    )


def _that_fit(stretches: list[Stretch], last_lsn: int) -> list[Stretch]:
    """Return the intact stretches whose LSNs grow; what says otherwise is of another past."""
    fitting = []
    for stretch in stretches:
        if stretch.first is not None and stretch.first.first_lsn > last_lsn:
            fitting.append(stretch)
            last_lsn = _ends_of(stretch)[1].last_lsn
    return fitting


def _next_start(later: list[Wreck], start: int) -> int | None:
    """Return where the frames of a segment end at the latest, because the next one begins behind them."""
    ends = [
        w.finding.header.previous_end for w in later if w.finding.header is not None and not w.finding.mended
    ]
    return min((e for e in ends if e >= start), default=None)
