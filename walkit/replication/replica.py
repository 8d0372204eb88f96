"""Following a primary over gRPC: the shell around one subscriber core, with the replica's own log and store."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from walkit.commit.interrupts import uninterrupted
from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions
from walkit.errors import LogClosedError, OptionsError, WalkitError
from walkit.events import EventCallback, EventSink
from walkit.log.imported import ImportedLog
from walkit.log.opening import Place, storage_at
from walkit.log.run import join_runs
from walkit.replication.address import parse_address
from walkit.replication.backoff import Backoff
from walkit.replication.connection import Connection, Heard
from walkit.replication.failures import ReplicaFailedError
from walkit.replication.messages import (
    NAME_CHARS_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    Batch,
    is_name,
)
from walkit.replication.replicastore import ReplicaStore
from walkit.replication.status import ReplicaStatus, replica_status
from walkit.replication.steps import Adopt, Connect, Disconnect, Fail, Import, Say, SubscriberStep
from walkit.replication.subscriber import Subscriber
from walkit.replication.transport import (
    check_token,
    refuse_tls,
)
from walkit.threads import Bell, EndingThread

EXTRA_KEY = "replica"
GATHER_BYTES = 1 << 20
"""Frames that have come already share a synced write of about this size."""
FRAME_BYTES_TAKEN = 64 << 20
"""The largest frame that any replica takes; `frame_bytes_max` of its options may say more."""


class Replica:
    """Follows a primary into a log and a store of its own. A context manager. Safe from any thread.

    Opening takes the writer's lock of `dir` and recovers what is there; `start` begins to follow, and goes on through
    every restart of either side from where the replica stands. `codec` compresses frames on their way ("zstd", or
    None); what is stored is the same. Under `name` (1 to 128 printable characters) the primary holds records back for
    this replica; it is kept. A frame of more than 64 MiB is taken where `frame_bytes_max` of `options` is as large.

    Raises what opening a log raises; OptionsError for `tls` (not there yet).
    """

    def __init__(
        self,
        dir: Place,  # noqa: A002 - the public name
        source: str,
        codec: str | None = "zstd",
        *,
        tls: Any = None,
        token: str | None = None,
        name: str | None = None,
        options: LogOptions | None = None,
        events: EventCallback | None = None,
        versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        backoff: Backoff | None = None,
    ) -> None:
        refuse_tls(tls)
        if codec not in (None, "zstd"):
            raise OptionsError(f"codec={codec!r}: it is None or 'zstd'", option="codec", wanted=codec)
        self._address, self._token = str(parse_address(source, "source")), check_token(token)
        if name is not None:
            _check_name(name)
        frame_bytes_max = 0 if options is None else options.frame_bytes_max
        self._frame_bytes_max = max(frame_bytes_max, FRAME_BYTES_TAKEN)
        storage, sink = storage_at(dir), EventSink(events)

        def opened() -> tuple[ImportedLog, ReplicaStore]:
            log = ImportedLog(storage, options, sink)
            try:
                return log, ReplicaStore(log)
            except BaseException:
                log.close()
                raise

        self._log, self._store = run_to_end(opened, "open", events=sink, undo=lambda both: both[0].close())
        manifest = self._log.manifest
        stored = manifest.extra.get(EXTRA_KEY, {}).get("name")
        self.name = name or stored or _name_of(self._log.location)
        self._core = Subscriber(
            self.name,
            log_id=manifest.log_id,
            lineage=manifest.lineage,
            end=self._log.end,
            codecs=() if codec is None else (codec,),
            versions=versions,
            backoff=backoff,
            frame_bytes_max=self._frame_bytes_max,
        )
        self._inbox: deque[tuple[Connection, Heard, int]] = deque()
        self._wake = Bell()
        self._connection: Connection | None = None
        self._thread: EndingThread | None = None
        self._stopping = False
        self._waiting: list[Import] = []
        self._waiting_bytes = 0

    # -- what people call

    def start(self) -> Self:
        """Begin to follow; returns this replica. Starting again does nothing; LogClosedError once it was stopped."""
        if self._stopping:
            raise LogClosedError(f"the replica at {self._log.location} was stopped; make a new one")
        if self._thread is None:
            thread = EndingThread(target=self._run, name=f"walkit-replica {self.name}", daemon=True)
            with uninterrupted():
                thread.start()
                self._thread = thread
        return self

    def wait_for(self, lsn: int, timeout: float | None = None) -> int:
        """Wait until this LSN is on the replica's stable storage and in its store; return the replica's LSN.

        TimeoutError after `timeout` seconds; the error that ended replication, where it has failed; LogClosedError once
        the replica is stopped.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._store.applied_lsn < lsn:
            if self._core.error is not None:
                raise self._core.error
            if self._log.closed or (self._thread is not None and not self._thread.is_alive()):
                raise LogClosedError(f"the replica at {self._log.location} is stopped")
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"LSN {lsn:,} did not come in time: {self.status().line()}")
            self._store.wait_for(lsn, min(left, 1.0), lambda: self._core.error is not None)
        return self._log.durable_lsn

    def status(self) -> ReplicaStatus:
        """Return how the replica stands now."""
        return replica_status(
            self._core,
            self._log.end,
            source=self._address,
            applied_lsn=self._store.applied_lsn,
            life="stopped" if self._log.closed else "new" if self._thread is None else "",
            waiting=bool(self._inbox),
            now_ms=_now_ms(),
        )

    @property
    def error(self) -> WalkitError | None:
        """What ended replication for good; None while it goes on. `wait_for` raises it."""
        return self._core.error

    @property
    def log(self) -> ImportedLog:
        """The replica's log: read it like any other. Empty until the first contact."""
        return self._log

    @property
    def store(self) -> ReplicaStore:
        """The keyed table that the imported records come to."""
        return self._store

    def stop(self) -> None:
        """Stop following, seal the log and free it. Stopping twice does nothing; an interrupt does not end it."""
        run_to_end(self._stop, "stop", events=self._log.events)

    def _stop(self) -> None:
        self._stopping = True
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._log.close()
        self._store.wake()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        status = self.status()
        return f"<Replica {self.name} of {self._address}: {status.state} at LSN {status.lsn}>"

    def _repr_html_(self) -> str:
        return self.status()._repr_html_()

    # -- the replica's own thread

    def _run(self) -> None:
        """Follow until the replica is stopped or has failed. Whatever is raised here ends in the state "failed"."""
        try:
            try:
                self._follow()
            except WalkitError as error:
                self._take(self._core.fail(error, _now_ms()))
            finally:
                self._hang_up()
        except BaseException as error:  # noqa: BLE001 - nothing else tells those who wait that the thread is gone
            self._give_up(error)
        if self._core.error is not None:
            self._store.wake()
            self._log.events.emit(
                "walkit.replica.fail", name=self.name, source=self._address, error=str(self._core.error)
            )

    def _follow(self) -> None:
        self._take(self._core.start(_now_ms()))
        while not self._stopping and self._core.state != "failed":
            self._wake.clear()
            while self._inbox and not self._stopping:
                connection, what, size = self._inbox.popleft()
                connection.room.give(size)
                self._take(self._heard(connection, what))
            self._import_waiting()
            self._take(self._core.tick(_now_ms()))
            wake_at = self._core.wake_at_ms
            if not self._inbox and not self._stopping and wake_at is not None:
                self._wake.wait(max(wake_at - _now_ms(), 0) / 1000)

    def _give_up(self, cause: BaseException) -> None:
        """Note an error that is not one of walkit's, unless an earlier one has ended replication."""
        if self._core.error is not None:
            return
        what = f"{type(cause).__name__}: {cause}".removesuffix(": ")
        error = ReplicaFailedError(
            f"the thread of the replica at {self._log.location} ended: {what}. What it has imported stays",
            cause=what,
        )
        error.__cause__ = cause
        with suppress(Exception):  # the state and the error are set before its history is written
            self._core.fail(error, _now_ms())

    def _heard(self, connection: Connection, what: Heard) -> list[SubscriberStep]:
        if connection is not self._connection:
            return []  # of a connection that was given up
        if not isinstance(what, Batch):
            self._import_waiting()
        if isinstance(what, str):
            return self._core.lost(what, _now_ms())
        if isinstance(what, WalkitError):
            return self._core.refused(what.code, what, _now_ms())
        if isinstance(what, BaseException):
            raise what
        return self._core.receive(what, _now_ms())

    def _take(self, steps: list[SubscriberStep]) -> None:
        for step in steps:
            if isinstance(step, Say):
                if self._connection is not None:
                    self._connection.send(step.message)
            elif isinstance(step, Import):
                self._gather(step)
            elif isinstance(step, Connect):
                self._connection = Connection(
                    self._address, self._token, self._frame_bytes_max, self._inbox, self._wake
                )
                self._take(self._core.connected(_now_ms()))
            elif isinstance(step, Disconnect):
                self._hang_up()
            elif isinstance(step, Adopt):
                welcome = step.welcome
                self._log.adopt(
                    welcome.log_id,
                    created_us=welcome.created_us,
                    ack_order=welcome.ack_order,
                    extra={EXTRA_KEY: {"name": self.name}},
                )
            else:
                assert isinstance(step, Fail)  # `_run` tells it, whatever has ended it

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
            end = self._log.import_run(run, steps[-1].lineage)
            self._take(self._core.imported(end, _now_ms()))
            self._store.feed(run)

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _now_ms() -> float:
    return time.monotonic() * 1000


def _check_name(name: object) -> None:
    if not is_name(name):
        raise OptionsError(
            f"name={name!r}: 1 to {NAME_CHARS_MAX} printable characters, which stand in the primary's manifest",
            option="name",
            wanted=name,
        )


def _name_of(location: str) -> str:
    """Return a name that no other replica has, after the folder where that can be said."""
    folder = "".join(c for c in os.path.basename(location.rstrip("/")) if c.isprintable())
    return f"{folder[: NAME_CHARS_MAX // 2] or 'replica'}-{secrets.token_hex(4)}"
