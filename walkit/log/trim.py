"""Trimming: the low watermark moves in the manifest first, then the files below it go."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from walkit.commit.to_end import run_to_end
from walkit.errors import StorageError
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import Manifest, SegmentRecord, SegmentState
from walkit.log.holds import live_holds
from walkit.log.reader import LogView
from walkit.log.report import report_html
from walkit.log.sidecar import files_of
from walkit.log.straddle import Rewritten, check_waste_ratio
from walkit.record import Record
from walkit.storage.base import Storage
from walkit.text import counted

if TYPE_CHECKING:
    from walkit.log.engine import LogEngine


WASTE_RATIO_DEFAULT = 0.5
_STAYED = Rewritten()


class Leftovers:
    """Files that no manifest names any more, or never did: to be removed, again after a failure.

    The next opening removes what is still there. The caller keeps others away.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._names: list[str] = []
        self._unsynced = False

    def add(self, names: Iterable[str]) -> None:
        """Note files; only once the manifest on stable storage does not name them."""
        self._names.extend(names)

    def remove(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Remove them, durably. What a StorageError leaves is removed by the next call.

        `progress` is called with (files removed, files to remove).
        """
        total = len(self._names)
        while self._names:
            try:
                self._storage.remove(self._names[0])
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
            del self._names[0]
            self._unsynced = True
            if progress is not None:
                progress(total - len(self._names), total)
        if self._unsynced:
            self._storage.sync_directory()
            self._unsynced = False


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What one trim dropped: whole segments."""

    low_watermark: int
    segments: tuple[SegmentRecord, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the files that were dropped."""
        return sum(SEGMENT_HEADER_BYTES + s.size_bytes for s in self.segments)


class TrimReport(int):
    """What one trim did. It is a number, the low watermark, and says what went. Bytes are those of segment files."""

    segments: int
    """Segments that were dropped whole."""
    bytes_dropped: int
    """Bytes of their files."""
    rewritten: Rewritten
    """What became of the segment that straddles the low watermark."""
    duration_s: float

    def __new__(
        cls,
        low_watermark: int,
        segments: int = 0,
        bytes_dropped: int = 0,
        rewritten: Rewritten = _STAYED,
        duration_s: float = 0.0,
    ) -> Self:
        """Make the report of a trim that left the low watermark there."""
        self = super().__new__(cls, low_watermark)
        self.segments, self.bytes_dropped = segments, bytes_dropped
        self.rewritten, self.duration_s = rewritten, duration_s
        return self

    @property
    def low_watermark(self) -> int:
        """LSNs up to here are dropped, by this trim or an earlier one."""
        return int(self)

    @property
    def bytes_saved(self) -> int:
        """Bytes by which the log is smaller: of segments that went, and of the one that was rewritten."""
        return self.bytes_dropped + self.rewritten.bytes_before - self.rewritten.bytes_after

    def _repr_html_(self) -> str:
        done = self.rewritten
        straddling = "none, or it may not be rewritten"
        if done.bytes_before:
            became = (
                f"{done.bytes_before:,} to {counted(done.bytes_after, 'byte')}"
                if done.bytes_written
                else "stayed"
            )
            straddling = f"{done.waste:.0%} waste; {done.failure or became}"
        return report_html(
            f"Trim up to LSN {int(self):,}",
            [
                ("low watermark", f"{int(self):,}"),
                ("segments dropped", f"{self.segments:,}"),
                ("bytes of their files", f"{self.bytes_dropped:,}"),
                ("segment that straddles it", straddling),
                ("bytes saved", f"{self.bytes_saved:,}"),
                ("bytes written", f"{done.bytes_written:,}"),
                ("time", f"{self.duration_s * 1000:.1f} ms"),
            ],
        )


def move_watermark(engine: LogEngine, up_to_lsn: int, checkpoint_lsn: int = 0) -> Trimmed:
    """Drop records at or below `up_to_lsn` from the manifest; the files go with `engine.leftovers.remove()`.

    Never past a hold, never what is not durable, and where there is a state, never past its newest snapshot: what would
    then be needed to tell the state would be gone. `checkpoint_lsn` says that a durable snapshot stands there from now
    on. The caller holds `engine.trimming`.
    """
    dropped: list[SegmentRecord] = []

    def change(manifest: Manifest) -> Manifest:
        holds = live_holds(engine, manifest)
        checkpoint = max(checkpoint_lsn, manifest.checkpoint_lsn)
        limits = [up_to_lsn, engine.core.durable_lsn, *(h.first_lsn - 1 for h in holds)]
        if checkpoint or engine.state_lsn is not None:
            limits.append(max(checkpoint, engine.state_lsn or 0))
        low = max(min(limits), manifest.low_watermark)
        dropped[:] = [
            s for s in manifest.sealed if s.last_lsn <= low
        ]  # also one that was sealed since the last trim
        same = (low, checkpoint, holds) == (manifest.low_watermark, manifest.checkpoint_lsn, manifest.holds)
        if same and not dropped:
            return manifest
        left = tuple(s for s in manifest.segments if s not in dropped)
        begins = [s.start_position for s in left if s.state is SegmentState.SEALED][:1] or [
            manifest.end.position
        ]
        return manifest.next(
            segments=left,
            # One within a segment that stays is needed to walk to the frames behind it, whatever is trimmed of them.
            holes=tuple(h for h in manifest.holes if h.end_position > begins[0]),
            lost=tuple(g for g in manifest.lost if g.end_position > begins[0]),
            low_watermark=low,
            checkpoint_lsn=checkpoint,
            exact_from_lsn=max(manifest.exact_from_lsn, low + 1) if low else manifest.exact_from_lsn,
            holds=holds,
        )

    manifest = engine.store.update(change)
    engine.leftovers.add(files_of(dropped))
    return Trimmed(manifest.low_watermark, tuple(dropped))


def trim(engine: LogEngine, up_to_lsn: int, waste_ratio: float = WASTE_RATIO_DEFAULT) -> TrimReport:
    """Move the low watermark, remove the segments wholly below it, rewrite the one that straddles it.

    See `move_watermark` and `Straddle.rewrite`.
    """
    check_waste_ratio(waste_ratio)
    return run_to_end(lambda: _trim(engine, up_to_lsn, waste_ratio), "trim", events=engine.events)


def _trim(engine: LogEngine, up_to_lsn: int, waste_ratio: float) -> TrimReport:
    began = time.perf_counter()
    engine.segments.upkeep.drain()  # what the upkeep thread is about to seal can be dropped, too
    with engine.trimming:
        trimmed = move_watermark(engine, up_to_lsn)
        engine.leftovers.remove()
    if trimmed.segments:
        tell(engine, trimmed)
    rewritten = engine.straddle.rewrite(waste_ratio)
    return TrimReport(
        trimmed.low_watermark,
        len(trimmed.segments),
        trimmed.size_bytes,
        rewritten,
        time.perf_counter() - began,
    )


def tell(engine: LogEngine, trimmed: Trimmed) -> None:
    """Send the event of a trim."""
    engine.events.emit(
        "walkit.segment.trim",
        segments=len(trimmed.segments),
        bytes=trimmed.size_bytes,
        low_watermark=trimmed.low_watermark,
    )


def drain(engine: LogEngine, view: LogView, last_lsn: int) -> Iterator[Record]:
    """Yield the records of a view up to `last_lsn`; when the last has been taken, trim up to there."""
    yield from view.records(view.first_lsn, last_lsn)
    trim(engine, last_lsn)
