"""Puts of a log on object storage: their order, how far they are ahead, and errors."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import pytest

from tests.support.threads import wait_until
from walkit.commit.policy import OneRecordPerFrame
from walkit.config import LogOptions
from walkit.errors import (
    CommitFailedError,
    CorruptionError,
    LogFencedError,
    LogPoisonedError,
    ObjectStoreError,
    ObjectUnknownError,
)
from walkit.objects.layout import MANIFEST_KEY, object_key, vouched_place
from walkit.objects.open import open_object_writer
from walkit.objects.vouched import manifest_of
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest


class Gates:
    """A plan that holds the put of each bulk until `open` is called with its number; then it may fail."""

    def __init__(self) -> None:
        self.held: defaultdict[str, threading.Event] = defaultdict(threading.Event)
        self.failing = set[str]()
        self.begun = list[str]()

    def __call__(self, request: ObjectRequest) -> ObjectFault | None:
        if (
            request.method == "put_if_absent"
            and request.key.startswith("log/")
            and request.key != object_key(1)
        ):
            self.begun.append(request.key)
            assert self.held[request.key].wait(10)
            if request.key in self.failing:
                return ObjectFault(before=ObjectStoreError)
        return None

    def open(self, *numbers: int, failing: bool = False) -> None:
        for number in numbers:
            if failing:
                self.failing.add(object_key(number))
            self.held[object_key(number)].set()


def test_bulks_are_acknowledged_in_append_order_whatever_lands_first() -> None:
    """AutoMQ's sequential scenario: a later put lands first and nothing is acknowledged before the first has landed."""
    gates, options = Gates(), LogOptions(in_flight=4, policy=OneRecordPerFrame())
    with open_object_writer(MemoryObjectStore(gates), options=options) as log:
        core = log.parts.core
        tickets = [log.submit(b"%d" % n) for n in range(4)]
        wait_until(lambda: len(gates.begun) == 4, "all puts to begin")
        gates.open(3)
        wait_until(lambda: core.landed == 1, "the second put")
        assert not any(t.done() for t in tickets) and log.acked_lsn == 0
        gates.open(2)
        assert [t.result(10).first_lsn for t in tickets[:2]] == [1, 2]
        assert not any(t.done() for t in tickets[2:])
        gates.open(5)
        wait_until(lambda: core.landed == 1, "the fourth put")
        gates.open(4)
        assert [t.result(10).first_lsn for t in tickets[2:]] == [3, 4]


def test_no_bulk_is_put_further_ahead_than_the_window() -> None:
    """Hold the oldest put: those after it land, and the writer stops at the number of bulks that its header says."""
    gates, options = Gates(), LogOptions(in_flight=2, policy=OneRecordPerFrame())
    gates.open(*range(3, 30))
    with open_object_writer(MemoryObjectStore(gates), options=options) as log:
        core = log.parts.core
        tickets = [log.submit(b"%d" % n) for n in range(20)]
        wait_until(lambda: core.landed == 3 and not core.ready(), "the others to stop at the window")
        assert len(core.in_flight) == 4 == core.reorder_window_frames and len(gates.begun) == 4
        gates.open(2)
        assert tickets[-1].result(10).first_lsn == 20


def test_a_bulk_that_fails_takes_all_after_it_along_and_none_before() -> None:
    """Fail the second of four puts, also before the first has landed: the first is acknowledged, the others never."""
    gates, options = Gates(), LogOptions(in_flight=4, policy=OneRecordPerFrame())
    store = MemoryObjectStore()
    log = open_object_writer(store.client(gates), options=options)
    tickets = [log.submit(b"%d" % n) for n in range(4)]
    wait_until(lambda: len(gates.begun) == 4, "all puts to begin")
    gates.open(4, 5)
    gates.open(3, failing=True)
    for ticket in tickets[1:]:
        with pytest.raises(CommitFailedError):
            ticket.result(10)
    gates.open(2)
    assert tickets[0].result(10).first_lsn == 1
    with pytest.raises(LogPoisonedError):
        log.append(b"more")
    log.close()
    with open_object_writer(store.client()) as log:
        assert [r.value for r in log.read()] == [b"0"]


def test_a_fenced_writer_fails_with_a_typed_error_and_closes() -> None:
    """Open by a second writer; the first fails with the typed error, and closes without one."""
    store = MemoryObjectStore()
    first = open_object_writer(store.client())
    first.append(b"kept")
    with open_object_writer(store.client()) as second:
        with pytest.raises(CommitFailedError) as caught:
            first.append(b"late")
        assert isinstance(caught.value.__cause__, LogFencedError) and caught.value.__cause__.epoch == 2
        first.close()
        second.append(b"new")
        assert [r.value for r in second.read()] == [b"kept", b"new"]


def test_a_save_that_gave_up_and_landed_is_an_own_one() -> None:
    """Lose every answer for the manifest until a save gives up: the next one goes on; an old manifest is damage."""
    answers_lost = threading.Event()

    def plan(request: ObjectRequest) -> ObjectFault | None:
        is_lost = answers_lost.is_set() and request.key == MANIFEST_KEY
        return ObjectFault(after=ObjectUnknownError) if is_lost else None

    store = MemoryObjectStore()
    with open_object_writer(store.client(plan), options=LogOptions(write_timeout_ms=50)) as log:
        old = store.get(MANIFEST_KEY).data
        vouched: Any = log.parts.manifest_store
        log.append(b"saved, and nobody knows")
        answers_lost.set()
        with pytest.raises(ObjectUnknownError):
            vouched.save()
        answers_lost.clear()
        log.append(b"saved")
        vouched.save()
        assert vouched_place(manifest_of(store.get(MANIFEST_KEY), store.location)).lsn == 2
        store.put_if_match(MANIFEST_KEY, old, store.get(MANIFEST_KEY).tag)
        log.append(b"more")
        with pytest.raises(CorruptionError, match="was replaced"):
            vouched.save()
