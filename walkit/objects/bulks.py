"""Bulks by their numbers: checked, the newest ones kept in memory, many read ahead at a time."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import NamedTuple

from walkit.errors import CorruptionError, ObjectMissingError, ObjectRangeError
from walkit.objects.layout import BULK_HEADER_BYTES, BulkHeader, check_bulk, object_key
from walkit.storage.object_store import ObjectStore

PARALLEL = 16
"""So many bulks are asked for at a time."""
AHEAD_BYTES = 32 << 20
"""Bulks like the largest one so far are asked for ahead up to so many bytes, or one."""
CACHE_BYTES = 16 << 20
LOOK_BULKS = 1024
"""A look that has found so many bulks ends at those that are there by then."""


class Bulk(NamedTuple):
    """An object of the log whose length and checksums are right."""

    header: BulkHeader
    data: bytes
    tag: str


class Bulks:
    """The bulks of one log. Safe from any thread."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._kept: OrderedDict[int, Bulk] = OrderedDict()
        """Bulks that are part of the log, so that no other one ever takes their numbers."""
        self._kept_bytes = 0

    def keep(self, bulk: Bulk) -> None:
        """Keep one that is part of the log: its frames are likely to be read next. One thread at a time."""
        self._kept[bulk.header.number] = bulk
        self._kept_bytes += len(bulk.data)
        while self._kept_bytes > CACHE_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1].data)

    def get(self, number: int) -> Bulk | None:
        """Return a bulk, or None. CorruptionError if it is damaged, and still is when it is read again."""
        kept = self._kept.get(number)
        if kept is not None:
            return kept
        try:
            data, tag = self._store.get(object_key(number))
            with suppress(CorruptionError):  # an answer that was cut looks damaged, too
                return Bulk(check_bulk(data, number), data, tag)
            data, tag = self._store.get(object_key(number))
        except ObjectMissingError:
            return None
        return Bulk(check_bulk(data, number), data, tag)

    def header(self, number: int) -> BulkHeader | None:
        """Return the header of a bulk, by a request for that alone, or None."""
        try:
            if number not in self._kept:
                front = self._store.get_range(object_key(number), 0, BULK_HEADER_BYTES).data
                return BulkHeader.decode(front, number)
        except ObjectMissingError:
            return None
        except (ObjectRangeError, CorruptionError):
            pass  # a whole one is read before this is damage
        bulk = self.get(number)
        return None if bulk is None else bulk.header

    def _bare(self, number: int) -> Bulk | None:
        header = self.header(number)
        return None if header is None else Bulk(header, b"", "")

    def there(self, first: int, *, bodies: bool = True) -> Generator[Bulk | None]:
        """Yield what `ahead` does, up to the first that is missing or a number that no bulk had when it began.

        So a writer that is faster than the reader does not hold it.
        """
        last = 0
        with closing(self.ahead(first, bodies=bodies)) as found:
            for number, bulk in enumerate(found, first):
                yield bulk
                if bulk is None or number == last:
                    return
                if number == first + LOOK_BULKS:
                    last = number + LOOK_BULKS
                    with suppress(CorruptionError):  # the look that gets there is told
                        while self.header(last) is not None:
                            last += last - number

    def ahead(
        self, first: int, last: int | None = None, *, bodies: bool = True, bytes_max: int = AHEAD_BYTES
    ) -> Generator[Bulk | None]:
        """Yield the bulks from number `first` to `last`, or without end, None for each that is missing.

        The first is asked for alone, and then twice as many at a time with each that was there. Raises as `get` does.
        Without `bodies` only the header of each is read, and its data and tag are empty.
        """
        get = self.get if bodies else self._bare
        requested: deque[Callable[[], Bulk | None]] = deque()
        largest, room, number = 1, 1, first
        pool = ThreadPoolExecutor(PARALLEL, "walkit-bulks")
        try:
            while requested or last is None or number <= last:
                while len(requested) < room and (last is None or number <= last):
                    is_near = room == 1 or number in self._kept
                    requested.append(partial(get, number) if is_near else pool.submit(get, number).result)
                    number += 1
                bulk = requested.popleft()()
                yield bulk
                largest = max(largest, 0 if bulk is None else len(bulk.data))
                room = min(room * 2, PARALLEL, max(bytes_max // largest, 1))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
