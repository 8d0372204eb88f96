"""What a scan finds, said as facts: about one segment, and about the whole log."""

from __future__ import annotations

from dataclasses import dataclass, field

from walkit.errors import CorruptionError
from walkit.format.durable import DurableMark
from walkit.format.frame import FrameFault, FrameHeader
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord
from walkit.format.segment import SegmentHeader


@dataclass(kw_only=True, slots=True)
class SegmentFinding:
    """Facts about one segment file."""

    record: SegmentRecord
    present: bool = True
    """Whether the file is there."""
    file_bytes: int = 0
    header: SegmentHeader | None = None
    header_error: CorruptionError | None = None
    end_position: int = 0
    """Where the intact frames that follow from the log before end."""
    last_lsn: int = 0
    chain: int = 0
    frames: int = 0
    records: int = 0
    bytes_scanned: int = 0
    verify_ns: int = 0
    """Time that checking its frames took, reading them not counted."""
    fault: FrameFault | None = None
    at_fault: FrameHeader | None = None
    follows: bool = True
    """Whether its first frame follows the segment before."""
    nonzero_until: int = 0
    """File offset behind the last nonzero byte."""
    promised_position: int = 0
    """The furthest promise of any intact frame in the file, those behind the damage included."""
    mended: bool = False
    """Whether `header` is not the one in the file, which is damaged, but made anew to fit its intact frames."""
    unopenable: bool = False
    """Whether the file is there and the storage does not open it."""
    frames_behind: int = 0
    """Intact frames of this log behind the damage."""
    beyond: list[FrameHeader] = field(default_factory=list)
    """Intact frames that stand behind a hole in this segment or before it, and within the window, by position."""

    @property
    def name(self) -> str:
        """The segment's file name."""
        return self.record.name

    @property
    def cut_short(self) -> bool:
        """Whether the file is there and shorter than the space that was reserved, which no crash leaves.

        Not where the header was never written, since then no frame was either.
        """
        there = self.present and self.file_bytes < self.record.reserved_bytes
        unused = self.header is None and self.header_error is None and self.file_bytes >= SEGMENT_HEADER_BYTES
        return there and not unused

    @property
    def end_offset(self) -> int:
        """File offset where the intact frames end."""
        return 0 if self.header is None else self.header.offset_of(self.end_position)


@dataclass(kw_only=True, slots=True)
class LogFindings:
    """Facts about a whole log."""

    manifest: Manifest
    mark: DurableMark
    sealed: list[SegmentFinding] = field(default_factory=list)
    unsealed: list[SegmentFinding] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Segment files that the manifest does not name."""
    orphans: list[str] = field(default_factory=list)
    """Indexes of segments that are not in the log."""
    unfinished: list[str] = field(default_factory=list)
    """Files that a writer left half written: see `unfinished_in`."""

    @property
    def verify_s(self) -> float:
        """Seconds that checking frames took, those of several threads added up."""
        return sum(finding.verify_ns for finding in (*self.sealed, *self.unsealed)) / 1e9

    @property
    def promised_position(self) -> int:
        """How far the log has been promised to be on stable storage, by anything that can be trusted."""
        known = {e.id for e in self.manifest.lineage}
        marked = self.mark.position if self.mark.epoch_id in known else 0
        return max([self.manifest.end.position, marked, *(f.promised_position for f in self.unsealed)])
