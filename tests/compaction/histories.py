"""Histories of stores for the tests of compaction: made by Hypothesis or by hand, with the state after every LSN."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

import walkit
from tests.support.stores import SMALL, memory_store
from walkit.models import CrashingStorage, FaultyStorage
from walkit.record import Record
from walkit.segments.manifest_store import load_manifest
from walkit.store import Store

State = dict[bytes, bytes | None]
KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"dd"])
SHORT = st.binary(max_size=3)
VALUES = st.one_of(SHORT, st.sampled_from([b"x" * 3000, b"y" * 9000]))
OPERATIONS = st.one_of(
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("put"), KEYS, VALUES),
    st.tuples(st.just("delete"), KEYS),
    st.tuples(st.just("event"), VALUES),
    st.tuples(st.just("transaction"), st.lists(st.tuples(KEYS, st.none() | SHORT), min_size=1, max_size=4)),
    st.tuples(st.just("reopen")),
    st.tuples(st.just("snapshot")),
    st.tuples(st.just("checkpoint"), st.booleans()),
    st.tuples(st.just("fill"), st.integers(1, 12)),
    st.tuples(st.just("compact"), st.none() | st.integers(0, 40), st.sampled_from([0.0, 0.0, 0.4, 0.9])),
    st.tuples(st.just("hold"), st.integers(1, 60)),
)
HISTORIES = st.lists(OPERATIONS, max_size=25)


@dataclass
class History:
    """A store, and its past."""

    storage: CrashingStorage = field(default_factory=CrashingStorage)
    states: dict[int, State] = field(default_factory=lambda: {0: {}})
    """The state at the end of each operation, by LSN."""
    records: dict[int, Record] = field(default_factory=dict)
    """Every record that was ever appended."""
    store: Store = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        self.store = memory_store(self.storage)

    @property
    def state(self) -> State:
        """The state now."""
        return self.states[max(self.states)]

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def do(self, name: str, *arguments: Any) -> None:
        """Do one operation."""
        before = self.store.log.acked_lsn
        state = dict(self.state)
        getattr(self, f"_{name}")(state, *arguments)
        if self.store.log.acked_lsn > before:
            self.records.update({r.lsn: r for r in self.store.log.read(before + 1)})
            self.states[self.store.log.acked_lsn] = state

    def _put(self, state: State, key: bytes, value: bytes) -> None:
        self.store.put(key, value)
        state[key] = value

    def _delete(self, state: State, key: bytes) -> None:
        self.store.delete(key)
        state.pop(key, None)

    def _event(self, state: State, value: bytes) -> None:
        self.store.log.append(value)

    def _transaction(self, state: State, changes: list[tuple[bytes, bytes | None]]) -> None:
        with self.store.transaction() as tx:
            for key, value in changes:
                if value is None:
                    tx.delete(key)
                    state.pop(key, None)
                else:
                    tx.put(key, value)
                    state[key] = value

    def _fill(self, state: State, count: int) -> None:
        for i in range(count):
            self._put(state, b"fill%d" % (i % 3), b"%d" % i * 4000)

    def _reopen(self, state: State) -> None:
        self.store.close()
        self.store = memory_store(self.storage)

    def _snapshot(self, state: State) -> None:
        self.store.snapshot()

    def _checkpoint(self, state: State, trim: bool) -> None:
        self.store.checkpoint(trim=trim)

    def _compact(self, state: State, exact: int | None, waste_ratio: float = 0.0) -> None:
        self.store.compact(exact_from_lsn=exact, waste_ratio=waste_ratio)

    def _hold(self, state: State, lsn: int) -> None:
        log = self.store.log
        log.hold("only", max(min(lsn, log.acked_lsn + 1), log.first_lsn))


def full_of_changes(storage: CrashingStorage | FaultyStorage, epochs: int = 2) -> State:
    """Fill a store with several epochs of several segments: puts, deletes, events, transactions; return its state."""
    state: State = {}
    for epoch in range(epochs):
        with memory_store(storage) as store:
            for i in range(90):
                key = b"%02d" % (i * 7 % 20)
                store.put(key, b"%d" % (epoch * 1000 + i) * 700)
                state[key] = b"%d" % (epoch * 1000 + i) * 700
                if i % 9 == 4:
                    store.delete(key)
                    del state[key]
                if i % 10 == 5:
                    store.log.append(b"event %d" % i)
                if i % 8 == 3:
                    with store.transaction() as tx:
                        tx.put(b"left", b"%d" % i)
                        tx.put(b"right", b"%d" % i)
                        tx.delete(b"other")
                    state |= {b"left": b"%d" % i, b"right": b"%d" % i}
    return state


def opened_state(image: CrashingStorage) -> State:
    """Open the image, verify every byte of it, and return its state, which a replay of the log confirms."""
    report = walkit.verify(image)
    assert report.ok, [str(p) for p in report.problems]
    with memory_store(image) as store:
        state = dict(store.items())
        manifest = load_manifest(image)
        if not manifest.low_watermark:
            table = walkit.state.KeyedTable()
            walkit.replay(store.log, table)
            assert table.to_dict() == state
        return state


__all__ = ["HISTORIES", "SMALL", "History", "full_of_changes", "opened_state"]
