"""`walkit bench write`: every way in is measured, beside the raw device of its own time, and nothing is left behind."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import walkit
from tests.support.object_servers import moto_bucket
from walkit.bench import BenchReport, BenchRow, bench_write
from walkit.bench.matrix import _beside_peers, median_row
from walkit.bench.peers import PEERS, measure_peer
from walkit.bench.write import (
    RECORDS_PER_CALL,
    _arrow,
    _many,
    _outstanding,
    _row,
    _submit,
    _tasks,
    _threads,
    beside_puts,
)
from walkit.errors import CommitFailedError, LogClosedError, LogPoisonedError, OptionsError
from walkit.measure import LatencyHistogram, ThreadRecorder
from walkit.metrics import LogStatistics
from walkit.models import CrashingStorage, FaultyStorage
from walkit.storage import open_store

WAYS = [("append", 1), ("append", 3), ("append_async", 5), ("submit", 1)]
WAYS += [("append_many", 1), ("append_arrow", 1)]
JSON_KEYS = {
    *("way", "callers", "records", "seconds", "records_per_s", "raw_per_s", "times_raw", "p50_us", "p99_us"),
    *(
        "latency_of",
        "frames",
        "records_per_frame",
        "times_raw_bytes",
        "durability",
        "record_bytes",
        "in_flight",
    ),
    *("ack_order", "times_peers", "all_per_s", "cpu_s", "times_real"),
    *("frame_bytes", "times_raw_frames", "all_times_raw_frames", "policy", "cpu_us", "puts_per_record"),
}


@pytest.fixture(scope="module", autouse=True)
def short_raw_loops() -> Iterator[None]:
    """The raw loops beside each way write for 0.02 s, but at least once, instead of 0.2 s."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("walkit.bench.write.RAW_S_MIN", 0.02)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bench")


@pytest.fixture(scope="module")
def report(folder: Path) -> BenchReport:
    return bench_write(
        writers=[1, 3], tasks=[5], record_bytes=64, seconds=0.1, path=str(folder), progress=False
    )


def test_every_way_stands_between_two_raw_loops(report: BenchReport) -> None:
    """Rows go raw, way, raw, way, ..., raw, and each way is compared with the two raw loops beside it."""
    assert [(r.way, r.callers) for r in report.rows[1::2]] == WAYS
    assert {r.way for r in report.rows[::2]} == {"raw"}
    for before, row, after in zip(report.rows[::2], report.rows[1::2], report.rows[2::2], strict=False):
        assert row.raw_per_s == pytest.approx((before.records_per_s + after.records_per_s) / 2)
        assert row.times_raw == pytest.approx(row.records_per_s / row.raw_per_s)
        assert before.times_raw == pytest.approx(1)


def test_the_numbers_of_a_row_go_together(report: BenchReport, folder: Path) -> None:
    """Records, time, percentiles and frames of each way are there and possible; nothing is left in the folder."""
    for row in report.rows:
        assert row.records > 0
        assert 0 < row.p50_us <= row.p99_us
    for row in report.rows[1::2]:
        assert row.frames is not None and row.records_per_frame is not None
        assert row.frames > 0
        if row.way != "submit":  # one of a hundred is timed, in a queue
            assert row.p50_us <= row.seconds * 1e6
        assert row.seconds >= 0.1
    one, three, tasks, _, many, arrow = report.rows[1::2]
    # A closed loop: a caller has one record on its way, so a frame has at most one of each.
    assert one.records_per_frame == 1
    assert three.records_per_frame is not None and three.records_per_frame <= 3
    assert tasks.records_per_frame is not None and tasks.records_per_frame <= 5
    for bulk in (many, arrow):
        assert bulk.records % RECORDS_PER_CALL == 0
        assert bulk.times_raw_bytes is not None and bulk.times_raw_bytes > 0
    assert list(folder.iterdir()) == []
    assert report.location == str(folder)


def test_the_raw_loop_writes_frames_of_one_record(report: BenchReport, tmp_path: Path) -> None:
    """The block of the raw loop is as large as a frame with one such record is on disk."""
    with walkit.open(tmp_path / "log") as log:
        log.append(bytes(64))
        assert report.raw_block_bytes == log.statistics().frame_bytes


def test_text_html_and_json_say_the_same(report: BenchReport) -> None:
    """Every way is in each form; JSON has the documented keys and survives a round trip; the place is named."""
    text, html, plain = report.text(), report._repr_html_(), json.loads(json.dumps(report.to_dict()))
    system = report.machine.file_system
    assert system is not None and str(system.type) in text
    assert plain["file_system"] == system.type
    assert [row["way"] for row in plain["rows"]] == [r.way for r in report.rows]
    assert all(set(row) == JSON_KEYS for row in plain["rows"])
    for way, _ in WAYS:
        assert f"\n{way} " in text
        assert f">{way}</td>" in html
    assert len(text.splitlines()) == len(report.notes) + 1 + len(report.rows) + 6


def test_what_is_outside_of_the_time_does_not_count() -> None:
    """A row has only records acknowledged after its first mark and until its second, even if they began before."""
    recorder = ThreadRecorder()
    for began, ended, records in ((0, 90, 1), (50, 101, 2), (120, 200, 4), (150, 201, 8)):
        recorder.record(began, ended, records)
    before, after = LogStatistics(), LogStatistics(frames_written=4, marker_frames=1, records_acked=12)
    row = _row("append", 1, [recorder], ((100, before), (200, after)), "a record")
    assert (row.records, row.seconds) == (6, 1e-7)
    assert row.p99_us == LatencyHistogram.from_samples(np.array([51, 80])).percentile(99) / 1000
    assert (row.frames, row.records_per_frame) == (3, 4)


def test_a_time_without_acknowledgements_is_told_as_such() -> None:
    """Nothing acknowledged between the marks: 0 records, no percentiles, and JSON without nan."""
    still = LogStatistics()
    row = _row("append", 1, [ThreadRecorder()], ((100, still), (200, still)), "a record")
    assert (row.records, row.records_per_s, row.frames) == (0, 0, 0)
    plain = json.loads(json.dumps(row.to_dict(), allow_nan=False))
    assert (plain["p50_us"], plain["records_per_frame"], plain["raw_per_s"]) == (None, None, None)


WAY_FUNCTIONS: dict[str, Any] = {
    "append": lambda log: _threads(log, 4, b"value", 30),
    "append_async": lambda log: _tasks(log, 4, b"value", 30),
    "submit": lambda log: _submit(log, b"value", 30),
    "tickets": lambda log: _outstanding(log, 4, b"value", 30),
    "append_many": lambda log: _many(log, b"value", 30),
    "append_arrow": lambda log: _arrow(log, b"value", 30),
}


@pytest.mark.parametrize("way", WAY_FUNCTIONS)
def test_an_error_of_the_log_ends_a_way_at_once(way: str) -> None:
    """A failing sync, and a closed log, are raised long before the time is over, and no thread is left."""
    storage = FaultyStorage(CrashingStorage())
    storage.fail("synced_write", nth=5)
    with (
        walkit.open(storage=storage, events=lambda *_: None) as log,
        pytest.raises((CommitFailedError, LogPoisonedError)),
    ):
        WAY_FUNCTIONS[way](log)
    with walkit.open(storage=CrashingStorage()) as log:
        pass
    with pytest.raises(LogClosedError):
        WAY_FUNCTIONS[way](log)
    assert not [t for t in threading.enumerate() if t.name.startswith("bench-")]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("writers", [1, 0]),
        ("tasks", [-1]),
        ("record_bytes", 0),
        ("seconds", 0.0),
        ("path", "/no/such/folder"),
        ("model", "essd-pl1-20g"),
        ("runs", 0),
        ("record_bytes", []),
        ("in_flight", [0]),
        ("ack_order", ["sideways"]),
        ("outstanding", [0]),
        ("policy", ["capped"]),
    ],
)
def test_what_cannot_be_measured_is_refused(option: str, value: Any) -> None:
    """Bad arguments are an OptionsError that names the option, before anything is written."""
    given: dict[str, Any] = {"writers": [1], "tasks": [1], option: value}
    with pytest.raises(OptionsError) as found:
        bench_write(**given, progress=False)
    assert found.value.option == option


def test_a_modelled_device_is_measured_in_virtual_time() -> None:
    """On a slow volume: one frame of 8 in each order reaches 2,800 a second, and the report says where."""
    report = bench_write(
        writers=[1, 8],
        tasks=[],
        in_flight=[8],
        ack_order=["append", "completion"],
        seconds=2,
        model="essd-pl1-20g",
        progress=False,
    )
    rows = [row for row in report.rows if row.way == "append"]
    assert [(row.callers, row.ack_order) for row in rows] == [
        (1, "append"),
        (8, "append"),
        (1, "completion"),
        (8, "completion"),
    ]
    for row in rows:
        if row.callers == 8:
            assert row.records_per_s == pytest.approx(2_800, rel=0.01)
    assert "modelled device essd-pl1-20g, in virtual time" in report.text()
    assert all(row.cpu_s and row.times_real == row.seconds / row.cpu_s for row in report.rows)
    assert "times real time at 10,000 records per second" in report.text()
    assert report.to_dict()["model"] == "essd-pl1-20g"


def test_each_way_with_so_many_on_their_way_is_compared_with_raw_frames(tmp_path: Path) -> None:
    """4 outstanding, capped at 2 records per frame, past the page cache: a raw row of equal frames follows each way."""
    report = bench_write(
        writers=[4],
        tasks=[4],
        record_bytes=4096,
        in_flight=[2],
        seconds=0.05,
        runs=2,
        path=str(tmp_path),
        direct_io=True,
        policy=["capped:2"],
        outstanding=[4],
        progress=False,
    )
    assert [(r.way, r.callers) for r in report.rows[1::3]] == [
        ("append", 4),
        ("append_async", 4),
        ("tickets", 4),
    ]
    assert {(r.way, r.callers) for r in report.rows[2::3]} == {("raw frames", 2)}
    for row, raw in zip(report.rows[1::3], report.rows[2::3], strict=True):
        assert row.policy == "capped:2" and row.frames and row.records_per_frame is not None
        # The counting begins in mid-run: each of the four may then be written and wait for an older one.
        assert row.records_per_frame * row.frames <= 2 * row.frames + 4
        assert row.frame_bytes is not None and 8192 <= row.frame_bytes <= 12288 and row.frame_bytes % 1 >= 0
        assert raw.frame_bytes is not None and raw.frame_bytes % 64 == 0
        assert (
            len(row.all_times_raw_frames) == 2 and row.times_raw_frames == min(row.all_times_raw_frames) > 0
        )
    text = report.text()
    assert "x raw frames" in text and "raw frames" in report._repr_html_()
    assert list(tmp_path.iterdir()) == []


# Slow: moto. By default the same requests go to files.
@pytest.mark.parametrize(
    "place", ["a log on objects", "a way that fails", pytest.param("a log on S3", marks=pytest.mark.slow)]
)
def test_a_way_on_object_storage_is_compared_with_plain_puts(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measure in a folder of objects and at moto: PUTs follow each way, and no object is left, nor after an error."""
    url = f"objects:{tmp_path}"
    if place == "a log on S3":
        url, options = moto_bucket()
        for name, value in (options | {"allow_http": "true"}).items():
            monkeypatch.setenv(f"AWS_{name.upper()}", value)
    if place == "a way that fails":

        def failing(log: walkit.WriteAheadLog) -> BenchRow:
            raise ZeroDivisionError(log.location)

        with pytest.raises(ZeroDivisionError):
            beside_puts(f"{url}/log", walkit.LogOptions(), b"v", failing, 1)
    else:
        report = bench_write(
            writers=[3],
            tasks=[],
            outstanding=[2],
            in_flight=[2],
            seconds=0.05,
            runs=2,
            path=url,
            progress=False,
        )
        assert [(r.way, r.callers) for r in report.rows[::2]] == [("append", 3), ("tickets", 2)]
        assert {(r.way, r.callers, r.puts_per_record) for r in report.rows[1::2]} == {("plain puts", 2, 1)}
        for row, raw in zip(report.rows[::2], report.rows[1::2], strict=True):
            assert row.cpu_us and raw.cpu_us and raw.frame_bytes and raw.frame_bytes >= 128
            assert row.puts_per_record and 1 / 3 <= row.puts_per_record <= 1
            # A place that stalls for the whole time gives no ratio.
            assert row.times_raw_frames == min(row.all_times_raw_frames, default=None)
        text, plain = report.text(), report.to_dict()
        assert url in text and "x plain puts" in text and "PUTs/record" in text
        assert plain["file_system"] is None and set(plain["rows"][0]) == JSON_KEYS
    assert list(tmp_path.iterdir()) == []
    assert list(open_store(url).list_after("")) == []


MODEL: dict[str, Any] = {"model": "gp3"}
URL: dict[str, Any] = {"path": "objects:made"}


@pytest.mark.parametrize(
    "given",
    [
        *(MODEL | other for other in ({"tasks": [1]}, {"peers": True}, {"durability": "none"})),
        {"model": "floppy"},
        *(URL | other for other in ({"peers": True}, {"durability": "none"}, {"direct_io": True}, MODEL)),
        *(URL | other for other in ({"ack_order": ["completion"]}, {"in_flight": [1, 200]})),
        {"path": "s3://key:secret@bucket/folder"},
    ],
)
def test_what_the_place_does_not_know_is_refused(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options without a meaning in virtual time or on object storage are OptionsErrors, and no folder is made."""
    monkeypatch.chdir(tmp_path)
    arguments: dict[str, Any] = {"writers": [1], "tasks": [], "progress": False}
    with pytest.raises(OptionsError) as found:
        bench_write(**(arguments | given))
    assert "secret" not in str(found.value) and list(tmp_path.iterdir()) == []


def test_without_sync_the_report_has_a_note(tmp_path: Path) -> None:
    """Rows of durability none are marked: nothing waited for a sync, and the ratio compares unlike things."""
    report = bench_write(
        writers=[1], tasks=[], seconds=0.02, path=str(tmp_path), durability="none", progress=False
    )
    assert "durability none: no sync is waited for" in report.text()
    assert "no sync is waited for" in report._repr_html_()


def test_the_row_of_the_median_is_shown() -> None:
    """Of three rows the middle one, of four the lower of the middle two, with the rates of all in their order."""
    rows = [
        BenchRow(way="w", callers=1, records=n, seconds=1, p50_us=n, p99_us=n, latency_of="")
        for n in (3, 1, 2, 4)
    ]
    assert (median_row(rows[:3]).records, median_row(rows[:3]).all_per_s) == (2, (3, 1, 2))
    assert median_row(rows).records == 2


def test_a_ratio_to_a_peer_comes_from_the_same_run() -> None:
    """Rows as two runs may find them: ratios pair as many callers and the same promise, and the median is of ratios."""

    def row(way: str, callers: int, records: int, durability: str = "sync") -> BenchRow:
        return BenchRow(
            way=way,
            callers=callers,
            records=records,
            seconds=1,
            p50_us=1,
            p99_us=1,
            latency_of="",
            durability=durability,
        )

    def run(tasks: int, peer: int) -> list[BenchRow]:
        rows = [row("raw", 1, 9), row("append", 1, 8), row("append_async", 2, tasks), row("submit", 1, 90)]
        return _beside_peers(
            [*rows, row("leveldb", 2, peer), row("lmdb", 2, 0), row("leveldb", 1, 45, "none")]
        )

    passes = [run(30, 10), run(80, 20), run(10, 1)]
    found = [median_row(same) for same in zip(*passes, strict=True)]
    assert [r.times_peers for r in found] == [{}, {}, {"leveldb": 4.0}, {"leveldb": 2.0}, {}, {}, {}]
    assert found[2].records == 30, "the median of the records comes from another run than that of the ratios"
    assert run(30, 10)[2].to_dict()["times_peers"] == {"leveldb": 3.0}


def test_peers_are_in_the_same_run(tmp_path: Path) -> None:
    """Each peer is driven by the threads asked for, synced, and LevelDB once without; each between two raw loops."""
    report = bench_write(
        writers=[2], tasks=[], seconds=0.05, peers=True, runs=1, path=str(tmp_path), progress=False
    )
    ways = [r for r in report.rows if r.way != "raw"]
    assert [r.way for r in report.rows[::2]] == ["raw"] * (len(ways) + 1)
    assert [(r.way, r.callers, r.durability) for r in ways] == [
        ("append", 2, "sync"),
        *((name, 2, "sync") for name in PEERS),
        ("leveldb", 1, "none"),
        ("submit", 1, "sync"),
        ("append_many", 1, "sync"),
        ("append_arrow", 1, "sync"),
    ]
    assert all(row.records > 0 and row.raw_per_s > 0 for row in report.rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_keeps_what_it_was_given(tmp_path: Path, name: str) -> None:
    """Put from three threads through each peer's own way, and find as many records in it with the peer's own reader."""
    peer = PEERS[name](str(tmp_path))
    row = measure_peer(name, peer, 3, b"value", 0.05)
    total = count_of(name, peer)
    peer.close()
    assert 0 < row.records <= total
    with pytest.raises(Exception, match=r"."):
        measure_peer(name, peer, 1, b"value", 0.05)


def count_of(name: str, peer: Any) -> int:
    """How many records a peer holds."""
    if name == "sqlite":
        return int(peer._db.execute("SELECT count(*) FROM records").fetchone()[0])
    if name == "leveldb":
        return sum(1 for _ in peer._db.iterator(include_value=False))
    if name == "rocksdb":
        return len(list(peer._db.keys()))
    return int(peer._db.stat()["entries"])
