"""Following a log by delta poll: the public class, around the loop that polls, reads and applies."""

from __future__ import annotations

import secrets
import time
import weakref
from contextlib import suppress
from types import TracebackType
from typing import Self

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import as_lsn, check_kind, check_number, check_whole, refuse
from walkit._main_thread import run_uninterrupted
from walkit.errors import GapError, HistoryTrimmedError, LogClosedError, WaitTimeoutError, WalkitError
from walkit.events import EventCallback, EventSink
from walkit.log.resources import report_dropped, run_for_dropped, watch_exit
from walkit.log.validate import as_bytes
from walkit.metrics import DeltaReaderStatistics
from walkit.read.claim import LEASE_S_DEFAULT, lease_us_of
from walkit.read.kept_claim import KeptClaim
from walkit.record import AppendResult, Kind, Record
from walkit.replication.core.backoff import Backoff
from walkit.replication.delta.checkpoint import DeltaCheckpoint, refuse_gone, refuse_short, restored_state
from walkit.replication.delta.loader import RangeLoader, Reached
from walkit.replication.delta.maintenance import CLAIM_S, ReaderMaintenance
from walkit.replication.delta.messages import DELTA_VERSION_MAX, DeltaEnd
from walkit.replication.delta.poll_client import DeltaPoller
from walkit.replication.delta.reader_loop import DeltaLoop
from walkit.replication.delta.replayer import DeltaReplayer, ReplayLimits
from walkit.replication.delta.state import ReaderState
from walkit.replication.delta.status import DeltaReaderStatus
from walkit.replication.logs.awaited import Awaited
from walkit.replication.logs.source import shared_log
from walkit.replication.transport.connection import destination_of
from walkit.replication.transport.tls import ClientTLS
from walkit.storage.address import AnyPlace, Place

CHECKPOINT_S, LEASE_S_BARE, SECONDS_MAX = 30.0, 60.0, 86_400.0


class DeltaReader:
    """Follows a log whose storage it shares: a keyed state in memory, at most a poll older than the log.

    `storage` is the log's place, as for `walkit.open`, or an object store; `source` is the address of a primary of
    it, in the process that writes it or in another one (`walkit serve`). A context manager, like `Replica`: `start`
    begins to follow. It asks the primary how far the log is durable; frames that come along are applied, and all
    others are read from the log. If no poll is answered, it looks at the log itself, so it continues, and lags more.

    What it has not applied is kept by a claim (named `claim`, for `lease_s` seconds each time), as far as the log's
    folder can be written. By default the lease is an hour with `checkpoint`, and a minute without it: a killed reader
    then has nothing to continue from, and its claim must not use up the log's.

    With `checkpoint`, a folder of this reader alone, the state is saved there every
    `checkpoint_s` seconds and at `stop`; a reader that starts again with that folder continues from it, or from the
    log's newest snapshot if the records after it are gone.

    The values of links stay in their payload log until they are used, also after `stop`. It is found by the log's
    manifest, or first at `payload_log`; a value that cannot be had raises PayloadUnreachableError or PayloadGoneError.

    If the log's storage goes away, the reader waits for it, with pauses of up to 30 seconds: its state is "absent". Any
    other error ends the reader: `error` has it, and `wait_for` raises it. Nothing is ever passed over. The state is in
    memory as a whole; what waits to be applied is bounded by `limits`. Safe from any thread.

    LogNotFoundError; OptionsError for a log of durability "none", and for files of `tls` that cannot be used;
    LogLockedError if another reader has the checkpoint's folder; DivergenceError if it belongs to another log, or to a
    history that was cut; ClaimError; HistoryTrimmedError if the log has no snapshot from which it continues.
    """

    def __init__(
        self,
        storage: AnyPlace,
        source: str,
        *,
        checkpoint: Place | None = None,
        checkpoint_s: float = CHECKPOINT_S,
        claim: str | None = None,
        lease_s: float | None = None,
        tls: ClientTLS | None = None,
        token: str | None = None,
        limits: ReplayLimits | None = None,
        interval_ms: float = 1.0,
        version: int = DELTA_VERSION_MAX,
        backoff: Backoff | None = None,
        events: EventCallback | None = None,
        insecure: bool = False,
        payload_log: AnyPlace | None = None,
    ) -> None:
        destination = destination_of(source, token, tls, insecure)
        check_whole(version, "version", 0, DELTA_VERSION_MAX)
        check_number(checkpoint_s, "checkpoint_s", 0, SECONDS_MAX)
        check_number(interval_ms, "interval_ms", 0, SECONDS_MAX)
        check_kind(limits, ReplayLimits, "limits")
        default_s = LEASE_S_BARE if checkpoint is None else LEASE_S_DEFAULT
        lasts_s = default_s if lease_s is None else lease_s
        lease_us_of(lasts_s)  # a wrong one is refused before a folder is made
        self._log, self._events = shared_log(storage), EventSink(events)
        self._name = claim or f"delta-{secrets.token_hex(4)}"
        self._limits = limits or ReplayLimits()
        self._log_id = self._log.manifest().log_id
        self._values = self._log.reader(self._events, payload_log)
        self._state = ReaderState(self._values)

        def new_poller() -> DeltaPoller:
            return DeltaPoller(version=version, interval_ms=interval_ms, backoff=backoff)

        def opened() -> DeltaLoop:
            saved, kept, saved_lsn = self._begin(checkpoint, lasts_s)
            reached = self._state.reached
            loop = DeltaLoop(
                name=self._name,
                destination=destination,
                loader=RangeLoader(self._log, self._log_id, stop_at_bytes=2 * self._limits.load_bytes),
                source=self._log,
                replayer=DeltaReplayer(
                    DeltaEnd(reached.lsn, self._position_of(reached.lsn)),
                    log_id=self._log_id,
                    limits=self._limits,
                ),
                new_poller=new_poller,
                state=self._state,
                log_id=self._log_id,
                events=self._events,
            )
            loop.maintenance = ReaderMaintenance(
                self._log,
                self._state,
                kept,
                saved,
                every_s=checkpoint_s,
                saved_lsn=saved_lsn,
                fail=loop.fail,
            )
            return loop

        self._loop = run_uninterrupted(opened, "open", events=self._events, undo=lambda loop: loop.stop())
        self._checkpointed = checkpoint is not None
        self._finalizer = weakref.finalize(self, _stop_dropped, self._loop)
        watch_exit()

    # -- public calls

    def start(self) -> Self:
        """Begin to follow; returns this reader. Starting again does nothing; LogClosedError once it was stopped."""
        self._refuse_child()
        if self._loop.stopping:
            raise LogClosedError(f"the delta reader of {self._log.location} was stopped; make a new one")
        self._loop.start()
        return self

    @property
    def state(self) -> ReaderState:
        """The keys and values as of `applied_lsn`; a Mapping, readable also after `stop`."""
        return self._state

    @property
    def applied_lsn(self) -> int:
        """LSN up to which the state has every record of the log."""
        return self._state.applied_lsn

    @property
    def error(self) -> WalkitError | None:
        """The error that ended the reader; None while it runs. `wait_for` raises it."""
        return self._loop.error

    def wait_for(self, result_or_lsn: AppendResult | int, timeout: float | None = None) -> int:
        """Wait until a record is applied; return the LSN that is.

        The result of an append names one record for good. A bare LSN counts only after this reader has compared its
        state with the log: by an answer of the primary, or without one by a look at the log itself.

        WaitTimeoutError after `timeout` seconds; DivergenceError if the log does not have the record of the result; the
        error that ended the reader, if it has failed; LogClosedError once it is stopped.
        """
        loop, wanted = self._loop, Awaited.of(result_or_lsn)
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has(wanted):
            self._refuse_child()
            if loop.error is not None:
                raise loop.error
            if loop.stopping:
                raise LogClosedError(f"the delta reader of {self._log.location} is stopped")
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                unstarted = "" if loop.thread.begun else "start() was not called: "
                raise WaitTimeoutError(
                    f"LSN {wanted.lsn:,} did not come in time: {unstarted}{self.status().line()}"
                )
            self._state.wait_until(
                lambda: loop.is_ended or (loop.in_contact and self.applied_lsn >= wanted.lsn), min(left, 1.0)
            )
        return self.applied_lsn

    def _has(self, wanted: Awaited) -> bool:
        """Return whether a record is applied; DivergenceError if the log does not have it."""
        in_contact, applied, epoch_id = self._loop.in_contact, self.applied_lsn, self._state.reached.epoch_id
        # An epoch gives an LSN once, so an applied LSN of it proves the record. On an object store the manifest costs
        # requests, and a record that came with a poll must cost none.
        if not wanted.epoch_id or (in_contact and wanted.epoch_id == epoch_id):
            return in_contact and applied >= wanted.lsn
        return wanted.is_applied(applied, self._log.manifest(), in_contact=in_contact)

    def records_of(self, key: bytes, first_lsn: int) -> list[Record]:
        """Return the records of one key from `first_lsn` to `applied_lsn`, deletes included, the oldest first.

        The shared log is read from `first_lsn` on, in the time that its records take: GapError if it no longer has
        them, HistoryTrimmedError if compaction left only the newest of them, DivergenceError, StorageError;
        LogClosedError once the reader is stopped.
        """
        key, first_lsn = as_bytes(key, "key"), as_lsn(first_lsn, "first_lsn")
        self._refuse_child()
        loop, reached = self._loop, self._state.reached
        if loop.stopping:
            raise LogClosedError(f"the delta reader of {self._log.location} is stopped")
        known = loop.replayer.known
        found = [r for r in loop.loader.records(first_lsn, reached.lsn, known, reached) if r.key == key]
        return [self._values.payloads.record(r) if r.kind is Kind.LINK else r for r in found]

    def checkpoint(self) -> int:
        """Take a checkpoint now; return the LSN of the newest one.

        OptionsError if the reader has no folder for it, LogClosedError once it is stopped; SnapshotError; the error
        that ended the reader, if the state has a part of a range.
        """
        maintenance = self._loop.maintenance
        if maintenance is None or not self._checkpointed:
            refuse("checkpoint", None, "this reader has no folder for checkpoints")
        self._refuse_child()
        if self._loop.stopping:
            raise LogClosedError(f"the delta reader of {self._log.location} is stopped")
        if self._loop.error is not None and not self._state.is_whole:
            raise self._loop.error
        return run_uninterrupted(maintenance.save, "checkpoint", events=self._events)

    def status(self) -> DeltaReaderStatus:
        """Return the reader's state now."""
        loop, statistics = self._loop, self.statistics()
        at = loop.replayer.applied  # before the known end, which is never before it
        end = loop.replayer.known
        applied, known = self.applied_lsn, max(end.lsn, self.applied_lsn)
        maintenance, in_touch = loop.maintenance, loop.is_in_touch
        # Two ends of one record may have frames without records between them.
        lag_bytes = max(end.position - at.position, 0) if known > applied else 0
        return DeltaReaderStatus(
            state=self._life(),
            location=self._log.location,
            source=self._loop.destination.address,
            applied_lsn=applied,
            known_lsn=known,
            lag_records=known - applied if in_touch else None,
            lag_bytes=lag_bytes if in_touch else None,
            hit_rate=statistics.hit_rate,
            delta_bytes=statistics.delta_bytes,
            loaded_bytes=statistics.loaded_bytes,
            claim="none" if maintenance is None else maintenance.claim.line(),
            checkpoint_lsn=0 if maintenance is None else maintenance.saved_lsn,
            trouble=loop.trouble or ("" if maintenance is None else maintenance.trouble),
            error=None if loop.error is None else str(loop.error),
            statistics=statistics,
        )

    def statistics(self) -> DeltaReaderStatistics:
        """Return the records and bytes that this reader has received since it was made, by path."""
        loop, counts = self._loop, self._loop.replayer.counts
        return DeltaReaderStatistics(
            polls=loop.polls,
            poll_failures=loop.failures,
            refusals=loop.refusals,
            sessions=loop.sessions,
            deltas=counts.deltas,
            delta_bytes=counts.delta_bytes,
            loads=counts.loads,
            loaded_bytes=counts.loaded_bytes,
            retries=counts.retries,
            damaged=counts.damaged,
            unfit=counts.unfit,
            looks=loop.looks,
            held_bytes=loop.replayer.held_bytes,
            records=loop.records,
            checkpoints=0 if loop.maintenance is None else loop.maintenance.checkpoints,
        )

    def latencies(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return the newest latencies, ns, oldest first, by the names of `walkit.replication.LATENCIES`."""
        return self._loop.figures.latencies()

    def stop(self) -> None:
        """Stop following, take the last checkpoint, and give the claim up; with checkpoints it is left to its lease.

        Stopping twice does nothing, nor does stopping in a forked child; an interrupt does not end it. A thread of
        the reader that hangs in a storage is waited for half a minute.
        """
        run_uninterrupted(self._loop.stop, "stop", events=self._events)
        if self._loop.is_over:
            self._finalizer.detach()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<DeltaReader of {self._log.location}: {self._life()} at LSN {self.applied_lsn}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    def _life(self) -> str:
        loop = self._loop
        if loop.error is not None:
            return "failed"
        if loop.stopping:
            return "stopped"
        if not loop.thread.begun:
            return "new"
        if loop.is_absent:
            return "absent"
        if loop.is_answered:
            return "following"
        return "reading the log" if loop.is_in_touch else "connecting"

    def _refuse_child(self) -> None:
        if self._loop.is_foreign:
            raise LogClosedError(
                f"the delta reader of {self._log.location} is the parent process's; make one of this process's own"
            )

    # -- the beginning

    def _begin(
        self, checkpoint: Place | None, lease_s: float
    ) -> tuple[DeltaCheckpoint | None, KeptClaim, int]:
        """Take checkpoint folder and claim, and restore the state: from there, or from the log's own snapshot."""
        saved = None if checkpoint is None else DeltaCheckpoint(checkpoint, self._log_id, self._events)
        if saved is not None and self._name.startswith("delta-"):
            self._name = f"delta-{saved.owner.hex[:8]}"
        owner = saved.owner if saved else None
        kept = KeptClaim(self._log.storage, self._name, lease_s, owner, move_s=CLAIM_S)
        gone: GapError | None = None
        try:
            table, manifest = self._state.table, self._log.manifest()
            info = None if saved is None else saved.restore(manifest, table, self._events)
            if info is not None:
                refuse_short(self._log, info.lsn)
                try:
                    kept.take(info.lsn + 1)
                    refuse_gone(self._log, info.lsn)
                    self._state.begin(Reached(info.lsn, info.epoch_id))
                    return saved, kept, info.lsn
                except GapError as error:  # its claim ran out; the log's snapshot may have them
                    gone = error
                    self._events.emit("walkit.snapshot.skip", lsn=info.lsn, error=str(error))
            kept.take(None)
            try:
                self._state.begin(restored_state(self._log, self._state, self._events))
            except HistoryTrimmedError as error:
                raise gone or error from error
            return saved, kept, 0
        except BaseException:
            kept.release()
            if saved is not None:
                saved.close()
            raise

    def _position_of(self, lsn: int) -> int:
        """Return about where a record ends, to estimate the bytes to read."""
        with suppress(WalkitError):
            view = self._log.view()
            wanted = max(lsn, view.first_lsn)
            for header, _, _ in view.frames(wanted, wanted, body=False):
                return header.end_position if wanted == lsn else header.position
            return view.manifest.end.position
        return 0


def _stop_dropped(loop: DeltaLoop) -> None:
    """Stop the loop of a reader whose object is gone. The collector may call this on any thread."""
    if loop.is_over or loop.is_foreign:
        return
    run_for_dropped(lambda: _stop_quietly(loop))
    report_dropped(f"the delta reader {loop.name}", loop.events, loop.name, ending="stop")


def _stop_quietly(loop: DeltaLoop) -> None:
    with suppress(WalkitError):
        loop.stop()
