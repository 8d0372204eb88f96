"""A replica's identity in its folder: for its owner alone, with the number of the very file it is written in.

A copy of the folder has the id, too, but another file: two replicas with one identity would move each
other's hold. So a file that is not the one that was written is taken for a copy, and refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from walkit.errors import CorruptionError
from walkit.objects.entrance import object_store_of
from walkit.objects.layout import MANIFEST_KEY
from walkit.objects.requests import Patience, PatientReads
from walkit.objects.view import READ_S
from walkit.objects.vouched import manifest_of
from walkit.replication.logs.folder_role import REPLICA_KEY
from walkit.replication.logs.object_importer import IDENTITY_KEY
from walkit.replication.logs.secret_file import read_private, write_private
from walkit.replication.protocol.failures import IdentityError
from walkit.replication.protocol.identity import Identity
from walkit.segments.manifest_store import IDENTITY_NAME
from walkit.storage.interface import FileNumber, Storage, remove_if_there
from walkit.storage.object_store import ObjectStore

NEW_IDENTITY = "Replica(..., new_identity=True) or walkit follow --new-identity"


@dataclass(frozen=True, slots=True)
class OwnIdentity:
    """A replica's own record: its identity, and the label that it had when it got it."""

    identity: Identity
    name: str


def load_identity(place: Storage | ObjectStore) -> OwnIdentity | None:
    """Return the identity of a folder or of a log on object storage; None if it has none yet.

    IdentityError ("copied") if the folder is a copy; CorruptionError, FormatVersionError, StorageError. Nothing is
    changed.
    """
    store = object_store_of(place)
    if store is not None:
        return _identity_in(store)
    storage = cast(Storage, place)
    found = read_private(storage, IDENTITY_NAME)
    if found is None:
        return None
    facts = found.facts
    try:
        own = OwnIdentity(Identity(bytes.fromhex(facts["id"])), str(facts["name"]))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptionError(
            f"{storage.location}/{IDENTITY_NAME} is not an identity: {error!r}. {NEW_IDENTITY} mints another",
            segment=IDENTITY_NAME,
        ) from error
    if found.is_copy:
        raise IdentityError(
            f"{storage.location} is a copy of a replica's folder: its identity was written to file "
            f"{_shown(found.written)} and is now in file {_shown(found.found)}. Two replicas with one identity are not "
            f"served; {NEW_IDENTITY} gives this one an identity of its own and keeps its data",
            reason="copied",
            location=storage.location,
        )
    return own


def _identity_in(store: ObjectStore) -> OwnIdentity | None:
    """Return the identity that the manifest of a log on object storage has."""
    found = PatientReads(store, lambda: Patience(READ_S)).find(MANIFEST_KEY)
    extra = {} if found is None else manifest_of(found, store.location).extra
    text, _, location = str(extra.get(IDENTITY_KEY, "")).partition(" ")
    if text and location != store.location:
        raise IdentityError(
            f"{store.location} is a copy of a replica at {location}, or has moved. Two replicas with one identity are "
            f"not served; {NEW_IDENTITY} gives this one an identity of its own and keeps its data",
            reason="copied",
            location=store.location,
        )
    return (
        OwnIdentity(Identity(bytes.fromhex(text)), str(extra.get(REPLICA_KEY, {}).get("name", "")))
        if text
        else None
    )


def keep_identity(storage: Storage, own: OwnIdentity) -> None:
    """Write the identity of this replica; durable on return."""
    write_private(storage, IDENTITY_NAME, {"id": own.identity.id.hex(), "name": own.name})


def drop_identity(storage: Storage) -> None:
    """Forget the identity of this folder, durably: the next opening mints another."""
    if remove_if_there(storage, IDENTITY_NAME):
        storage.sync_directory()


def _shown(number: FileNumber | None) -> str:
    assert number is not None, "a copy has two numbers"
    return f"{number.inode} of device {number.device}"
