"""Tools without a writer: `scan` and `verify`. They read any log, in any state, and never change a byte of it.

They take no lock and disturb no writer. Damage ends in the report, not in an error. Only a path that is no log, a
manifest of a newer format, or a place that cannot be listed raises.
"""

from __future__ import annotations

import time
from typing import Literal

from walkit._internal.arguments import check_progress
from walkit._internal.text import counted
from walkit.errors import CorruptionError, NotALogError, SegmentMissingError, StorageError, WalkitError
from walkit.format.layout import FORMAT_VERSION
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.recovery.examine.report import FrameRows, Problem, ScanReport, Verdict
from walkit.recovery.examine.segments import ScanContext, examine_segments
from walkit.recovery.examine.stray_files import (
    check_durable_file,
    check_manifest,
    check_snapshots,
    note_other_files,
    note_strays,
)
from walkit.recovery.log_scan import Progress, read_durable_slot, refuse_broken_promise, scan_folder
from walkit.recovery.rebuild import manifest_of
from walkit.segments.manifest_store import LOCK_NAME, load_manifest
from walkit.segments.writer_lock import has_writer
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage

ATTEMPTS = 4
"""How often a log is read that a writer opens, closes or trims while it is read."""


def scan(path: Place, *, bodies: bool = True, progress: Progress | None = None) -> ScanReport:
    """Return what stands in a log: a verdict per range, facts per segment, problems, notes; `.frames` is a table.

    Every frame is read and checked against its checksums, its place and its predecessor, and each snapshot. With
    `bodies=False` only the frame headers of sealed segments are read, which is faster if frames are large: then these
    segments and the snapshots are "not read", and `ok` is None unless a problem was found. The segments after the last
    seal are read whole in any case, because only that tells where they end. `progress` is called with
    (bytes read, bytes to read).

    Works on a live log (what is at or below its durable position is judged, the rest is in progress), a closed one, one
    whose writer was killed, and a damaged one. `path` is what `walkit.open` takes. Memory does not grow with the log.

    Raises LogNotFoundError, NotALogError, FormatVersionError (of the manifest) and StorageError, where there is nothing
    to report on.
    """
    return _examine(storage_at(path), "scan", bodies=bodies, progress=progress)


def verify(path: Place, *, progress: Progress | None = None) -> ScanReport:
    """Check everything that can be checked without a writer: what `scan` checks, and more.

    Beyond `scan`: that every body decodes, that the manifest's facts agree with each other and with the frames
    (counts, LSNs, chains, epochs), and that the durable slot agrees with them. Claims, cursors and other files are
    noted. Raises what `scan` raises.
    """
    return _examine(storage_at(path), "verify", bodies=True, progress=progress)


def _examine(
    storage: Storage, tool: Literal["scan", "verify"], *, bodies: bool, progress: Progress | None
) -> ScanReport:
    check_progress(progress, "(bytes read, bytes to read)")
    began = time.perf_counter()
    decode = tool == "verify"
    for attempt in range(ATTEMPTS):
        live = storage.is_locked(LOCK_NAME)
        # Before the manifest, so that it names every segment that the slot covers.
        slot = read_durable_slot(storage)
        manifest, _, damage = manifest_of(storage)
        live = live or has_writer(storage, manifest)
        context = ScanContext(
            storage, manifest, slot, live=live, bodies=bodies, decode=decode, progress=progress
        )
        if damage is not None:
            context.problem(_damage_of(manifest, damage), segment=MANIFEST_NAME)
        refusal = examine_segments(context)
        note_strays(context)
        if damage is None and not live:
            _note_refusal(context, refusal)
        if decode:
            if damage is None:
                check_manifest(context)
            check_durable_file(context)
            note_other_files(context)
        check_snapshots(context)
        if not context.problems or attempt == ATTEMPTS - 1 or not _has_changed(storage, live, manifest):
            break
    return _report(context, tool, began)


def _note_refusal(context: ScanContext, refusal: CorruptionError | StorageError | None) -> None:
    """Add why the next opening refuses the log, where no range says it."""
    try:
        scan_folder(context.storage, context.manifest, context.slot)
        refuse_broken_promise(context.storage, context.manifest, *context.newest_manifest)
    except (CorruptionError, StorageError) as error:
        refusal = error
    if refusal is None:
        return
    segment = refusal.name if isinstance(refusal, StorageError) else refusal.segment
    position = None if isinstance(refusal, StorageError) else refusal.position
    reported = {place for problem in context.problems for place in (problem.segment, problem.position)}
    if segment not in reported and position not in reported:
        context.problem(refusal, segment=segment)


def _has_changed(storage: Storage, live: bool, manifest: Manifest) -> bool:
    """Say whether a writer has come, gone, or changed the manifest since: what looks like damage may be its work."""
    try:
        return (
            has_writer(storage, manifest) != live or load_manifest(storage).generation != manifest.generation
        )
    except WalkitError:
        return False


def _damage_of(manifest: Manifest, error: CorruptionError | NotALogError) -> CorruptionError:
    """Return the problem of a damaged manifest, which a rebuilt one replaces here."""
    if isinstance(error, CorruptionError):
        return error
    return CorruptionError(
        f"the manifest does not begin like one, beside {counted(len(manifest.segments), 'segment')}",
        segment=MANIFEST_NAME,
        expected="a manifest",
        found=error.reason,
    )


def _report(context: ScanContext, tool: Literal["scan", "verify"], began: float) -> ScanReport:
    storage, manifest, decode = context.storage, context.manifest, context.decode
    spans = tuple(f.span for f in context.findings if f.span is not None)
    intact = [r for r in context.ranges if r.verdict is Verdict.INTACT]
    held = [r for r in context.ranges if r.verdict in (Verdict.INTACT, Verdict.NOT_READ)]
    lsns = [r.last_lsn for r in held if r.last_lsn is not None]
    firsts = [r.first_lsn for r in held if r.first_lsn is not None]
    last_lsn = max(lsns, default=manifest.end.last_lsn)
    unsealed = bool(manifest.unsealed)
    return ScanReport(
        location=storage.location,
        tool=tool,
        state="live" if context.live else "unclosed" if unsealed else "closed",
        bodies_read=context.bodies,
        snapshots_not_read=context.snapshots_not_read,
        format_version=FORMAT_VERSION,
        log_id=manifest.log_id,
        generation=manifest.generation,
        epochs=len(manifest.lineage),
        low_watermark=manifest.low_watermark,
        first_lsn=max(min(firsts, default=last_lsn + 1), manifest.low_watermark + 1),
        last_lsn=last_lsn,
        end_position=context.end.position,
        promised_position=context.judge.promised,
        frames_checked=sum(r.frames for r in intact),
        records_checked=sum(r.records for r in intact),
        bytes_checked=sum(r.size_bytes for r in intact),
        duration_s=time.perf_counter() - began,
        verdict=tuple(context.ranges),
        segments=tuple(context.segments),
        problems=tuple(_worst_first(context.problems)),
        notes=tuple(context.notes),
        frame_rows=FrameRows(storage, spans, decode=decode),
    )


def _worst_first(problems: list[Problem]) -> list[Problem]:
    """Missing segments before damage within them; otherwise in the order of the log."""
    return sorted(problems, key=lambda p: not isinstance(p.error, SegmentMissingError))
