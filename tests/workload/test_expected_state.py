"""The oracle: it agrees with the stream it never saw, and it notices every way in which a state can be wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from walkit.errors import OptionsError
from walkit.workload.expected_state import (
    Changes,
    OracleReport,
    change_counts,
    check_recovered,
    compare_changes,
    compare_states,
    expected_changes,
    operation_table,
    state_after,
)
from walkit.workload.flights import flight_operations
from walkit.workload.operations import OperationStream, operation_mask

if TYPE_CHECKING:
    import pandas as pd

State = dict[bytes, bytes]


def played(stream: OperationStream, numbers: Iterable[int] | None = None) -> State:
    """Return the state after these operations of a whole stream, one by one: the plainest model there is."""
    state: State = {}
    for i in range(len(stream)) if numbers is None else numbers:
        value = stream.values[i]
        if value is None:
            state.pop(stream.keys[i], None)
        else:
            state[stream.keys[i]] = value
    return state


def assert_same_operations(table: pd.DataFrame, stream: OperationStream) -> None:
    assert len(table) == len(stream)
    assert table["operation"].tolist() == stream.numbers.tolist()
    for column, wanted in (("group", stream.groups), ("time_us", stream.times_us), ("kind", stream.kinds)):
        assert np.array_equal(table[column].to_numpy(), wanted), column
    assert table["key"].tolist() == stream.keys
    assert [value if isinstance(value, bytes) else None for value in table["value"]] == stream.values


@pytest.fixture(scope="module")
def small(flights: pd.DataFrame) -> tuple[pd.DataFrame, OperationStream]:
    """A table and a stream of 600 flights, over all cases: several legs of an aircraft, cancelled, diverted."""
    several = flights[flights["tailnum"].isin(["N725MQ", "N722MQ"])].head(450)
    cancelled = flights[flights["dep_time"].isna()].head(100)
    diverted = flights[flights["dep_time"].notna() & flights["arr_delay"].isna()].head(50)
    rows = flights.loc[sorted({*several.index, *cancelled.index, *diverted.index})]
    assert len(rows) > 500
    return operation_table(rows), flight_operations(flights=rows)


@pytest.fixture(scope="module")
def sampled(flights: pd.DataFrame) -> tuple[pd.DataFrame, OperationStream]:
    """A table and a stream of every sixteenth flight: the whole year, and every airport."""
    some = flights.iloc[::16]
    return operation_table(some), flight_operations(flights=some)


@pytest.mark.slow  # All 336,776 flights; the test below has every sixteenth.
def test_agrees_with_the_stream_on_all_flights(table: pd.DataFrame, stream: OperationStream) -> None:
    """Two ways to 1.3 million operations, compared operation for operation; the final state against a plain replay."""
    assert_same_operations(table, stream)
    report = compare_states(state_after(table), played(stream), subject="all flights")
    assert report.ok
    assert report.compared == 332_558


def test_agrees_on_flights_of_the_whole_year(sampled: tuple[pd.DataFrame, OperationStream]) -> None:
    """Two ways to 83,000 operations, compared one by one; the state after all of them and after three random counts."""
    table, stream = sampled
    assert_same_operations(table, stream)
    for count in (*np.random.default_rng(0).integers(1, len(stream), 3).tolist(), len(stream)):
        assert state_after(table, np.arange(len(table)) < count) == played(stream, range(count))


@settings(max_examples=examples(15))
@given(rows=st.lists(st.integers(0, 336_775), max_size=30, unique=True), limit=st.integers(1, 130))
def test_agrees_on_any_flights(flights: pd.DataFrame, rows: list[int], limit: int) -> None:
    """Any rows of the file in any order, also none: same operations both ways; and same state after any limit."""
    some = flights.iloc[rows]
    table = operation_table(some)
    assert_same_operations(table, flight_operations(flights=some))
    crossed = table["group"].iloc[limit - 1 : limit]  # the group that crosses the limit is taken whole
    taken = table[table["group"] <= crossed.iloc[0]] if len(crossed) else table
    assert state_after(taken) == played(flight_operations(limit, flights=some))


def test_order_of_effect(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """A log interleaves its writers: any order that keeps each key's gives one state, and one that does not is seen."""
    table, stream = small
    rng = np.random.default_rng(7)
    queues = [part.numbers.tolist() for part in stream.route(5)]
    order: list[int] = []
    while queues := [queue for queue in queues if queue]:
        order.append(queues[int(rng.integers(len(queues)))].pop(0))
    assert order != sorted(order)
    assert state_after(table, order=order) == state_after(table) == played(stream, order)
    backwards = order[::-1]
    assert state_after(table, order=backwards) == played(stream, backwards) != state_after(table)


def test_acknowledged_as_mask_or_numbers(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """The acknowledged operations may come as a mask or as numbers in any order; the order may hold more of them."""
    table, stream = small
    mask = np.random.default_rng(3).random(len(table)) < 0.5
    numbers = np.flatnonzero(mask)
    wanted = played(stream, numbers.tolist())
    assert state_after(table, mask) == state_after(table, numbers[::-1]) == wanted
    assert state_after(table, mask, order=np.arange(len(table))) == wanted


# --- every mutation of a state is caught -------------------------------------------------------------------


def last_put(stream: OperationStream, prefix: bytes) -> int:
    return max(
        i for i, key in enumerate(stream.keys) if key.startswith(prefix) and stream.values[i] is not None
    )


def drop_last(stream: OperationStream, numbers: list[int]) -> State:
    return played(stream, [i for i in numbers if i != last_put(stream, b"flight/")])


def drop_delete(stream: OperationStream, numbers: list[int]) -> State:
    gone = stream.values.index(None)
    return played(stream, [i for i in numbers if i != gone])


def drop_key(stream: OperationStream, numbers: list[int]) -> State:
    key = stream.keys[last_put(stream, b"tail/")]
    return played(stream, [i for i in numbers if stream.keys[i] != key])


def swap_two(stream: OperationStream, numbers: list[int]) -> State:
    last = last_put(stream, b"tail/")
    before = max(i for i in range(last) if stream.keys[i] == stream.keys[last])
    swapped = list(numbers)
    swapped[before], swapped[last] = last, before
    return played(stream, swapped)


def invent_key(stream: OperationStream, numbers: list[int]) -> State:
    return played(stream, numbers) | {b"tail/N0WHERE": b"{}"}


def change_value(stream: OperationStream, numbers: list[int]) -> State:
    state = played(stream, numbers)
    key = min(state)
    return state | {key: state[key][:-2] + b"X}"}


def value_of_another(stream: OperationStream, numbers: list[int]) -> State:
    state = played(stream, numbers)
    first, second, *_ = sorted(state)
    return state | {first: state[second]}


def empty_value(stream: OperationStream, numbers: list[int]) -> State:
    state = played(stream, numbers)
    return state | {max(state): b""}


Mutation = Callable[[OperationStream, list[int]], State]


@pytest.mark.parametrize(
    ("mutate", "fault"),
    [
        (drop_last, "different"),
        (drop_delete, "invented"),
        (drop_key, "missing"),
        (swap_two, "different"),
        (invent_key, "invented"),
        (change_value, "different"),
        (value_of_another, "different"),
        (empty_value, "different"),
    ],
)
def test_each_mutation_is_caught(
    small: tuple[pd.DataFrame, OperationStream], mutate: Mutation, fault: str
) -> None:
    """One thing wrong in a state where all was acknowledged: both checks count exactly one fault of the right name."""
    table, stream = small
    numbers = list(range(len(stream)))
    everything = np.ones(len(table), dtype=np.bool_)
    right, wrong = played(stream, numbers), mutate(stream, numbers)
    assert right != wrong
    for state, count in ((right, 0), (wrong, 1)):
        for report in (
            compare_states(state_after(table), state),
            check_recovered(table, everything, everything, state),
        ):
            assert report.ok is (count == 0)
            assert (getattr(report, fault), report.violations, len(report.samples)) == (count, count, count)
            assert report.compared >= len(right)


# --- a killed run ------------------------------------------------------------------------------------------


class Killed:
    """A run cut by a kill: each writer acknowledged some groups, more survived, still more were submitted."""

    def __init__(self, stream: OperationStream, writers: int, seed: int, open_groups: int = 30) -> None:
        rng = np.random.default_rng(seed)
        parts = stream.route(writers)
        acked = [int(rng.integers(0, part.group_count + 1)) for part in parts]
        acked[seed % writers] = max(acked[seed % writers], 1)
        survived = [
            min(a + int(rng.integers(0, open_groups)), part.group_count)
            for a, part in zip(acked, parts, strict=True)
        ]
        sent = [
            min(s + int(rng.integers(0, open_groups)), part.group_count)
            for s, part in zip(survived, parts, strict=True)
        ]
        self.stream = stream
        self.acked = operation_mask(parts, acked, len(stream))
        self.survived = operation_mask(parts, survived, len(stream))
        self.sent = operation_mask(parts, sent, len(stream))

    def state(self, survived: np.ndarray | None = None) -> State:
        return played(self.stream, np.flatnonzero(self.survived if survived is None else survived).tolist())


@settings(max_examples=examples(40))
@given(writers=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_a_correct_recovery_is_right(
    small: tuple[pd.DataFrame, OperationStream], writers: int, seed: int
) -> None:
    """Whatever was acknowledged, whatever more survived: a recovery that kept a prefix of each writer is accepted."""
    table, stream = small
    run = Killed(stream, writers, seed)
    for survived in (run.survived, run.acked, run.sent):
        report = check_recovered(table, run.acked, run.sent, run.state(survived))
        assert report.ok, report.samples
        assert report.compared >= len({stream.keys[i] for i in np.flatnonzero(run.acked)})


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_an_acknowledged_operation_that_is_lost_is_noticed(
    small: tuple[pd.DataFrame, OperationStream], seed: int, data: st.DataObject
) -> None:
    """Take away the survivors of one key from an acknowledged operation on: one fault, and it names that key."""
    table, stream = small
    run = Killed(stream, 3, seed, open_groups=1)
    lost = data.draw(st.sampled_from(np.flatnonzero(run.acked).tolist()))
    later = np.array([key == stream.keys[lost] for key in stream.keys]) & (np.arange(len(stream)) >= lost)
    wrong = run.state(run.survived & ~later)
    # Where a put and its delete went together, the state is right.
    assume(wrong.get(stream.keys[lost]) != run.state().get(stream.keys[lost]))
    report = check_recovered(table, run.acked, run.sent, wrong)
    assert not report.ok
    assert (report.violations - report.torn, report.samples[0].key) == (1, stream.keys[lost])


@settings(max_examples=examples(40))
@given(seed=st.integers(0, 2**32 - 1), data=st.data())
def test_an_operation_never_submitted_is_noticed(
    small: tuple[pd.DataFrame, OperationStream], seed: int, data: st.DataObject
) -> None:
    """Let one unsubmitted operation take effect: one fault, and it names that key."""
    table, stream = small
    run = Killed(stream, 3, seed)
    never = [i for i in np.flatnonzero(~run.sent).tolist() if stream.values[i] is not None]
    assume(never)
    i = data.draw(st.sampled_from(never))
    value = stream.values[i]
    assert value is not None
    report = check_recovered(table, run.acked, run.sent, run.state() | {stream.keys[i]: value})
    assert not report.ok
    assert report.missing == 0
    assert stream.keys[i] in [violation.key for violation in report.samples]


def test_a_torn_transaction_is_noticed(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """Keep only the flight or only the leg of each submitted departure: allowed key by key, and still torn."""
    table, stream = small
    firsts = np.flatnonzero(np.diff(stream.groups) == 0)
    for first in firsts[:: len(firsts) // 20].tolist():
        acked = np.arange(len(stream)) < first
        sent = np.arange(len(stream)) < first + 2
        for kept in (first, first + 1):
            half = acked.copy()
            half[kept] = True
            report = check_recovered(table, acked, sent, played(stream, np.flatnonzero(half).tolist()))
            assert not report.ok
            assert (report.torn, report.violations) == (1, 1)
            assert report.samples[0].key == stream.keys[first]
        for whole in (acked, sent):
            assert check_recovered(table, acked, sent, played(stream, np.flatnonzero(whole).tolist())).ok


def test_a_delete_may_or_may_not_have_survived(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """A delete that was submitted only: the flight may be there or gone; acknowledged: it must be gone."""
    table, stream = small
    gone = stream.values.index(None)
    before, after = np.arange(len(stream)) < gone, np.arange(len(stream)) <= gone
    there, not_there = played(stream, range(gone)), played(stream, range(gone + 1))
    assert check_recovered(table, before, after, there).ok
    assert check_recovered(table, before, after, not_there).ok
    assert check_recovered(table, after, after, not_there).ok
    assert check_recovered(table, after, after, there).invented == 1
    assert check_recovered(table, before, before, not_there).missing == 1


# --- reports and bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("operations", [0, 1, 250, 1_500])
def test_the_state_at_a_moment_is_that_of_the_operations_until_then(
    small: tuple[pd.DataFrame, OperationStream], operations: int
) -> None:
    """The first rows of the table, as rows and as operation numbers, give what playing the stream so far gives."""
    table, stream = small
    expected = played(stream, range(operations))
    assert state_after(table.iloc[:operations]) == expected
    assert state_after(table, np.arange(operations)) == expected


CHANGES: Changes = {
    b"inserted": ("I", None, b"2"),
    b"deleted": ("D", b"1", None),
    b"changed": ("C", b"1", b"2"),
}


def test_changes_are_what_differs() -> None:
    """One key of each kind and one that is the same: three changes with both values, one of each is counted."""
    left = {b"deleted": b"1", b"changed": b"1", b"same": b""}
    right = {b"inserted": b"2", b"changed": b"2", b"same": b""}
    assert expected_changes(left, right) == CHANGES
    assert change_counts(CHANGES) == {"I": 1, "D": 1, "C": 1}
    assert change_counts(expected_changes(left, left)) == {"I": 0, "D": 0, "C": 0}


def test_changes_make_one_state_of_the_other(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """Apply the changes between two moments of the flights to the first state: it is the second; and back again."""
    table, _ = small
    left, right = (state_after(table.iloc[:operations]) for operations in (len(table) // 2, len(table)))
    for before, after in ((left, right), (right, left)):
        changes = expected_changes(before, after)
        assert change_counts(changes)["C"] > 0
        made = {key: value for key, value in before.items() if key not in changes}
        made |= {key: value for key, (_, _, value) in changes.items() if value is not None}
        assert made == after


@pytest.mark.parametrize(
    ("found", "fault"),
    [
        ({**CHANGES, b"deleted": ("C", b"1", None)}, "different"),
        ({**CHANGES, b"changed": ("C", b"0", b"2")}, "different"),
        ({**CHANGES, b"inserted": ("I", None, b"3")}, "different"),
        ({**CHANGES, b"more": ("I", None, b"")}, "invented"),
        ({key: change for key, change in CHANGES.items() if key != b"deleted"}, "missing"),
    ],
)
def test_a_wrong_diff_is_noticed(found: Changes, fault: str) -> None:
    """Another kind, another value on either side, a key more or less: one fault of its kind; the right one is ok."""
    report = compare_changes(CHANGES, found)
    assert (report.ok, report.violations, getattr(report, fault)) == (False, 1, 1)
    assert compare_changes(CHANGES, dict(CHANGES)).ok
    assert not compare_changes({}, {}).ok


def test_comparing_nothing_is_not_ok(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """Two empty states, or a kill before the first acknowledgement, prove nothing, and are not ok."""
    table, _ = small
    nothing = np.zeros(len(table), dtype=np.bool_)
    for report in (compare_states({}, {}), check_recovered(table, nothing, ~nothing, {})):
        assert (report.ok, report.compared, report.violations) == (False, 0, 0)
        assert "NOTHING COMPARED" in str(report)


def test_report_counts_all_and_shows_ten() -> None:
    """Many faults: every one is counted, ten are shown, in key order, escaped in HTML; a report cannot be changed."""
    expected = {b"missing-%03d" % i: b"1" for i in range(40)} | {b"different": b"<1>", b"right": b"1"}
    actual = {b"invented-%d" % i: b"\xff" for i in range(3)} | {b"different": b"<2>", b"right": b"1"}
    report = compare_states(expected, actual, subject="a <state>")
    assert (report.compared, report.missing, report.invented, report.different) == (45, 40, 3, 1)
    assert (report.violations, len(report.samples), report.ok) == (44, 10, False)
    assert [violation.fault for violation in report.samples] == [
        "different",
        *["invented"] * 3,
        *["missing"] * 6,
    ]
    html = report._repr_html_()
    assert "a &lt;state&gt;: WRONG" in html
    assert "&lt;1&gt;" in html
    assert "<2>" not in html
    assert "color" not in html
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.missing = 0  # type: ignore[misc]
    assert "<table>" not in OracleReport(subject="fine", compared=1)._repr_html_()


def test_expected_values_are_named(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """A violation of a killed run lists what would have been right, absence included."""
    table, stream = small
    nothing = np.zeros(len(table), dtype=np.bool_)
    sent = nothing.copy()
    sent[0] = True
    report = check_recovered(table, nothing, sent, {stream.keys[0]: b"wrong"})
    assert report.different == 1
    assert report.samples[0].expected == f"absent or {(stream.values[0] or b'').decode()}"


def test_bad_input_is_refused(small: tuple[pd.DataFrame, OperationStream]) -> None:
    """Acknowledged but never submitted, masks of another shape, numbers outside, orders that lack or repeat one."""
    table, _ = small
    n = len(table)
    everything, nothing = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    calls: list[Callable[[], object]] = [
        lambda: check_recovered(table, everything, nothing, {}),
        lambda: check_recovered(table, everything[1:], everything, {}),
        lambda: state_after(table, [n]),
        lambda: state_after(table, [-1]),
        lambda: state_after(table, [0.5]),
        lambda: state_after(table, order=np.arange(n - 1)),
        lambda: state_after(table, order=[*range(n), 0]),
        lambda: state_after(table, order=[*range(n - 1), 0]),
    ]
    for call in calls:
        with pytest.raises(OptionsError):
            call()
