"""Following a primary over gRPC: what people call, around the loop that works on the replica's own log and store."""

from __future__ import annotations

import os
import secrets
import time
import weakref
from types import TracebackType
from typing import Self

from walkit.commit.to_end import run_to_end
from walkit.config import LogOptions, check_bool
from walkit.errors import LogClosedError, OptionsError, WalkitError
from walkit.events import EventCallback, EventSink
from walkit.log.finalizer import watch_exit
from walkit.metrics import TrafficStatistics
from walkit.replication.access import check_token
from walkit.replication.address import parse_address
from walkit.replication.backoff import Backoff
from walkit.replication.codecs import CODECS
from walkit.replication.connection import Destination
from walkit.replication.identity_file import OwnIdentity, drop_identity, load_identity
from walkit.replication.imported_log import ImportedLog
from walkit.replication.messages import (
    NAME_CHARS_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    is_name,
)
from walkit.replication.replica_loop import EXTRA_KEY, ReplicaLoop, now_ms, stop_dropped
from walkit.replication.replicastore import ReplicaStore
from walkit.replication.status import ReplicaStatus, replica_status
from walkit.replication.subscriber import Subscriber
from walkit.replication.tls import ClientTLS, channel_credentials
from walkit.storage.address import Place, storage_at

FRAME_BYTES_TAKEN = 64 << 20
"""The largest frame that any replica takes; `frame_bytes_max` of its options may say more."""


class Replica:
    """Follows a primary into a log and a store that it owns. A context manager. Safe from any thread.

    Opening takes the writer's lock of `dir` and recovers what is there; `start` begins to follow, and continues through
    every restart of either side from the replica's last LSN. `codec` compresses frames on their way ("zstd", "snappy"
    or None); what is stored is the same. `name` (1 to 128 printable characters) is a label, which is kept. The primary
    knows the replica by the identity that it minted at the first contact, kept in a private file of `dir`. A copy of
    the folder is refused as an IdentityError; with `new_identity` the identity is forgotten and the data kept, so a
    replica can be seeded from a copy. A frame of more than 64 MiB is taken where `frame_bytes_max` of `options` is as
    large.

    A replica that is dropped without `stop` stops by itself, with a ResourceWarning unless the process is ending; its
    log and store are closed then, also where they are still referred to. An interrupt (Ctrl-C) of opening leaves the
    lock free, and one of `start` leaves the replica running or not begun.

    With `tls` the primary has to show a certificate that it names; `token` is sent with each call, so without TLS it
    goes in the clear. What is refused for either ends the replica after a second try, as an OptionsError.

    Raises what opening a log raises, IdentityError for a copied folder, OptionsError for files of `tls` that cannot be
    used.
    """

    def __init__(
        self,
        dir: Place,  # noqa: A002 - the public name
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
    ) -> None:
        channel_credentials(tls)
        if codec is not None and codec not in CODECS:
            words = f"codec={codec!r}: it is None or one of {', '.join(CODECS)}"
            raise OptionsError(words, option="codec", wanted=codec)
        self._address = str(parse_address(source, "source"))
        destination = Destination(self._address, check_token(token), tls)
        if name is not None:
            _check_name(name)
        frame_bytes_max = 0 if options is None else options.frame_bytes_max
        storage, sink = storage_at(dir), EventSink(events)
        check_bool(new_identity, "new_identity")
        own: OwnIdentity | None = None if new_identity else load_identity(storage)

        def opened() -> tuple[ImportedLog, ReplicaStore]:
            log = ImportedLog(storage, options, sink)
            try:
                if new_identity:
                    drop_identity(storage)  # with the writer's lock: no other replica is in this folder
                return log, ReplicaStore(log)
            except BaseException:
                log.close()
                raise

        self._log, self._store = run_to_end(opened, "open", events=sink, undo=lambda both: both[0].close())
        manifest = self._log.manifest
        stored = own.name if own else "" if new_identity else manifest.extra.get(EXTRA_KEY, {}).get("name")
        self.name = name or stored or _name_of(self._log.location)
        self._core = Subscriber(
            self.name,
            log_id=manifest.log_id,
            lineage=manifest.lineage,
            end=self._log.end,
            codecs=() if codec is None else (codec,),
            versions=versions,
            backoff=backoff,
            frame_bytes_max=max(frame_bytes_max, FRAME_BYTES_TAKEN),
            identity=own.identity if own else None,
        )
        self._loop = ReplicaLoop(self._log, self._store, self._core, destination)
        self._finalizer = weakref.finalize(self, stop_dropped, self._loop)
        watch_exit()

    # -- what people call

    def start(self) -> Self:
        """Begin to follow; returns this replica. Starting again does nothing; LogClosedError once it was stopped."""
        if self._loop.stopping:
            raise LogClosedError(f"the replica at {self._log.location} was stopped; make a new one")
        self._loop.start()
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
            if self._log.closed or (self._loop.thread is not None and self._loop.thread.ended):
                raise LogClosedError(f"the replica at {self._log.location} is stopped")
            left = 1.0 if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"LSN {lsn:,} did not come in time: {self.status().line()}")
            self._store.wait_for(lsn, min(left, 1.0), lambda: self._core.error is not None)
        return self._log.durable_lsn

    def status(self) -> ReplicaStatus:
        """Return the replica's state now."""
        return replica_status(
            self._core,
            self._log.end,
            source=self._address,
            applied_lsn=self._store.applied_lsn,
            life="stopped" if self._log.closed else "new" if self._loop.thread is None else "",
            waiting=bool(self._loop.inbox),
            now_ms=now_ms(),
        )

    def statistics(self) -> TrafficStatistics:
        """Return what this replica has taken in of frames since it was made, in all and by codec."""
        return self._core.traffic.statistics()

    @property
    def error(self) -> WalkitError | None:
        """What ended replication for good; None while it runs. `wait_for` raises it."""
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
        run_to_end(self._loop.stop, "stop", events=self._log.events)
        if self._loop.is_over:  # stopped by its own thread, that one may be in the midst of a step still
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


def _check_name(name: object) -> None:
    if not is_name(name):
        raise OptionsError(
            f"name={name!r}: 1 to {NAME_CHARS_MAX} printable characters, which the primary's manifest stores",
            option="name",
            wanted=name,
        )


def _name_of(location: str) -> str:
    """Return a name that no other replica has, after the folder where that can be said."""
    folder = "".join(c for c in os.path.basename(location.rstrip("/")) if c.isprintable())
    return f"{folder[: NAME_CHARS_MAX // 2] or 'replica'}-{secrets.token_hex(4)}"
