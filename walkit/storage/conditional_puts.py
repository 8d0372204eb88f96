"""The proof that an object store keeps the conditions of puts."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier

from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectStoreError,
    ObjectUnsupportedError,
)
from walkit.storage.object_store import ObjectStore


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
