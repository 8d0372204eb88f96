"""`walkit bench recovery`: how long a log, a Store and their peers take to be there again after a kill.

For each size, frame and checkpoint a writer in a child process fills a store and is killed with SIGKILL; every way of
opening gets a copy of the folder. A kill keeps the page cache, so the time is the work of a recovery, and with
a cold cache the device too. Nothing here shows the effect of a power cut.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

from walkit._internal.arguments import check_bool, check_whole, refuse
from walkit.bench.peers import require_peers
from walkit.bench.recovery_load import LAST_KEY, RecoveryLoad, leveldb, rocksdb, sqlite
from walkit.bench.recovery_report import RecoveryBenchReport, RecoveryRow
from walkit.bench.runner import Case, check_counts, in_turns, stepping, work_folder
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.measure import MachineFacts
from walkit.objects.entrance import open_log
from walkit.recovery.report import RecoveryReport
from walkit.recovery.scan_report import ScanReport
from walkit.recovery.verify import scan, verify
from walkit.store import Store
from walkit.workload.process import TalkingChild

CACHES = ("warm", "cold")
PEERS = ("leveldb", "rocksdb", "sqlite")
READ_BYTES = 1 << 20
KEYS_SHARE = 10
"""Operations per key, if the number of keys is not given."""


def bench_recovery(
    *,
    operations: Sequence[int] = (100_000,),
    keys: int | None = None,
    record_bytes: int = 100,
    frame_records: Sequence[int] = (1, 300),
    checkpoint_age: Sequence[float] = (1.0, 0.1),
    cache: Sequence[str] = CACHES,
    peers: bool = False,
    runs: int = 1,
    path: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> RecoveryBenchReport:
    """Measure every combination, in new folders below `path` (the system's for temporary files), which are removed.

    `operations` are puts over `keys` keys (default: a tenth), `frame_records` of them to a frame; `checkpoint_age` is
    the share of them after the checkpoint of a Store (1: none). A cold cache drops the files' pages before. `peers`
    adds LevelDB, RocksDB and SQLite with the same operations (extra `peers`), without checkpoints. `runs`: medians of
    so many. Ways of opening: `verify` (walkit.verify), `log` (walkit.open), `clean` (once more, after a close), `store`
    (Store.open: a keyed replay from the checkpoint).

    Raises OptionsError, MissingExtraError, ChildWriterError, and the errors of opening.
    """
    check_bool(progress, "progress")
    _check(operations, keys, record_bytes, frame_records, checkpoint_age, cache, runs)
    if peers:
        require_peers()
    loads = [
        RecoveryLoad(
            operations=count,
            keys=keys or max(count // KEYS_SHARE, 1),
            record_bytes=record_bytes,
            frame_records=frame,
            checkpoint_age=age,
        )
        for count, frame, age in product(operations, frame_records, checkpoint_age)
    ]
    stores = [(load, name) for load in loads for name in _stores(load, peers)]
    rows: list[RecoveryRow] = []
    with work_folder(path) as made, stepping("recovery", runs * len(cache) * len(stores), progress) as step:
        machine, image = MachineFacts.here(made), Path(made) / "image"
        for load, name in stores:
            fill_and_kill(name, image, load)
            cases = [Case(name, partial(_opened(name, load, chosen).measure, image)) for chosen in cache]
            for passes in in_turns(cases, runs, made, step):
                rows += [_median(list(same)) for same in zip(*passes, strict=True)]
            shutil.rmtree(image)
    return RecoveryBenchReport(
        keys=tuple(dict.fromkeys(load.keys for load in loads)),
        record_bytes=record_bytes,
        machine=machine,
        rows=tuple(rows),
        runs=runs,
    )


def fill_and_kill(store: str, folder: Path, load: RecoveryLoad) -> None:
    """Let a child fill the store in a new folder, and kill it. ChildWriterError if it failed."""
    folder.mkdir()
    said: list[dict[str, Any]] = []
    place = str(folder / "peer.db") if store == "sqlite" else str(folder)
    given = {"store": store, "path": place, "load": asdict(load)}
    with TalkingChild("walkit.bench.recovery_load:fill", given, said.append) as child:
        if child.wait_until(lambda: bool(said)):
            child.kill()
        child.wait()


def _stores(load: RecoveryLoad, peers: bool) -> tuple[str, ...]:
    return ("walkit", *PEERS) if peers and load.checkpoint_age >= 1 else ("walkit",)


def _opened(store: str, load: RecoveryLoad, cache: str) -> _Walkit | _Peer:
    return _Walkit(load, cache) if store == "walkit" else _Peer(store, load, cache)


def _median(rows: list[RecoveryRow]) -> RecoveryRow:
    rows.sort(key=lambda row: row.open_ms)
    middle = rows[len(rows) // 2]
    whole = all(row.complete for row in rows)
    return replace(middle, all_ms=tuple(row.open_ms for row in rows), complete=whole)


class _Opened:
    """Measures the ways of opening one store."""

    def __init__(self, load: RecoveryLoad, cache: str) -> None:
        self.load = load
        self.cache = cache

    def copied(self, image: Path, place: str) -> Path:
        """Return a fresh copy of the killed writer's folder, on stable storage like the original."""
        copy = Path(place) / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(image, copy)
        for file in (file for file in copy.rglob("*") if file.is_file()):
            with file.open("rb") as written:
                os.fsync(written.fileno())
        return copy

    def timed(self, parts: dict[Path, int], work: Callable[[], Any]) -> tuple[Any, float, float]:
        """Return (what `work` returns, its ms, ms of plainly reading these first bytes of files)."""
        self.prepare(parts)
        plain_ms = read_plainly(parts)
        self.prepare(parts)
        began = perf_counter()
        found = work()
        return found, (perf_counter() - began) * 1e3, plain_ms

    def prepare(self, parts: dict[Path, int]) -> None:
        """Bring the files into the cache, or drop them from it."""
        if self.cache == "cold":
            drop_cached(parts)
        else:
            read_plainly(parts)

    def row(self, way: str, log_bytes: int, timed: tuple[Any, float, float], **more: Any) -> RecoveryRow:
        """Make a row."""
        load, (_, open_ms, plain_ms) = self.load, timed
        return RecoveryRow(
            way=way,
            operations=load.operations,
            frame_records=load.frame_records,
            checkpoint_age=load.checkpoint_age,
            cache=self.cache,
            log_bytes=log_bytes,
            open_ms=open_ms,
            plain_ms=plain_ms,
            **more,
        )


class _Walkit(_Opened):
    def measure(self, image: Path, place: str) -> list[RecoveryRow]:
        """Return the rows of verify, log, clean and store."""
        left = parts_of(image)
        size = sum(left.values())
        checked = self.timed(left, lambda: verify(image))
        report: ScanReport = checked[0]
        rows = [
            self.row(
                "verify",
                size,
                checked,
                frames=report.frames_checked,
                records=report.records_checked,
                phases={},
                complete=report.ok and report.last_lsn == self.load.operations,
            )
        ]
        copy = self.copied(image, place)
        for way in ("log", "clean"):
            timed = self.timed(parts_of(copy), lambda: open_log(str(copy), "a"))
            log = timed[0]
            recovery, whole = log.recovery, log.acked_lsn == self.load.operations
            log.close()
            rows.append(self.row(way, size, timed, **_seen(recovery, recovery.records_scanned, whole)))
        timed = self.timed(parts_of(self.copied(image, place)), lambda: Store.open(str(copy)))
        store: Store = timed[0]
        whole = store.get(LAST_KEY) == self.load.last_value and store.log.acked_lsn == self.load.operations
        recovery = store.recovery
        store.close()
        replayed = next(phase for phase in recovery.phases if phase.name == "replay").detail["records"]
        rows.append(self.row("store", size, timed, **_seen(recovery, replayed, whole)))
        return rows


def _seen(recovery: RecoveryReport, records: int, whole: bool) -> dict[str, Any]:
    phases = {phase.name: phase.duration_s * 1e3 for phase in recovery.phases}
    return {"frames": recovery.frames_scanned, "records": records, "phases": phases, "complete": whole}


def parts_of(folder: Path) -> dict[Path, int]:
    """Return the bytes of each segment's file up to the end of its frames."""
    return {
        folder / segment.name: SEGMENT_HEADER_BYTES + segment.end_position - segment.start_position
        for segment in scan(folder, bodies=False).segments
        if segment.file_bytes
    }


class _Peer(_Opened):
    def __init__(self, store: str, load: RecoveryLoad, cache: str) -> None:
        super().__init__(load, cache)
        self.store = store

    def measure(self, image: Path, place: str) -> list[RecoveryRow]:
        """Return the row of the peer: opened, and searched for the last key."""
        copy = self.copied(image, place)
        parts = {file: file.stat().st_size for file in copy.rglob("*") if file.is_file()}
        timed = self.timed(parts, lambda: self.open(copy))
        (value, close), size = timed[0], sum(parts.values())
        close()
        complete = value == self.load.last_value
        records = self.load.operations
        return [self.row(self.store, size, timed, frames=None, records=records, phases={}, complete=complete)]

    def open(self, folder: Path) -> tuple[bytes | None, Callable[[], object]]:
        """Open the store and read the last key: return its value, and a function that closes it."""
        if self.store == "sqlite":
            db = sqlite(str(folder / "peer.db"))
            found = db.execute("SELECT value FROM records WHERE key = ?", (LAST_KEY,)).fetchone()
            return None if found is None else found[0], db.close
        opened = (leveldb if self.store == "leveldb" else rocksdb)(str(folder), self.load)
        return opened.get(LAST_KEY), opened.close


def read_plainly(parts: dict[Path, int]) -> float:
    """Read the first bytes of files, MiB by MiB, and drop them; return the milliseconds that it took."""
    began = perf_counter()
    for path, size in parts.items():
        with open(path, "rb", buffering=0) as file:
            while file.tell() < size and file.read(min(READ_BYTES, size - file.tell())):
                pass
    return (perf_counter() - began) * 1e3


def drop_cached(parts: dict[Path, int]) -> None:
    """Write back and drop the pages of files, so that they are read from the device."""
    for path in parts:
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _check(
    operations: Sequence[int],
    keys: int | None,
    record_bytes: int,
    frame_records: Sequence[int],
    checkpoint_age: Sequence[float],
    cache: Sequence[str],
    runs: int,
) -> None:
    counts = {"operations": operations, "frame_records": frame_records, "runs": [runs], "keys": [keys or 1]}
    for option, numbers in counts.items():
        if not numbers:
            refuse(option, numbers, "at least one number")
    check_counts(**counts)
    check_whole(record_bytes, "record_bytes", 1, READ_BYTES)
    if not checkpoint_age or any(not 0 < age <= 1 for age in checkpoint_age):
        refuse("checkpoint_age", checkpoint_age, "shares above 0, up to 1 (no checkpoint)")
    if not cache or any(state not in CACHES for state in cache):
        refuse("cache", cache, "warm, cold or both")
    if "cold" in cache and not hasattr(os, "posix_fadvise"):
        refuse("cache", cache, "this platform drops no cached pages, so cold is not measured")
