"""The manifest of a log in its place: loaded, changed, stored (FORMAT.md F-4, F-12).

It is a base and edits, never on the path of an acknowledgement. A change is one synced write into the zeroed space
after the base. If that space is used up, a new base replaces the file atomically. A part of the space is reserved for
changes that drop or seal segments, which therefore need no room. The promise of the manifest is in the file of the
durable slot.
"""

from __future__ import annotations

import errno
import threading
from bisect import insort
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from walkit._internal.locks import once
from walkit._internal.text import counted
from walkit.commit.ports import Owner
from walkit.errors import (
    CorruptionError,
    LogClosedError,
    LogExhaustedError,
    LogNotFoundError,
    LogOwnedError,
    NotALogError,
    StorageError,
)
from walkit.events import EventSink
from walkit.format.durable_slot import DurableSlot, ManifestPromise, encode_promise, encode_slot
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.format.frame import FrameIdentity
from walkit.format.layout import (
    DURABLE_SLOTS_BYTES,
    EDIT_ALIGNMENT,
    EPOCH_MAX,
    MANIFEST_FILE_BYTES_MAX,
    MANIFEST_HEADER,
    SEGMENT_NUMBER_MAX,
)
from walkit.format.manifest import (
    MANIFEST_NAME,
    EpochRecord,
    Gap,
    LogEnd,
    Manifest,
    ManifestFile,
    SegmentRecord,
    SegmentState,
    encode_base,
    encode_edit,
    new_file,
    prepared_record,
    read_manifest,
    sealed_record,
    segment_order,
)
from walkit.format.segment import SegmentHeader
from walkit.segments.active_segment import OpenSegment
from walkit.storage.bulk import write_whole
from walkit.storage.interface import BACK_PRESSURE, Cell, HoldableFile, Storage, StorageFile, remove_if_there

RESERVE_SEALED_BYTES, RESERVE_PREPARED_BYTES, RESERVE_OPENING_BYTES = 256, 768, 1024
"""Edit space that is kept: for a trim of each sealed segment, a seal and a trim of each other, and one opening."""
SPACE_SEGMENT_BYTES, SPACE_BYTES_MIN = 512, 4096
"""Edit space beyond the reserve: in proportion to the base, so that a new base is as rare as it is large."""


def record_of(segment: OpenSegment, header: SegmentHeader) -> SegmentRecord:
    """Return the manifest's record of a segment that is sealed at the end of its last frame."""
    end = LogEnd(last_lsn=segment.last_lsn, position=segment.end_position, chain=segment.chain)
    return sealed_record(header, end, records=segment.records, frames=segment.frames)


def with_sealed(manifest: Manifest, record: SegmentRecord) -> Manifest:
    """Return the manifest with this segment sealed; one without frames is dropped instead."""
    if record.size_bytes == 0:
        return without_segment(manifest, record.number)
    segments = list(manifest.segments)  # copied once: there may be thousands
    last = range(len(segments) - 1, -1, -1)  # it is one of the last
    place = next((i for i in last if segments[i].number == record.number), len(segments))
    del segments[place : place + 1]
    insort(segments, record, key=segment_order)
    end = manifest.end
    if record.end_position >= end.position:
        end = LogEnd(last_lsn=record.last_lsn, position=record.end_position, chain=record.end_chain)
    return manifest.next(segments=tuple(segments), end=end)


def without_segment(manifest: Manifest, number: int) -> Manifest:
    """Return the manifest without the segment of this number."""
    return manifest.next(segments=tuple(s for s in manifest.segments if s.number != number))


def gaps_where(manifest: Manifest, keep: Callable[[Gap], bool]) -> dict[str, Any]:
    """Return the fields of a manifest that has these of its holes and lost ranges alone, for `Manifest.next`."""
    return {
        "holes": tuple(gap for gap in manifest.holes if keep(gap)),
        "lost": tuple(gap for gap in manifest.lost if keep(gap)),
    }


def with_prepared(
    manifest: Manifest, number: int, identity: FrameIdentity, began: LogEnd, size_bytes: int
) -> Manifest:
    """Return the manifest with a prepared segment, and with its epoch if this is the first one of it."""
    record = prepared_record(number, identity.epoch, size_bytes)
    lineage = manifest.lineage
    if manifest.epoch_of(identity.epoch) is None:
        lineage += (
            EpochRecord(
                number=identity.epoch,
                id=identity.epoch_id,
                first_lsn=began.last_lsn + 1,
                position=began.position,
                chain=began.chain,
            ),
        )
    following = max(manifest.next_segment, number + 1)
    return manifest.next(segments=(*manifest.segments, record), next_segment=following, lineage=lineage)


def next_epoch(manifest: Manifest) -> int:
    """Return the number of the epoch that an opening for writing begins; LogExhaustedError after the last one."""
    number = max((e.number for e in manifest.lineage), default=0) + 1
    if number > EPOCH_MAX:
        raise LogExhaustedError("epoch", number, EPOCH_MAX)
    return number


def reserved_bytes(manifest: Manifest) -> int:
    """Return how much space for edits is kept for changes that make room, and for one opening."""
    prepared = 0
    for segment in reversed(manifest.segments):
        if segment.state is SegmentState.SEALED:
            break  # these come first
        prepared += 1
    sealed = len(manifest.segments) - prepared
    return sealed * RESERVE_SEALED_BYTES + prepared * RESERVE_PREPARED_BYTES + RESERVE_OPENING_BYTES


def space_bytes(manifest: Manifest) -> int:
    """Return how much space for edits a new base gets."""
    return reserved_bytes(manifest) + len(manifest.segments) * SPACE_SEGMENT_BYTES + SPACE_BYTES_MIN


DURABLE_NAME = "durable"


class SlotStore:
    """Stores how far a log, and which manifest, is on stable storage. If a store fails, that is an event, no poison.

    `store` has one caller at a time, under the commit lock, and `promise` another, under that of the manifest: each has
    places of its own in the file, so that neither waits for the other.
    """

    def __init__(self, storage: Storage, newest: DurableSlot, events: EventSink) -> None:
        self._cell: Cell | None = storage.cell(DURABLE_NAME, DURABLE_SLOTS_BYTES, writable=True)
        self._generation = newest.generation
        self._turn = 0
        self._location, self._events = storage.location, events
        self._fails = False

    def store(self, identity: FrameIdentity, position: int, lsn: int) -> None:
        """Store the slot in the place that the last store left alone."""
        generation = self._generation + 1
        try:
            if self._cell is not None:
                self._cell.write(*encode_slot((generation, identity.epoch, identity.epoch_id, position, lsn)))
        except StorageError as error:
            # The next store takes the same place again: the other one has the value that is still true.
            self._fail(error)
            return
        self._generation = generation
        self._fails = False

    def promise(self, manifest: Manifest) -> None:
        """Say that this manifest is on stable storage, in the newest epoch of its lineage; without one, nothing."""
        if manifest.lineage:
            epoch = manifest.lineage[-1]
            promise = ManifestPromise(manifest.generation, epoch.number, epoch.id)
            try:
                if self._cell is not None:
                    self._cell.write(*encode_promise(promise, self._turn))
            except StorageError as error:
                self._fail(error)
                return
            self._turn += 1

    def _fail(self, error: StorageError) -> None:
        if not self._fails:
            self._fails = True
            self._events.emit("walkit.slot.fail", location=self._location, error=str(error))

    def close(self) -> None:
        """Close the cell; its bytes stay."""
        if self._cell is not None:
            self._cell.close()


LOCK_NAME = "lock"
NEW_NAME = "manifest.new"
LOST_FOLDER, LOOKS_MAX = "lost+found", 4
OWN_NAMES = (MANIFEST_NAME, NEW_NAME, LOCK_NAME, DURABLE_NAME, f"{DURABLE_NAME}.new", CLAIMS_LOCK_NAME)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

IDENTITY_NAME = "replica-identity"
"""The identity of this replica, before there is a log in the folder, too."""
REPLICATION_NAMES = (IDENTITY_NAME, f"{IDENTITY_NAME}.new")
"""Files of replication beside a log."""


def load_manifest(storage: Storage) -> Manifest:
    """Return the manifest of a log.

    LogNotFoundError if there is nothing, NotALogError if there is something else, CorruptionError if segments are
    without a manifest (then `walkit.repair` can rebuild it), and the errors of `read_manifest`.
    """
    return load_manifest_file(storage).manifest


def load_manifest_file(storage: Storage, known: ManifestFile | None = None) -> ManifestFile:
    """Return the manifest with its file, see `load_manifest`. It is decoded only if it differs from the `known` one.

    An edit that is being written meanwhile may be seen in part, and one after it whole: then the file is read again,
    until two readings agree or `LOOKS_MAX` are done, and it is the manifest before that edit.
    """
    before: ManifestFile | CorruptionError | None = None
    for looks_left in reversed(range(LOOKS_MAX)):
        try:
            found = _read_file(storage, known)
            if not found.torn_until or found == before or not looks_left:
                return found
            before = found
        except CorruptionError as error:
            if not looks_left or f"{error}" == f"{before}":
                raise
            before = error
    raise AssertionError("the last look returns or raises")


def _read_file(storage: Storage, known: ManifestFile | None) -> ManifestFile:
    try:
        file = storage.open(MANIFEST_NAME, "read")
    except StorageError as error:
        if error.errno not in _NO_FILE:
            raise
        names = storage.names() if storage.exists() else []
        if MANIFEST_NAME not in names:
            raise _why_there_is_none(storage, names) from None
        # It was made meanwhile; a link to nothing is refused again.
        file = storage.open(MANIFEST_NAME, "read")
    try:
        data = file.read(0, MANIFEST_FILE_BYTES_MAX + 1)
    finally:
        file.close()
    if known is not None and known.data == data:
        return known
    try:
        return read_manifest(data, storage.location)
    except NotALogError as error:
        if not any(n.endswith(".segment") for n in storage.names()):
            raise
        raise CorruptionError(
            f"the manifest of {storage.location} has another magic than walkit's, and segments are beside it; "
            "nothing was changed",
            segment=MANIFEST_NAME,
            expected="walkit's magic",
            found=data[:8],
        ) from error


def _why_there_is_none(
    storage: Storage, names: list[str]
) -> LogNotFoundError | NotALogError | CorruptionError:
    """Return the error for a place without a manifest, in which these names are."""
    segments = [n for n in names if n.endswith(".segment")]
    if segments:
        return CorruptionError(
            f"{storage.location} has {counted(len(segments), 'segment')} and no manifest; nothing was changed",
            segment=MANIFEST_NAME,
            expected="a manifest",
            found=counted(len(segments), "segment"),
        )
    others = [n for n in names if n not in (*OWN_NAMES, *REPLICATION_NAMES)]
    if others == [f"{LOST_FOLDER}/"]:
        others = storage.names(LOST_FOLDER)  # an empty one is made with some file systems
    if others:
        return NotALogError(storage.location, f"it holds other files ({others[0]}) and no manifest")
    return LogNotFoundError(storage.location)


def settle_manifest(storage: Storage) -> None:
    """Sync folder and manifest, and drop its cached pages, so that it is read as the device has it. StorageError.

    For an opening for writing, before it changes anything: a killed writer may have left an edit in the page cache
    alone, and one whose sync of the folder failed a manifest that a power cut would undo.
    """
    storage.sync_directory()
    try:
        file = storage.open(MANIFEST_NAME, "write")
    except StorageError as error:
        if error.errno != errno.ENOENT:
            raise
        return  # loading it is refused
    try:
        file.sync()
        file.drop_cached()
    finally:
        file.close()


SCARCE_BYTES = 1024
"""So much space for edits beyond the reserve is little: a rotation takes that much, nearly."""


def replaced_error(location: str, name: str) -> StorageError:
    """Return the error of a writer whose folder (""), or one of whose files, is no longer the one it has open."""
    what = f"{name!r} in {location}" if name else f"the folder {location}"
    return StorageError(
        f"{what} was removed or replaced under its writer, which stops: what it writes now would be lost",
        errno=errno.ESTALE,
        name=name,
    )


class Place(Protocol):
    """Where a writer's files are: see `WriterLock`."""

    @property
    def looks(self) -> bool:
        """Whether there is anything to look at."""

    def look(self) -> None:
        """Raise a StorageError (ESTALE) if the place is not the one that the writer has taken."""


class Manifests(Protocol):
    """The manifest of an open log, wherever it is. Safe from any thread."""

    @property
    def current(self) -> Manifest:
        """The manifest that is durable; immutable."""

    @property
    def lost(self) -> BaseException | None:
        """The reason why writing has ended: the place belongs to another writer. None while it does not."""

    @property
    def is_scarce(self) -> bool:
        """Whether little more than the reserve is left of the space for changes."""

    def renew(self) -> None:
        """Make space for changes, if it is scarce."""

    def update(self, change: Callable[[Manifest], Manifest], *, opening: bool = False) -> Manifest:
        """Replace the manifest by `change` of it; durable on return. `change` may be called more than once."""

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add facts to `extra`; durable on return."""

    def take_number(self) -> int:
        """Return a segment number that is given once."""

    def close(self) -> None:
        """Let no other change begin."""

    def forget(self) -> None:
        """In a forked child: close without waiting for a thread that only the parent has."""


class ManifestStore:
    """The manifest of an open log. `current` is an immutable snapshot; `update` is safe from any thread."""

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        place: Place | None = None,
        slots: SlotStore | None = None,
        file: ManifestFile | None = None,
    ) -> None:
        """`place` is looked at before each change; None for who has the folder for one change alone.

        `slots` gets each manifest that is durable. Without it each change is a new base, as nothing could promise
        an edit. `file` is the one that has this manifest, if the caller has read it.
        """
        self._storage = storage
        # The manifest's lock: guards all below, for one change at a time. Taken last of the log's locks, and never on
        # the path of an acknowledgement.
        self._lock = threading.RLock()
        self._closed = False
        self._next_number = 0
        self._place = place if place is not None and place.looks else None
        self._slots = slots
        self._file = file
        """The file as it was read or written; None before, and after a write that failed: then comes a new base."""
        self._heads = set() if file is None else {file.data[: MANIFEST_HEADER.size]}
        """The header of the file, as this writer has read or written it; two after a failed replacement."""
        self.lost: StorageError | None = None
        """The error of the look that found a loss: from then on nothing is written."""
        self.on_lost: Callable[[StorageError], object] = lambda _: None
        """Called when a look has failed, under the caller's locks: it must only note it."""
        # Replaced under the lock, only once the new one is durable; read by any thread without it.
        self.current = manifest

    def look(self, *, wait: bool = True) -> None:
        """Look whether folder, `lock`, open segments and manifest are those of this writer. StorageError (ESTALE).

        Without `wait` nothing is done beside a replacement of the manifest, which looks itself.
        """
        if self._place is None:
            return
        with once(self._lock):
            if self._lock.acquire(blocking=wait):
                try:
                    self._look_locked()
                finally:
                    self._lock.release()

    def _look_locked(self) -> None:
        if self._place is None or self._closed:
            return
        if self.lost is None:
            try:
                self._place.look()
                self._look_at_manifest()
            except StorageError as error:
                if error.errno != errno.ESTALE:
                    raise
                self.lost = error
                self.on_lost(error)
        if self.lost is not None:
            raise replaced_error(self._storage.location, self.lost.name or "")

    def _look_at_manifest(self) -> None:
        head, following = self._read_around()
        if head not in self._heads or any(following):
            self._take_file(head)

    def _read_around(self) -> tuple[bytes, bytes]:
        """Return the header of the file, and the bytes of the next edit: zeros, unless another writer was there."""
        try:
            file = self._storage.open(MANIFEST_NAME, "read")
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
            return b"", b""
        try:
            known = self._file
            clean = known is not None and not known.torn_until
            following = file.read(known.offset, EDIT_ALIGNMENT) if known is not None and clean else b""
            return file.read(0, MANIFEST_HEADER.size), following
        finally:
            file.close()

    def _take_file(self, head: bytes) -> None:
        """Read the whole file: it must be this writer's. StorageError (ESTALE)."""
        try:
            found = load_manifest_file(self._storage)
        except (CorruptionError, NotALogError, LogNotFoundError):
            found = None
        if found is None or found.manifest != self.current:
            raise replaced_error(self._storage.location, MANIFEST_NAME)
        self._file = found
        self._heads.add(head)

    def _write_locked(self, manifest: Manifest, *, opening: bool = False) -> None:
        self._look_locked()
        made = self._edit_of(manifest, opening=opening)
        if made is None or not self._write_edit(*made):
            self._write_base(manifest)
        self.current = manifest
        if self._slots is not None:
            self._slots.promise(manifest)

    def _edit_of(self, manifest: Manifest, *, opening: bool) -> tuple[bytes, ManifestFile] | None:
        """Return the edit that makes this manifest of the current one; None if it has to be a new base.

        One that lessens the reserve may use it, and one of an opening may use the part that is for it.
        """
        if self._slots is None or not manifest.lineage:
            return None
        if not self._heads:
            self._take_file(self._read_around()[0])
        if self._file is None:
            return None
        made = encode_edit(self._file, manifest)
        if made is None:
            return None
        left, kept = made[1].end - made[1].offset, reserved_bytes(manifest)
        if left < kept - (RESERVE_OPENING_BYTES if opening else 0) and kept >= reserved_bytes(self.current):
            return None
        return made

    def _write_edit(self, data: bytes, after: ManifestFile) -> bool:
        """Write an edit, durably; False, and nothing was written, if the file is another log's as well."""
        before, file = self._file, self._storage.open(MANIFEST_NAME, "write")
        assert before is not None
        try:
            if _is_shared(file):
                return False
            self._file = None  # until it is known to be durable
            if before.torn_until:
                # An unfinished edit of an earlier writer must not become whole by a part of this one.
                file.write(before.offset, [bytes(before.torn_until - before.offset)], sync=True)
            file.write(before.offset, [data], sync=True)
        finally:
            file.close()
        self._file = replace(after, torn_until=0)
        return True

    def _write_base(self, manifest: Manifest) -> None:
        data = encode_base(manifest, space_bytes(manifest))
        head, before, heads = data[: MANIFEST_HEADER.size], self._file, self._heads
        self._heads = {*heads, head}
        self._file = None  # until it is known to be durable
        try:
            write_whole(self._storage, MANIFEST_NAME, NEW_NAME, data)
        except StorageError as error:
            with suppress(StorageError):
                if error.errno in BACK_PRESSURE:
                    remove_if_there(self._storage, NEW_NAME)  # it would keep the space that others need
                if self._read_around()[0] in heads:
                    self._file, self._heads = before, heads  # it has its name still: edits go on
            raise
        self._heads = {head}
        self._file = new_file(manifest, data)

    @property
    def is_scarce(self) -> bool:
        """Whether little more than the reserve is left of the space for edits."""
        file = self._file
        return file is not None and file.end - file.offset - reserved_bytes(self.current) < SCARCE_BYTES

    def renew(self) -> None:
        """Write a new base if the space for edits is scarce, while files were removed and there may be room for it."""
        with once(self._lock), self._lock, suppress(StorageError):  # without room the reserve is there still
            if self.is_scarce and not self._closed:
                self._look_locked()
                self._write_base(self.current)

    def take_number(self) -> int:
        """Return a segment number that is given once; it enters the manifest with its segment.

        LogExhaustedError if all are given.
        """
        with once(self._lock), self._lock:
            number = max(self._next_number, self.current.next_segment)
            if number > SEGMENT_NUMBER_MAX:
                raise LogExhaustedError("segment", number, SEGMENT_NUMBER_MAX)
            self._next_number = number + 1
            return number

    def close(self) -> None:
        """Wait for the update under way and let no other begin: the log may get another writer now."""
        with once(self._lock), self._lock:
            self._closed = True
            if self._slots is not None:
                self._slots.close()

    def forget(self) -> None:
        """In a forked child: close without waiting for a thread that only the parent has."""
        self._lock = threading.RLock()
        self._closed = True

    def update(self, change: Callable[[Manifest], Manifest], *, opening: bool = False) -> Manifest:
        """Replace the manifest by `change` of it; durable on return. LogClosedError once the log is closed.

        With `opening` it may use the space for edits that is kept for an opening.

        On a StorageError the log continues with the manifest it had. The file may be either one then: the change must
        be such that it may be made again. With errno ESTALE nothing was written, and nothing will be.
        """
        with once(self._lock), self._lock:
            if self._closed:
                raise LogClosedError(
                    f"the log at {self._storage.location} is closed; its manifest was not changed"
                )
            manifest = change(self.current)
            if manifest is self.current:
                return manifest
            self._check(manifest)
            self._write_locked(manifest, opening=opening)
            return manifest

    def note(self, facts: Mapping[str, Any]) -> None:
        """See Manifests."""
        self.update(lambda manifest: manifest.next(extra={**manifest.extra, **facts}))

    def put_back(self, manifest: Manifest) -> None:
        """Replace the manifest by that of the same log with an earlier end; durable on return.

        For a rewind alone: nothing else of the log may be under way, and nothing may read its records meanwhile.
        """
        with once(self._lock), self._lock:
            current = self.current
            assert not self._closed and manifest.generation > current.generation
            assert manifest.log_id == current.log_id and manifest.next_segment >= current.next_segment
            assert manifest.low_watermark <= manifest.end.last_lsn <= current.end.last_lsn
            self._write_locked(manifest)

    def _check(self, following: Manifest) -> None:
        """Assert that a manifest may follow the current one: growing fields have grown."""
        current = self.current
        assert following.generation > current.generation
        assert following.log_id == current.log_id, "another log"
        assert following.next_segment >= current.next_segment, "a segment's number would be given again"
        assert following.low_watermark >= current.low_watermark
        assert following.checkpoint_lsn >= current.checkpoint_lsn


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Replace the manifest by a new base, atomically and durably."""
    write_whole(storage, MANIFEST_NAME, NEW_NAME, encode_base(manifest, space_bytes(manifest)))


def _is_shared(file: StorageFile) -> bool:
    """Say whether a file has another name: a copy of hard links is another log, whose manifest must not change."""
    return isinstance(file, HoldableFile) and file.status_call()().st_nlink > 1


LEVEL_KEY = "durability"
"""Where a manifest has the durability level of the last opening, if that was "none" (FORMAT.md, `extra`)."""


def level_of(manifest: Manifest) -> str:
    """Return the level of the last opening for writing, as far as the manifest says: "" or "none"."""
    return "none" if manifest.extra.get(LEVEL_KEY) == "none" else ""


def note_level(store: ManifestStore, durability: str) -> None:
    """Say in the manifest, durably, that this opening has the level "none", or that it no longer is so.

    For readers of the log without its writer: its acknowledgements promise nothing. The manifest is written only
    where that changes, so an opening at another level costs nothing after one like it.
    """
    now = "none" if durability == "none" else ""
    manifest = store.current
    if level_of(manifest) == now:
        return
    extra = {key: value for key, value in manifest.extra.items() if key != LEVEL_KEY}
    if now:
        extra[LEVEL_KEY] = now
    store.update(lambda m: m.next(extra=extra), opening=True)


OWNER_KEY = "owner"
"""Where the manifest of a payload log names its owner (FORMAT.md F-22)."""


PAYLOAD_KEY = "payload_key"
"""Where a manifest has the key by which its payload log knows it. No copy and no replica has it."""


def shared_facts(extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of a manifest that hold in a copy of the log, too."""
    return {name: fact for name, fact in extra.items() if name != PAYLOAD_KEY}


def check_owner(manifest: Manifest, location: str, owner: Owner | None) -> None:
    """Refuse the payload log of another log, and for an owner an ordinary log: LogOwnedError.

    LogNotFoundError for an owner that has another payload log.
    """
    stored = manifest.extra.get(OWNER_KEY)
    if stored != (None if owner is None else list(owner[:2])):
        wanted = 0 if owner is None else owner.payload_log_id
        raise LogOwnedError(location, stored[0] if stored else None, wanted)
    if owner is not None and owner.payload_log_id not in (0, manifest.log_id):
        owner_facts(owner, location)


def owner_facts(owner: Owner | None, location: str) -> dict[str, list[int]]:
    """Return the facts of a new manifest that name its owner. LogNotFoundError if the owner has a payload log there."""
    if owner is not None and owner.payload_log_id:
        raise LogNotFoundError(location, f"it was the place of payload log {owner.payload_log_id:016x}")
    return {} if owner is None else {OWNER_KEY: list(owner[:2])}
