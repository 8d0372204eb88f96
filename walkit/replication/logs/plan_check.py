"""The checks of a primary's plan before a replica gathers the log of it: a peer's plan may be wrong, or a lie.

The frames show as they are gathered whether the rest is true.
"""

from __future__ import annotations

import errno
from itertools import pairwise

from walkit.copier.gathering import Gathering
from walkit.copier.object_target import ObjectTarget
from walkit.copier.plan import MissingRange
from walkit.errors import CorruptionError, DivergenceError, NotALogError, StorageError
from walkit.format.layout import POSITION_MAX, SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME, EpochRecord, Manifest, SegmentRecord, decode_manifest
from walkit.replication.protocol.checks import first_difference
from walkit.replication.protocol.messages import Plan
from walkit.storage.interface import LimitedSpace, Storage
from walkit.storage.object_store import ObjectStore

FREE_LEFT_BYTES = 64 << 20
"""So much of the disk stays free in a bootstrap: for the replica's own log, and for its neighbours."""


def gather_plan(
    gathering: Gathering | ObjectTarget, plan: Plan, log_id: int, lineage: tuple[EpochRecord, ...]
) -> tuple[MissingRange, ...]:
    """Begin to gather the plan of a primary; return its missing parts.

    DivergenceError if it is another history than the replica's; CorruptionError for a plan that cannot be;
    StorageError, of a disk that has no room for all of it, too: nothing is fetched then.
    """
    manifest = _checked_plan(plan)
    if manifest.log_id != log_id or manifest.lineage[: len(lineage)] != lineage:
        first = first_difference(lineage, manifest.lineage) if manifest.log_id == log_id else 1
        raise DivergenceError(
            f"the primary's plan has another history than this replica's, from LSN {first:,} on. Nothing was "
            "changed",
            first_lsn=first,
        )
    missing = gathering.prepare(manifest, plan.sizes, (plan.snapshot_lsn,) if plan.snapshot_lsn else ())
    _require_room(gathering.storage, sum(part.size - part.offset for part in missing))
    return missing


def _require_room(storage: Storage | ObjectStore, missing_bytes: int) -> None:
    """StorageError if a storage that knows its room has none for the missing bytes of a plan.

    Frames bear out the sizes of segments; how large a state is that a snapshot holds, nothing in a plan tells.
    """
    free = storage.free_bytes() if isinstance(storage, LimitedSpace) else None
    if free is not None and missing_bytes > max(free - FREE_LEFT_BYTES, 0):
        raise StorageError(
            f"{storage.location} has {free:,} bytes free, and the primary's log takes {missing_bytes:,} more; "
            f"{FREE_LEFT_BYTES:,} stay free. Nothing was fetched",
            errno=errno.ENOSPC,
        )


def _checked_plan(plan: Plan) -> Manifest:
    """Return the manifest of a plan; CorruptionError for another text, or sizes that its files cannot have."""
    try:
        manifest = decode_manifest(plan.manifest, "the primary's plan")
    except NotALogError as error:  # no word about this folder, as it would be of an opening
        raise CorruptionError(f"{error}", segment=MANIFEST_NAME) from error
    wrong = _wrong_files(plan, manifest) or _wrong_facts(plan, manifest)
    if wrong:
        raise CorruptionError(
            f"the primary's plan has {wrong}. Nothing of it was used", segment=MANIFEST_NAME
        )
    return manifest


def _wrong_files(plan: Plan, manifest: Manifest) -> str:
    """Return the fault of a plan's files, of which a replica stores no more than their sizes; or ""."""
    sealed, sizes = manifest.sealed, plan.sizes
    if len(sealed) != len(manifest.segments) or manifest.log_id == 0:
        return "segments that are not sealed"
    if len(sizes) != len(sealed) + (plan.snapshot_lsn > 0):
        return f"{len(sizes):,} sizes for {len(sealed):,} segments"
    if len({r.number for r in sealed}) != len(sealed) or max(sizes, default=0) > POSITION_MAX:
        return "numbers or sizes that no log has"
    of_segments = list(zip(sealed, sizes, strict=False))
    if any(size < SEGMENT_HEADER_BYTES for _, size in of_segments):
        return "a segment without a header"
    if any(size > SEGMENT_HEADER_BYTES + record.size_bytes for record, size in of_segments):
        return "a segment's file that is larger than its frames"
    return "a snapshot without bytes" if plan.snapshot_lsn and not sizes[-1] else ""


def _wrong_facts(plan: Plan, manifest: Manifest) -> str:
    """Return the fact of a plan's manifest that its segments contradict; or "". All it has ends at its end."""
    end, sealed = manifest.end, manifest.sealed
    if plan.snapshot_lsn > end.last_lsn or manifest.low_watermark > end.last_lsn:
        return "a snapshot or a low watermark after its end"
    if manifest.checkpoint_lsn > end.last_lsn:
        return "a checkpoint after its end"
    if max(manifest.exact_from_lsn, manifest.tombstones_from_lsn) > end.last_lsn + 1:
        return "a history that begins after its end"
    if manifest.exact_from_lsn > end.last_lsn > manifest.low_watermark:
        return "records of which no state can be made"
    if 0 < plan.snapshot_lsn < max(manifest.low_watermark, manifest.tombstones_from_lsn - 1):
        return "a snapshot that is older than the dropped records"
    if any(gap.end_position > end.position or gap.last_lsn > end.last_lsn for gap in manifest.gaps):
        return "a hole or a lost range after its end"
    if any(e.position > end.position or e.first_lsn > end.last_lsn + 1 for e in manifest.lineage):
        return "an epoch after its end"
    if sealed and _end_of(sealed[-1]) != (end.last_lsn, end.position, end.chain):
        return "another end than its last segment"
    unlinked = [after.name for before, after in pairwise(sealed) if not _follows(manifest, before, after)]
    return f"segment {unlinked[0]}, which does not follow the one before it" if unlinked else ""


def _follows(manifest: Manifest, before: SegmentRecord, after: SegmentRecord) -> bool:
    """Return whether a segment continues the chain of the one before it; a known gap may lie between them."""
    at = before.end_position
    for gap in manifest.gaps:  # one from the start of the segment on is in it
        if gap.start_position == at < after.start_position:
            at = gap.end_position
    chained = at != before.end_position or after.start_chain == before.end_chain
    return before.last_lsn < after.first_lsn and at <= after.start_position and chained


def _end_of(record: SegmentRecord) -> tuple[int, int, int]:
    return record.last_lsn, record.end_position, record.end_chain
