"""`walkit bench replication`: appending with a replica against appending alone, and how far the replica is behind.

In one run: alone and with a replica in another process, in turns of half a second, so that what else happens on the
machine meets both; then a new replica that catches up from nothing, beside plain reading of the same log. The replica's
log is on the same disk, and a record counts there when it is on stable storage.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from walkit._internal.arguments import check_number, check_progress, check_whole
from walkit._internal.report import Cells, TableReport
from walkit.bench.runner import work_folder
from walkit.bench.sampling import LsnSamples, Samples, sampled_lsns
from walkit.config import LogOptions
from walkit.errors import WaitTimeoutError
from walkit.log.wal import WriteAheadLog
from walkit.measure import ThreadRecorder
from walkit.objects.entrance import open_log
from walkit.replication.primary.server import Primary
from walkit.workload.closedloop import appending, drive_threads
from walkit.workload.replicated import ReplicatedChild

SAMPLE_S = 0.005
SLICE_S = 0.5
WARM_UP_S = 0.2
WAIT_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplicationReport(TableReport):
    """The result of one run. Records per second are acknowledged ones; lags are of samples taken every 5 ms."""

    bench = "replication"
    title = "Replication"

    writers: int
    record_bytes: int
    seconds: float
    durability: str
    place: str
    """Path and file system that both logs are on."""
    cores: int
    alone_per_s: float
    """Appending without a replica."""
    alone_slices_per_s: tuple[float, float]
    """The slowest and the fastest slice of it: if these are far apart, so may be all else."""
    with_replica_per_s: float
    """Appending while a replica follows."""
    with_replica_slices_per_s: tuple[float, float]
    replica_per_s: float
    """Records that came to be on the replica's stable storage in the same time."""
    ratio: float
    """`with_replica_per_s` of `alone_per_s`."""
    lag_p50_ms: float
    lag_p99_ms: float
    lag_max_ms: float
    lag_p50_records: int
    lag_max_records: int
    drain_ms: float
    """From the last acknowledged append until the replica had it."""
    catch_up_records: int
    catch_up_per_s: float
    """A new replica that follows a finished log from its beginning."""
    catch_up_mib_per_s: float
    """The same in MiB of frames."""
    read_per_s: float
    """Reading the same log in this process, every frame verified, into Arrow batches that are dropped."""
    catch_up_ratio: float
    """`catch_up_per_s` of `read_per_s`."""

    def _facts(self) -> dict[str, Any]:
        return asdict(self)

    def _cells(self) -> list[Cells]:
        alone, followed = (
            f"slices of {low:,.0f} to {high:,.0f}"
            for low, high in (self.alone_slices_per_s, self.with_replica_slices_per_s)
        )
        return [
            ("writers, bytes of a value", f"{self.writers:,}, {self.record_bytes:,}"),
            ("durability, primary and replica", f"{self.durability}, sync"),
            ("on", f"{self.place}, {self.cores} cores"),
            ("append alone", f"{self.alone_per_s:,.0f} records/s ({alone})"),
            ("append with a replica", f"{self.with_replica_per_s:,.0f} records/s ({followed})"),
            ("ratio: with a replica / alone", f"{self.ratio:.2f}"),
            ("durable on the replica", f"{self.replica_per_s:,.0f} records/s"),
            (
                "lag",
                f"p50 {self.lag_p50_ms:,.1f} ms, p99 {self.lag_p99_ms:,.1f} ms, max {self.lag_max_ms:,.1f} ms",
            ),
            ("lag", f"p50 {self.lag_p50_records:,} records, max {self.lag_max_records:,} records"),
            ("the last record", f"{self.drain_ms:,.1f} ms after its acknowledgement"),
            (
                "catching up from nothing",
                f"{self.catch_up_per_s:,.0f} records/s, {self.catch_up_mib_per_s:,.1f} MiB/s of frames",
            ),
            ("plain reading of the same log", f"{self.read_per_s:,.0f} records/s"),
            ("ratio: catching up / reading", f"{self.catch_up_ratio:.2f}"),
        ]


def bench_replication(
    *,
    writers: int = 16,
    record_bytes: int = 512,
    seconds: float = 3.0,
    path: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> ReplicationReport:
    """Measure, in new folders below `path` (the system's folder for temporary files), which are removed.

    `seconds` is the length of each of the two sides. `progress` gets the name of each side. OptionsError for
    numbers that cannot be measured with.
    """
    check_whole(writers, "writers")
    check_whole(record_bytes, "record_bytes", 0, 1 << 20)
    check_number(seconds, "seconds", 0.05, 3600)
    check_progress(progress, "a text")
    report = progress or (lambda _: None)
    with work_folder(path) as base:
        report("appending alone and with a replica, in turns")
        measured = _in_turns(base, writers, record_bytes, seconds)
        report("a new replica catches up")
        catch_up = _catch_up(base)
    return ReplicationReport(
        writers=writers,
        record_bytes=record_bytes,
        seconds=seconds,
        durability=LogOptions().durability,
        cores=os.cpu_count() or 1,
        **measured,
        **catch_up,
    )


def _in_turns(base: str, writers: int, record_bytes: int, seconds: float) -> dict[str, Any]:
    """Append to a log without and to one with a replica, slice by slice: a slow machine affects both."""
    slices = max(2, round(seconds / SLICE_S))
    alone: list[float] = []
    followed: list[float] = []
    rows: list[Samples] = []
    with (
        open_log(os.path.join(base, "alone"), "x") as lonely,
        open_log(os.path.join(base, "primary"), "x") as log,
        Primary(log) as primary,
        _replica(primary.address, os.path.join(base, "replica")),
    ):
        for one in (lonely, log):
            _append(one, writers, record_bytes, WARM_UP_S)
        for _ in range(slices):
            alone.append(_append(lonely, writers, record_bytes, seconds / slices))
            _wait_acked(primary, log.acked_lsn)
            with _sampled(primary) as sampler:
                followed.append(_append(log, writers, record_bytes, seconds / slices))
                ended = time.perf_counter()
                drained = _wait_acked(primary, log.acked_lsn)
            samples = sampler.rows()
            rows.append(samples[samples[:, 0] <= ended])
        place = f"{base} ({log.parts.storage.facts().get('file_system', 'unknown file system')})"
    return {
        "place": place,
        "alone_per_s": sum(alone) / slices,
        "alone_slices_per_s": (min(alone), max(alone)),
        "with_replica_per_s": sum(followed) / slices,
        "with_replica_slices_per_s": (min(followed), max(followed)),
        "ratio": sum(followed) / sum(alone),
        "drain_ms": (drained - ended) * 1000,
        **_lags(rows),
    }


def _lags(slices: list[Samples]) -> dict[str, Any]:
    """Return the lag of the replica, from samples during the appends."""
    lag_ms, behind, gained, took = [], [], 0.0, 0.0
    for at, durable, acked in (rows.T for rows in slices if len(rows) > 1):
        missing = durable - acked
        # When the primary had the first record that the replica lacks: the time since then is the lag.
        lag_ms.append(np.where(missing > 0, at - np.interp(acked + 1, durable, at), 0.0) * 1000)
        behind.append(missing)
        gained += acked[-1] - acked[0]
        took += at[-1] - at[0]
    ms, records = np.concatenate(lag_ms), np.concatenate(behind)
    return {
        "replica_per_s": float(gained / took),
        "lag_p50_ms": float(np.percentile(ms, 50)),
        "lag_p99_ms": float(np.percentile(ms, 99)),
        "lag_max_ms": float(ms.max()),
        "lag_p50_records": int(np.percentile(records, 50)),
        "lag_max_records": int(records.max()),
    }


def _append(log: WriteAheadLog, writers: int, record_bytes: int, seconds: float) -> float:
    """Append in closed loops for so long; return records per second."""

    def mark() -> tuple[float, int]:
        return time.perf_counter(), log.acked_lsn

    loop, recorders = appending(log, os.urandom(record_bytes)), [ThreadRecorder() for _ in range(writers)]
    (began, first), (ended, last) = drive_threads(loop, recorders, seconds, mark, mark)
    return (last - first) / (ended - began)


def _sampled(primary: Primary) -> AbstractContextManager[LsnSamples]:
    """Note every few milliseconds how far the primary and its one replica are."""

    def lsns() -> tuple[int, int]:
        status = primary.status()
        return status.durable_lsn, max((f.acked_lsn for f in status.followers), default=0)

    return sampled_lsns(lsns, SAMPLE_S)


@contextmanager
def _replica(address: str, folder: str) -> Iterator[None]:
    """Run a replica in a separate process."""
    child = ReplicatedChild.replica(folder, address, "replica", "zstd", lambda _: None)
    child.start()
    try:
        yield
    finally:
        child.stop(WAIT_S)


def _wait_acked(primary: Primary, lsn: int) -> float:
    """Wait until a replica has acknowledged this LSN; return the time in s."""
    deadline = time.monotonic() + WAIT_S
    while not any(f.acked_lsn >= lsn for f in primary.status().followers):
        if time.monotonic() > deadline:
            raise WaitTimeoutError(f"no replica had LSN {lsn:,} after {WAIT_S:.0f} s")
        time.sleep(0.001)
    return time.perf_counter()


def _catch_up(base: str) -> dict[str, Any]:
    folder = os.path.join(base, "primary")
    with Primary(folder) as primary:
        lsn, position = primary.source.durable()
        with _sampled(primary) as sampler, _replica(primary.address, os.path.join(base, "late")):
            ended = _wait_acked(primary, lsn)
        rows = sampler.rows()
    nothing = rows[(rows[:, 2] == 0) & (rows[:, 0] < ended)]
    began = float(nothing[-1, 0]) if len(nothing) else float(rows[0, 0])
    took = max(ended - began, 1e-6)
    return {
        "catch_up_records": lsn,
        "catch_up_per_s": lsn / took,
        "catch_up_mib_per_s": position / took / (1 << 20),
        "read_per_s": (read_per_s := _read(folder)),
        "catch_up_ratio": lsn / took / read_per_s,
    }


def _read(folder: str) -> float:
    """Read a whole log twice; return the records per second of the second time, with everything warm."""
    with open_log(folder, "r") as reader:
        for _ in range(2):
            began = time.perf_counter()
            records = sum(len(batch) for batch in reader.read_batches())
            took = time.perf_counter() - began
    return records / max(took, 1e-6)
