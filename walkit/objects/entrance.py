"""`walkit.open`: the log at a place, a folder or an object store, for writing or for reading."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from walkit._internal.arguments import as_seconds, refuse
from walkit.commit.ports import LogPorts, Owner
from walkit.config import LogOptions
from walkit.errors import LogNotFoundError
from walkit.events import EventCallback, EventSink
from walkit.format.manifest import Manifest
from walkit.log.open import open_writer
from walkit.log.wal import WriteAheadLog
from walkit.objects.view import ObjectEnd
from walkit.read.claim import LEASE_S_DEFAULT, Claim, lease_us_of
from walkit.read.reader import LogReader, source_of
from walkit.read.view import PayloadSource
from walkit.segments.consumer_files import LOCK_WAIT_S, OWN
from walkit.segments.manifest_store import check_owner, load_manifest
from walkit.storage.address import AnyPlace, Place, absolute, is_object_url, open_store, storage_at
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from walkit.log.async_log import AsyncLog


@overload
def open_log(
    path: AnyPlace | None = None,
    mode: Literal["a", "x"] = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> WriteAheadLog: ...


@overload
def open_log(
    path: AnyPlace | None = None,
    mode: Literal["r"] = ...,
    options: None = None,
    events: EventCallback | None = None,
    *,
    storage: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: None = None,
    payload_log: AnyPlace | None = None,
) -> LogReader: ...


def open_log(
    path: AnyPlace | None = None,
    mode: str = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
    progress: Callable[[int, int], None] | None = None,
    payload_log: AnyPlace | None = None,
) -> WriteAheadLog | LogReader:
    """Open a log. mode "a" opens or creates it, "x" only creates; "r" reads it from any process, and never changes it.

    `path` is a folder, `file://PATH`, `memory://NAME`, or a log on object storage: `s3://BUCKET/FOLDER`, `gs://`,
    `az://` or `objects:/FOLDER`, with `storage_options` (endpoint, region, credentials; else the environment's).
    `storage=` takes any `walkit.storage.Storage` or `ObjectStore` instead. Opening for writing recovers first
    (`log.recovery` has the report); `progress` is called with (bytes scanned, bytes to scan). In a folder it takes
    the lock. On object storage it fences every earlier writer, which fails with LogFencedError. Opening for reading
    scans nothing, and takes `events` and `payload_log` alone: `options` or `progress` beside mode "r" are an
    OptionsError. `payload_log` is where the values of links are looked for before the place that the log names.

    An interrupt (Ctrl-C) is raised when the opening has ended, and nothing is held then; one that comes up after that,
    on the way to the caller, leaves the log in `walkit.open_logs()` until it is closed or collected.

    Raises LogNotFoundError, LogExistsError, NotALogError, LogLockedError, LogFencedError, FormatVersionError,
    CorruptionError, SegmentMissingError, DivergenceError, OptionsError, StorageError; then no record was changed and no
    lock is held.
    """
    if mode != "r":
        if payload_log is not None:
            refuse("payload_log", payload_log, "LogOptions has it for an opening for writing", mode)
        return writer_at(path, storage, storage_options, mode, options, events, progress)
    # A reader writes, recovers and scans nothing at its opening: nothing is taken that would then be ignored.
    for name, value in (("options", options), ("progress", progress)):
        if value is not None:
            refuse(name, value, "only an opening for writing takes it, and mode='r' reads", "r")
    return reader_at(_place_of(path, storage, storage_options), EventSink(events), payload_log=payload_log)


def reader_at(
    place: AnyPlace,
    events: EventSink | None = None,
    *,
    payload_log: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> LogReader:
    """Return a reader of the log at a place, which finds payload logs wherever they are."""
    found = log_at(place, storage_options)
    return LogReader(found, events, open_payloads=payload_source, payload_log=payload_log)


def location_of(place: Any) -> str:
    """Return the location of a log at a place, without opening it."""
    if is_object_url(place):
        return str(absolute(place))
    return getattr(place, "location", None) or storage_at(place).location


def payload_source(place: AnyPlace) -> PayloadSource:
    """Open a payload log for reading, in a folder or on object storage."""
    return source_of(LogReader(log_at(place)))


def open_async(
    path: AnyPlace | None = None,
    mode: str = "a",
    options: LogOptions | None = None,
    events: EventCallback | None = None,
    *,
    storage: AnyPlace | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> AsyncLog:
    """Return what `async with` opens as a log: the parameters and errors are those of `walkit.open`."""
    from walkit.log.async_log import AsyncLog

    by_mode: Callable[..., WriteAheadLog | LogReader] = open_log
    return AsyncLog(
        lambda: by_mode(path, mode, options, events, storage=storage, storage_options=storage_options)
    )


def claim(
    path: AnyPlace,
    name: str,
    first_lsn: int | None = None,
    lease_s: float = LEASE_S_DEFAULT,
    *,
    owner: uuid.UUID | None = None,
    take_over: bool = False,
    epoch_id: int | None = None,
    complete: bool = True,
    wait_s: float = LOCK_WAIT_S,
    events: EventCallback | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Claim:
    """Keep the records of a log from `first_lsn` on, from any process; durable, and in force, on return.

    Trims, retention and compaction of the log's writer keep to it until its lease is over: `lease_s` seconds, at most
    30 days, after it was written, by the wall clock of this machine. `advance` and `renew` write it again. Only the
    hard cap of a retention (`Retention.hard_bytes_max`) is above a claim.

    `name` is 1 to 64 letters, digits, "_" and "-". `first_lsn` None continues at the position of the claim of this
    name; without one, it is the oldest record. `owner` is the consumer's random id, kept with the consumer's own state:
    a restarted consumer gives it, and has its claim back; None makes a new one (`Claim.owner`). A claim of another
    owner whose lease runs is left to it, unless `take_over`. `epoch_id`, if the consumer has saved it, is
    that of the record before `first_lsn`. With `complete=False` records that compaction has dropped as superseded may
    be missing after `first_lsn`: for a consumer that takes the compacted segments as they are. Each writing of a claim
    waits at most `wait_s` seconds for the claims' lock, which a writer has while it publishes what it drops.

    GapError if records from `first_lsn` on are gone already; DivergenceError if the records at the saved position were
    cut: the log there is another history. ClaimError if the name is another's, the log has 64 claims, or
    the wall clock is before 1970 or after 9999.
    StorageError: EACCES or EROFS for a consumer that may not write to the log's folder, ETIMEDOUT if the claims'
    lock is not free in time. LogNotFoundError, FormatVersionError, OptionsError. Safe from any thread.

    In a folder for local file systems: other machines need locks that work between them, and clocks that agree. On
    object storage a claim is an entry of one object, which a process changes at most once a second. So each call may
    take that long, and many at a time take no longer.

    `path` and `storage_options` are those of `walkit.open`.
    """
    if owner is not None and (not isinstance(owner, uuid.UUID) or owner.bytes == OWN):
        refuse("owner", owner, "a random uuid.UUID, or None")
    made = Claim(
        folder_at(path, storage_options),
        EventSink(events),
        name,
        owner or uuid.uuid4(),
        lease_us_of(lease_s),
        complete=complete,
        wait_s=as_seconds(wait_s, "wait_s"),
    )
    made.take(first_lsn, epoch_id, take_over=take_over)
    return made


def writer_at(
    path: AnyPlace | None,
    storage: AnyPlace | None,
    storage_options: Mapping[str, Any] | None,
    mode: str,
    options: LogOptions | None,
    events: EventCallback | None,
    progress: Callable[[int, int], None] | None,
    ports: LogPorts | None = None,
) -> WriteAheadLog:
    """Open a log for writing, see `open_log`; `ports` get its frames and guard its queue."""
    place = _place_of(path, storage, storage_options)
    values = None if not isinstance(options, LogOptions) else options.payload_log
    if values is not None:
        from walkit.links.linking import link, payload_place

        values = payload_place(values, place.location)
        if _manifest_at(place) is None and (found := _manifest_at(values)) is not None:
            check_owner(
                found, location_of(values), Owner(0, 0)
            )  # a log that is made now owns none: it is refused
    if object_store_of(place) is None:
        log = open_writer(cast(Storage, place), mode, options, events, progress, ports)
    else:
        from walkit.objects.open import open_object_writer

        is_url = place is not path and place is not storage
        store = cast(ObjectStore, place)
        try:
            log = open_object_writer(store, mode, options, events, progress, ports, is_url=is_url)
        except BaseException:
            if is_url:
                store.close()
            raise
    log.open_payloads = payload_source
    if values is not None:

        def open_payload_log(options: LogOptions, ports: LogPorts) -> WriteAheadLog:
            return writer_at(values, None, None, "a", options, None, None, ports)

        try:
            link(log, location_of(values), open_payload_log, payload_source)
        except BaseException:
            log.close()
            raise
    return log


def _manifest_at(place: AnyPlace) -> Manifest | None:
    """Return the manifest of the log at a place; None without a log."""
    try:
        found = log_at(place)
        return found.manifest if isinstance(found, ObjectEnd) else load_manifest(found)
    except LogNotFoundError:
        return None


def object_store_of(
    place: AnyPlace | None, storage_options: Mapping[str, Any] | None = None
) -> ObjectStore | None:
    """Return the object store that a place means, or None for a folder."""
    if hasattr(place, "put_if_absent"):
        return cast(ObjectStore, place)
    if is_object_url(place):
        return open_store(cast(str, place), storage_options)
    if storage_options is not None:
        # Not shown: it has credentials.
        refuse(
            "storage_options", "...", "only for the URL of an object store: s3://, gs://, az:// or objects:"
        )
    return None


def _place_of(
    path: AnyPlace | None, storage: AnyPlace | None, storage_options: Mapping[str, Any] | None = None
) -> Storage | ObjectStore:
    """Return the storage or object store that an opening is given, as one of its arguments `path` and `storage`."""
    place = storage if path is None else path
    if place is None or (path is not None and storage is not None):
        refuse("path", path, "give either a path or storage=", storage)
    store = object_store_of(place, storage_options)
    return storage_at(cast(Place, place)) if store is None else store


def log_at(place: AnyPlace, storage_options: Mapping[str, Any] | None = None) -> Storage | ObjectEnd:
    """Return the folder of a log, or the end of a log on object storage: what a `LogReader` takes."""
    store = object_store_of(place, storage_options)
    return storage_at(cast(Place, place)) if store is None else ObjectEnd(store)


def folder_at(place: AnyPlace, storage_options: Mapping[str, Any] | None = None) -> Storage:
    """Return where the claims, cursors and snapshots of a log are."""
    found = log_at(place, storage_options)
    return found.folder() if isinstance(found, ObjectEnd) else found
