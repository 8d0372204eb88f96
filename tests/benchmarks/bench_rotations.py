"""Processor time and manifest bytes of a rotation, and the opening, of a log with few and with many segments: by hand.

A log is filled up to so many segments, one record in each, and continues from one base of its manifest to the next::

    python tests/benchmarks/bench_rotations.py --few 100 --many 5000 --growth 1.2 --opening 2.5

A rotation is an append that does not fit, with all that the maintenance thread then does. Bytes are those written to
the manifest: edits, the next base, its zeroed space. The opening is compared with a floor: a listing of the
folder, and for each file a stat and a plain read of the bytes that an opening reads; both by processor time.

Exit 1 above a limit.
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import walkit
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import ManifestFile
from walkit.segments.manifest_store import load_manifest_file
from walkit.storage import FileStorage

OPTIONS = walkit.LogOptions(durability="none", segment_bytes=64 << 10)
RECORD = bytes(33 << 10)
"""Two of them do not fit into one segment."""


class Cycle(NamedTuple):
    """From the first rotation after a base to the one that writes the next."""

    rotations: int
    cpu_us: float
    longest_us: float
    longest_ms: float
    """Wall time."""
    manifest_bytes: float


def rotate(log: walkit.WriteAheadLog) -> None:
    """Append a record that does not fit, and wait for the maintenance thread."""
    log.append(RECORD)
    log.wait_idle()


def one_cycle(path: Path, segments: int) -> Cycle:
    """Fill a log up to so many segments, and measure from the next base to the one after it."""

    def now() -> ManifestFile:
        return load_manifest_file(FileStorage(str(path)))

    with walkit.open(path, options=OPTIONS) as log:
        for _ in range(segments):
            rotate(log)
        inode = os.stat(path / "manifest").st_ino
        while os.stat(path / "manifest").st_ino == inode:
            rotate(log)
        inode, begun, taken, longest_ms = os.stat(path / "manifest").st_ino, now().offset, [], 0.0
        written = 0
        while os.stat(path / "manifest").st_ino == inode:
            at, cpu = time.perf_counter(), time.process_time()
            rotate(log)
            taken.append((time.process_time() - cpu) * 1e6)
            longest_ms = max(longest_ms, (time.perf_counter() - at) * 1e3)
            if os.stat(path / "manifest").st_ino == inode and len(taken) % 16 == 0:
                written = now().offset - begun
        written = written * len(taken) // max(len(taken) - len(taken) % 16, 1) + now().end
    return Cycle(len(taken), sum(taken) / len(taken), max(taken), longest_ms, written / len(taken))


def read_plainly(path: Path) -> None:
    """List the folder, and stat and read of each file the bytes that an opening reads."""
    for name in os.listdir(path):
        number = os.open(path / name, os.O_RDONLY | os.O_CLOEXEC)
        size = os.fstat(number).st_size
        os.pread(number, SEGMENT_HEADER_BYTES if name.endswith(".segment") else size, 0)
        os.close(number)


def opening(path: Path, rounds: int) -> tuple[float, float]:
    """Return the processor time of an opening, and of its floor, in turns: seconds."""
    opened, floor = [], []
    for _ in range(rounds):
        began = time.process_time()
        log = walkit.open(path, options=OPTIONS)
        opened.append(time.process_time() - began)
        log.close()
        began = time.process_time()
        read_plainly(path)
        floor.append(time.process_time() - began)
    return median(opened), median(floor)


def main() -> int:
    """Measure both logs, print, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", type=int, default=100, help="segments of one log")
    parser.add_argument("--many", type=int, default=5000, help="segments of the other")
    parser.add_argument("--rounds", type=int, default=7, help="openings")
    parser.add_argument(
        "--growth", type=float, help="fail above this ratio of the means of processor time or bytes"
    )
    parser.add_argument(
        "--opening", type=float, help="fail above this ratio of the opening of many to its floor"
    )
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    arguments = parser.parse_args()

    def measure(segments: int, folder: str) -> tuple[Cycle, float, float]:
        path = Path(folder) / "log"
        return one_cycle(path, segments), *opening(path, arguments.rounds)

    counts = (arguments.few, arguments.many)
    cases = [Case(f"{count:,} segments", partial(measure, count)) for count in counts]
    with work_folder(arguments.path) as folder:
        found = [once for (once,) in in_turns(cases, 1, folder)]
    for case, (cycle, taken, floor) in zip(cases, found, strict=True):
        print(
            f"{case.name} and {cycle.rotations:,} rotations: {cycle.cpu_us:.0f} us of processor time and "
            f"{cycle.manifest_bytes:,.0f} bytes each; the longest {cycle.longest_us / 1e3:.1f} ms of processor "
            f"time, {cycle.longest_ms:.1f} ms by the clock"
        )
        print(f"  opening {taken * 1e3:.1f} ms, floor {floor * 1e3:.1f} ms: {taken / floor:.2f}")
    few, many = (cycle for cycle, _, _ in found)
    cpu, size = many.cpu_us / few.cpu_us, many.manifest_bytes / few.manifest_bytes
    print(f"ratio: processor time {cpu:.2f}, bytes {size:.2f}")
    too_much = arguments.growth is not None and max(cpu, size) > arguments.growth
    return 1 if too_much or (arguments.opening is not None and taken / floor > arguments.opening) else 0


if __name__ == "__main__":
    raise SystemExit(main())
