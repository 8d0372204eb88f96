"""The change feed and histories in Spark against a loop over the records, and against states in process."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import walkit
from tests.spark.loading import logged
from tests.spark.test_spark_stream import append
from tests.spark.trimmed import make_store, values_of
from tests.spark.trimmed import told_in_process as told
from tests.support.histories import Row, diff_of, newest_of, random_rows, state_of, woven, write
from walkit.errors import HistoryTrimmedError, OptionsError
from walkit.spark import changes, errors, history, sql_functions, states
from walkit.spark.options import read_options
from walkit.spark.sql import ChangesFunction, StateFunction
from walkit.spark.stream import WalkitStreamReader
from walkit.spark.tables import CHANGES_STRUCT
from walkit.state import snapshot_lsns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

Changed = tuple[bytes, str, bytes | None, bytes | None, int]

NOW = dt.datetime.now(dt.UTC)
LEFT, RIGHT = 40, 90
"""The state before the range, and its last LSN."""


def in_order(rows: Iterable[Any]) -> list[Any]:
    """The rows in an order that absent values do not disturb."""
    return sorted(rows, key=repr)


def rows_of(df: DataFrame) -> list[Any]:
    """The rows of a result, in one order."""
    return in_order(tuple(row.values()) for row in df.toArrow().to_pylist())


def expected(rows: list[Row], first_lsn: int, last_lsn: int) -> list[Changed]:
    """The feed by the rule read aloud: each record is compared with the state that it meets."""
    state = state_of(rows, first_lsn - 1)
    found: list[Changed] = []
    for lsn, (kind, key, value) in enumerate(rows[:last_lsn], 1):
        if lsn < first_lsn or key is None:
            continue
        before = state.pop(key, None)
        if kind != 2:
            state[key] = (value, lsn)
        if before is not None or kind != 2:
            change = "I" if before is None else "D" if kind == 2 else "C"
            found.append((key, change, before and before[0], None if kind == 2 else value, lsn))
    return in_order(found)


def net_of(rows: list[Row], first_lsn: int, last_lsn: int) -> list[Any]:
    """The diff of the two states, with the LSN of the right side."""
    found = diff_of(newest_of(rows, first_lsn - 1), newest_of(rows, last_lsn))
    return in_order((key, change, left, right, lsn or 0) for key, change, left, right, _, lsn in found)


def test_sql_has_states_and_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Table functions of a trimmed store with a snapshot and of a log: the rules' rows, once in SQL, else by calls."""
    sql_functions(spark)
    store, log = tmp_path / "store", tmp_path / "log"
    past = make_store(store, [("work", 3, 90), ("checkpoint", True), ("work", 4, 60)])
    write(str(log), rows := random_rows(5, 120))
    for first in (1, LEFT + 1):
        fed = [tuple(row) for row in ChangesFunction().eval(str(log), first, RIGHT)]
        assert in_order(fed) == expected(rows, first, RIGHT) and fed
    assert rows_of(spark.sql(f"SELECT * FROM walkit_changes('{log}', {first}, {RIGHT})")) == in_order(fed)
    state = in_order((key, *last) for key, last in state_of(rows).items())
    assert rows_of(spark.sql(f"SELECT * FROM walkit_state('{log}')")) == state
    earlier, newest = sorted(past)[-20], max(past)
    live = {key: value for key, value, _ in StateFunction().eval(str(store), earlier)}
    assert live == past[earlier]
    for key, change, before, after, _ in ChangesFunction().eval(str(store), earlier + 1):
        assert live.pop(key, None) == before
        live |= {} if change == "D" else {key: after}
    assert live == past[newest]
    with pytest.raises(HistoryTrimmedError), errors():
        spark.sql(f"SELECT * FROM walkit_changes('{store}', 2)").collect()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ((ChangesFunction, 0), "first_lsn=0: give LSNs in order"),
        ((ChangesFunction, 1, 999), "last_lsn=999: the log ends at 60"),
        ((StateFunction, 51), "more than 50 LSNs up to 51.*use walkit.spark.replay"),
    ],
)
def test_sql_functions_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[Any, ...], text: str
) -> None:
    """Too many LSNs for one worker, LSNs out of order or past the end: OptionsError, with the call for more."""
    write(str(tmp_path / "log"), random_rows(5, 60))
    monkeypatch.setattr("walkit.spark.sql.FUNCTION_LSNS_MAX", 50)
    function, *lsns = given
    assert list(StateFunction().eval(str(tmp_path / "log"), 50))
    with pytest.raises(OptionsError, match=text):
        list(function().eval(str(tmp_path / "log"), *lsns))


def test_a_stream_of_changes_is_the_feed(tmp_path: Path) -> None:
    """Drive view changes in small batches, each by a new reader and read twice: the feed of the whole log, once."""
    write(str(tmp_path / "log"), rows := random_rows(7, 150))
    options = read_options({"path": str(tmp_path / "log"), "view": "changes", "maxRecordsPerTrigger": 9})
    found, end = list[Any](), WalkitStreamReader(options, CHANGES_STRUCT).initialOffset()
    while True:
        reader, start = WalkitStreamReader(options, CHANGES_STRUCT), end
        if (end := reader.latestOffset(start, reader.getDefaultReadLimit())) == start:
            break
        tasks = [list(reader.read(part)) for part in 2 * list(reader.partitions(start, end))]
        assert tasks[0] == tasks[1]
        found += [tuple(row.values()) for batch in tasks[0] for row in batch.to_pylist()]
    assert in_order(found) == expected(rows, 1, len(rows))
    make_store(tmp_path / "compacted", [("work", 3, 90), ("reopen",), ("work", 4, 90), ("compact", 0.5)])
    reader = WalkitStreamReader(replace(options, paths=(str(tmp_path / "compacted"),)), CHANGES_STRUCT)
    start = reader.initialOffset()
    (part,) = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    with pytest.raises(HistoryTrimmedError):
        list(reader.read(part))


@pytest.mark.parametrize("kind", ["", "objects:"])
def test_a_stream_of_changes_continues_after_trims(kind: str, tmp_path: Path) -> None:
    """Checkpoint, trim and compact beside a stream that lags and restarts: each change once, and the log is trimmed."""
    # A stream without a claim, whose snapshot is gone while its records are there, is refused and gives no row.
    path, live, fed, watermarks = f"{kind}{tmp_path}/log", dict[bytes, bytes](), list[int](), list[int]()
    given = {"path": path, "view": "changes"}
    options = read_options({**given, "maxRecordsPerTrigger": 30})
    unclaimed = WalkitStreamReader(read_options({**given, "claim": "none"}), CHANGES_STRUCT)
    with walkit.Store.open(path, options=walkit.LogOptions(segment_bytes=64 * 1024)) as store:
        reader, start = WalkitStreamReader(options, CHANGES_STRUCT), None
        for turn in range(10):
            append(store.log, 45, 15)
            start = start or reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            for part in reader.partitions(start, end):
                for row in (row for batch in reader.read(part) for row in batch.to_pylist()):
                    assert row["pre_value"] == live.get(row["key"])
                    fed.append(row["lsn"])
                    live[row["key"]] = row["post_value"]
            reader.commit(end)
            if turn % 3 == 1:
                reader.stop()
                reader = WalkitStreamReader(options, CHANGES_STRUCT)
            if turn % 2:
                store.compact()
            watermarks.append(store.checkpoint().low_watermark)
            assert len(snapshot_lsns(store.log.parts.storage)) <= 4
            start = end
        reader.stop()
        assert fed == list(range(1, 10 * 30 + 1)) and end["lsn"] == 300
        assert watermarks[0] == 0 and watermarks[-1] > 200 and watermarks == sorted(watermarks)
        append(store.log, 5, 5)
        store.log.hold("another", store.log.acked_lsn + 1)
        store.log.drop_claim(store.log.claims()[-1].name)
        start = unclaimed.initialOffset() | {"lsn": store.log.acked_lsn}
        for _ in range(3):
            append(store.log, 5, 5)
            store.checkpoint()
        end = unclaimed.latestOffset(start, unclaimed.getDefaultReadLimit())
        (part,) = unclaimed.partitions(start, end)
        with pytest.raises(HistoryTrimmedError):
            next(unclaimed.read(part))
        unclaimed.stop()


def test_a_change_of_each_kind(spark: SparkSession, tmp_path: Path) -> None:
    """Six records by hand: the feed in both styles, and net without a value that came back."""
    rows: list[Row] = [
        (1, b"a", b"1"),
        (1, b"b", b"1"),
        (2, b"none", None),
        (1, b"a", b"2"),
        (2, b"b", None),
        (1, b"a", b"1"),
    ]
    df = logged(spark, tmp_path, rows)
    assert rows_of(changes(df, 2, 6)) == [
        (b"a", "C", b"1", b"2", 4),
        (b"a", "C", b"2", b"1", 6),
        (b"b", "D", b"1", None, 5),
        (b"b", "I", None, b"1", 2),
    ]
    assert rows_of(changes(df, 3, net=True)) == [(b"b", "D", b"1", None, 5)]
    feed = changes(df, 4, style="cdc")
    assert feed.columns == ["key", "value", "_change_type", "_commit_version", "_commit_timestamp"]
    shown = rows_of(feed)
    assert [row[:4] for row in shown] == [
        (b"a", b"1", "update_postimage", 6),
        (b"a", b"1", "update_preimage", 4),
        (b"a", b"2", "update_postimage", 4),
        (b"a", b"2", "update_preimage", 6),
        (b"b", b"1", "delete", 5),
    ]
    assert {row[4].timestamp() for row in shown} == {4, 5, 6}


one_row = st.tuples(
    st.sampled_from([1, 1, 2]), st.sampled_from([b"", b"a", b"b"]), st.sampled_from([None, b"", b"v", b"w"])
).map(lambda row: row if row[0] == 1 else (2, row[1], None))
several = st.lists(st.lists(one_row, min_size=5, max_size=5), min_size=20, max_size=20)


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories=several, cuts=st.tuples(st.integers(1, 100), st.integers(1, 100)))
def test_state_and_changes_make_the_later_state(
    spark: SparkSession, tmp_path: Path, histories: list[list[Row]], cuts: tuple[int, int]
) -> None:
    """20 histories an example, woven into one log: the state before a range and its changes give the one at its end."""
    rows = woven(histories)
    first, last = min(cuts), max(cuts)
    df = logged(spark, tmp_path, rows)
    found = rows_of(changes(df, first, last))
    state = state_of(rows, first - 1)
    for key, change, before, after, lsn in sorted(found, key=lambda row: row[-1]):
        known = state.pop(key, None)
        assert (known is None) == (change == "I") and (known is None or known[0] == before)
        if change != "D":
            state[key] = (after, lsn)
    assert state == state_of(rows, last)
    assert found == expected(rows, first, last)
    assert rows_of(changes(df, first, last, net=True)) == net_of(rows, first, last)


def test_changes_and_histories_of_a_log(spark: SparkSession, tmp_path: Path) -> None:
    """A seeded log over two epochs: changes, the histories of its keys and states at six LSNs are those of a loop."""
    rows = random_rows(3, 130)
    write(str(tmp_path / "log"), rows, 2)
    df = spark.read.format("walkit").load(str(tmp_path / "log"))
    assert rows_of(changes(df, LEFT + 1, RIGHT)) == expected(rows, LEFT + 1, RIGHT)
    wanted = (0, 1, LEFT, LEFT + 1, RIGHT, 130)
    found = rows_of(states(df, wanted))
    assert found == in_order(
        (at, key, value, lsn) for at in wanted for key, (value, lsn) in state_of(rows, at).items()
    )
    key = b"key-3"
    held = rows_of(history(df, key))
    assert all(row[0] == key for row in held) and len(held) > 3
    for at in range(1, 131):
        now = [(row[1], row[2]) for row in held if row[2] <= at and (row[3] is None or at <= row[3])]
        state = state_of(rows, at)
        assert now == ([state[key]] if key in state else [])
    assert rows_of(history(df, [key, b"absent"], RIGHT)) == [
        row for row in held if row[3] is None or row[3] >= RIGHT
    ]
    assert len(rows_of(history(df, None))) == sum(kind == 1 and key is not None for kind, key, _ in rows)


def test_what_was_trimmed_or_compacted_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A trimmed store: below what is exact each use refuses; from there on the feed is the process's."""
    past = make_store(
        tmp_path / "s", [("work", 3, 90), ("checkpoint", True), ("work", 4, 60), ("compact", 0.8)]
    )
    df = spark.read.format("walkit").option("snapshot", True).load(str(tmp_path / "s"))
    facts = df.schema["lsn"].metadata["walkit"]
    exact, newest = facts["exact_from_lsn"], facts["last_lsn"]
    assert 1 < exact < newest
    uses: list[Callable[[], DataFrame]] = [
        lambda: changes(df, exact - 1),
        lambda: changes(df, 1, newest),
        lambda: history(df, b"key-1"),
        lambda: states(df, [newest, exact - 2]),
    ]
    for make in uses:
        with pytest.raises(HistoryTrimmedError) as caught:
            make()
        assert caught.value.exact_from_lsn >= exact
    state = values_of(told(tmp_path / "s", exact))
    for key, change, before, after, _ in sorted(rows_of(changes(df, exact + 1)), key=lambda row: row[-1]):
        assert state.pop(key, None) == before
        if change != "D":
            state[key] = after
    assert state == past[newest]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda df: changes(df, 0, 3), "first_lsn=0"),
        (lambda df: changes(df, 1, True), "last_lsn=True"),
        (lambda df: changes(df, 3, 2), "first_lsn=3: not after last_lsn=2"),
        (lambda df: changes(df, 1, 2, style="delta"), "style='delta': one of"),  # type: ignore[arg-type]
        (changes, "first_lsn=None"),
        (lambda df: changes(df, 1, since=NOW), "give first_lsn or since, not both"),
        (lambda df: history(df, "text"), r"keys=.*: a key of bytes"),  # type: ignore[arg-type]
        (lambda df: history(df, []), r"keys=.*: a key of bytes"),
        (lambda df: history(df, b"k", 0), "first_lsn=0"),
        (lambda df: states(df, []), "give 1 to 1,000 LSNs"),
        (lambda df: states(df, [-1]), "at_lsn=-1"),
    ],
)
def test_misuse_is_refused_before_spark_runs(
    spark: SparkSession, tmp_path: Path, make: Callable[[DataFrame], DataFrame], text: str
) -> None:
    """Invalid ranges, styles and keys: an error that names them, at once."""
    with pytest.raises(OptionsError, match=text):
        make(logged(spark, tmp_path, [(1, b"k", b"v")]))
