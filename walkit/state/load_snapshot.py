"""The snapshot at the base of a state: the newest that can be trusted, or the one for an LSN, or for every exact state.

From a snapshot on the log has to be there, with the tombstones: where compaction has dropped one since, a key that was
deleted would live again (FORMAT.md F-16.7).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from walkit.errors import CorruptionError, FormatVersionError, HistoryTrimmedError, SnapshotError
from walkit.events import EventSink
from walkit.format.manifest import Manifest
from walkit.read.view import View
from walkit.segments.orphan_files import staged_in
from walkit.state.machine import StateMachine
from walkit.state.snapshot import SnapshotInfo, identity_at, read_snapshot, snapshot_lsns, verify_snapshot
from walkit.state.table import KeyedTable
from walkit.storage.interface import ReadableFiles


@dataclass(frozen=True, kw_only=True, slots=True)
class Restored:
    """Which snapshot a machine was restored from, and which newer ones could not be used."""

    info: SnapshotInfo | None
    """None without a good one: the machine is empty."""
    refused: tuple[SnapshotError | FormatVersionError, ...]
    """Newest first."""

    @property
    def lsn(self) -> int:
        """LSN of the snapshot; 0 without a good one."""
        return 0 if self.info is None else self.info.lsn


def restore_newest(
    storage: ReadableFiles,
    manifest: Manifest,
    machine: StateMachine,
    events: EventSink,
    *,
    first_lsn: int,
    last_lsn: int,
) -> Restored:
    """Restore `machine` from the newest good snapshot of the log that holds [first_lsn, last_lsn].

    One that is damaged, of a newer format, or of another log or history is passed over, with an event, for the one
    before it; that of a staged log, which is to take the place of this one, is not looked at. Raises the error of the
    newest one if the log does not reach back to an older one; CorruptionError if the log ends before a good
    snapshot, to whose LSN it had been durable.
    """
    refused: list[SnapshotError | FormatVersionError] = []
    info: SnapshotInfo | None = None
    lsns = snapshot_lsns(storage)
    if lsns and lsns[-1] > last_lsn:
        staged_lsn = staged_in(storage, manifest).snapshot_lsn
        lsns = [lsn for lsn in lsns if lsn <= last_lsn or lsn != staged_lsn]
    for lsn in reversed(lsns):
        try:
            _refuse_too_old(manifest, lsn)
            info = read_snapshot(storage, lsn, machine, identity=identity_at(manifest, lsn))
            break
        except (SnapshotError, FormatVersionError) as error:
            refused.append(error)
            events.emit("walkit.snapshot.skip", lsn=lsn, error=str(error))
    if info is None and refused:
        machine.restore((), 0)
    restored = Restored(info=info, refused=tuple(refused))
    if restored.lsn > last_lsn:
        raise _log_too_short(restored.lsn, last_lsn)
    if refused and first_lsn > restored.lsn + 1:
        raise refused[0]
    return restored


def _refuse_too_old(manifest: Manifest, lsn: int) -> None:
    """Refuse a snapshot of keys whose tombstones compaction has dropped: they would live again."""
    if 0 < lsn < manifest.tombstones_from_lsn - 1:
        raise SnapshotError(
            f"the snapshot at LSN {lsn:,} is older than tombstones that compaction has dropped, up to LSN "
            f"{manifest.tombstones_from_lsn - 1:,}",
            stage="history",
            retry="use a newer snapshot, or replay the whole log",
        )


def _log_too_short(snapshot_lsn: int, last_lsn: int) -> CorruptionError:
    return CorruptionError(
        f"there is a snapshot at LSN {snapshot_lsn:,}, up to which the log was durable, and the log ends at "
        f"{last_lsn:,}: acknowledged records are missing. Keep the files, and restore the log from a copy",
        expected=f"a log that reaches LSN {snapshot_lsn}",
        found=last_lsn,
        first_lost_lsn=last_lsn + 1,
    )


def base_at(view: View, wanted: int) -> int:
    """Return the LSN of the snapshot with which the state at `wanted` begins; 0 for the log's beginning.

    A snapshot at the very LSN needs no history. From any other base on the log has to be there, and the state has to be
    one that the log still holds: from the manifest's `exact_from_lsn` on, which trimming and compaction move. Of
    several snapshots the newest is taken. HistoryTrimmedError if none will do; the newest one's own error if every one
    that would do is damaged.
    """
    exact = wanted >= view.manifest.exact_from_lsn
    if exact and view.first_lsn == 1:
        return 0
    reached = _reached(view)
    found = [
        lsn for lsn in snapshot_lsns(view.storage) if lsn == wanted or (exact and reached <= lsn < wanted)
    ]
    base = _first_good(view, reversed(found))
    if base is not None:
        return base
    if exact:
        raise HistoryTrimmedError(1, view.first_lsn)
    raise HistoryTrimmedError(wanted, view.manifest.exact_from_lsn)


def base_of_all(view: View, newest: int) -> int:
    """Return the LSN of the snapshot with which every state begins that the log still holds; 0 for the log's beginning.

    It is the oldest one from which the log continues. `newest` is the view's last LSN. HistoryTrimmedError without one;
    the oldest one's own error if every one is damaged.
    """
    if view.first_lsn == 1:
        return 0
    reached = _reached(view)
    base = _first_good(view, (lsn for lsn in snapshot_lsns(view.storage) if reached <= lsn <= newest))
    return base_at(view, newest) if base is None else base


def newest_base(view: View, after: int, up_to: int) -> int | None:
    """Return the newest good snapshot after one LSN and up to another from which the log continues, or None.

    Raises the newest one's own error if each of them is damaged.
    """
    first = max(_reached(view), after + 1)
    return _first_good(view, (lsn for lsn in reversed(snapshot_lsns(view.storage)) if first <= lsn <= up_to))


def _reached(view: View) -> int:
    """Return the LSN of the oldest state that could be brought on from this log."""
    return max(view.first_lsn, view.manifest.tombstones_from_lsn) - 1


def _first_good(view: View, lsns: Iterable[int]) -> int | None:
    """Return the first LSN whose snapshot of a keyed table can be used; None without any."""
    refused: list[SnapshotError | FormatVersionError] = []
    for lsn in lsns:
        try:
            info = verify_snapshot(view.storage, lsn, identity=identity_at(view.manifest, lsn))
        except (SnapshotError, FormatVersionError) as error:
            refused.append(error)
            continue
        if info.snapshot_format == KeyedTable.snapshot_format:
            return lsn
    if refused:
        raise refused[0]
    return None
