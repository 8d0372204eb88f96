"""Logs on object storage through Spark: the answers of a log in a folder, few requests, no credentials shown."""

from __future__ import annotations

import json
import random
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

import walkit
import walkit.spark
from tests.objects.made_log import MadeLog
from tests.spark.loading import plan_scan
from tests.spark.test_spark_stream import append, batches_of, filled
from tests.support.histories import Row, diff_of, newest_of, random_rows, state_of, write
from tests.support.object_servers import SECRET, OddS3, moto_bucket
from walkit.errors import WalkitError
from walkit.spark.columns import LOG_FIELDS, RECORD_STRUCT
from walkit.spark.multi_log_stream import ManyStreamReader
from walkit.spark.object_log import lsn_at
from walkit.spark.options import read_options
from walkit.spark.scan import plan_log
from walkit.spark.source import WalkitReader, plan_load
from walkit.spark.stream import WalkitStreamReader
from walkit.storage.object_files import FileObjectStore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    """The rows, sorted."""
    return sorted((tuple(row.values()) for row in df.toArrow().to_pylist()), key=repr)


def reader_of(path: str, options: Mapping[str, Any] | None = None, **given: object) -> WalkitReader:
    """The reader of a load of the log at `path`, as a worker has it."""
    stored = {} if options is None else {"storageOptions": json.dumps(options)}
    return WalkitReader(plan_log(path, read_options({"path": path, **stored, **given})), RECORD_STRUCT)


def read(reader: WalkitReader, partition: InputPartition) -> list[int]:
    """The LSNs of one task."""
    return [lsn for batch in reader.read(partition) for lsn in batch.column("lsn").to_pylist()]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Row], str, str]:
    """One generated history of three openings, in a folder and on object storage."""
    folder, made = tmp_path_factory.mktemp("history"), random_rows(5, 400)
    for place in (str(folder / "log"), f"objects:{folder}/objects"):
        write(place, made, epochs=3)
    return made, str(folder / "log"), f"objects:{folder}/objects"


def test_a_log_on_objects_is_loaded_and_asked(
    spark: SparkSession, history: tuple[list[Row], str, str]
) -> None:
    """Load, states, changes, diff and verify of one history: those of a loop, and of the log in a folder."""
    made, folder, url = history
    ask, rule = walkit.spark, newest_of(made, 200)
    found = ask.load([folder, url]).groupBy("log").count()
    assert rows(found) == sorted([(folder, len(made)), (url, len(made))], key=repr)
    assert rows(ask.replay(url)) == sorted(
        ((key, value, lsn) for key, (value, lsn) in state_of(made).items()), key=repr
    )
    fed = {row[0] for row in rows(ask.changes(url, 201, net=True))}
    differing = rows(ask.diff((url, 200), url).select(*DIFF))
    assert differing == sorted(diff_of(rule, newest_of(made)), key=repr) and fed == {
        row[0] for row in differing
    }
    assert ask.verify_pair(folder, url).equal


@pytest.mark.slow  # twenty queries; by default the test above asks the main ones, once
def test_both_kinds_of_log_give_the_same(spark: SparkSession, history: tuple[list[Row], str, str]) -> None:
    """Load, replay, states, history, changes, diff, tables and several logs of one history: equal, and as the rule."""
    made, *places = history
    ask = walkit.spark
    ask.sql_functions(spark)
    answers = [
        [
            rows(ask.load(place, first_lsn=20, last_lsn=333, partitions=3).drop("timestamp")),
            rows(ask.replay(place)),
            rows(ask.replay(place, 200, only=[b"key-3", b""])),
            rows(ask.states(place, [0, 17, 300])),
            rows(ask.history(place, first_lsn=150)),
            rows(ask.changes(place, 201, 350)),
            rows(ask.diff((place, 200), place, unchanged=True).select(*DIFF)),
            rows(ask.load(place, view="frames").agg({"records": "sum"})),
            rows(spark.sql(f"SELECT * FROM walkit_changes('{place}', 301)")),
        ]
        for place in places
    ]
    assert answers[0] == answers[1]
    assert answers[1][1] == sorted(
        ((key, value, lsn) for key, (value, lsn) in state_of(made).items()), key=repr
    )
    assert answers[1][6] == sorted(diff_of(newest_of(made, 200), newest_of(made), unchanged=True), key=repr)
    of_both = ask.load(places).groupBy("log").count()
    assert rows(of_both) == sorted([(place, len(made)) for place in places], key=repr)
    assert rows(ask.diff(*places)) == [] and ask.verify_pair(*places).equal
    assert [row[3] for row in rows(ask.verify(places).select("log", "log_id", "state", "ok"))] == [True, True]


DIFF = ("key", "change", "left_value", "right_value", "left_lsn", "right_lsn")


def test_each_task_fetches_its_own_objects() -> None:
    """Plan and read 60 objects of many sizes at a server: a plan of few headers, then each object by one task, once."""
    with OddS3(lambda method, path: None) as server:
        with walkit.open("s3://bucket/log", storage_options=server.options) as log:
            for n in range(60):
                log.append_many([random.Random(n).randbytes(1 + n**2 % 3000)] * 7)
        before = len(server.requests)
        reader = reader_of("s3://bucket/log", server.options, partitions=4)
        partitions = reader.partitions()
        planned = server.requests[before:]
        assert len(partitions) == 4 and len(planned) < 30 and not any("list-type" in one for one in planned)
        found, fetched = list[int](), list[str]()
        for partition in partitions:
            before = len(server.requests)
            found += read(reader, partition)
            asked = server.requests[before:]
            assert len(asked) < 45 and all("/log/log/" in one for one in asked)
            fetched += asked
        assert found == list(range(1, 421)) and len(set(fetched)) == len(fetched) == 61  # with the fence
        before = len(server.requests)
        of_few = reader_of("s3://bucket/log", server.options, firstLsn=200, lastLsn=203)
        (part,) = of_few.partitions()
        assert read(of_few, part) == [200, 201, 202, 203] and len(server.requests) - before < 25


def test_a_log_that_changed_since_its_load_is_refused(tmp_path: Path) -> None:
    """Trim, replace and remove the log between plan and task: GapError "load it again", DivergenceError, not found."""
    store: Any = FileObjectStore(tmp_path / "o")
    made, url = MadeLog(store), f"objects:{tmp_path}/o"
    places = [made.append([b"v"] * 3) for _ in range(8)]
    made.save()
    reader = reader_of(url, partitions=2)
    first, second = reader.partitions()
    made.trim(places[2])
    for number in range(1, places[2].number + 1):
        store.delete(f"log/{number:020d}")
    with pytest.raises(walkit.GapError) as gap:
        read(reader, first)
    assert gap.value.oldest == 10 and "load it again" in str(gap.value.__notes__)
    assert read(reader, second) == list(range(13, 25))
    assert read(again := reader_of(url), again.partitions()[0])[0] == 10
    for key in [entry.key for entry in store.list_after("")]:
        store.delete(key)
    with pytest.raises(walkit.LogNotFoundError):
        read(reader, second)
    MadeLog(store, log_id=0x42).append([b"w"] * 30)
    with pytest.raises(walkit.DivergenceError, match="another log"):
        read(reader, second)
    store.close()


def test_times_of_a_log_on_object_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append minute by minute; the LSN at each time is that of a walk over the frames."""
    url, begun = f"objects:{tmp_path}/o", datetime(2026, 1, 1, tzinfo=UTC)
    for minute in range(5):
        with monkeypatch.context() as clock:
            now_ns = int((begun + timedelta(minutes=minute)).timestamp()) * 10**9
            clock.setattr("time.time_ns", lambda now_ns=now_ns: now_ns)
            filled(url, 20)
    with walkit.open(url, "r") as log:
        view: Any = log.source.now().view
        asked = [lsn_at(view, begun + timedelta(minutes=at - 0.5)) for at in range(7)]
    assert asked == [0, 20, 40, 60, 80, 100, 100]
    assert plan_scan({"path": url, "since": begun + timedelta(minutes=2.5)}).frames_from == 61


def test_credentials_are_shown_nowhere(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Load, reload, fail and stream from moto with options: no plan, error, page or checkpoint has them."""
    url, options = moto_bucket()
    monkeypatch.setattr(sys.modules["walkit.spark.loads"], "RELOAD_LSNS", -1)  # small logs, too
    with walkit.open(url, storage_options=options) as log:
        log.append_many([b"v"] * 90, [b"%d" % (n % 9) for n in range(90)])
        df = walkit.spark.load(url, storage_options=options, snapshot=True)
        asked = walkit.spark.replay(df)
        assert len(rows(asked)) == 9
        append(log, 10)
    for mode in ("formatted", "cost"):
        asked.explain(mode)
    stream = spark.readStream.format("walkit").option("storageOptions", json.dumps(options)).load(url)
    sink = stream.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "check"))
    query = sink.trigger(availableNow=True).start(str(tmp_path / "sink"))
    query.awaitTermination(120)
    query.explain(True)
    assert spark.read.parquet(str(tmp_path / "sink")).count() == 100
    shown = [capsys.readouterr().out, repr(query.lastProgress), df.schema.json(), repr(df), sql_page(spark)]
    shown += [str(file.read_bytes()) for file in (tmp_path / "check").rglob("*") if file.is_file()]
    shown.append(repr(plan_load({"path": url, "storageOptions": json.dumps(options)})))
    with pytest.raises(Exception) as caught:
        walkit.spark.load("s3://no-bucket/folder", storage_options=options).count()
    shown.append(f"{caught.value!r} {caught.value}")
    for path, wrong in (
        (url, {**options, "no such option": SECRET}),
        (f"objects:{tmp_path}", options),
        (url, [SECRET]),
    ):
        with pytest.raises(WalkitError) as refused:
            plan_load({"path": path, "storageOptions": json.dumps(wrong)})
        shown.append(f"{refused.value!r} {refused.value}")
    with pytest.raises(Exception, match="environment of the executors"):
        spark.sql(
            f"CREATE TABLE t USING walkit OPTIONS (path '{url}', storageOptions '{json.dumps(options)}')"
        )
    assert all(len(text) > 10 for text in shown) and "BatchScan walkit" in shown[0]
    assert [text for text in shown if SECRET in text or options["access_key_id"] in text] == []
    for name in ("endpoint", "region", "access_key_id", "secret_access_key"):
        monkeypatch.setenv(f"AWS_{name.upper()}", options[name])
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    assert len(reader_of(url).partitions()) >= 1


def sql_page(spark: SparkSession) -> str:
    """All that Spark's SQL page has of the queries so far."""
    store: Any = spark._jsparkSession.sharedState().statusStore()
    ran, text = store.executionsList(), ""
    for at in range(ran.size()):
        one = ran.apply(at)
        nodes = store.planGraph(one.executionId()).allNodes()
        text += f"{one.physicalPlanDescription()} {one.description()} {one.details()} {one.modifiedConfigs()}"
        text += " ".join(f"{nodes.apply(n).name()} {nodes.apply(n).desc()}" for n in range(nodes.size()))
    return text


def test_a_stream_of_several_logs_has_each_record_once(tmp_path: Path) -> None:
    """Restart the reader before each batch, with new writers meanwhile, over a log of each kind: each record once."""
    paths, start, found = [f"objects:{tmp_path}/a", str(tmp_path / "b")], None, list[dict[str, Any]]()
    given = read_options({"paths": json.dumps(paths), "maxRecordsPerTrigger": 30})
    for turn in range(6):
        for path in paths if turn < 3 else ():
            filled(path, 40)
        reader: Any = ManyStreamReader(given, StructType([*RECORD_STRUCT.fields, *LOG_FIELDS]))
        start = reader.initialOffset() if start is None else start
        end = reader.latestOffset(start, reader.getDefaultReadLimit())
        for part in reader.partitions(start, end):
            found += [row for batch in reader.read(part) for row in batch.to_pylist()]
        reader.commit(end)
        reader.stop()
        start = end
    for path in paths:
        assert [row["lsn"] for row in found if row["log"] == path] == list(range(1, 121))


def test_a_compacted_log_is_read_by_segments_and_bulks(tmp_path: Path) -> None:
    """Compact a log, append, and read it in 1 to 30 tasks, by bounds, times and as a stream: as a reader does."""
    # After another compaction a planned task that reads a replaced object ends in a GapError: "load it again".
    url, rng, begun = f"objects:{tmp_path}/log", random.Random(3), datetime.now(UTC)

    def fill(store: walkit.Store, count: int) -> None:
        for _ in range(count):
            store.log.append_many([rng.randbytes(900)] * 5, [b"%d" % rng.randrange(20) for _ in range(5)])

    with walkit.Store.open(url, options=walkit.LogOptions(segment_bytes=64 * 1024)) as store:
        fill(store, 100)
        assert store.compact().segments_rewritten > 5
        middle = datetime.now(UTC)
        fill(store, 30)
        with walkit.open(url, "r") as log:
            expected = [record.lsn for record in log.read()]
        assert expected[0] > 1 and 20 < len(expected) - 150 < 300
        for parts in (1, 2, 5, 30):
            reader = reader_of(url, partitions=parts)
            tasks = reader.partitions()
            assert len(tasks) <= parts and [lsn for task in tasks for lsn in read(reader, task)] == expected
        for first, last in ((1, 10), (100, 480), (300, 640), (505, 650), (480, 520)):
            reader = reader_of(url, firstLsn=first, lastLsn=last)
            found = [lsn for task in reader.partitions() for lsn in read(reader, task)]
            assert found == [lsn for lsn in expected if first <= lsn <= last]
        assert [plan_scan({"path": url, "until": at}).last_lsn for at in (begun, middle)] == [0, 500]
        assert [plan_scan({"path": url, "since": at}).frames_from for at in (begun, middle)] == [1, 501]
        stream = WalkitStreamReader(
            read_options({"path": url, "maxRecordsPerTrigger": 40, "claim": "none"}), RECORD_STRUCT
        )
        batches = list(batches_of(stream, stream.initialOffset()))
        assert [lsn for lsns in batches for lsn in lsns] == expected and max(map(len, batches)) <= 40
        stream.stop()
        reader = reader_of(url, partitions=6)
        tasks = reader.partitions()
        fill(store, 40)
        store.compact()
        for task in tasks:
            with pytest.raises(walkit.GapError) as gap:
                read(reader, task)
            assert "load it again" in str(gap.value.__notes__)
