"""A log on object storage beside plain requests of the same objects, and beside SlateDB: by hand.

The server is that of the tests (moto, one process), so figures compare and promise nothing::

    python tests/benchmarks/bench_object_log.py --rounds 5

- put: records as large as an object, 16 outstanding, beside a pool of 16 threads that puts objects of that size.
- recover: the opening of a log whose writer was killed, beside a pool that gets the same objects.
- delta: from the acknowledgement of a record to its application by a delta reader, at 20 records/s.
- slatedb: small durable puts, 4,096 outstanding, beside SlateDB with the same store, if `slatedb` is installed.

The two sides of a figure take turns in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from statistics import median
from typing import Any, TypeVar

import walkit
from tests.support.object_servers import moto_bucket
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.replication import DeltaReader, Primary
from walkit.storage import ObjectStore, open_store

T = TypeVar("T")
WORKERS = 16
KILLED_WRITER = """
import json, os, sys, walkit
url, options, size, objects = json.loads(sys.argv[1])
log = walkit.open(url, options=walkit.LogOptions(frame_bytes_max=2 * size), storage_options=options)
for ticket in [log.submit(os.urandom(size - 500)) for _ in range(objects)]:
    ticket.result()
os._exit(9)
"""
_numbers = count(1)


def seconds(work: Callable[[], object]) -> float:
    """The wall time of some work."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def cpu_s() -> float:
    """The processor time of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def log_puts(value: bytes, objects: int) -> float:
    """Objects/s of a log whose every record fills an object."""
    url, options = moto_bucket()
    wanted = walkit.LogOptions(in_flight=WORKERS, frame_bytes_max=2 * len(value), queue_bytes_max=1 << 30)
    with walkit.open(url, options=wanted, storage_options=options) as log:
        took = seconds(lambda: [ticket.result() for ticket in [log.submit(value) for _ in range(objects)]])
        frames = log.statistics().frames_written
    assert frames >= objects / 2, "records shared objects"
    return frames / took


def plain_puts(value: bytes, objects: int) -> float:
    """Objects/s of a pool of threads that puts objects of the same size."""
    store = open_store(*moto_bucket())
    with ThreadPoolExecutor(WORKERS) as pool:
        took = seconds(
            lambda: list(pool.map(lambda n: store.put_if_absent(f"plain/{n}", value), range(objects)))
        )
    return objects / took


def plain_gets(store: ObjectStore) -> tuple[float, int]:
    """(seconds, bytes) of a pool of threads that gets every object of a log."""
    keys = [entry.key for entry in store.list_after("log")]
    with ThreadPoolExecutor(WORKERS) as pool:
        began = time.perf_counter()
        size_bytes = sum(pool.map(lambda key: len(store.get(key).data), keys))
        return time.perf_counter() - began, size_bytes


def recoveries(size: int, objects: int, rounds: int) -> tuple[list[float], list[float]]:
    """MiB/s of openings after a kill, and of plain gets of the same objects, in turns."""
    ours, plain = [], []
    for _ in range(rounds):
        url, options = moto_bucket()
        arguments = json.dumps([url, options, size, objects])
        killed = subprocess.run([sys.executable, "-c", KILLED_WRITER, arguments], check=False)
        assert killed.returncode == 9
        took, size_bytes = plain_gets(open_store(url, options))
        plain.append(size_bytes / took / (1 << 20))
        began = time.perf_counter()
        with walkit.open(url, storage_options=options) as log:
            ours.append(size_bytes / (time.perf_counter() - began) / (1 << 20))
            assert log.recovery.bytes_scanned > 0.9 * size_bytes
    return ours, plain


def delta_ms(records: int) -> list[float]:
    """Milliseconds from the acknowledgement of each record to its application by a delta reader."""
    url, options = moto_bucket()
    lags = []
    store = open_store(url, options)
    with (
        walkit.open(url, storage_options=options) as log,
        Primary(log) as primary,
        DeltaReader(store, primary.address) as reader,
    ):
        reader.wait_for(log.append(b"first", key=b"k"), timeout=30)
        for _ in range(records):
            result = log.append(b"value", key=b"k")
            acknowledged = time.perf_counter()
            reader.wait_for(result, timeout=30)
            lags.append((time.perf_counter() - acknowledged) * 1e3)
            time.sleep(0.05)  # light load
    return lags


def small_puts(records: int) -> tuple[float, float]:
    """(records/s, us of processor time per record) of a log, with 4,096 records outstanding."""
    url, options = moto_bucket()
    with walkit.open(url, storage_options=options) as log:
        cpu, began = cpu_s(), time.perf_counter()
        waiting: list[Any] = []
        for number in range(records):
            waiting.append(log.submit(b"v" * 100, key=b"%016d" % number))
            if len(waiting) >= 4096:
                waiting.pop(0).result()
        for ticket in waiting:
            ticket.result()
        took = time.perf_counter() - began
        return records / took, (cpu_s() - cpu) / records * 1e6


def slatedb_puts(records: int) -> tuple[float, float]:
    """The same of SlateDB, which flushes each 100 ms by default, with 4,096 tasks."""
    uniffi = importlib.import_module("slatedb.uniffi")

    url, options = moto_bucket()
    _set_environment(options)

    async def main() -> tuple[float, float]:
        db = await uniffi.DbBuilder(
            f"db{next(_numbers)}", uniffi.ObjectStore.resolve("/".join(url.split("/")[:3]))
        ).build()
        left = iter(range(records))

        async def work() -> None:
            for number in left:
                await (await db.put(b"%016d" % number, b"v" * 100)).await_durable()

        cpu, began = cpu_s(), time.perf_counter()
        await asyncio.gather(*(work() for _ in range(4096)))
        took = time.perf_counter() - began
        return records / took, (cpu_s() - cpu) / records * 1e6

    return asyncio.run(main())


def _set_environment(options: Mapping[str, Any]) -> None:
    os.environ.update(
        AWS_ENDPOINT=options["endpoint"],
        AWS_ALLOW_HTTP="true",
        AWS_REGION=options["region"],
        AWS_ACCESS_KEY_ID=options["access_key_id"],
        AWS_SECRET_ACCESS_KEY=options["secret_access_key"],
    )


def beside(ours: Callable[[], T], other: Callable[[], T], rounds: int) -> tuple[list[T], list[T]]:
    """The results of both, in turns."""
    cases = [Case("walkit", lambda _: ours()), Case("other", lambda _: other())]
    with work_folder(None) as folder:
        first, second = in_turns(cases, rounds, folder)
    return first, second


def row(name: str, ours: list[float], other: list[float], unit: str, to_reach: str) -> None:
    """Print one figure: medians, the ratio of medians, the spread of the ratios by round."""
    ratios = sorted(a / b for a, b in zip(ours, other, strict=True))
    print(
        f"{name}: {median(ours):,.1f} beside {median(other):,.1f} {unit}, ratio {median(ours) / median(other):.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f} in {len(ratios)} rounds){to_reach}",
        flush=True,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--objects", type=int, default=300, help="objects of one round of puts")
    parser.add_argument("--recovered-mib", type=int, default=1024)
    parser.add_argument("--records", type=int, default=100_000, help="small records of one round")
    given = parser.parse_args()
    for size in (4 << 10, 64 << 10, 1 << 20):
        load = (os.urandom(size), min(given.objects, (256 << 20) // size))
        ours, plain = beside(partial(log_puts, *load), partial(plain_puts, *load), given.rounds)
        row(f"put, {size >> 10} KiB", ours, plain, "objects/s", " (0.8)")
    lags = sorted(delta_ms(200))
    print(
        f"delta: median {median(lags):.2f} ms, p99 {lags[int(0.99 * len(lags))]:.2f} ms of {len(lags)} (5 ms)",
        flush=True,
    )
    size = 4 << 20
    ours, plain = recoveries(size, max(given.recovered_mib * (1 << 20) // size, 1), min(given.rounds, 3))
    row(f"recover, {given.recovered_mib} MiB", ours, plain, "MiB/s", " (0.7)")
    if importlib.util.find_spec("slatedb") is None:
        ours_only = [small_puts(given.records) for _ in range(given.rounds)]
        print(
            f"small: {median(r for r, _ in ours_only):,.0f} records/s, {median(c for _, c in ours_only):.1f} us each"
        )
        return
    own, slatedb = beside(
        lambda: small_puts(given.records), lambda: slatedb_puts(given.records), given.rounds
    )
    row("small", [a[0] for a in own], [b[0] for b in slatedb], "records/s of SlateDB", "")
    row("small", [a[1] for a in own], [b[1] for b in slatedb], "us per record of SlateDB", "")


if __name__ == "__main__":
    main()
