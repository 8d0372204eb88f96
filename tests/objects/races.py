"""Processes on one object store, one of which sleeps at any of its requests, and the checks for afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

import walkit
from walkit.commit.policy import OneRecordPerFrame
from walkit.config import LogOptions
from walkit.errors import ObjectStoreError, WalkitError
from walkit.objects.layout import CLAIMS_KEY, MANIFEST_KEY, Claims, fences_of, number_of_key, vouched_place
from walkit.objects.open import open_object_writer
from walkit.objects.vouched import manifest_of
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest

OPTIONS = LogOptions(in_flight=2, policy=OneRecordPerFrame())
ACKED = dict[int, bytes]
"""LSN and value of each record that was acknowledged."""


def write(store: MemoryObjectStore, name: bytes, acked: ACKED, records: int = 4) -> None:
    """Open, append some records with two frames in flight, close; note the acknowledged. Errors of the log end it."""
    with suppress(WalkitError), open_object_writer(store, options=OPTIONS) as log:
        tickets = []
        for n in range(records):
            value = b"%s-%d" % (name, n)
            tickets.append((value, log.submit(value)))
        for value, ticket in tickets:
            with suppress(WalkitError):
                acked[ticket.result().first_lsn] = value


def started(base: MemoryObjectStore) -> ACKED:
    """Write a log whose writer ends without closing, so that its bulks are after the vouched end."""
    acked: ACKED = {}
    log = open_object_writer(base, options=OPTIONS)
    for n in range(3):
        acked[log.append(b"base-%d" % n).first_lsn] = b"base-%d" % n
    base.plan = refuse_all
    log.close()
    base.plan = None
    return acked


def store_with(objects: Mapping[str, bytes]) -> MemoryObjectStore:
    """Return a store with these objects."""
    store = MemoryObjectStore()
    for key, data in objects.items():
        store.put_if_absent(key, data)
    return store


def objects_of(store: MemoryObjectStore) -> dict[str, bytes]:
    """Return the objects of a store."""
    return {entry.key: store.get(entry.key).data for entry in store.list_after("")}


def refuse_all(request: ObjectRequest) -> ObjectFault:
    return ObjectFault(before=ObjectStoreError)


def check_history(store: MemoryObjectStore, *histories: ACKED) -> None:
    """A third writer finds every acknowledged record under its LSN, and no value twice."""
    with open_object_writer(store.client(), options=OPTIONS) as log:
        found = {record.lsn: record.value for record in log.read()}
    assert len(set(found.values())) == len(found)
    assert list(found) == list(range(1, len(found) + 1))
    for acked in histories:
        assert acked.items() <= found.items()


def facts_of(store: MemoryObjectStore) -> tuple[Claims, set[int], set[int], set[str]]:
    """Return the claims object, the fences, the numbers of all bulks that are there, and all keys."""
    claims = Claims.decode(store.get(CLAIMS_KEY).data)
    manifest = manifest_of(store.get(MANIFEST_KEY), store.location)
    keys = {entry.key for entry in store.list_after("")}
    numbers = {n for key in keys if (n := number_of_key(key)) is not None}
    assert claims.floor.number <= vouched_place(manifest).number, "the floor is after the vouched end"
    return claims, fences_of(manifest), numbers, keys


def upkeep(store: MemoryObjectStore, name: bytes, acked: ACKED) -> None:
    """Open a store, put, save a cursor, hold and release, and checkpoint twice: all that a writer does to a log."""
    with suppress(WalkitError), walkit.Store.open(store, OPTIONS) as kept:
        for n in range(4):
            value = b"%s-%d" % (name, n)
            with suppress(WalkitError):
                acked[kept.put(value, value).first_lsn] = value
                if n == 1:
                    hold = kept.log.hold("own", kept.log.first_lsn)
                    kept.checkpoint()
                    hold.release()
        kept.log.cursor("done").advance(kept.log.acked_lsn)
        kept.checkpoint()


def compacting(store: MemoryObjectStore, name: bytes, acked: ACKED) -> None:
    """Open a store, fill stretches of bulks with records of which half are superseded, compact, put again, compact."""
    options = replace(OPTIONS, segment_bytes=64 << 10)
    with suppress(WalkitError), walkit.Store.open(store, options) as kept:
        for n in range(4):
            value = b"%s-%d" % (name, n)
            with suppress(WalkitError):
                kept.put(b"hot", bytes(15_000))
                acked[kept.put(value, value + bytes(15_000)).first_lsn] = value
                if n > 1:
                    kept.compact()


def check_state(base: MemoryObjectStore, *histories: ACKED) -> None:
    """A later opening has every acknowledged record in its state, and every object that the log names is there."""
    with walkit.Store.open(base.client(), OPTIONS) as store:
        state, last = dict(store.items()), store.log.acked_lsn
        claims, fences, numbers, keys = facts_of(base)
        complete = store.inventory().complete_from_lsn
        assert set(range(complete, last + 1)) <= {record.lsn for record in store.log.read()}
        for history in histories:
            assert set(history.values()) <= set(state), "an acknowledged record was lost"
            assert all(lsn <= last for lsn in history)
        assert fences <= numbers, "a fence was deleted"
        assert {key for key, _ in claims.files.values()} == {key for key in keys if key.startswith("files/")}
        assert set(numbers) >= set(range(claims.floor.number + 1, max(numbers) + 1))
        assert numbers - fences <= set(range(claims.floor.number + 1, max(numbers) + 1)), "late bulks stay"


class Pause:
    """Stops one of the requests `of` a client, or it and all that come later, until `resume`."""

    def __init__(
        self, number: int, *, later_too: bool, of: Callable[[ObjectRequest], bool] = lambda request: True
    ) -> None:
        self.number, self.of, self.later_too = number, of, later_too
        self.turns, self.first = count(), list[ObjectRequest]()
        self.is_reached, self.resume = threading.Event(), threading.Event()

    def __call__(self, request: ObjectRequest) -> None:
        if not self.of(request):
            return
        at = next(self.turns)
        if at == self.number:
            self.first.append(request)
        if at == self.number or (self.later_too and at > self.number):
            self.is_reached.set()
            assert self.resume.wait(20)


Run = Callable[[MemoryObjectStore, bytes, ACKED], object]
Check = Callable[..., object]
# Slow: each request in both ways, a minute. By default each, or each third, is paused in one of them.
PAUSED = pytest.mark.parametrize(
    "later_too",
    [None, *(pytest.param(later_too, marks=pytest.mark.slow) for later_too in (False, True))],
    ids=["in turns", "one request", "the whole process"],
)


def paused_at_each(
    later_too: bool | None,
    act: Callable[[MemoryObjectStore, ACKED], object],
    *,
    run: Run = write,
    start: Callable[[MemoryObjectStore], ACKED] = started,
    check: Check = check_history,
    of: Callable[[ObjectRequest], bool] = lambda request: True,
    every: int = 1,
) -> Iterator[ObjectRequest]:
    """Run a process for each request `of` it, paused before that one while `act` is done; yield the requests.

    With `later_too` None, the process sleeps at one request alone, and at that and all later ones, in turns, and at one
    of `every` requests alone. At the end of each run `check` gets the store and the acknowledged records of the start,
    the process and `act`.
    """
    number, begun = 0, MemoryObjectStore()
    before = start(begun)
    objects = objects_of(begun)
    while True:
        base, first, second = store_with(objects), ACKED(), ACKED()
        pause = Pause(number, later_too=number % 2 == 1 if later_too is None else later_too, of=of)
        client = base.client(pause)
        done, failed = threading.Event(), list[BaseException]()

        def work(
            client: MemoryObjectStore = client,
            first: ACKED = first,
            done: threading.Event = done,
            failed: list[BaseException] = failed,
        ) -> None:
            try:
                run(client, b"first", first)
            except BaseException as error:
                failed.append(error)
            done.set()

        thread = threading.Thread(target=work)
        thread.start()
        while not pause.is_reached.wait(0.01) and not done.is_set():
            pass
        try:
            act(base, second)
        finally:
            pause.resume.set()
            thread.join(20)
        assert not thread.is_alive()
        if failed:
            raise failed[0]
        check(base, before, first, second)
        if not pause.is_reached.is_set():
            assert len(first) == 4
            return
        yield pause.first[0]
        number += every if later_too is None else 1
