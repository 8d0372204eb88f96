"""A custom state machine beside a log: `checkpoint` saves it there, `recover` brings it back.

The snapshots are files of the log (FORMAT.md F-16). Those of one log all have one `snapshot_format`: a snapshot lets
the log drop its records, and the state of another machine could not be restored from the rest. A Store's are of
the keyed table ("keyed-table/1"), which `recover` gives back in a `walkit.state.KeyedTable`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from walkit._internal.arguments import refuse
from walkit._internal.locks import STATE, alone
from walkit._internal.report import report_html
from walkit._main_thread import run_uninterrupted
from walkit.errors import CorruptionError, FormatVersionError, GapError, HistoryTrimmedError, SnapshotError
from walkit.events import EventSink
from walkit.log.wal import WriteAheadLog
from walkit.read.read_api import ReadApi
from walkit.read.view import View
from walkit.state.applier import Follower
from walkit.state.checkpoint import CheckpointReport, checkpointer_on
from walkit.state.load_snapshot import Restored, restore_newest
from walkit.state.machine import StateMachine
from walkit.state.replay import ReplayProgress, ReplayReport, check_arguments, check_saved, replay
from walkit.state.snapshot import SnapshotInfo

ATTEMPTS_MAX = 8
"""The number of times that a recovery starts again because a writer's checkpoints overtook it, before its error is
raised."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineRecovery:
    """The course of a machine's recovery: the snapshot, and the replay after it."""

    snapshot: SnapshotInfo | None
    """The one that was restored; None if the state came from the log alone."""
    refused: tuple[SnapshotError | FormatVersionError, ...]
    """Why newer snapshots were passed over, newest first."""
    replay: ReplayReport

    @property
    def applied_lsn(self) -> int:
        """LSN up to which the machine has the log."""
        return self.replay.applied_lsn

    def _repr_html_(self) -> str:
        found = "none" if self.snapshot is None else f"LSN {self.snapshot.lsn:,}"
        return report_html(
            f"Recovery of a machine up to LSN {self.applied_lsn:,}",
            [
                ("snapshot", found),
                *(("passed over", str(error)) for error in self.refused),
                ("records replayed", f"{self.replay.records:,}"),
                ("time of the replay", f"{self.replay.duration_s * 1000:,.1f} ms"),
            ],
        )


def recover(log: ReadApi, machine: StateMachine, progress: ReplayProgress | None = None) -> MachineRecovery:
    """Make `machine` the state of the log: restore its newest good snapshot, then replay the records after it.

    The machine's earlier state is forgotten. `log` is open for writing or for reading, and may have been checkpointed
    by `walkit.checkpoint`, or by a Store if the machine takes the snapshots of one. A snapshot that is damaged, of
    another machine (`snapshot_format`), or of another log or history is passed over for an older one, or for the whole
    log, with the event `walkit.snapshot.skip`. `progress` as in `walkit.replay`, which this ends with: calling that
    later continues from here. Nothing is changed but the machine; if this raises, its state is undefined.

    Raises the SnapshotError (stage "format" for another machine's) or FormatVersionError of the newest snapshot if the
    log does not reach back to an older one; HistoryTrimmedError if the log was trimmed and has no snapshot from which
    it continues; CorruptionError if the log ends before the snapshot, or when damage is reached;
    OptionsError.
    """
    check_arguments(log, machine, progress)
    check_saved(machine)
    events = getattr(log, "events", None) or EventSink()
    for attempt in range(ATTEMPTS_MAX):
        seen = _Seen(*log._now())
        last = attempt + 1 == ATTEMPTS_MAX
        # A writer's checkpoint may remove a file being read, or make a snapshot that was not there yet.
        try:
            restored = _restore(seen, machine, events)
        except (CorruptionError, SnapshotError, FormatVersionError):
            if last or not seen.is_outdated(log):
                raise
            continue
        try:
            replayed = replay(log, machine, progress=progress)
        except (GapError, HistoryTrimmedError):
            if last or not seen.is_outdated(log):
                raise
            continue
        return MachineRecovery(snapshot=restored.info, refused=restored.refused, replay=replayed)
    raise AssertionError("the last attempt returns or raises")


class _Seen(NamedTuple):
    """The readable state of a log at one moment."""

    view: View
    newest_lsn: int

    def is_outdated(self, log: ReadApi) -> bool:
        view, newest = log._now()
        return (view.manifest.generation, newest) != (self.view.manifest.generation, self.newest_lsn)


def _restore(seen: _Seen, machine: StateMachine, events: EventSink) -> Restored:
    view = seen.view
    restored = restore_newest(
        view.storage, view.manifest, machine, events, first_lsn=view.first_lsn, last_lsn=seen.newest_lsn
    )
    if restored.info is None:
        machine.restore((), 0)
    return restored


def checkpoint(log: WriteAheadLog, machine: StateMachine, *, trim: bool = True) -> CheckpointReport:
    """Save the state of `machine` beside the log, and drop the log before it.

    Durable on return: the log up to the machine's `applied_lsn`, a snapshot there, the low watermark, then the trim, as
    of `Store.checkpoint`. Holds keep the log back; with `trim=False` nothing of it is dropped. `walkit.recover` starts
    with this snapshot. Older ones are removed, except the one before while the log still reaches back to it. The
    machine must not be fed during the call; other threads may append to the log. One checkpoint is taken at a time.

    SnapshotError: stage "format" if snapshots of another machine are beside the log, and nothing was written; else the
    stage that failed. OptionsError for a log that a Store keeps, and for a machine that is ahead of the log.
    LogClosedError, StorageError. The next checkpoint does the rest.
    """
    if not isinstance(log, WriteAheadLog):
        refuse("log", log, "a log that is open for writing")
    check_arguments(log, machine, None)
    check_saved(machine)
    log._refuse_closed()
    events = log.parts.events
    return run_uninterrupted(lambda: _checkpoint(log, machine, trim), "checkpoint", events=events)


def _checkpoint(log: WriteAheadLog, machine: StateMachine, trim: bool) -> CheckpointReport:
    trimmer = log.parts.trimmer
    with log.parts.events.held(), alone(STATE), trimmer.state_lock:
        if trimmer.state_lsn is not None:
            refuse("log", log, "a Store keeps its state: store.checkpoint() saves that")
        if machine.applied_lsn > log.acked_lsn:
            text = f"the log ends at {log.acked_lsn:,}, so this is not its state"
            refuse("machine", machine.applied_lsn, text, log.acked_lsn)
        follower = Follower(machine, machine.applied_lsn)
        checkpointer = checkpointer_on(log.parts, machine=machine, follower=follower, restored=None)
        try:
            return checkpointer.checkpoint_locked(trim)
        finally:
            checkpointer.detach()
