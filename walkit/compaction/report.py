"""The report of a compaction, in a form to read, draw and test."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from walkit._internal.report import Phase, report_html


@dataclass(frozen=True, kw_only=True, slots=True)
class CompactionReport:
    """The effects of one compaction. Counts before and after cover the sealed log; bytes are those of its files."""

    location: str
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int
    segments_before: int
    segments_after: int
    segments_rewritten: int
    """Segments whose place others have taken."""
    segments_kept: int
    """Segments that were rewritten and stayed as they were: the new ones would not have been smaller."""
    segments_left: int
    """Segments with something to drop that were left alone, because it was less than the waste ratio."""
    bytes_read: int
    """Bytes of frames that were read: to survey, to rewrite, and to read back the result."""
    bytes_written: int
    """Bytes of segment files that were written."""
    tombstones_dropped: int
    exact_from_lsn: int
    """From here on the log holds every state exactly."""
    complete_from_lsn: int
    """From here on every record is still there."""
    phases: tuple[Phase, ...]
    """"log", "survey", "rewrite", "publish", "tidy": seconds each, over all groups of segments."""

    @property
    def records_dropped(self) -> int:
        """Records that are gone."""
        return self.records_before - self.records_after

    @property
    def bytes_saved(self) -> int:
        """Bytes by which the log is smaller."""
        return self.bytes_before - self.bytes_after

    @property
    def write_amplification(self) -> float:
        """How often a byte of the sealed log has been written by now; 1.0 if this compaction wrote nothing."""
        return 1.0 + self.bytes_written / self.bytes_before if self.bytes_before else 1.0

    @property
    def duration_s(self) -> float:
        """Seconds of all phases."""
        return sum(p.duration_s for p in self.phases)

    def _repr_html_(self) -> str:
        share = f" ({self.bytes_after / self.bytes_before:.1%})" if self.bytes_before else ""
        return report_html(
            f"Compaction of {self.location}",
            [
                ("records before", f"{self.records_before:,}"),
                ("records after", f"{self.records_after:,}"),
                ("bytes before", f"{self.bytes_before:,}"),
                ("bytes after", f"{self.bytes_after:,}{share}"),
                ("segments", f"{self.segments_before:,} to {self.segments_after:,}"),
                (
                    "bytes written",
                    f"{self.bytes_written:,} (each byte {self.write_amplification:.2f} times by now)",
                ),
                ("tombstones dropped", f"{self.tombstones_dropped:,}"),
                ("states are exact from LSN", f"{self.exact_from_lsn:,}"),
                ("records are complete from LSN", f"{self.complete_from_lsn:,}"),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
            phases=self.phases,
        )


def merged(phases: Iterable[Phase]) -> tuple[Phase, ...]:
    """Return one phase for each name: from where the first of it began, with the durations and numbers added up."""
    found: dict[str, Phase] = {}
    for phase in phases:
        before = found.get(phase.name)
        if before is None:
            found[phase.name] = phase
            continue
        detail = {key: before.detail.get(key, 0) + value for key, value in phase.detail.items()}
        found[phase.name] = replace(
            before, duration_s=before.duration_s + phase.duration_s, detail={**before.detail, **detail}
        )
    return tuple(found.values())
