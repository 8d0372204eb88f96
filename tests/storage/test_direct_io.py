"""direct_io=True: frames past the page cache, their way, their alignment, a crash, and the fall back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import walkit
from tests.storage.test_direct import Ways
from tests.support.crashes import Script, log_of, recovered_rows, rows_of
from tests.support.in_flight_logs import Flight
from walkit.errors import CorruptionError, OptionsError
from walkit.models import CrashingStorage, FaultyStorage
from walkit.replication.logs.imported_log import ImportedLog
from walkit.storage import FileStorage, MemoryStorage

SIZES = {"segment_bytes": 256 * 1024, "frame_bytes_max": 32 * 1024, "idle_marker_ms": 0}
DIRECT = walkit.LogOptions(**SIZES, direct_io=True)  # type: ignore[arg-type]
BUFFERED = walkit.LogOptions(**SIZES)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for a log on a file system that takes direct writes; skips without one."""
    why_not = FileStorage(tmp_path).direct_io_refusal()
    if why_not is not None:
        pytest.skip(f"no direct I/O here: {why_not}")
    return tmp_path / "log"


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_frames_go_past_the_page_cache_and_what_surrounds_them_too(
    place: Path, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    """Append over several segments and watch pwritev: every write to a segment is aligned and past the page cache."""
    ways = Ways(monkeypatch)
    options = walkit.LogOptions(**SIZES, direct_io=True, durability=durability)  # type: ignore[arg-type]
    with walkit.open(place, options=options) as log:
        values = [b"%06d" % i * (i * 7 % 900) for i in range(300)]
        for value in values:
            log.append(value)
        facts = log.statistics()
        assert [r.value for r in log.read()] == values
    segment_writes = [c for c in ways.calls if c[2] >= 4096 and c[1] >= 4096 and c[1] % 4096 == 0]
    assert all(past for past, _, _ in segment_writes)
    assert len(segment_writes) >= 300 and facts.rotations > 2
    assert facts.alignment == 4096
    assert facts.frame_bytes == 4096 * sum(-(-(96 + 9 + len(v)) // 4096) for v in values)
    assert facts.padding_bytes > facts.frame_bytes // 3
    assert facts.space_amplification == facts.frame_bytes / facts.user_bytes > 1
    report = walkit.verify(place)
    assert report.ok and not any(report.frames.position % 4096)
    with walkit.open(place, options=options) as log:
        assert [r.value for r in log.read()] == values


def test_a_log_goes_from_one_way_to_the_other(place: Path) -> None:
    """Open in turn buffered and direct: positions jump to the alignment between epochs, nothing else changes."""
    values: list[bytes] = []
    for turn, options in enumerate((BUFFERED, DIRECT, DIRECT, BUFFERED, DIRECT, BUFFERED)):
        with walkit.open(place, options=options) as log:
            assert [r.value for r in log.read()] == values and log.recovery.verdict in ("created", "clean")
            for i in range(5):
                values.append(b"turn %d, %d" % (turn, i))
                log.append(values[-1])
            assert [r.value for r in log.read()] == values
            with walkit.open(place, mode="r") as reader:
                assert [r.value for r in reader.read()] == values
                assert [r.value for r in reader.follow(1, timeout=0)] == values
        report = walkit.verify(place)
        assert report.ok, report.problems


def test_a_reader_in_another_process_sees_what_is_acknowledged(place: Path) -> None:
    """Let another process read, buffered, while this one writes direct: each time all that was acknowledged by then."""
    program = (
        "import sys, walkit\n"
        "reader = walkit.open(sys.argv[1], mode='r')\n"
        "for line in sys.stdin:\n"
        "    values = [r.value for r in reader.read()]\n"
        "    print(len(values), values == [b'%d' % i * 40 for i in range(len(values))], flush=True)\n"
    )
    with walkit.open(place, options=DIRECT) as log:
        log.append(b"0" * 40)
        with subprocess.Popen(
            [sys.executable, "-c", program, str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as other:
            assert other.stdin is not None and other.stdout is not None
            for i in range(1, 40):
                log.append(b"%d" % i * 40)
                other.stdin.write("now\n")
                other.stdin.flush()
                assert other.stdout.readline().split() == [str(i + 1), "True"]
            other.stdin.close()


def test_a_place_that_refuses_gets_a_buffered_log_and_an_event(tmp_path: Path) -> None:
    """Ask for direct I/O in memory, in a wrapper and on a memory file system: an event, and frames at 64."""
    places: list[MemoryStorage | FaultyStorage | FileStorage] = [
        MemoryStorage(),
        FaultyStorage(MemoryStorage()),
    ]
    shm = Path("/dev/shm")
    if shm.is_dir():
        places.append(FileStorage(shm / f"walkit-test-{tmp_path.name}"))
    for storage in places:
        seen: list[tuple[str, object]] = []
        with walkit.open(storage=storage, options=DIRECT, events=lambda *e, seen=seen: seen.append(e)) as log:
            log.append(b"value")
            assert log.statistics().alignment == 64
        (facts,) = [f for name, f in seen if name == "walkit.log.buffered"]
        assert isinstance(facts, dict) and facts["reason"] and facts["location"] == storage.location
        for name in storage.names():
            storage.remove(name)
        if isinstance(storage, FileStorage):
            Path(storage.location).rmdir()


def test_every_acknowledged_record_survives_a_power_cut() -> None:
    """Cut the power after each acknowledgement, in every way: the direct log's records are a prefix with all acked."""
    storage = CrashingStorage()
    storage.create()
    script = Script()
    log = log_of(storage, DIRECT)
    count = 0

    def after_ack() -> None:
        nonlocal count
        count += 1
        keeps = ("none", "all", "random")
        script.check(recovered_rows(storage.crash(keep=keeps[count % 3], seed=count), DIRECT))  # type: ignore[arg-type]

    script.run(log, after_ack, 48)
    assert log.statistics().rotations > 1
    log.close()
    assert recovered_rows(storage, BUFFERED) == script.appended


def test_holes_between_direct_frames() -> None:
    """Lose frames of 4096-byte alignment in flight, with the hole in one segment and over two: as between others."""
    for second in (None, 3, 4):
        flight = Flight(order="completion", second=second, alignment=4096, window=1 << 20)
        for landed in ((4,), (3,), (2, 4), (3, 4)):
            image = flight.landed(landed, lambda data: data[:110])
            with walkit.open(storage=image, options=BUFFERED) as log:
                assert [(r.lsn, r.value) for r in log.read()] == flight.rows({0, 1, *landed})
                log.append(b"more")
            assert walkit.verify(image).ok


def test_a_promise_in_the_last_direct_frame_counts() -> None:
    """Lose a frame below the last one's promise, which ends within its last page: corruption, as at 64 bytes."""
    for second in (None, 3, 4):
        flight = Flight(second=second, alignment=4096, promises={4: 3})
        with pytest.raises(CorruptionError) as caught:
            walkit.open(storage=flight.landed((3, 4)), options=BUFFERED)
        assert caught.value.position == flight.frames[2][0].position


def test_options_that_cannot_go_with_it() -> None:
    """Ask for frames with no room beside the alignment, and for a direct replica: refused by name."""
    with pytest.raises(OptionsError, match="frame_bytes_max"):
        walkit.LogOptions(direct_io=True, frame_bytes_max=4096)
    storage = CrashingStorage()
    with pytest.raises(OptionsError, match="direct_io"):
        ImportedLog(storage, DIRECT)
    assert not storage.exists()
    with walkit.open(
        storage=CrashingStorage(), options=walkit.LogOptions(direct_io=True, frame_bytes_max=8192)
    ) as log:
        log.append(b"x" * 3000)
        assert rows_of(log) == [(1, None, b"x" * 3000)]
