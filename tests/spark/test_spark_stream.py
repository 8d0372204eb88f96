"""`spark.readStream.format("walkit")`: each LSN once, whatever happens to the log and to the query."""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import walkit
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.multi_log_stream import ManyStreamReader
from walkit.spark.options import read_options
from walkit.spark.scan import plan_log
from walkit.spark.stream import WalkitStreamReader
from walkit.spark.stream_offset import StreamOffset
from walkit.spark.time_bounds import within_times


@pytest.fixture(params=["folder", "objects"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a log is: a folder, or object storage."""
    return f"{'objects:' if request.param == 'objects' else ''}{tmp_path}/log"


P = TypeVar("P", bound=Path | str)


READERS: list[WalkitStreamReader] = []


@pytest.fixture(autouse=True)
def stopped() -> Iterator[None]:
    """Stop the readers of a test, as Spark does at the end of a query."""
    yield
    while READERS:
        READERS.pop().stop()


def reader_of(path: Path | str, **options: object) -> WalkitStreamReader:
    """The reader of a query, as Spark makes it."""
    READERS.append(WalkitStreamReader(read_options({"path": str(path), **options}), RECORD_STRUCT))
    return READERS[-1]


def filled(path: P, count: int = 300, each: int = 10, **options: Any) -> P:
    """A closed log of `count` records in transactions of `each`, with few keys."""
    with walkit.open(path, options=walkit.LogOptions(segment_bytes=64 * 1024, **options)) as log:
        append(log, count, each)
    return path


def append(log: walkit.WriteAheadLog, count: int, each: int = 10) -> None:
    """Append `count` records in transactions of `each`."""
    for start in range(0, count, each):
        with log.transaction() as tx:
            for n in range(start, start + each):
                tx.put(b"key-%d" % (n % 7), b"%0200d" % n)


def rows_of(reader: WalkitStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    """The LSNs of one batch."""
    parts = reader.partitions(start, end)
    return [lsn for part in parts for batch in reader.read(part) for lsn in batch.column("lsn").to_pylist()]


def batches_of(reader: WalkitStreamReader, start: dict[str, Any]) -> Iterator[list[int]]:
    """Drive a reader as Spark does, batch by batch with commits, until there is nothing new."""
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield rows_of(reader, start, end)
        reader.commit(end)
        start = end


def test_batches_end_where_frames_end(place: str) -> None:
    """Limit a batch to 25 records of transactions of ten: batches of 20, no transaction in two of them."""
    READERS.append(pickle.loads(pickle.dumps(reader_of(filled(place), maxRecordsPerTrigger=25))))
    reader = READERS[-1]
    batches = list(batches_of(reader, reader.initialOffset()))
    assert [lsn for lsns in batches for lsn in lsns] == list(range(1, 301))
    assert {len(lsns) for lsns in batches} == {20}


@pytest.mark.parametrize("limit", [{"maxRecordsPerTrigger": 3}, {"maxBytesPerTrigger": 1}])
def test_a_frame_over_the_limit_is_a_batch(place: str, limit: dict[str, object]) -> None:
    """Give limits below one transaction: each batch is one whole transaction, and the stream gets on."""
    reader = reader_of(filled(place, 50), **limit)
    assert [len(lsns) for lsns in batches_of(reader, reader.initialOffset())] == [10] * 5


def test_limits_skip_through_sealed_segments(tmp_path: Path) -> None:
    """Limit batches to some whole segments and a part: never over the limit, each LSN once."""
    reader = reader_of(filled(tmp_path / "log", 3000), maxRecordsPerTrigger=700, maxBytesPerTrigger=1 << 20)
    batches = list(batches_of(reader, reader.initialOffset()))
    assert [lsn for lsns in batches for lsn in lsns] == list(range(1, 3001))
    assert all(len(lsns) <= 700 for lsns in batches) and len(batches) == 5


def test_bounds_of_a_stream_are_inclusive(place: str) -> None:
    """Begin and end within transactions by option: these records, no others, and then nothing new."""
    reader = reader_of(filled(place), firstLsn=15, lastLsn=77)
    assert [lsn for lsns in batches_of(reader, reader.initialOffset()) for lsn in lsns] == list(range(15, 78))


def test_read_all_passes_over_the_limits(place: str) -> None:
    """Spark asks for all that there is (Trigger.Once): one batch, whatever the options are."""
    reader = reader_of(filled(place), maxRecordsPerTrigger=20)
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["lsn"] == 300 and rows_of(reader, start, end) == list(range(1, 301))


def test_available_now_ends_where_the_log_ended(place: str) -> None:
    """Prepare for Trigger.AvailableNow, append, and drive: what came later is left for the next query."""
    path = filled(place)
    reader = reader_of(path, maxRecordsPerTrigger=100)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    filled(path, 50)
    assert [lsn for lsns in batches_of(reader, start) for lsn in lsns] == list(range(1, 301))


def test_the_claim_keeps_what_was_not_read(tmp_path: Path) -> None:
    """Trim and compact beside a query that has read a part: unread records stay, and committed ones may go."""
    options = walkit.LogOptions(segment_bytes=64 * 1024)
    with walkit.Store.open(tmp_path / "log", options=options) as store:
        append(store.log, 2000)
        reader = reader_of(tmp_path / "log", maxRecordsPerTrigger=500)
        found, claimed = list[int](), list[int | None]()
        for lsns in batches_of(reader, reader.initialOffset()):
            found += lsns
            store.compact()
            store.checkpoint()
            claimed += [claim.first_lsn for claim in store.log.claims()]
        assert found == list(range(1, 2001))
        assert claimed == [1, 501, 1001, 1501]
        assert [claim.first_lsn for claim in store.log.claims()] == [2001]


def test_a_restarted_query_has_its_claim_back(place: str) -> None:
    """Make another reader from an offset that was not committed: the same claim, and the same batch again."""
    path = filled(place)
    reader = reader_of(path, maxRecordsPerTrigger=100)
    start = reader.initialOffset()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    first = rows_of(reader, start, end)
    again = reader_of(path, maxRecordsPerTrigger=100)
    assert rows_of(again, start, end) == first == list(range(1, 101))
    again.commit(end)
    with walkit.open(path, mode="r") as log:
        (claim,) = log.claims()
    assert (claim.owner, claim.first_lsn) == (end["owner"], 101)


def test_a_claim_that_was_lost_counts_again_with_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drop a query's claim between two batches, then set the wall clock past its lease: the next batch has it again."""
    path = filled(tmp_path / "log")
    reader = reader_of(path, maxRecordsPerTrigger=100)
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    right_ns = time.time_ns
    with walkit.open(path) as log:
        log.drop_claim(log.claims()[0].name)
        reader.commit(end)
        for step_ns in (0, 10**15):
            monkeypatch.setattr(time, "time_ns", lambda step_ns=step_ns: right_ns() + step_ns)
            assert reader.latestOffset(end, reader.getDefaultReadLimit())["lsn"] == 200
            assert [(claim.first_lsn, claim.state) for claim in log.claims()] == [(101, "live")], step_ns


def test_a_name_of_a_claim_belongs_to_one_query(place: str) -> None:
    """Begin two queries with one name for the claim: the second is refused, and `none` takes no claim."""
    path = filled(place)

    def begun(claim: str) -> str:
        reader = reader_of(path, claim=claim)
        ends = [reader.latestOffset(reader.initialOffset(), ReadAllAvailable()) for _ in range(2)]
        assert ends[0] == ends[1]
        return str(ends[0]["owner"])

    begun("mart")
    with pytest.raises(walkit.ClaimError, match="'mart' is another owner's"):
        begun("mart")
    assert begun("none") == "none"
    with walkit.open(path, mode="r") as log:
        assert [claim.name for claim in log.claims()] == ["mart"]


@pytest.mark.parametrize(
    ("before", "after", "left"),
    [
        ("mine", "other", ["other"]),
        ("mine", None, ["spark-"]),
        (None, "mine", ["mine"]),
        ("mine", "none", []),
    ],
)
def test_a_claim_under_a_new_name_releases_the_old_one(
    tmp_path: Path, before: str | None, after: str | None, left: list[str]
) -> None:
    """Restart a query with another option `claim`, beside another query's: only the claim of the new name is left."""
    path = filled(tmp_path / "log")
    others = walkit.claim(path, "consumer", 1)

    def reader(name: str | None) -> WalkitStreamReader:
        return reader_of(path, maxRecordsPerTrigger=100, **({} if name is None else {"claim": name}))

    first = reader(before)
    end = first.latestOffset(first.initialOffset(), first.getDefaultReadLimit())
    again = reader(after)
    later = again.latestOffset(end, again.getDefaultReadLimit())
    assert later["owner"] == end["owner"]
    again.commit(later)
    with walkit.open(path, mode="r") as log:
        claims = {claim.name[:6]: (claim.owner, claim.first_lsn) for claim in log.claims()}
    assert claims == {"consum": (others.owner.hex, 1)} | dict.fromkeys(
        [name[:6] for name in left], (end["owner"], 201)
    )


def test_what_was_trimmed_is_a_gap(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without a claim, trim past a query: GapError with the cure; with failOnDataLoss=false the rest, and an event."""
    options = walkit.LogOptions(segment_bytes=64 * 1024)
    with walkit.open(tmp_path / "log", options=options) as log:
        append(log, 2000)
        reader = reader_of(tmp_path / "log", claim="none")
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        log.trim(1000)
        questions: list[Callable[[], object]] = [
            lambda: reader.latestOffset(start, ReadAllAvailable()),
            lambda: reader.partitions(start, end),
        ]
        for ask in questions:
            with pytest.raises(walkit.GapError, match="record 1 is gone") as caught:
                ask()
            assert "new checkpoint" in caught.value.__notes__[0]
        with pytest.raises(walkit.GapError):
            reader_of(tmp_path / "log", firstLsn=5).initialOffset()
        assert "walkit.stream.skip" not in caplog.text
        going_on = reader_of(tmp_path / "log", claim="none", failOnDataLoss="false")
        for last in (end, going_on.latestOffset(start, ReadAllAvailable())):
            batches = [b for part in going_on.partitions(start, last) for b in going_on.read(part)]
            assert [lsn for b in batches for lsn in b.column("lsn").to_pylist()] == list(range(1001, 2001))
        assert "walkit.stream.skip" in caplog.text
        log.trim(2000)
        assert going_on.partitions(start, end) == []


def test_what_compaction_had_left_before_is_taken(tmp_path: Path) -> None:
    """Begin at a compacted log: what is there. Compact further, without a claim: GapError, and never a skip."""
    options = walkit.LogOptions(segment_bytes=64 * 1024)
    with walkit.Store.open(tmp_path / "log", options=options) as store:
        append(store.log, 2000)
        store.compact()
        reader = reader_of(tmp_path / "log", claim="none", maxRecordsPerTrigger=10)
        start = reader.initialOffset()
        with walkit.open(tmp_path / "log", mode="r") as log:
            expected = [record.lsn for record in log.read()]
        assert len(expected) < 2000
        assert [lsn for lsns in batches_of(reader, start) for lsn in lsns] == expected
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        append(store.log, 2000)
        store.compact()
        with pytest.raises(walkit.GapError):
            reader.latestOffset(end, ReadAllAvailable())


def test_another_log_or_history_is_a_divergence(tmp_path: Path) -> None:
    """Put another log, an older copy, and a copy that went on by itself under the path: DivergenceError for each."""
    path = filled(tmp_path / "log", 100)
    shutil.copytree(path, tmp_path / "older")
    filled(path, 50)
    reader = reader_of(path, claim="none")
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    shutil.copytree(path, tmp_path / "kept")
    for other, first_lsn in (
        (filled(tmp_path / "other", 200), 1),
        (tmp_path / "older", 101),
        (filled(tmp_path / "older", 80), 101),
    ):
        shutil.rmtree(path)
        shutil.copytree(other, path)
        with pytest.raises(walkit.DivergenceError, match="new checkpoint") as caught:
            reader.latestOffset(end, ReadAllAvailable())
        assert caught.value.first_lsn == first_lsn
    shutil.rmtree(path)
    shutil.copytree(tmp_path / "kept", path)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def written_at(monkeypatch: pytest.MonkeyPatch, path: Path | str, minute: int, count: int = 20) -> datetime:
    """Open the log, append at a minute of the writer's clock, close; return a time just after."""
    with monkeypatch.context() as clock:
        clock.setattr(time, "time_ns", lambda: (1_700_000_000 + 60 * minute) * 10**9)
        filled(path, count)
    return at_minute(minute)


def at_minute(minute: int) -> datetime:
    """Half a minute after a minute of the clock of `written_at`."""
    return datetime.fromtimestamp(1_700_000_030 + 60 * minute, UTC)


def test_times_bound_a_stream(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read since and until times between writes, in other zones too: these records; a restart keeps its checkpoint."""
    path = place
    times = [written_at(monkeypatch, path, minute) for minute in (0, 10, 20)]
    kolkata = timezone(timedelta(hours=5, minutes=30))

    def lsns(start: dict[str, Any] | None = None, **options: object) -> list[int]:
        reader = reader_of(path, maxRecordsPerTrigger=15, claim="none", **options)
        batches = batches_of(reader, reader.initialOffset() if start is None else start)
        return [lsn for lsns in batches for lsn in lsns]

    assert lsns(since=times[0]) == list(range(21, 61))
    assert lsns(until=times[1]) == list(range(1, 41))
    assert lsns(since=times[0].astimezone(kolkata), until=times[1].astimezone(kolkata)) == list(range(21, 41))
    assert lsns(until=at_minute(-5)) == lsns(since=times[2]) == []
    reader = reader_of(path, claim="none", since=times[2], until=at_minute(35))
    start = reader.initialOffset()
    assert reader.latestOffset(start, ReadAllAvailable()) == start
    written_at(monkeypatch, path, 30)
    written_at(monkeypatch, path, 40)
    end = reader.latestOffset(start, ReadAllAvailable())
    assert rows_of(reader, start, end) == list(range(61, 81))
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    assert lsns(end, since=times[0]) == list(range(81, 101))


def test_a_clock_that_was_set_back_moves_no_end(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the writer's clock back: `until` always ends at the first frame after it; any time cuts loads in two."""
    path, ends = place, list[int]()
    for minute in (0, 30, 10, 20, 40):
        written_at(monkeypatch, path, minute)
        reader = reader_of(path, claim="none", until=at_minute(15))
        ends.append(reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["lsn"])
    assert ends == [20] * 5
    for minute in range(-1, 42):
        given = {"path": str(path), "since": at_minute(minute), "until": at_minute(minute)}
        before, after = (
            plan_log(str(path), within_times(str(path), read_options({"path": str(path), name: given[name]})))
            for name in ("until", "since")
        )
        assert before.last_lsn == after.frames_from - 1, minute


def test_a_start_in_what_compaction_has_thinned_is_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compact, and start a query since a time before: GapError with the advice to leave the option out."""
    written_at(monkeypatch, tmp_path / "log", 0, 800)
    written_at(monkeypatch, tmp_path / "log", 10, 800)
    with walkit.Store.open(tmp_path / "log") as store:
        assert store.compact().segments_rewritten
    with pytest.raises(walkit.GapError) as caught:
        reader_of(tmp_path / "log", since=at_minute(0)).initialOffset()
    assert "Leave option since out" in caught.value.__notes__[0]


def test_what_a_stream_does_not_take_is_one_sentence(tmp_path: Path) -> None:
    """Options of a batch, a checkpoint of other logs or another source, a start after the end: OptionsError by name."""
    path = filled(tmp_path / "log", 20)
    for options, words in (
        ({"snapshot": "true"}, "snapshot is for spark.read"),
        ({"since": datetime.now(UTC) + timedelta(hours=1)}, "records written until then"),
        ({"view": "frames"}, "view 'records'"),
        ({"mode": "permissive"}, "mode 'failfast'"),
        ({"firstLsn": 22}, "the log ends at 20"),
    ):
        with pytest.raises(walkit.OptionsError, match=words):
            reader_of(path, **options).initialOffset()
    many = ManyStreamReader(read_options({"path": f"{tmp_path}/*"}), RECORD_STRUCT)
    with pytest.raises(walkit.OptionsError, match=f"{path}.*: the checkpoint names the logs /gone"):
        many.latestOffset({"logs": {"/gone": reader_of(path).initialOffset()}}, ReadAllAvailable())
    with pytest.raises(walkit.OptionsError, match="another source"):
        reader_of(path).latestOffset({"files": 3}, ReadAllAvailable())


SPOILED: list[tuple[dict[str, object], dict[str, object]]] = [
    ({}, {"lsn": 0}),
    ({}, {"lsn": 301}),
    ({}, {"log_id": "f" * 16}),
    ({}, {"complete_from_lsn": 9}),
    ({}, {"owner": ""}),
    ({"owner": "e" * 32}, {}),
]


@pytest.mark.parametrize(("start", "end"), SPOILED)
def test_a_batch_that_does_not_go_on_is_noticed(
    tmp_path: Path, start: dict[str, object], end: dict[str, object]
) -> None:
    """Spoil one field of the offsets of a sound batch: the reader's check, which passed before, fails."""
    reader = reader_of(filled(tmp_path / "log"))
    reader.prepareForTriggerAvailableNow()
    begin = reader.initialOffset()
    found = reader.latestOffset(begin, ReadAllAvailable())
    reader._check(StreamOffset.of(begin), StreamOffset.of(found))
    with pytest.raises(AssertionError):
        reader._check(StreamOffset.of(begin | start), StreamOffset.of(found | end))
