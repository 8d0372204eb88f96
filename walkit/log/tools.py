"""Tools without a writer: `scan` and `verify`. They read any log, in any state, and never change a byte of it.

They take no lock and disturb no writer. What can be told is told: damage ends in the report, not in an error. Only a
path that is no log, a manifest of a newer format, or a place that cannot be listed raises.
"""

from __future__ import annotations

import time
from typing import Literal

from walkit.config import check_progress
from walkit.errors import CorruptionError, NotALogError, SegmentMissingError, WalkitError
from walkit.format.layout import FORMAT_VERSION
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.log.examine.around import check_durable_file, check_manifest, look_at_strays, tell_other_files
from walkit.log.examine.frametable import frame_rows
from walkit.log.examine.ledger import Ledger
from walkit.log.examine.parallel import examine_sealed_segments
from walkit.log.examine.sealed import tell_gaps
from walkit.log.examine.unsealed import UnsealedPart
from walkit.log.examine.verdicts import Problem, ScanReport, Verdict
from walkit.log.manifest_store import LOCK_NAME, load_manifest
from walkit.log.opening import Place, storage_at
from walkit.log.rebuild import manifest_from_headers
from walkit.log.scan import Progress, read_mark
from walkit.storage.base import Storage
from walkit.text import counted

ATTEMPTS = 4
"""How often a log is read that a writer opens, closes or trims while it is read."""


def scan(path: Place, *, bodies: bool = True, progress: Progress | None = None) -> ScanReport:
    """Return what stands in a log: a verdict per range, facts per segment, problems, notes; `.frames` is a table.

    Every frame is read and checked against its checksums, its place and its predecessor. `bodies=False` reads only the
    frame headers of sealed segments, which is faster where frames are large; the segments behind the last seal are read
    whole all the same, because only that tells where they end. `progress` is called with (bytes read, bytes to read).

    Works on a live log (what is at or below its durable position is judged, the rest is in progress), a closed one, one
    whose writer was killed, and a damaged one. `path` is what `walkit.open` takes. Memory does not grow with the log.

    Raises LogNotFoundError, NotALogError, FormatVersionError (of the manifest) and StorageError, where there is nothing
    to report on.
    """
    return _examine(storage_at(path), "scan", bodies=bodies, progress=progress)


def verify(path: Place, *, progress: Progress | None = None) -> ScanReport:
    """Check everything that can be checked without a writer: what `scan` checks, and beyond it

    that every body decodes, that the manifest's facts agree with each other and with the frames (counts, LSNs, chains,
    epochs), and that the durable file agrees with them. Other files are noted. Raises what `scan` raises.
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
        mark = read_mark(
            storage
        )  # before the manifest, so that the manifest names every segment that the mark covers
        manifest, damage = _manifest_of(storage)
        ledger = Ledger(storage, manifest, mark, live=live, bodies=bodies, decode=decode, progress=progress)
        if damage is not None:
            ledger.problem(damage, segment=MANIFEST_NAME)
        examine_sealed_segments(ledger)
        tell_gaps(ledger, "", manifest.end.position + 1)
        UnsealedPart(ledger).examine()
        look_at_strays(ledger)
        if decode:
            if damage is None:
                check_manifest(ledger)
            check_durable_file(ledger)
            tell_other_files(ledger)
        if not ledger.problems or attempt == ATTEMPTS - 1 or not _has_changed(storage, live, manifest):
            break
    if not bodies and manifest.sealed:
        ledger.notes.append("frame bodies of sealed segments were not read; walkit verify reads them")
    return _report(ledger, tool, began)


def _has_changed(storage: Storage, live: bool, manifest: Manifest) -> bool:
    """Say whether a writer has come, gone, or changed the manifest since: what looks like damage may be its work."""
    try:
        return (
            storage.is_locked(LOCK_NAME) != live or load_manifest(storage).generation != manifest.generation
        )
    except WalkitError:
        return False


def _manifest_of(storage: Storage) -> tuple[Manifest, CorruptionError | None]:
    """Return the manifest; where it is damaged or missing, one made of the segments' headers, and the damage."""
    try:
        return load_manifest(storage), None
    except (CorruptionError, NotALogError) as error:
        rebuilt = manifest_from_headers(storage)
        if rebuilt is None:
            raise
        stand_in = rebuilt.manifest
        if isinstance(error, CorruptionError):
            return stand_in, error
        return stand_in, CorruptionError(
            f"the manifest does not begin like one, beside {counted(len(stand_in.segments), 'segment')}",
            segment=MANIFEST_NAME,
            expected="a manifest",
            found=error.reason,
        )


def _report(ledger: Ledger, tool: Literal["scan", "verify"], began: float) -> ScanReport:
    storage, manifest, spans, decode = ledger.storage, ledger.manifest, tuple(ledger.spans), ledger.decode
    intact = [r for r in ledger.ranges if r.verdict is Verdict.INTACT]
    lsns = [r.last_lsn for r in intact if r.last_lsn is not None]
    firsts = [r.first_lsn for r in intact if r.first_lsn is not None]
    last_lsn = max(lsns, default=manifest.end.last_lsn)
    unsealed = bool(manifest.unsealed)
    return ScanReport(
        location=storage.location,
        tool=tool,
        state="live" if ledger.live else "unclosed" if unsealed else "closed",
        bodies_read=ledger.bodies,
        format_version=FORMAT_VERSION,
        log_id=manifest.log_id,
        generation=manifest.generation,
        epochs=len(manifest.lineage),
        low_watermark=manifest.low_watermark,
        first_lsn=max(min(firsts, default=last_lsn + 1), manifest.low_watermark + 1),
        last_lsn=last_lsn,
        end_position=ledger.end.position,
        promised_position=ledger.promised,
        frames_checked=sum(r.frames for r in intact),
        records_checked=sum(r.records for r in intact),
        bytes_checked=sum(r.size_bytes for r in intact),
        duration_s=time.perf_counter() - began,
        verdict=tuple(ledger.ranges),
        segments=tuple(ledger.segments),
        problems=tuple(_worst_first(ledger.problems)),
        notes=tuple(ledger.notes),
        frame_rows=lambda: frame_rows(storage, spans, decode=decode),
    )


def _worst_first(problems: list[Problem]) -> list[Problem]:
    """Missing segments before damage within them; otherwise in the order of the log."""
    return sorted(problems, key=lambda p: not isinstance(p.error, SegmentMissingError))
