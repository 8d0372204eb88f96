"""The loop of a replica: one thread that passes what comes to the subscriber core, and does the steps that follow.

It outlives the user's object until it is stopped: the `Replica` holds the loop, the thread holds only the loop. So a
replica that is dropped without stop() is collected, and its finaliser stops the loop.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress

from walkit._interrupts import uninterrupted
from walkit._threads import Bell, LogThread
from walkit.errors import OptionsError, WalkitError
from walkit.log.finalizer import run_for_dropped, tell_dropped
from walkit.replication.actions import Adopt, Connect, Disconnect, Fail, Import, Keep, Say, SubscriberStep
from walkit.replication.connection import Connection, Destination, Heard
from walkit.replication.failures import ReplicaFailedError
from walkit.replication.frame_batch import join_runs
from walkit.replication.identity_file import OwnIdentity, keep_identity
from walkit.replication.imported_log import ImportedLog
from walkit.replication.messages import Batch
from walkit.replication.replicastore import ReplicaStore
from walkit.replication.subscriber import Subscriber

EXTRA_KEY = "replica"
GATHER_BYTES = 1 << 20
"""Frames that have come already share a synced write of about this size."""


class ReplicaLoop:
    """Follows one primary into a log and its store, on one thread once it is started.

    `start` and `stop` are safe from any thread; everything else is the loop's own thread's.
    """

    def __init__(
        self, log: ImportedLog, store: ReplicaStore, core: Subscriber, destination: Destination
    ) -> None:
        self.log, self.store, self.core, self.destination = log, store, core, destination
        self.inbox: deque[tuple[Connection, Heard, int]] = deque()
        self.thread: LogThread | None = None
        self.stopping = False
        self.process = os.getpid()
        self._unstarted = deque([True])
        self._wake = Bell()
        self._connection: Connection | None = None
        self._waiting: list[Import] = []
        self._waiting_bytes = 0

    def start(self) -> None:
        """Start the thread, the first time. RuntimeError where the system has none to give; then try again."""
        with uninterrupted():
            try:
                self._unstarted.pop()  # of two callers at once one starts it; a lock might be the caller's own already
            except IndexError:
                return
            thread = LogThread(target=self._run, name=f"walkit-replica {self.core.name}", daemon=True)
            self.thread = thread  # first: a concurrent stop waits for it
            try:
                thread.start()
            except RuntimeError:
                self.thread = None
                self._unstarted.append(True)
                raise

    def stop(self) -> None:
        """End the thread, seal the log and free it. Stopping twice does nothing. No interrupt may reach the caller."""
        self.stopping = True
        self._wake.set()
        thread = self.thread
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join()  # one that has no ident yet sees first that it is to stop
        self.log.close()
        self.store.wake()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended, or never began, and the log is closed."""
        return self.log.closed and (self.thread is None or self.thread.ended)

    # -- the loop's own thread

    def _run(self) -> None:
        """Follow until the replica is stopped or has failed. Any exception here ends in the state "failed"."""
        if self.stopping:
            return
        try:
            try:
                self._follow()
            except WalkitError as error:
                self._take(self.core.fail(error, now_ms()))
            finally:
                self._hang_up()
        except BaseException as error:  # noqa: BLE001 - nothing else tells the waiting callers that the thread is gone
            self._give_up(error)
        if self.core.error is not None:
            self.store.wake()
            self.log.events.emit(
                "walkit.replica.fail",
                name=self.core.name,
                source=self.destination.address,
                error=str(self.core.error),
            )

    def _follow(self) -> None:
        self._take(self.core.start(now_ms()))
        while not self.stopping and self.core.state != "failed":
            self._wake.clear()
            while self.inbox and not self.stopping:
                connection, what, size = self.inbox.popleft()
                connection.room.give(size)
                self._take(self._heard(connection, what))
            self._import_waiting()
            self._take(self.core.tick(now_ms()))
            wake_at = self.core.wake_at_ms
            if not self.inbox and not self.stopping and wake_at is not None:
                self._wake.wait(max(wake_at - now_ms(), 0) / 1000)

    def _give_up(self, cause: BaseException) -> None:
        """Note an error that is not one of walkit's, unless an earlier one has ended replication."""
        if self.core.error is not None:
            return
        what = f"{type(cause).__name__}: {cause}".removesuffix(": ")
        error = ReplicaFailedError(
            f"the thread of the replica at {self.log.location} ended: {what}. What it has imported stays",
            cause=what,
        )
        error.__cause__ = cause
        with suppress(Exception):  # the state and the error are set before its history is written
            self.core.fail(error, now_ms())

    def _heard(self, connection: Connection, what: Heard) -> list[SubscriberStep]:
        if connection is not self._connection:
            return []  # of a connection that was given up
        if not isinstance(what, Batch):
            self._import_waiting()
        if isinstance(what, str):
            return self.core.lost(what, now_ms())
        if isinstance(what, WalkitError):
            return self.core.refused(what.code, what, now_ms())
        if isinstance(what, BaseException):
            raise what
        return self.core.receive(what, now_ms())

    def _take(self, steps: list[SubscriberStep]) -> None:
        for step in steps:
            if isinstance(step, Say):
                if self._connection is not None:
                    self._connection.send(step.message)
            elif isinstance(step, Import):
                self._gather(step)
            elif isinstance(step, Connect):
                self._take(self._connect())
            elif isinstance(step, Disconnect):
                self._hang_up()
            elif isinstance(step, Keep):
                keep_identity(self.log.storage, OwnIdentity(step.identity, self.core.name))
            elif isinstance(step, Adopt):
                welcome = step.welcome
                self.log.adopt(
                    welcome.log_id,
                    created_us=welcome.created_us,
                    ack_order=welcome.ack_order,
                    extra={EXTRA_KEY: {"name": self.core.name}},
                )
            else:
                assert isinstance(step, Fail)  # `_run` reports every end

    def _connect(self) -> list[SubscriberStep]:
        try:
            limit = self.core.frame_bytes_max
            self._connection = Connection(self.destination, limit, self.inbox, self._wake)
        except OptionsError as error:  # a certificate that is being replaced is whole a moment later
            return self.core.refused(error.code, error, now_ms())
        return self.core.connected(now_ms())

    def _gather(self, step: Import) -> None:
        """Let frames that come quickly share one synced write."""
        if self._waiting and not self._waiting[-1].run.is_followed_by(step.run):
            self._import_waiting()
        self._waiting.append(step)
        self._waiting_bytes += len(step.run.data)
        if self._waiting_bytes >= GATHER_BYTES:
            self._import_waiting()

    def _import_waiting(self) -> None:
        """Put what was gathered into the log, acknowledge it, then feed the store."""
        steps, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if steps:
            run = join_runs([step.run for step in steps])
            end = self.log.import_run(run, steps[-1].lineage)
            self._take(self.core.imported(end, now_ms()))
            self.store.feed(run)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def stop_dropped(loop: ReplicaLoop) -> None:
    """Stop the loop of a replica whose object is gone. The collector may call this on any thread."""
    if loop.is_over or loop.process != os.getpid():  # a forked child has neither the thread nor the lock
        return
    location = loop.log.location
    run_for_dropped(lambda: _stop_quietly(loop))
    tell_dropped(f"the replica at {location}", loop.log.events, location, ending="stop")


def _stop_quietly(loop: ReplicaLoop) -> None:
    try:
        loop.stop()
    except WalkitError as error:
        loop.log.events.emit("walkit.log.poison", cause=repr(error), acked_lsn=loop.log.durable_lsn)


def now_ms() -> float:
    """Return the milliseconds of the monotonic clock."""
    return time.monotonic() * 1000
