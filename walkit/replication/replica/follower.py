"""Following a primary over gRPC: the public class, around the loop that works on the replica's own log and store."""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self, cast

from walkit._internal.arguments import check_bool, check_choice, check_kind, refuse
from walkit._main_thread import run_uninterrupted
from walkit.config import LogOptions
from walkit.errors import DivergenceError, LogClosedError, WaitTimeoutError, WalkitError
from walkit.events import EventCallback, EventSink
from walkit.log.resources import watch_exit
from walkit.metrics import TrafficStatistics
from walkit.objects.entrance import object_store_of
from walkit.record import AppendResult
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.logs.awaited import Awaited
from walkit.replication.logs.imported_log import ImportedLog
from walkit.replication.protocol.codecs import CODECS
from walkit.replication.protocol.messages import NAME_CHARS_MAX, PROTOCOL_MAX, PROTOCOL_MIN, is_name
from walkit.replication.replica.identity_file import load_identity
from walkit.replication.replica.loop import ReplicaLoop, stop_dropped
from walkit.replication.replica.opening import Opened, ReplicaOpening
from walkit.replication.replica.status import ReplicaStatus, replica_status
from walkit.replication.replica.store import ReplicaStore
from walkit.replication.transport.connection import destination_of
from walkit.replication.transport.threads import now_ms
from walkit.replication.transport.tls import ClientTLS
from walkit.state.checkpoint import CheckpointReport
from walkit.storage.address import AnyPlace, Place, storage_at


class Replica:
    """Follows a primary into a log and a store that it owns. A context manager. Safe from any thread.

    Opening takes the writer's lock of `dir` and recovers the log; `start` begins to follow, and continues through every
    restart of either side from the replica's last LSN. `codec` compresses frames on their way ("zstd", "snappy" or
    None); the stored bytes are the same. `name` (1 to 128 printable characters) is a label, which is kept. The primary
    knows the replica by its identity, kept in a private file of `dir` from the first contact on. A copy of the folder
    is refused as an IdentityError; with `new_identity` the identity is forgotten and the data kept, so a replica can be
    seeded from a copy. A frame of more than 64 MiB is taken if `frame_bytes_max` of `options` is as large.

    The replica's store is loaded from its newest snapshot and the log after it. `checkpoint` takes one and drops the
    log below it; with `checkpoint_every` that is done after so many records. `retention` of `options` drops what its
    newest snapshot has; no claim in `dir` is passed but by a hard cap.

    A log that differs from the primary's is refused as a DivergenceError. One that differs only by frames without
    records at its end, as after a promotion of another replica, is cut back before them. With `rewind` it is cut back
    to the last common record, the rest is kept under lost+found, and the replica continues under a new identity;
    `walkit.replication.rewind` lists the refusals (RewindError), and the cuts that `force_rewind` makes all the same.

    A replica that is dropped without `stop` stops by itself, with a ResourceWarning unless the process is ending; its
    log and store are closed then, even if they are still referred to. An interrupt (Ctrl-C) of opening leaves the lock
    free, and one of `start` leaves the replica running or not started.

    `payload_log` is where the values of links are. The replica names it in its manifest, for its readers and for its
    time after a promotion, and raises the errors of opening it. Without it values of links raise
    PayloadUnreachableError; everything else is as usual.

    With `tls` the primary has to show a certificate that it names; `token` is sent with each call. Without TLS
    it goes in the clear: off loopback that is refused, unless with `insecure`. If the primary refuses either, the
    replica ends after a second try, with an OptionsError.

    Raises the errors of opening a log, IdentityError for a copied folder, OptionsError for files of `tls` that cannot
    be used.
    """

    def __init__(
        self,
        dir: AnyPlace,  # noqa: A002 - the public name
        source: str,
        codec: str | None = "zstd",
        *,
        tls: ClientTLS | None = None,
        token: str | None = None,
        name: str | None = None,
        options: LogOptions | None = None,
        events: EventCallback | None = None,
        versions: tuple[int, int] = (PROTOCOL_MIN, PROTOCOL_MAX),
        backoff: Backoff | None = None,
        new_identity: bool = False,
        checkpoint_every: int | None = None,
        rewind: bool = False,
        force_rewind: bool = False,
        insecure: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        payload_log: AnyPlace | None = None,
    ) -> None:
        check_choice(codec, (None, *CODECS), "codec")
        check_kind(options, LogOptions, "options")
        check_kind(backoff, Backoff, "backoff")
        destination = destination_of(source, token, tls, insecure)
        self._address = destination.address
        if name is not None and not is_name(name):
            text = f"1 to {NAME_CHARS_MAX} printable characters, which the primary's manifest stores"
            refuse("name", name, text)
        store, sink = object_store_of(dir, storage_options), EventSink(events)
        place = storage_at(cast(Place, dir)) if store is None else store
        if store is not None:
            for option, value in (("rewind", rewind), ("checkpoint_every", checkpoint_every)):
                if value:
                    refuse(
                        option, value, "only for a replica in a folder: a log on object storage is never cut"
                    )
        check_bool(new_identity, "new_identity")
        check_bool(rewind, "rewind")
        check_bool(force_rewind, "force_rewind")
        if force_rewind and not rewind:
            refuse("force_rewind", True, "only with rewind=True")
        opening = ReplicaOpening(
            storage=place,
            options=options,
            events=sink,
            name=name,
            codec=codec,
            versions=versions,
            backoff=backoff,
            checkpoint_every=checkpoint_every,
            rewinds=rewind,
            forced=force_rewind,
            payload_log=payload_log,
        )

        def open_folder() -> Opened:
            # The identity's file too: the main thread makes no call of a storage that an interrupt could cut in two.
            own = None if new_identity else load_identity(place)
            return opening.open(own, new_identity=new_identity)

        opened = run_uninterrupted(open_folder, "open", events=sink, undo=lambda opened: opened.log.close())
        self.name = opened.core.name
        self._loop = ReplicaLoop(opened, opening, destination)
        self._finalizer = weakref.finalize(self, stop_dropped, self._loop)
        watch_exit()

    # -- public calls

    def start(self) -> Self:
        """Begin to follow; returns this replica. Starting again does nothing; LogClosedError once it was stopped."""
        if self._loop.stopping:
            raise LogClosedError(f"the replica at {self.log.location} was stopped; make a new one")
        self._loop.start()
        return self

    def wait_for(self, result_or_lsn: AppendResult | int, timeout: float | None = None) -> int:
        """Wait until a record is on the replica's stable storage and in its store; return the replica's LSN.

        The result of an append names one record for good. A bare LSN counts only after this replica has been in contact
        with its primary: until then the record here may be one that the primary has cut.

        WaitTimeoutError after `timeout` seconds; DivergenceError if the primary's history lacks the result's record;
        the error that ended replication, if it has failed; LogClosedError once the replica is stopped.
        """
        wanted = Awaited.of(result_or_lsn)
        deadline = None if timeout is None else time.monotonic() + timeout
        loop = self._loop
        while True:
            opened = loop.opened
            if not loop.is_rewinding and _has(opened, wanted):
                return loop.opened.log.durable_lsn
            closed = opened.log.closed or loop.thread.ended
            # Looked at after that: a rewind closes this log, and another one is opened before it is over.
            rewinding = loop.is_rewinding
            if loop.error is not None:
                raise loop.error
            if closed and not rewinding and loop.opened is opened:
                raise LogClosedError(f"the replica at {opened.log.location} is stopped")
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                unstarted = "" if loop.thread.begun else "start() was not called: "
                raise WaitTimeoutError(
                    f"LSN {wanted.lsn:,} did not come in time: {unstarted}{self.status().line()}"
                )
            if rewinding:
                loop.rewound.wait(min(left, 1.0))
            else:
                _wait(opened, wanted, min(left, 1.0))

    def status(self) -> ReplicaStatus:
        """Return the replica's state now."""
        log, store, core = self._loop.opened
        loop = self._loop
        if loop.is_rewinding:
            life = "rewinding"
        elif log.closed and (loop.stopping or loop.error is None):
            life = "stopped"
        elif loop.is_absent:
            life = "absent"
        else:
            life = "" if loop.thread.begun else "new"
        return replica_status(
            core,
            log.end,
            source=self._address,
            applied_lsn=store.applied_lsn,
            life=life,
            waiting=bool(self._loop.inbox),
            now_ms=now_ms(),
        )

    def statistics(self) -> TrafficStatistics:
        """Return the frames that this replica has received since it was made, in all and by codec."""
        return self._core.traffic.statistics()

    def checkpoint(self, *, trim: bool = True) -> CheckpointReport:
        """Save the replica's state beside its log and drop the records it replaces; see `ReplicaStore.checkpoint`."""
        return self.store.checkpoint(trim=trim)

    @property
    def error(self) -> WalkitError | None:
        """The error that ended replication; None while it runs. `wait_for` raises it."""
        return self._loop.error

    @property
    def log(self) -> ImportedLog:
        """The replica's log: read it like any other. Empty until the first contact.

        After a rewind it is another object, and so is the store: those of before are closed.
        """
        return self._loop.opened.log

    def is_over(self) -> bool:
        """Whether it has stopped or failed: then no other log follows `log`."""
        return self._loop.stopping or self._loop.error is not None

    @property
    def store(self) -> ReplicaStore:
        """The keyed table that the imported records come to."""
        return self._loop.opened.store

    @property
    def _core(self) -> Subscriber:
        return self._loop.opened.core

    def stop(self) -> None:
        """Stop following, seal the log and free it. Stopping twice does nothing; an interrupt does not end it."""
        run_uninterrupted(self._loop.stop, "stop", events=self.log.events)
        if self._loop.is_over:  # if its own thread called this, that thread may still be in a step
            self._finalizer.detach()

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


def _has(opened: Opened, wanted: Awaited) -> bool:
    """Return whether a replica has a record; DivergenceError if its primary, which it has met, does not have it."""
    log, store, core = opened
    # A core that was made after a rewind has met no primary yet.
    in_contact = core.welcomed and not isinstance(core.error, DivergenceError)
    return wanted.is_applied(store.applied_lsn, log.manifest, in_contact=in_contact)


def _wait(opened: Opened, wanted: Awaited, seconds: float) -> None:
    """Wait until a replica has a record, for so long; also ended by the replica's end."""
    opened.store.wait_until(lambda: opened.core.error is not None or _has(opened, wanted), seconds)
