"""Time travel: `state_at` is the state that the log came to, at every LSN that can still be told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores import copy, memory_store, state_or_border
from walkit.errors import HistoryTrimmedError, LogClosedError, OptionsError
from walkit.models import CrashingStorage
from walkit.state.snapshot import snapshot_lsns, snapshot_name
from walkit.store import Store

Past = dict[int, dict[bytes, bytes | None]]
KEYS = st.sampled_from([b"", b"a", b"b", b"c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.binary(max_size=3)),
        st.tuples(st.just("delete"), KEYS),
        st.tuples(st.just("event")),
        st.tuples(st.just("snapshot")),
        st.tuples(st.just("reopen")),
        st.tuples(st.just("checkpoint"), st.booleans()),
    ),
    max_size=25,
)


def run(steps: list[tuple[object, ...]], storage: CrashingStorage) -> tuple[Store, Past]:
    """Do the steps; return the store and the state after every LSN."""
    store, past = memory_store(storage), Past({0: {}})
    for name, *arguments in steps:
        state = dict(past[max(past)])
        if name == "put":
            key, value = arguments
            store.put(key, value)
            state[key] = value  # type: ignore[index,assignment]
        elif name == "delete":
            store.delete(arguments[0])
            state.pop(arguments[0], None)  # type: ignore[call-overload]
        elif name == "event":
            store.log.append(b"event")
        elif name == "snapshot":
            store.snapshot()
        elif name == "checkpoint":
            store.checkpoint(trim=bool(arguments[0]))
        else:
            store.close()
            store = memory_store(storage)
        past[store.log.acked_lsn] = state
    return store, past


@given(steps=STEPS)
def test_every_exact_state_is_the_past_one(steps: list[tuple[object, ...]]) -> None:
    """Any history with snapshots, checkpoints and reopenings: right from `exact_from_lsn` on, else refused."""
    store, past = run(steps, CrashingStorage())
    with store:
        exact = store.exact_from_lsn
        for lsn, state in past.items():
            found = state_or_border(store, lsn)
            assert found == state or (lsn < exact == found), (lsn, exact)
        assert dict(store.items()) == dict(store.state_at(store.log.acked_lsn))


def test_a_past_state_starts_from_the_nearest_good_snapshot() -> None:
    """Three snapshots, one of them damaged: the nearest good one below is used, else the log alone."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for i in range(1, 31):
            store.put(b"%d" % (i % 7), b"%d" % i)
            if i % 10 == 0:
                store.snapshot()
        assert snapshot_lsns(storage) == [10, 20, 30]
        assert [store.state_at(lsn).snapshot_lsn for lsn in (9, 10, 19, 25, 30)] == [0, 10, 10, 20, 30]
        copy(storage, storage, snapshot_name(20), b"nonsense")
        past = store.state_at(25)
        assert past.snapshot_lsn == 10
        assert dict(past) == {b"%d" % (i % 7): b"%d" % i for i in range(19, 26)}


def test_a_past_state_is_a_mapping_that_stays() -> None:
    """Read-only, in order of keys, with LSNs; later changes and closing do not touch it."""
    with memory_store() as store:
        for key in (b"b", b"a", b"c"):
            store.put(key, key * 2)
        store.delete(b"c")
        past = store.state_at(4)
        store.put(b"a", b"new")
        assert list(past) == [b"a", b"b"] and past[b"a"] == b"aa" and past.get(b"c") is None
        assert past.lsn_of(b"b") == 1 and b"c" not in past
        assert not hasattr(past, "__setitem__")
        assert past.checksum() == store.state_at(4).checksum() != store.checksum()
        assert "LSN 4" in repr(past) and "live keys" in past._repr_html_()
        for wrong in (-1, 6, True, 2.0):
            with pytest.raises(OptionsError):
                store.state_at(wrong)  # type: ignore[arg-type]
    with pytest.raises(LogClosedError):
        store.state_at(1)


def test_below_what_is_exact_it_is_refused() -> None:
    """After a checkpoint the states before it are gone, and the error says from where on they are not."""
    storage = CrashingStorage()
    with memory_store(storage) as store:
        for i in range(40):
            store.put(b"%d" % (i % 4), b"v" * 4000)
        kept = store.log.hold("reader", 31)
        store.checkpoint()
        with pytest.raises(HistoryTrimmedError) as caught:
            store.state_at(35)
        assert caught.value.exact_from_lsn == store.exact_from_lsn == 40
        kept.release()
        assert len(store.state_at(40)) == 4 and store.state_at(0) == {}
