"""An object store in memory: deterministic, with every request counted, and with faults and delays by a plan.

A *client* plays one process: it has its own plan and its own count, over objects that all clients share;
`store.client(plan)` makes another. Lists are in the order of a hash of the keys, so that code which needs order fails.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

from walkit._internal.locks import once
from walkit.errors import (
    ObjectConflictError,
    ObjectExistsError,
    ObjectMissingError,
    ObjectRangeError,
    ObjectStoreError,
    ObjectUnknownError,
    ObjectUnsupportedError,
)
from walkit.record import Buffer
from walkit.storage.interface import checked_name
from walkit.storage.object_store import ObjectBytes, ObjectEntry, checked_range


class ObjectRequest(NamedTuple):
    """One request: its number among those of its client, from 0; the method's name; the key, or a list's prefix."""

    number: int
    method: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectFault:
    """The fate of a request.

    It first takes `delay_s`. `before` is raised instead of doing it; `after` once it is done, as a lost answer is;
    with `late` it is done by a later `MemoryObjectStore.land`, and `after` or ObjectUnknownError is raised. An answer
    comes `answer_s` after it was done. `status` and `retry_after_s` are facts of the error. A list leaves out the keys
    in `hidden`.
    """

    delay_s: float = 0.0
    answer_s: float = 0.0
    before: type[ObjectStoreError] | None = None
    after: type[ObjectStoreError] | None = None
    late: bool = False
    status: int | None = None
    retry_after_s: float | None = None
    hidden: frozenset[str] = frozenset()


T = TypeVar("T")
Plan = Callable[[ObjectRequest], ObjectFault | None]
"""Asked before each request, by the thread that makes it; it may wait, as a paused process does."""


class _Held(NamedTuple):
    data: bytes
    tag: str
    since: int
    """The number of the change that made it, or removed it."""


class _Objects:
    """The objects themselves, which clients share."""

    def __init__(self) -> None:
        # Guards all objects and the counts of changes. Taken last.
        self.guard: Any = threading.RLock()
        self.held: dict[str, _Held] = {}
        self.gone: dict[str, _Held] = {}
        """The last object that was removed, by key, for lists that lag."""
        self.changes = 0


@dataclass(eq=False, repr=False)
class MemoryObjectStore:
    """Objects in memory: see `walkit.storage.ObjectStore`.

    `plan` decides each request. A list shows a change only after `list_lag` further changes of the store. A page of a
    list has `page_keys` keys, and is one request.
    """

    plan: Plan | None = None
    _: KW_ONLY
    list_lag: int = 0
    page_keys: int = 1000
    can_list: bool = True
    pause_s: float = 0.0
    sleep: Callable[[float], object] = time.sleep
    name: str = "objects"
    objects: _Objects = field(default_factory=_Objects)
    requests: list[ObjectRequest] = field(default_factory=list, init=False)
    """Every request of this client, in order."""
    _late: list[Callable[[], object]] = field(default_factory=list, init=False)

    @property
    def location(self) -> str:
        """A name for messages."""
        return f"memory:{self.name}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location}>"

    def client(self, plan: Plan | None = None) -> MemoryObjectStore:
        """Return another client of the same objects, as another process is."""
        return replace(self, plan=plan)

    def counts(self) -> Counter[str]:
        """Return how many requests of each method this client has made."""
        return Counter(request.method for request in self.requests)

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """Create an object; return its tag."""
        return self._request("put_if_absent", key, lambda: self._put(key, data, None))

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str:
        """Replace the object that has this tag; return the new tag."""
        return self._request("put_if_match", key, lambda: self._put(key, data, tag))

    def get(self, key: str) -> ObjectBytes:
        """Return all bytes of an object, and its tag."""
        return self._request("get", key, lambda: self._get(key))

    def get_range(self, key: str, start: int, stop: int) -> ObjectBytes:
        """Return bytes [start, stop) of an object, fewer if it is shorter, and its tag."""
        checked_range(start, stop)

        def cut() -> ObjectBytes:
            data, tag = self._get(key)
            if start >= len(data):
                raise self._error(ObjectRangeError, "get_range", key)
            return ObjectBytes(data[start:stop], tag)

        return self._request("get_range", key, cut)

    def list_after(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """Yield the objects below a folder of keys whose keys sort after `after`, in no order."""
        if prefix:
            checked_name(prefix, self.location)
        found: list[ObjectEntry] | None = None
        while True:  # also for an empty list: it is one request
            fault = self._begin("list_after", prefix)
            if not self.can_list:
                raise self._error(ObjectUnsupportedError, "list_after", prefix)
            with once(self.objects.guard), self.objects.guard:
                found = self._list(prefix, after) if found is None else found
            page, found = found[: self.page_keys], found[self.page_keys :]
            if fault.after is not None:
                raise self._error(fault.after, "list_after", prefix, fault)
            yield from (entry for entry in page if entry.key not in fault.hidden)
            if not found:
                return

    def delete(self, key: str) -> None:
        """Remove an object, whatever its tag, if there is one."""
        self._request("delete", key, lambda: self._delete([key]))

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove objects, all in one request."""
        for key in keys:
            checked_name(key, self.location)
        if keys:
            self._request("delete_many", keys[0], lambda: self._delete(keys))

    def close(self) -> None:
        """Nothing is held."""

    def land(self) -> None:
        """Finish this client's late puts and deletions; their errors have no reader."""
        while self._late:
            with suppress(ObjectStoreError), once(self.objects.guard), self.objects.guard:
                self._late.pop(0)()

    def _request(self, method: str, key: str, do: Callable[[], T]) -> T:
        checked_name(key, self.location)
        fault = self._begin(method, key)
        if fault.late:
            self._late.append(do)
        else:
            with once(self.objects.guard), self.objects.guard:
                result = do()
            if fault.answer_s:
                self.sleep(fault.answer_s)
            if fault.after is None:
                return result
        raise self._error(fault.after or ObjectUnknownError, method, key, fault)

    def _begin(self, method: str, key: str) -> ObjectFault:
        """Count a request and let the plan have it."""
        with once(self.objects.guard), self.objects.guard:
            request = ObjectRequest(len(self.requests), method, key)
            self.requests.append(request)
        fault = (self.plan(request) if self.plan else None) or ObjectFault()
        if fault.delay_s:
            self.sleep(fault.delay_s)
        if fault.before is not None:
            raise self._error(fault.before, method, key, fault)
        return fault

    def _error(
        self, kind: type[ObjectStoreError], action: str, key: str, fault: ObjectFault | None = None
    ) -> ObjectStoreError:
        status, retry_after_s = (fault.status, fault.retry_after_s) if fault else (None, None)
        facts: Any = {"store": self.location, "key": key, "status": status, "retry_after_s": retry_after_s}
        return kind(f"cannot {action} {key!r} in {self.location}: {kind.code}", **facts)

    def _put(self, key: str, data: Buffer, tag: str | None) -> str:
        objects = self.objects
        old = objects.held.get(key)
        if tag is None and old is not None:
            raise self._error(ObjectExistsError, "put_if_absent", key)
        if tag is not None and (old is None or old.tag != tag):
            raise self._error(ObjectConflictError, "put_if_match", key)
        objects.changes += 1
        objects.held[key] = _Held(bytes(data), str(objects.changes), old.since if old else objects.changes)
        objects.gone.pop(key, None)
        return objects.held[key].tag

    def _get(self, key: str) -> ObjectBytes:
        held = self.objects.held.get(key)
        if held is None:
            raise self._error(ObjectMissingError, "get", key)
        return ObjectBytes(held.data, held.tag)

    def _delete(self, keys: Sequence[str]) -> None:
        objects = self.objects
        for key in keys:
            if key in objects.held:
                objects.changes += 1
                objects.gone[key] = objects.held.pop(key)._replace(since=objects.changes)

    def _list(self, prefix: str, after: str) -> list[ObjectEntry]:
        objects, folder = self.objects, f"{prefix}/" if prefix else ""
        known = objects.changes - self.list_lag
        shown = {key: held for key, held in objects.gone.items() if held.since > known}
        shown |= {key: held for key, held in objects.held.items() if held.since <= known}
        entries = [
            ObjectEntry(key, len(held.data), held.tag)
            for key, held in shown.items()
            if key.startswith(folder) and key > after
        ]
        return sorted(entries, key=lambda entry: (crc32(entry.key.encode()), entry.key))
