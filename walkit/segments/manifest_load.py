"""Load the manifest from its file (FORMAT.md F-12); the names of the files beside it."""

from __future__ import annotations

import errno

from walkit._text import counted
from walkit.errors import CorruptionError, LogNotFoundError, NotALogError, StorageError
from walkit.format.layout import MANIFEST_FILE_BYTES_MAX
from walkit.format.manifest import MANIFEST_NAME, Manifest
from walkit.format.manifest_file import ManifestFile, read_manifest
from walkit.format.names import CLAIMS_LOCK_NAME
from walkit.segments.slot_store import DURABLE_NAME
from walkit.storage.interface import Storage

LOCK_NAME = "lock"
NEW_NAME = "manifest.new"
LOST_FOLDER, LOOKS_MAX = "lost+found", 4
OWN_NAMES = (MANIFEST_NAME, NEW_NAME, LOCK_NAME, DURABLE_NAME, f"{DURABLE_NAME}.tmp", CLAIMS_LOCK_NAME)
_NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR)

IDENTITY_NAME, REGISTRY_NAME = "replica-identity", "replica-registry"
"""The identity of this replica, before there is a log in the folder; the replicas that a primary knows."""
REGISTRY_LOCK_NAME = "replica-registry.lock"
REPLICATION_NAMES = (
    *(IDENTITY_NAME, f"{IDENTITY_NAME}.new"),
    *(REGISTRY_NAME, f"{REGISTRY_NAME}.new", REGISTRY_LOCK_NAME),
)
"""Files of replication beside a log."""


def load_manifest(storage: Storage) -> Manifest:
    """Return the manifest of a log.

    LogNotFoundError if there is nothing, NotALogError if there is something else, CorruptionError if segments are
    without a manifest (then `walkit.repair` can rebuild it), and what `read_manifest` raises.
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
