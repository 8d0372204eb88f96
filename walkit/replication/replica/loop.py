"""The loop of a replica: one thread that passes events to the subscriber core, and does the steps that follow.

It outlives the user's object until it is stopped: the `Replica` holds the loop, the thread holds only the loop. So a
replica that is dropped without stop() is collected, and its finaliser stops the loop.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress

from walkit._internal.threads import WakeEvent
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    FormatVersionError,
    LogFullError,
    LogPoisonedError,
    OptionsError,
    SnapshotError,
    StorageError,
    WalkitError,
)
from walkit.log.resources import report_dropped, run_for_dropped
from walkit.replication.core.absence import Absence
from walkit.replication.core.actions import (
    Adopt,
    Connect,
    Disconnect,
    Fail,
    Import,
    Keep,
    Prepare,
    Publish,
    SendToPublisher,
    StorePart,
    SubscriberStep,
)
from walkit.replication.core.states import report_moves
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.folder_role import REPLICA_KEY
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.logs.plan_check import gather_plan
from walkit.replication.protocol.failures import PeerError, ReplicaFailedError
from walkit.replication.protocol.frame_run import join_runs
from walkit.replication.protocol.messages import Batch
from walkit.replication.replica.identity_file import OwnIdentity, keep_identity
from walkit.replication.replica.opening import Opened, ReplicaOpening
from walkit.replication.replica.store import ReplicaStore
from walkit.replication.transport.connection import Connection, Destination, Received
from walkit.replication.transport.threads import LoopThread, now_ms
from walkit.storage.interface import BACK_PRESSURE

IMPORT_BYTES = 4 << 20
"""Frames that have come already share a synced write of about this size."""


class ReplicaLoop:
    """Follows one primary into a log and its store, on one thread once it is started.

    `start` and `stop` are safe from any thread; everything else is the loop's own thread's.
    """

    def __init__(self, opened: Opened, opening: ReplicaOpening, destination: Destination) -> None:
        self.opened = opened
        """The open log, store and subscriber; a rewind replaces all of them."""
        self.destination = destination
        self.rewound = WakeEvent()
        """Set at the end of a rewind, for those that wait meanwhile."""
        self._opening = opening
        self._fatal_error: WalkitError | None = None
        self.inbox: deque[tuple[Connection, Received, int]] = deque()
        self.thread = LoopThread(self._run)
        self.stopping = False
        self.process = os.getpid()
        self._wake = WakeEvent()
        self._connection: Connection | None = None
        self._queued: list[Import] = []
        self._queued_bytes = 0
        self.gathering = opened.log.gathering()
        self._replacing = self._reopened = self._is_kept = False
        """Whether the log is to be opened again, and whether it is open, but its state not made; and whether that is
        because its storage failed, and not because another log takes its place."""
        self._absence = Absence()
        self._refused_by: BaseException | None = None
        """With which error the storage failed last, until the log is open again."""

    @property
    def log(self) -> ImportedLog:
        """The log that is imported to now."""
        return self.opened.log

    @property
    def store(self) -> ReplicaStore:
        """Its store."""
        return self.opened.store

    @property
    def core(self) -> Subscriber:
        """The protocol core that follows into it."""
        return self.opened.core

    @property
    def error(self) -> WalkitError | None:
        """The error that ended replication; None while it runs, and while a rewind may fix it."""
        return self._fatal_error if self.is_rewinding or self._fatal_error is not None else self.core.error

    @property
    def is_rewinding(self) -> bool:
        """Whether the two histories are known to differ, and the log is being cut back to where they part."""
        if self._fatal_error is not None or not self.thread.running:
            return False
        return self._opening.needs_rewind(self.core.error, self.log)

    @property
    def is_absent(self) -> bool:
        """Whether the storage of this log is away, and not merely full."""
        error = self._refused_by
        return error is not None and not _is_full(error)

    def start(self) -> None:
        """Start the thread, the first time. RuntimeError if the system has no thread left; then try again."""
        self.thread.start(f"walkit-replica {self.core.name}")

    def stop(self) -> None:
        """End the thread, seal the log and free it. Stopping twice does nothing. No interrupt may reach the caller."""
        self.stopping = True
        self._wake.set()
        begun = self.thread.begun
        self.thread.join()
        if not begun:
            self.core.states.move("stopped", now_ms())
            self._report()
        self.log.close()
        self.store.wake()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, or never began, and the log is closed."""
        return self.log.closed and not self.thread.running

    # -- the loop's own thread

    def _run(self) -> None:
        """Follow until the replica is stopped or has failed. Any exception here ends in the state "failed"."""
        if self.stopping:
            return
        try:
            try:
                self._follow()
            except WalkitError as error:
                self._fatal_error = error
                self._perform(self.core.fail(error, now_ms()))
            finally:
                self._disconnect()
        except BaseException as error:  # noqa: BLE001 - nothing else tells the waiting callers that the thread is gone
            self._fail(error)
        if self.stopping:
            self.core.states.move("stopped", now_ms())
        if self.core.error is not None:
            if self.log.is_reopening:  # nothing opens it now
                self.log.close()
            self.store.wake()
        self._report()

    def _report(self) -> None:
        """Emit the edges that were taken."""
        if self.core.states.moves:
            self.store.wake()  # ends waits for the first contact
            report_moves(
                self.core.states, self.log.events, name=self.core.name, source=self.destination.address
            )

    def _follow(self) -> None:
        """Follow, and cut a diverged suffix off on request or if no record is in it."""
        self._follow_one()
        while self.is_rewinding and not self.stopping:
            self._rewind()
            self._follow_one()

    def _rewind(self) -> None:
        """Continue with the log cut back. A failure ends replication."""
        diverged = self.core.error
        assert isinstance(diverged, DivergenceError)
        self.core.states.move("rewinding", now_ms())
        self._report()
        self._disconnect()
        self.inbox.clear()
        refused: WalkitError | None = None
        try:
            self.opened, refused = self._opening.rewound(self.opened, diverged)
            self.log.watchers.notify()
        except BaseException as error:
            self._fatal_error = error if isinstance(error, WalkitError) else self._failure(error)
            raise
        finally:
            self._fatal_error = self._fatal_error or refused
            self.rewound.set()
            self.rewound = WakeEvent()
        if refused is not None:
            raise refused

    def _follow_one(self) -> None:
        self._perform(self.core.start(now_ms()))
        while not self.stopping and self.core.state != "failed":
            self._wake.clear()
            while self.inbox and not self.stopping:
                connection, what, size = self.inbox.popleft()
                connection.inbox_budget.release(size)
                self._perform(self._received(connection, what))
            self._import_queued()
            self._perform(self.core.tick(now_ms()))
            self._report()
            self._check()
            wake_at = self.core.wake_at_ms
            if not self.inbox and not self.stopping and wake_at is not None:
                self._wake.wait(max(wake_at - now_ms(), 0) / 1000)

    def _check(self) -> None:
        """Assert the invariants between two turns of the loop, on its thread: all gathered frames are imported."""
        assert not self._queued and not self._queued_bytes, "frames wait that nothing imports"
        assert self._replacing or not self._reopened
        assert (
            self._replacing
            or self._fatal_error is not None
            or self.core.end.position == self.log.end.position
        )

    def _fail(self, cause: BaseException) -> None:
        """Note an error that is not one of walkit's, unless an earlier one has ended replication."""
        if self.core.error is not None:
            return
        error = self._failure(cause)
        with suppress(Exception):  # the state and the error are set before its history is written
            self.core.fail(error, now_ms())

    def _failure(self, cause: BaseException) -> ReplicaFailedError:
        what = f"{type(cause).__name__}: {cause}".removesuffix(": ")
        error = ReplicaFailedError(
            f"the thread of the replica at {self.log.location} ended: {what}. The imported records stay",
            cause=what,
        )
        error.__cause__ = cause
        return error

    def _received(self, connection: Connection, what: Received) -> list[SubscriberStep]:
        if connection is not self._connection:
            return []  # of a connection that was given up
        if not isinstance(what, Batch):
            self._import_queued()
        if isinstance(what, str):
            return self.core.lost(what, now_ms())
        if isinstance(what, WalkitError):
            return self.core.refused(what.code, what, now_ms())
        if isinstance(what, BaseException):
            raise what
        return self.core.receive(what, now_ms())

    def _perform(self, steps: list[SubscriberStep]) -> None:
        for step in steps:
            if isinstance(step, SendToPublisher):
                if self._connection is not None:
                    self._connection.send(step.message)
            elif isinstance(step, Import):
                self._queue_import(step)
            elif isinstance(step, Connect):
                self._perform(self._connect())
            elif isinstance(step, Disconnect):
                self._disconnect()
            elif isinstance(step, Keep):
                if not self.log.keep_identity(step.identity.id.hex()):
                    keep_identity(self.log.storage, OwnIdentity(step.identity, self.core.name))
            elif isinstance(step, Adopt):
                welcome = step.welcome
                self.log.adopt(
                    welcome.log_id,
                    created_us=welcome.created_us,
                    ack_order=welcome.ack_order,
                    extra={REPLICA_KEY: {"name": self.core.name}},
                )
            elif isinstance(step, Prepare | StorePart | Publish):
                self._perform(self._bootstrap(step))
            else:
                assert isinstance(step, Fail)  # `_run` reports every end

    def _bootstrap(self, step: Prepare | StorePart | Publish) -> list[SubscriberStep]:
        """Gather another log, or replace this one by it. A failure is tried again, with a backoff."""
        gathering, core = self.gathering, self.core
        if core.state != "bootstrapping":
            return []  # a step before this one went wrong
        try:
            if isinstance(step, Prepare):
                self._import_queued()
                missing = gather_plan(gathering, step.plan, core.log_id, core.lineage)
                self._report_bootstrap("begin", sum(part.size - part.offset for part in missing))
                return core.prepared(missing, now_ms())
            if isinstance(step, StorePart):
                gathering.store(step.chunk.file, step.chunk.offset, step.chunk.data)
                return []
            gathering.finish()
            self._replace_log()
        except DivergenceError as error:
            return core.refused(error.code, error, now_ms())
        except (CorruptionError, FormatVersionError, SnapshotError, StorageError) as error:
            if self.log.closed:
                raise
            gathering.close()
            reason = "connection" if isinstance(error, StorageError) else "frames"
            return core.lost(f"{type(error).__name__}: {error}", now_ms(), reason)
        return core.published(self.log.end, self.log.manifest.lineage, now_ms())

    def _replace_log(self) -> None:
        """Open the log again, or another in its place. After a StorageError the next connection waits for it."""
        self._replacing = True
        if not self._reopened:
            self.log.reopen()
            self._reopened = True
        self.store.reload()
        if not self._is_kept:
            self._report_bootstrap("finish", 0)
        self._replacing = self._reopened = self._is_kept = False
        self._refused_by = None

    def _wait_for_storage(self, error: WalkitError, cause: BaseException) -> list[SubscriberStep]:
        """Have the next connection wait until the log can be opened again; raise a lasting error."""
        if not (_is_full(cause) or self._absence.covers(cause, now_ms())):
            raise error
        self._refused_by = cause
        return self.core.lost(f"{type(cause).__name__}: {cause}", now_ms())

    def _report_bootstrap(self, what: str, missing_bytes: int) -> None:
        about = {"name": self.core.name, "source": self.destination.address, "lsn": self.log.end.last_lsn}
        if what == "begin":
            self.log.events.emit("walkit.replica.bootstrap", **about, missing_bytes=missing_bytes)
        else:
            self.log.events.emit("walkit.replica.replace", **about)

    def _connect(self) -> list[SubscriberStep]:
        if self._replacing:  # for example on a full disk: the status shows it until there is room
            try:
                self._replace_log()
            except WalkitError as error:
                return self._wait_for_storage(error, error)
            self.core.replaced(self.log.end, self.log.manifest.lineage, now_ms())
        try:
            limit = self.core.frame_bytes_max
            self._connection = Connection(self.destination, limit, self.inbox, self._wake)
        except OptionsError as error:  # a certificate that is being replaced is whole a moment later
            return self.core.refused(error.code, error, now_ms())
        except PeerError as error:
            return self.core.lost(str(error), now_ms())
        return self.core.connected(now_ms())

    def _queue_import(self, step: Import) -> None:
        """Let frames that come quickly share one synced write."""
        if self._queued and not self._queued[-1].run.is_followed_by(step.run):
            self._import_queued()
        self._queued.append(step)
        self._queued_bytes += len(step.run.data)
        if self._queued_bytes >= IMPORT_BYTES:
            self._import_queued()

    def _import_queued(self) -> None:
        """Import the gathered frames, acknowledge them, then feed the store."""
        steps, self._queued, self._queued_bytes = self._queued, [], 0
        if steps:
            run = join_runs([step.run for step in steps])
            try:
                end = self.log.import_run(run, steps[-1].lineage)
            except (StorageError, LogFullError, LogPoisonedError) as error:
                self._replacing = self._is_kept = True  # the failed write has poisoned the log
                self._perform(self._wait_for_storage(error, self.log.failure or error))
                return
            self._perform(self.core.imported(end, now_ms()))
            self.store.feed(run)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _is_full(error: BaseException) -> bool:
    return isinstance(error, LogFullError) or (
        isinstance(error, StorageError) and error.errno in BACK_PRESSURE
    )


def stop_dropped(loop: ReplicaLoop) -> None:
    """Stop the loop of a replica whose object is gone. The collector may call this on any thread."""
    if loop.is_over or loop.process != os.getpid():  # a forked child has neither the thread nor the lock
        return
    location = loop.log.location
    run_for_dropped(lambda: _stop_quietly(loop))
    report_dropped(f"the replica at {location}", loop.log.events, location, ending="stop")


def _stop_quietly(loop: ReplicaLoop) -> None:
    try:
        loop.stop()
    except WalkitError as error:
        loop.log.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=loop.log.durable_lsn)
