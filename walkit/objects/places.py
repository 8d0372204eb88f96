"""Places of logs: folders, and object stores."""

from __future__ import annotations

from typing import TypeAlias, cast

from walkit.objects.view import ObjectEnd
from walkit.storage.address import Place, storage_at
from walkit.storage.interface import Storage
from walkit.storage.object_store import ObjectStore

AnyPlace: TypeAlias = Place | ObjectStore


def object_store_of(place: AnyPlace) -> ObjectStore | None:
    """Return the object store that a place means, or None for a folder."""
    return cast(ObjectStore, place) if hasattr(place, "put_if_absent") else None


def log_at(place: AnyPlace) -> Storage | ObjectEnd:
    """Return the folder of a log, or the end of a log on object storage: what a `LogReader` takes."""
    store = object_store_of(place)
    return storage_at(cast(Place, place)) if store is None else ObjectEnd(store)
