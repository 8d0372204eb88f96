"""Crashes of a log on object storage: puts are atomic and unordered, so any of those under way may have been done."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, combinations
from typing import Any, NamedTuple

import pytest

from tests.objects.races import ACKED, Run, check_state, compacting, store_with, upkeep
from walkit.commit.policy import OneRecordPerFrame
from walkit.config import LogOptions
from walkit.errors import ObjectStoreError, WalkitError
from walkit.objects.open import open_object_writer
from walkit.record import Buffer
from walkit.storage.object_memory import MemoryObjectStore

IN_FLIGHT = 3


class Step(NamedTuple):
    """The beginning or the end of a put or a deletion, or an acknowledgement."""

    kind: str
    key: str
    data: bytes | None = b""
    tag: str | None = None


class RecordedStore(MemoryObjectStore):
    """Notes when each put begins and ends. In a burst each put waits for the others that are under way with it."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.acked: ACKED = {}
        self.acked_at: list[ACKED] = []
        """For each step the records that were acknowledged before it."""
        self.burst: threading.Barrier | None = None

    def note(self, step: Step) -> None:
        self.acked_at.append(dict(self.acked))
        self.steps.append(step)

    def delete_many(self, keys: Sequence[str]) -> None:
        """See ObjectStore."""
        for kind in ("begin", "end"):
            if kind == "end":
                super().delete_many(keys)
            for key in keys:
                self.note(Step(kind, key, None))

    def put_if_absent(self, key: str, data: Buffer) -> str:
        """See ObjectStore."""
        self.note(Step("begin", key, bytes(data)))
        if self.burst is not None and key.startswith("log/"):
            self.burst.wait(10)
        tag = super().put_if_absent(key, data)
        self.note(Step("end", key, bytes(data)))
        return tag

    def put_if_match(self, key: str, data: Buffer, tag: str) -> str:
        """See ObjectStore."""
        before = self.get(key).data
        self.note(Step("begin", key, bytes(data), before.hex()))
        new = super().put_if_match(key, data, tag)
        self.note(Step("end", key, bytes(data), before.hex()))
        return new


def states_at(steps: list[Step]) -> list[dict[str, bytes]]:
    """Every state in which a crash after these steps can leave the store: what has ended, and any of the rest."""
    done = dict[str, bytes | None]()
    under_way: list[Step] = []
    for step in steps:
        if step.kind == "begin":
            under_way.append(step)
        elif step.kind == "end":
            under_way.remove(step._replace(kind="begin"))
            done[step.key] = step.data
    puts = [step for step in under_way if step.data is not None]
    chosen = chain.from_iterable(combinations(puts, n) for n in range(len(puts) + 1))
    # Of the keys of one deletion none, one or all are gone.
    deleted = [step for step in under_way if step.data is None]
    gone = {(), tuple(deleted), *((step,) for step in deleted)}
    states = (
        {**done, **{step.key: step.data for step in (*some, *keys)}} for some in chosen for keys in gone
    )
    return [{key: data for key, data in state.items() if data is not None} for state in states]


def states_with(acked_at: Sequence[Any], steps: list[Step]) -> list[tuple[dict[str, bytes], Any]]:
    """Each state in which a crash can leave the store, once, with all that was acknowledged before the last of them."""
    found = dict[frozenset[tuple[str, bytes]], Any]()
    for at, acked in enumerate(acked_at):
        found.update(dict.fromkeys((frozenset(state.items()) for state in states_at(steps[:at])), acked))
    return [(dict(state), acked) for state, acked in found.items()]


def recorded() -> tuple[list[Step], dict[int, bytes]]:
    """A run of two writers, the first of which the second fences; its steps, and the value of each LSN."""
    store, values = RecordedStore(), dict[int, bytes]()
    options = LogOptions(in_flight=IN_FLIGHT, policy=OneRecordPerFrame())
    logs = []
    for opening in range(2):
        logs.append(log := open_object_writer(store, options=options))
        store.burst = threading.Barrier(IN_FLIGHT)
        for burst in range(2):
            tickets = [log.submit(b"%d-%d-%d" % (opening, burst, n)) for n in range(IN_FLIGHT)]
            for n, ticket in enumerate(tickets):
                lsn = ticket.result().first_lsn
                values[lsn] = b"%d-%d-%d" % (opening, burst, n)
                store.note(Step("ack", str(lsn)))
        store.burst = None
    steps = list(store.steps)
    for log in logs:
        log.close()
    return steps, values


def test_every_crash_leaves_a_prefix_with_all_acknowledged_records() -> None:
    """Crash after each step with each subset of the puts under way: the opening finds all that was acknowledged."""
    steps, values = recorded()
    acked_at = [
        max([0, *(int(step.key) for step in steps[:at] if step.kind == "ack")])
        for at in range(len(steps) + 1)
    ]
    found_states = states_with(acked_at, steps)
    for state, acked in found_states:
        with open_object_writer(store_with(state)) as log:
            found = {record.lsn: record.value for record in log.read()}
            assert list(found) == list(range(1, len(found) + 1)) and len(found) >= acked
            assert found.items() <= values.items()
            log.append(b"after")
    assert len(found_states) > 30


@pytest.mark.parametrize("run", [upkeep, compacting])
def test_every_crash_of_claims_trims_and_compaction_leaves_the_state(run: Run) -> None:
    """Crash after each step of them, any deletions under way done or not: the state has all that was acknowledged."""
    store = RecordedStore()
    run(store, b"first", store.acked)
    kinds = {(step.kind, step.key.partition("/")[0], step.data is None) for step in store.steps}
    assert {("end", "claims", False), ("end", "files", False), ("end", "log", True)} <= kinds
    for state, acked in states_with([{}, *store.acked_at], store.steps):
        if "manifest" in state:
            check_state(store_with(state), acked)


def test_a_crash_in_an_opening_leaves_a_log_that_opens() -> None:
    """Let an opening end before each of its requests, two in a row: the next one finds every record."""
    number = 0
    while True:
        store = MemoryObjectStore()
        with open_object_writer(store.client()) as log:
            log.append(b"kept")
        clients = []
        for _ in range(2):
            clients.append(client := store.client())

            def plan(request: object, client: MemoryObjectStore = client, number: int = number) -> None:
                if len(client.requests) > number:
                    raise ObjectStoreError("the process has ended")

            client.plan = plan
            with suppress(WalkitError):
                open_object_writer(client).close()
        with open_object_writer(store.client()) as log:
            assert [r.value for r in log.read()] == [b"kept"]
        if number > len(clients[0].requests):
            return
        number += 1
