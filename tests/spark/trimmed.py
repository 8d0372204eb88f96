"""Stores whose logs were trimmed and compacted, for tests: what was done to them, and the state after every LSN."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import strategies as st

import walkit
from walkit.errors import HistoryTrimmedError
from walkit.models import CrashingStorage
from walkit.store import Store

Past = dict[int, dict[bytes, bytes | None]]
State = dict[bytes, tuple[bytes | None, int]]
"""Value and LSN of each live key."""
Told = State | tuple[int, int]
"""A state, or (wanted, exact_from_lsn) of the refusal to tell it."""
Step = tuple[object, ...]

OPTIONS = walkit.LogOptions(
    segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, durability="none", idle_marker_ms=0
)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("work"), st.integers(0, 99), st.integers(1, 60)),
        st.tuples(st.just("work"), st.integers(0, 99), st.integers(1, 60)),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.tuples(st.just("compact")),
        st.tuples(st.just("compact"), st.floats(0, 1)),
    ),
    max_size=9,
)
"""The steps that a store may take, in any order."""


def make_store(path: Path, steps: list[Step]) -> Past:
    """Do the steps, close the store, and return the states: writes, `reopen`, checkpoints, compactions.

    A write is ("work", seed, count): that many puts, deletes, events and transactions over nine keys.
    """
    past: Past = {0: {}}
    store = Store.open(path, options=OPTIONS)
    for name, *arguments in steps:
        if name == "work":
            seed, count = arguments
            _work(store, random.Random(seed), count, past)  # type: ignore[arg-type]
        elif name == "checkpoint":
            store.checkpoint(trim=bool(arguments[0]))
        elif name == "compact":
            newest = store.log.acked_lsn
            share = arguments[0] if arguments else None
            store.compact(exact_from_lsn=None if share is None else int(newest * float(str(share))))
        else:
            store.close()
            store = Store.open(path, options=OPTIONS)
    store.close()
    return past


def _work(store: Store, rng: random.Random, count: int, past: Past) -> None:
    state = dict(past[max(past)])

    def key() -> bytes:
        return b"" if (number := rng.randrange(9)) == 0 else b"key-%d" % number

    for _ in range(count):
        what, value = rng.random(), b"%d " % store.log.acked_lsn * rng.choice([0, 1, 900])
        if what < 0.1:
            store.log.append(b"event")
        elif what < 0.3:
            store.delete(deleted := key())
            state.pop(deleted, None)
        elif what < 0.4:
            with store.transaction() as tx:
                for changed in {key(), key()}:
                    tx.put(changed, value)
                    state[changed] = value
        else:
            store.put(put := key(), value)
            state[put] = value
        past[store.log.acked_lsn] = dict(state)


def told_in_process(path: Path, lsn: int) -> Told:
    """What `walkit.diff` says the state is, or how it refuses."""
    nothing = CrashingStorage()
    walkit.open(storage=nothing).close()
    try:
        rows = walkit.diff((path, lsn), nothing).to_pylist()
    except HistoryTrimmedError as error:
        return error.wanted, error.exact_from_lsn
    return {row["key"]: (row["left_value"], row["left_lsn"]) for row in rows}


def values_of(told: Told) -> dict[bytes, bytes | None]:
    """The state without the LSNs."""
    assert isinstance(told, dict)
    return {key: value for key, (value, _) in told.items()}
