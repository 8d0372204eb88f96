"""Deleting the bulks that a trim has moved the floor past."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Final

from walkit.objects.layout import fences_of, object_key
from walkit.objects.vouched import VouchedEnd

BULK_KEYS: Final = 1000
"""So many keys are deleted at a time: the most that S3 takes in one request."""


class Sweeper:
    """Deletes bulks below the floor, and no fence; stands for the `OrphanFiles` of a folder. Safe from any thread."""

    def __init__(self, vouched: VouchedEnd) -> None:
        # Guards `_swept`, through the requests of a deletion. Taken after the claims' lock, and before a turn.
        self.lock = threading.RLock()
        self._vouched = vouched
        self._fences = fences_of(vouched.stored)
        self._swept = vouched.claims_object.known.swept

    def add(self, names: Iterable[str]) -> None:
        """See Orphans: deletes files that never got their name. Of bulks the floor decides."""
        self._vouched.claims_object.drop_ready(names)

    def give_up(self, names: list[str]) -> None:
        """See Orphans."""
        self._vouched.claims_object.drop_ready(names)
        names.clear()

    @property
    def is_behind(self) -> bool:
        """Whether bulks below the floor are left: of a trim that was interrupted."""
        return self._swept < self._vouched.floor.number

    def remove(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Delete what is left below the floor; after an error the next call deletes the rest. Needs the lock held.

        The floor is known to be durable, as it was read or put in this writer's epoch. So no fence that was made since
        is below it.
        """
        claims_object = self._vouched.claims_object
        store, first, last = claims_object.reads.store, self._swept, claims_object.known.floor.number
        dead = (n for n in range(first + 1, last + 1) if n not in self._fences)
        while numbers := list(islice(dead, BULK_KEYS)):
            keys = [object_key(number) for number in numbers]
            claims_object.reads.repeat(lambda keys=keys: store.delete_many(keys))  # type: ignore[misc]
            self._swept = numbers[-1]
            if progress is not None:
                progress(self._swept - first, last - first)
        if last > first:
            self._swept = last
            claims_object.later(lambda draft: replace(draft, swept=max(draft.swept, last)))

    def forget(self) -> None:
        """In a forked child: forget a lock that a thread of the parent may hold."""
        self.lock = threading.RLock()
