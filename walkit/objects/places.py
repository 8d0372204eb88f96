"""Places of logs: folders, and object stores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

from walkit._internal.arguments import refuse
from walkit.objects.view import ObjectEnd
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage
from walkit.storage.object_open import is_object_url, open_store
from walkit.storage.object_store import ObjectStore

AnyPlace: TypeAlias = Place | ObjectStore


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


def place_of(
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
