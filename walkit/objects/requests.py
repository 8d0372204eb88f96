"""Requests to an object store that are repeated: reads, and conditional puts whose outcome is not known."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import islice
from typing import Any, TypeVar

from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectStoreError,
    ObjectThrottledError,
    ObjectUnknownError,
)
from walkit.objects.bulks import Bulks
from walkit.record import Buffer
from walkit.storage.object_store import ObjectBytes, ObjectStore

PAUSE_S, PAUSE_MAX_S = 0.02, 2.0
T = TypeVar("T")


class Patience:
    """How long one request is repeated: with growing pauses, for `limit_s` in all; None has no limit."""

    def __init__(
        self,
        limit_s: float | None,
        *,
        also: tuple[type[ObjectStoreError], ...] = (),
        pause_s: float = PAUSE_S,
    ) -> None:
        self.repeated: tuple[type[ObjectStoreError], ...] = (
            ObjectThrottledError,
            ObjectUnknownError,
            *also,
        )
        """The errors after which a request is repeated."""
        self._ends_s = None if limit_s is None else time.monotonic() + limit_s
        self._pause_s = pause_s

    def wait(self, error: ObjectStoreError) -> None:
        """Wait before the next try; raise `error` if the time is over by then."""
        pause_s = max(self._pause_s, error.retry_after_s or 0)
        if self._ends_s is not None and time.monotonic() + pause_s > self._ends_s:
            raise error
        time.sleep(pause_s)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)


class PatientReads:
    """The reads of a store, each repeated with a patience of its own. Safe from any thread."""

    def __init__(self, store: ObjectStore, new_patience: Callable[[], Patience]) -> None:
        self.store, self.new_patience = store, new_patience

    def get(self, key: str) -> ObjectBytes:
        """See ObjectStore."""
        return self.repeat(lambda: self.store.get(key))

    def get_range(self, key: str, start: int, stop: int) -> ObjectBytes:
        """See ObjectStore."""
        return self.repeat(lambda: self.store.get_range(key, start, stop))

    def keys_after(self, folder: str, after: str, keys_max: int | None = None) -> list[str]:
        """Return the keys that a listing shows, at most `keys_max`; empty if the store cannot list, or must not.

        A listing may show less than there is anyway, so nothing depends on it.
        """
        try:
            return self.repeat(
                lambda: [entry.key for entry in islice(self.store.list_after(folder, after), keys_max)]
            )
        except ObjectStoreError:
            return []

    def find(self, key: str) -> ObjectBytes | None:
        """Return an object, or None if it is missing."""
        try:
            return self.get(key)
        except ObjectMissingError:
            return None

    def bulks(self) -> Bulks:
        """Return a reader of bulks that makes its requests through this."""
        store: Any = self  # it reads alone
        return Bulks(store)

    def repeat(self, do: Callable[[], T]) -> T:
        """Return what a request returns that may be made any number of times."""
        patience = self.new_patience()
        while True:
            try:
                return do()
            except patience.repeated as error:
                patience.wait(error)


def put_own(
    reads: PatientReads,
    key: str,
    data: Buffer,
    tag: str | None,
    before_repeat: Callable[[], object] = lambda: None,
) -> str | None:
    """Create an object, or with `tag` replace the one of this tag; return the new tag, None if others have changed it.

    The outcome is known on return. The content has a nonce of its writer, so no other writer puts the same bytes. Proof
    that each return is right:
    - The own bytes are there: a put of ours has succeeded, whichever of the tries it was.
    - Other bytes are there, and their tag is not `tag`: the condition of each of our tries is false from now on, as
      no tag comes twice (content with a nonce and a counter never does). A try that succeeded before, and was
      replaced since, was replaced by a writer that has read ours.
    - Else the condition still holds, so no try of ours has succeeded yet. One may still be under way: it and the next
      try have the same condition and the same content, so at most one of them succeeds, and it does not matter which.
    """
    patience = reads.new_patience()
    while True:
        try:
            if tag is None:
                return reads.store.put_if_absent(key, data)
            return reads.store.put_if_match(key, data, tag)
        except (ObjectExistsError, ObjectConflictError) as error:
            problem: ObjectStoreError = error
        except patience.repeated as error:
            problem = error
        found = reads.find(key)
        if found is not None and found.data == data:
            return found.tag
        if (None if found is None else found.tag) != tag:
            return None
        before_repeat()
        patience.wait(problem)
