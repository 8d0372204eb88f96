"""Object stores by their URL, and the proof that a store keeps the conditions of puts."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier
from typing import Any

from walkit._internal.arguments import refuse
from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectStoreError,
    ObjectUnsupportedError,
)
from walkit.storage.object_files import FileObjectStore
from walkit.storage.object_store import ObjectStore

FILES = "objects:"
_CLOUD = re.compile(r"(s3|gs|az)://[^/?#@]+(/[^?#]*)?")


class StorageOptions(dict[str, Any]):
    """Options of a store, credentials among them: the repr has the names alone."""

    def __repr__(self) -> str:
        return f"StorageOptions({', '.join(f'{name}=***' for name in self)})"


def is_object_url(place: object) -> bool:
    """Say whether this is the URL of an object store."""
    return isinstance(place, str) and place.startswith((FILES, "s3://", "gs://", "az://"))


def open_store(url: str, storage_options: Mapping[str, Any] | None = None) -> ObjectStore:
    """Return the object store of a URL: `s3://bucket/folder`, `gs://`, `az://` (obstore), or `objects:/folder`.

    `storage_options` are those of obstore: endpoint, region, credentials, timeouts; the environment has the others. No
    request is made. OptionsError, which does not show the options; MissingExtraError.
    """
    options = StorageOptions(storage_options or {})
    if url.startswith(FILES) and len(url) > len(FILES):
        if options:
            refuse("storage_options", options, f"a store in a folder ({FILES}) has none")
        return FileObjectStore(os.path.expanduser(url.removeprefix(FILES)))
    if not _CLOUD.fullmatch(url):
        # It may have a password in it, or a signature.
        shown = f"{url.partition(':')[0]}:..."
        refuse("url", shown, "s3://BUCKET/FOLDER, gs:// or az:// without credentials, or objects:/FOLDER")
    from walkit.storage.object_obstore import ObstoreObjectStore

    return ObstoreObjectStore(url, options)


def prove_conditional_writes(store: ObjectStore, prefix: str) -> None:
    """Try the conditions of puts on new keys below `prefix`; ObjectUnsupportedError if one is ignored.

    Any other error is that of a request, and proves nothing. The keys are removed, if the store does it.
    """
    key = f"{prefix}/probe-{secrets.token_hex(8)}"
    other = f"{key}-other"
    try:
        first = store.put_if_absent(key, b"1")
        _refused(store, "creates a key twice", ObjectExistsError, lambda: store.put_if_absent(key, b"2"))
        second = store.put_if_match(key, b"2", first)
        _refused(
            store, "takes a stale tag", ObjectConflictError, lambda: store.put_if_match(key, b"3", first)
        )
        _refused(
            store,
            "takes a tag for an absent key",
            ObjectConflictError,
            lambda: store.put_if_match(other, b"3", second),
        )
        _one_of_two(store, "creates a key twice at once", lambda data: store.put_if_absent(other, data))
        _one_of_two(store, "takes a tag twice at once", lambda data: store.put_if_match(key, data, second))
    finally:
        with suppress(ObjectStoreError):
            store.delete_many([key, other])


def _ignored(store: ObjectStore, what: str) -> ObjectUnsupportedError:
    return ObjectUnsupportedError(
        f"{store.location} ignores the conditions of puts: it {what}, so one writer of a log would overwrite another",
        what="conditional writes",
        store=store.location,
    )


def _refused(store: ObjectStore, what: str, kind: type[ObjectStoreError], put: Callable[[], object]) -> None:
    try:
        put()
    except kind:
        return
    raise _ignored(store, what)


def _one_of_two(store: ObjectStore, what: str, put: Callable[[bytes], object]) -> None:
    barrier = Barrier(2)

    def attempt(data: bytes) -> bool:
        barrier.wait()
        try:
            put(data)
        except (ObjectExistsError, ObjectConflictError):
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        if all(pool.map(attempt, (b"4", b"5"))):
            raise _ignored(store, what)
