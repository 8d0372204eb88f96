"""Whether Spark's time to count a log grows with the number of its segments: run by hand.

The same records are written twice, in few segments and in many. The rounds take turns, so that both meet the same
machine; a first round warms the JVM and the page cache and does not count. Beside Spark's times stand those of the data
source alone, in this process and as processor time: planning a load, and reading its partitions::

    python tests/benchmarks/bench_segments.py --records 600000 --few 100 --many 2000 --growth 1.2

Last comes a floor: what the growth would be if nothing were done for a segment but to open it, ask its size, read and
close it, once by the driver (its header) and once by one of two readers (all of it), and to parse the manifest as JSON
in each of the three processes. No check, no frame, no object of walkit is in it.

Numbers hold for this machine as it is now. Exit 1 above the growth, or if a count is wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from functools import partial
from pathlib import Path
from statistics import median

import walkit
import walkit.spark
from tests.spark.loading import plan_scan
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.spark.columns import RECORD_STRUCT
from walkit.spark.source import WalkitReader

SEGMENT_HEADER_BYTES = 4096
SEGMENT_BYTES_MIN = 64 << 10
RECORD_BYTES = 210
"""Bytes of a record in its frame, about: a value of 180 bytes, and a key."""


def make(path: Path, records: int, segments: int) -> int:
    """Make a log of about so many segments; return how many it has."""
    each = SEGMENT_HEADER_BYTES + records * RECORD_BYTES // segments
    size = max(-(-each // 4096) * 4096, SEGMENT_BYTES_MIN)
    options = walkit.LogOptions(durability="none", segment_bytes=size, frame_bytes_max=16 << 10)
    with walkit.open(path, options=options) as log:
        for start in range(0, records, 100):
            numbers = range(start, min(start + 100, records))
            log.append_many([b"%0180d" % n for n in numbers], [b"key-%08d" % (n % 200_000) for n in numbers])
    return len(list(path.glob("*.segment")))


def bare(path: Path) -> float:
    """Return the seconds that the system calls for a log's segments and the parsing of its manifest alone take."""

    def read(name: Path, size: int | None) -> None:
        number = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        os.pread(number, size or os.fstat(number).st_size, 0)
        os.close(number)

    segments = sorted(path.glob("*.segment"))
    manifest = max(path.glob("manifest*"), key=lambda found: found.stat().st_size).read_bytes()
    text = manifest[manifest.index(b"{") : manifest.rindex(b"}") + 1]
    began = time.perf_counter()
    for name in segments:
        read(name, SEGMENT_HEADER_BYTES)
    json.loads(text)
    planned = time.perf_counter() - began
    began = time.perf_counter()
    for name in segments[: len(segments) // 2]:
        read(name, None)
    json.loads(text)
    return planned + time.perf_counter() - began


def main() -> int:
    """Make the logs, take turns, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--few", type=int, default=100, help="segments of one log")
    parser.add_argument("--many", type=int, default=2000, help="segments of the other")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--growth", type=float, help="fail above this ratio of Spark's medians")
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    arguments = parser.parse_args()
    right = True

    def timed(path: Path, _: str) -> float:
        nonlocal right
        began = time.perf_counter()
        right &= spark.read.format("walkit").load(str(path)).count() == arguments.records
        return time.perf_counter() - began

    with work_folder(arguments.path) as folder:
        logs = {Path(folder) / name: getattr(arguments, name) for name in ("few", "many")}
        found = {path: make(path, arguments.records, count) for path, count in logs.items()}
        spark = walkit.spark.session(master="local[2]")
        cases = [Case(path.name, partial(timed, path)) for path in logs]
        # The first run warms the JVM and the page cache.
        counted = [times[1:] for times in in_turns(cases, arguments.rounds + 1, folder)]
        for path, times in zip(logs, counted, strict=True):
            began = time.process_time()
            scan = plan_scan({"path": path})
            planned = time.process_time()
            reader = WalkitReader(scan, RECORD_STRUCT)
            right &= sum(len(b) for p in reader.partitions() for b in reader.read(p)) == arguments.records
            read = time.process_time() - planned
            print(
                f"{found[path]:,} segments: Spark counts in {median(times):.2f} s (best {min(times):.2f}); "
                f"processor time of planning {planned - began:.2f} s, of reading {read:.2f} s"
            )
        few, many = map(median, counted)
        print(f"growth: {many / few:.2f}")
        least_few, least_many = (median(bare(path) for _ in range(arguments.rounds)) for path in logs)
    floor = 1 + (least_many - least_few) / few
    print(f"floor: {floor:.2f}; the bare calls take {least_few * 1e3:.1f} and {least_many * 1e3:.1f} ms")
    return 0 if right and (arguments.growth is None or many / few <= arguments.growth) else 1


if __name__ == "__main__":
    raise SystemExit(main())
