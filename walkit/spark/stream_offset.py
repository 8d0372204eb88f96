"""How far a stream has come, as Spark keeps it in a checkpoint, and whether a log still continues from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from walkit._internal.arguments import refuse
from walkit.errors import DivergenceError, GapError
from walkit.format.manifest import Manifest
from walkit.read.reader import ReaderView
from walkit.segments.history import identity_at, lies_in
from walkit.spark.object_log import AnyView

UNCLAIMED = "none"
"""In place of the owner id of a claim, for a query that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Everything up to `lsn` was read. In a checkpoint it is JSON of these.

    Offsets are the ends of frames, so that no transaction is split, except where option `firstLsn` or `lastLsn` lies
    within a frame.
    """

    log_id: str
    """16 hexadecimal digits."""
    epoch_id: str
    """The random id of the epoch of the record at `lsn`, 16 hexadecimal digits; zeros before the first record."""
    lsn: int
    """0 before the first record."""
    complete_from_lsn: int
    """From here on no record was missing when the query began: it takes what compaction had left before."""
    owner: str
    """The owner id of the query's claim, 32 hexadecimal digits; "" before its first batch, `UNCLAIMED` without one."""

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> StreamOffset:
        """Return the offset that a checkpoint holds; `OptionsError` if it belongs to another source."""
        if set(saved) != {field.name for field in fields(cls)}:
            refuse(
                "checkpointLocation",
                dict(saved),
                "an offset of another source; give the query a new checkpoint",
            )
        return cls(**saved)

    def to_dict(self) -> dict[str, Any]:
        """Return what Spark keeps. Two offsets of equal values are equal text, by which Spark compares them."""
        return asdict(self)

    def moved(self, lsn: int, manifest: Manifest, owner: str) -> StreamOffset:
        """Return the offset of the same query at another LSN, with the owner id of its claim."""
        return replace(self, lsn=lsn, epoch_id=epoch_at(manifest, lsn), owner=owner)


def epoch_at(manifest: Manifest, lsn: int) -> str:
    """Return the id of the epoch of the record at an LSN, 16 hexadecimal digits."""
    return f"{identity_at(manifest, lsn).epoch_id:016x}"


def require_here(offset: StreamOffset, seen: ReaderView[AnyView], path: str) -> None:
    """Raise where the log at `path` does not continue from an offset.

    DivergenceError: it is another log, or what the query has read was cut. GapError: records that the query has not
    read are gone. Both name the cure.
    """
    manifest = seen.view.manifest
    if offset.log_id != f"{manifest.log_id:016x}":
        raise DivergenceError(
            f"the query has read log {offset.log_id} up to LSN {offset.lsn:,}, and at {path} is log "
            f"{manifest.log_id:016x}. Put the log back, or start a query with a new checkpoint and a new sink",
            first_lsn=1,
        )
    if offset.lsn > seen.last_lsn or not lies_in(manifest, offset.lsn, int(offset.epoch_id, 16)):
        later = [e.first_lsn for e in manifest.lineage if e.first_lsn <= offset.lsn]
        first_lsn = seen.last_lsn + 1 if offset.lsn > seen.last_lsn else max(later, default=1)
        raise DivergenceError(
            f"the query has read the log at {path} up to LSN {offset.lsn:,} of epoch {offset.epoch_id}; the log ends "
            f"at {seen.last_lsn:,}, and its record there is of epoch {epoch_at(manifest, offset.lsn)}: what was read "
            "was cut, and the log has another history. Start a query with a new checkpoint and a new sink",
            first_lsn=first_lsn,
        )
    require_unread(offset, seen.view)


def require_unread(offset: StreamOffset, view: AnyView) -> None:
    """Raise GapError, with what to do, where records after an offset were trimmed or compacted away."""
    wanted = offset.lsn + 1
    if view.first_lsn <= wanted and view.complete_from_lsn <= max(wanted, offset.complete_from_lsn):
        return
    error = GapError(wanted, max(view.first_lsn, view.complete_from_lsn))
    error.add_note(GAP_ADVICE)
    raise error


GAP_ADVICE = (
    "The stream's claim kept these records until its lease was over, was dropped, or the hard cap of a retention was "
    "reached; without a claim nothing kept them. Start a query with a new checkpoint: it takes the records left. "
    "Option claimSeconds makes the lease longer."
)
