"""Ways of writing, and checkouts of walkit, measured in turns: what the machine does meanwhile, it does to all of them.

A shared machine changes its pace within minutes, by more than most changes to the commit path are worth. So each way
runs in a process of its own that stays, and they take turns of a fraction of a second, there and back. Said
of each are the median of its rates, and of its ratios to the first way of the same turn, with their quartiles::

    python tests/benchmarks/bench_turns.py leveldb threads tasks --turns 40 --seconds 0.3
    python tests/benchmarks/bench_turns.py tasks:../before tasks --turns 60 --path /dev/shm

A way is `threads` or `tasks` (64 callers that wait for each record of 100 bytes), `alone` (one), `submit` (one that
never waits), `append_many` and `append_arrow` (calls of 4,096 records), or `leveldb` (64 threads, synced puts; needs
the extra `peers`). `reopen` opens a log of 200,000 records that a killed writer left, `replay` makes a state of it,
`verify` checks it. After a colon stands another checkout to import walkit from. It needs no more of it than `open`,
`append`, `append_async`, `submit`, `append_many`, `append_arrow`, `acked_lsn`, `replay`, `KeyedTable` of `walkit.state`
and `verify`, so that it may be an old one. Rates are of records: acknowledged, or gone through.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

WAYS = (
    *("alone", "threads", "tasks", "submit", "append_many", "append_arrow"),
    *("reopen", "replay", "verify", "leveldb"),
)
READING = ("reopen", "replay", "verify")
CALLERS = 64
CALL_RECORDS = 4096
LOG_RECORDS = 200_000
LOG_KEYS = 10_000
VALUE = b"x" * 100
WARM_S = 0.05
HERE = Path(__file__).resolve()


def rate(count: Callable[[], int], seconds: float) -> float:
    """Return how many a second `count()` grows by, once all are under way."""
    time.sleep(WARM_S)
    first, began = count(), time.perf_counter()
    time.sleep(seconds)
    return (count() - first) / (time.perf_counter() - began)


def by_threads(
    append: Callable[[int], object], count: Callable[[], int], seconds: float, callers: int
) -> float:
    """Let so many threads append."""
    ended = threading.Event()

    def write(number: int) -> None:
        over = ended.is_set
        while not over():
            append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    found = rate(count, seconds)
    ended.set()
    for thread in threads:
        thread.join()
    return found


def by_tasks(log: Any, count: Callable[[], int], seconds: float) -> float:
    """Let 64 tasks of one event loop append, as `walkit bench write` has them: on a thread beside the main one."""
    ended: list[bool] = []

    async def write() -> None:
        append = log.append_async
        while not ended:
            await append(VALUE)

    async def main() -> None:
        await asyncio.gather(*[write() for _ in range(CALLERS)])

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    found = rate(count, seconds)
    ended.append(True)
    thread.join()
    return found


def by_submits(log: Any, seconds: float) -> float:
    """Let this thread submit, and wait for the last."""
    count, began = 0, time.perf_counter()
    until = began + seconds
    while time.perf_counter() < until:
        for _ in range(1000):
            log.submit(VALUE)
        count += 1000
    log.submit(VALUE).result()
    return count / (time.perf_counter() - began)


def by_calls(call: Callable[[], object], records: int, seconds: float) -> float:
    """Call again and again; return the records per second; a call handles `records`."""
    count, spent = 0, 0.0
    while spent < seconds:
        began = time.perf_counter()
        call()
        spent += time.perf_counter() - began
        count += records
    return count / spent


def by_openings(image: Path, folder: Path, seconds: float) -> float:
    """Open copies of a killed writer's log; return the records per second of the openings alone."""
    import walkit

    count, spent = 0, 0.0
    while spent < seconds:
        copy = shutil.copytree(image, folder / "copy")
        began = time.perf_counter()
        log = walkit.open(copy)
        spent += time.perf_counter() - began
        count += LOG_RECORDS
        log.close()
        shutil.rmtree(copy)
    return count / spent


@contextmanager
def reading(way: str, folder: Path) -> Iterator[Callable[[float], float]]:
    """Write the log that is gone through, and give what measures going through it."""
    import walkit

    with walkit.open(folder / "log", options=walkit.LogOptions(durability="none")) as log:
        for first in range(0, LOG_RECORDS, 100):
            lsns = range(first, first + 100)
            log.append_many([VALUE] * 100, [b"key %d" % (lsn * 7919 % LOG_KEYS) for lsn in lsns])
        log.sync()
        image = shutil.copytree(folder / "log", folder / "image")
    if way == "reopen":
        yield lambda seconds: by_openings(image, folder, seconds)
    elif way == "verify":
        yield lambda seconds: by_calls(lambda: walkit.verify(image), LOG_RECORDS, seconds)
    else:
        from walkit.state import KeyedTable

        with walkit.open(folder / "log", mode="r") as reader:
            yield lambda seconds: by_calls(lambda: walkit.replay(reader, KeyedTable()), LOG_RECORDS, seconds)


def bulk_call(log: Any, way: str) -> Callable[[], object]:
    """Return a call of `append_many` or `append_arrow`."""
    if way == "append_many":
        values, keys = [VALUE] * CALL_RECORDS, [b"%012d" % number for number in range(CALL_RECORDS)]
        return lambda: log.append_many(values, keys)
    import pyarrow as pa

    table = pa.table(
        {
            "key": pa.array([b"%012d" % number for number in range(CALL_RECORDS)], pa.binary()),
            "value": pa.array([VALUE] * CALL_RECORDS, pa.binary()),
        }
    )
    return lambda: log.append_arrow(table)


@contextmanager
def opened(way: str, folder: Path) -> Iterator[Callable[[float], float]]:
    """Open what the way writes to, and give what measures it for so many seconds."""
    if way == "leveldb":
        import plyvel

        database = plyvel.DB(str(folder / "leveldb"), create_if_missing=True)
        counts = [0] * CALLERS

        def put(number: int) -> None:
            database.put(b"%012d" % number, VALUE, sync=True)
            counts[number] += 1

        yield lambda seconds: by_threads(put, lambda: sum(counts), seconds, CALLERS)
        database.close()
        return
    if way in READING:
        with reading(way, folder) as burst:
            yield burst
        return
    import walkit

    with walkit.open(folder / "log") as log:

        def count() -> int:
            return log.acked_lsn

        if way == "tasks":
            yield lambda seconds: by_tasks(log, count, seconds)
        elif way == "submit":
            yield lambda seconds: by_submits(log, seconds)
        elif way.startswith("append_"):
            call = bulk_call(log, way)
            yield lambda seconds: by_calls(call, CALL_RECORDS, seconds)
        else:
            callers = 1 if way == "alone" else CALLERS
            yield lambda seconds: by_threads(lambda _: log.append(VALUE), count, seconds, callers)


def serve(way: str, folder: Path) -> None:
    """Measure for as many seconds as each line of standard input says, and print the rate."""
    with opened(way, folder) as burst:
        for line in sys.stdin:
            print(burst(float(line)), flush=True)


class Rival:
    """A way in a process of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        way, _, tree = name.partition(":")
        environment = os.environ | {"PYTHONPATH": str(Path(tree or HERE.parents[2]).resolve())}
        folder.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, str(HERE), way, "--serve", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def burst(self, seconds: float) -> Callable[[str], float]:
        """Return what measures once."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None and told is not None

        def measure(_: str) -> float:
            print(seconds, file=asked, flush=True)
            return float(told.readline())

        return measure

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=60)


def show(ways: list[str], rates: list[list[float]]) -> None:
    """Print a row for each way."""
    width = max(map(len, ways))
    print(f"{'way':{width}} {'k/s':>8} {'x first':>8}  quartiles")
    for way, own in zip(ways, rates, strict=True):
        over = [mine / first for mine, first in zip(own, rates[0], strict=True)]
        low, _, high = quantiles(over, n=4)
        print(f"{way:{width}} {median(own) / 1e3:8.1f} {median(over):8.2f}  {low:.2f}-{high:.2f}")


def main() -> None:
    """Measure in turns, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("ways", nargs="+", help=f"{', '.join(WAYS)}; after a colon, the folder of a checkout")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in arguments.ways:
        if name.partition(":")[0] not in WAYS:
            parser.error(f"{name} is no way: {', '.join(WAYS)}")
    if arguments.turns < 2:
        parser.error("quartiles need two turns or more")
    if arguments.serve:
        serve(arguments.ways[0], arguments.serve)
        return
    from walkit.bench.runner import Case, in_turns, work_folder  # of this checkout; a served one may be older

    with work_folder(arguments.path) as folder:
        rivals = [Rival(way, Path(folder) / str(number)) for number, way in enumerate(arguments.ways)]
        cases = [Case(rival.name, rival.burst(arguments.seconds)) for rival in rivals]
        rates = [found[1:] for found in in_turns(cases, arguments.turns + 1, folder)]  # the first warms up
        for rival in rivals:
            rival.close()
    show(arguments.ways, rates)


if __name__ == "__main__":
    main()
