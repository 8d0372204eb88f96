"""The object stores: the shared suite on each, and what only one of them has."""

from __future__ import annotations

from pathlib import Path

import pytest

from walkit.errors import ObjectExistsError, ObjectMissingError, ObjectThrottledError, ObjectUnknownError
from walkit.errors import ObjectUnsupportedError as Unsupported
from walkit.storage import MemoryObjectStore, ObjectFault, ObjectRequest, ObjectStore
from walkit.testing import ObjectStoreTests


class TestMemory(ObjectStoreTests):
    """The suite as it is."""

    def make_store(self, place: Path) -> ObjectStore:
        return MemoryObjectStore(page_keys=7)

    def reopen(self, store: ObjectStore) -> ObjectStore:
        assert isinstance(store, MemoryObjectStore)
        return store.client()


THROTTLED = ObjectFault(before=ObjectThrottledError, status=503, retry_after_s=2.0)


def test_a_plan_decides_each_request() -> None:
    """Fail before, after, late and slowly by a plan: the errors, the state after them and the counts are exact."""
    plan = {
        0: THROTTLED,
        1: ObjectFault(after=ObjectUnknownError),
        3: ObjectFault(late=True),
        4: ObjectFault(delay_s=5),
    }
    slept: list[float] = []
    store = MemoryObjectStore(lambda request: plan.get(request.number), sleep=slept.append)
    with pytest.raises(ObjectThrottledError) as throttled:
        store.put_if_absent("a", b"1")
    assert (throttled.value.status, throttled.value.retry_after_s) == (503, 2.0)
    with pytest.raises(ObjectUnknownError):
        store.put_if_absent("a", b"1")
    assert store.get("a").data == b"1"
    with pytest.raises(ObjectUnknownError):
        store.put_if_absent("b", b"2")
    other = store.client()
    with pytest.raises(ObjectMissingError):
        store.get("b")
    assert (slept, other.requests) == ([5], [])
    store.land()
    assert other.get("b").data == b"2"
    with pytest.raises(ObjectExistsError):
        other.put_if_absent("b", b"3")
    assert store.counts() == {"put_if_absent": 3, "get": 2}
    assert other.requests == [ObjectRequest(0, "get", "b"), ObjectRequest(1, "put_if_absent", "b")]


def test_lists_lag_hide_and_are_missing() -> None:
    """List a store that lags, hides a key, has pages, or cannot: only the lists differ, and each page is a request."""
    store = MemoryObjectStore(list_lag=1, page_keys=2)
    for key in "abcd":
        store.put_if_absent(key, b"x")
    assert {entry.key for entry in store.list_after("")} == {"a", "b", "c"}
    store.delete("a")
    assert {entry.key for entry in store.list_after("")} == {"a", "b", "c", "d"}
    assert store.counts()["list_after"] == 4
    hiding = store.client(lambda request: ObjectFault(hidden=frozenset("b")))
    assert {entry.key for entry in hiding.list_after("", "a")} == {"c", "d"}
    hiding.can_list = False
    with pytest.raises(Unsupported):
        next(hiding.list_after(""))
