#!/usr/bin/env python3
"""What the first second of a process costs: importing walkit, opening a log, the first records; and one seek.

    python scripts/first_use.py [--runs 10] [--mib 64]

Every figure of the first use is the median of that many new interpreters. CPU time stands beside it, which a busy
machine changes less. The seek reads one record from the middle of a sealed segment, with its index and without.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import walkit

PROGRAM = """
import json, sys, time
began = time.perf_counter()
import walkit
times = {"import": time.perf_counter() - began}
def timed(name, call):
    began = time.perf_counter()
    result = call()
    times[name] = time.perf_counter() - began
    return result
log = timed("open a new log", lambda: walkit.open(sys.argv[1]))
timed("first append", lambda: log.append(b"value", key=b"key"))
timed("first read", lambda: list(log.read()))
log.close()
timed("Store", lambda: walkit.Store)
print(json.dumps(times))
"""


def first_use(runs: int, folder: Path) -> None:
    """Print the medians of the first use, each run in an interpreter of its own."""
    found: dict[str, list[float]] = {}
    for run in range(runs):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "import walkit"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.setdefault("python -c 'import walkit', CPU", []).append(cpu)
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, str(folder / f"{run}")],
            check=True,
            capture_output=True,
            text=True,
        )
        for name, seconds in json.loads(done.stdout).items():
            found.setdefault(name, []).append(seconds)
    for name, times in found.items():
        print(f"{name:32} {statistics.median(times) * 1e3:8.1f} ms   (least {min(times) * 1e3:.1f})")


def seek(runs: int, mib: int, folder: Path) -> None:
    """Print how long it takes to read one record from the middle of a sealed segment, with its index and without."""
    size = mib << 20
    options = walkit.LogOptions(segment_bytes=size + (1 << 20), frame_bytes_max=1 << 16, durability="none")
    with walkit.open(folder / "log", options=options) as log:
        value = b"x" * 4096
        while log.statistics().log_bytes < size:
            log.append_many([value] * 12)
        middle = log.acked_lsn // 2
    reader = walkit.open(folder / "log", mode="r")
    index = next((folder / "log").glob("*.index"))
    for what in ("with its index", "without"):
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            (record,) = reader.read(middle, middle)
            times.append(time.perf_counter() - began)
            assert record.lsn == middle
        print(f"one record of {mib} MiB, {what:15} {statistics.median(times) * 1e3:8.2f} ms")
        index.unlink(missing_ok=True)


def main() -> None:
    """Run both measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--mib", type=int, default=64)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first_use(chosen.runs, Path(folder))
        seek(chosen.runs, chosen.mib, Path(folder) / "seek")


if __name__ == "__main__":
    main()
