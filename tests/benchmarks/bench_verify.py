"""How fast `walkit.verify` is beside plainly reading the same files, in turns: run by hand.

A log is made of frames of so many records each and closed; its pages stay in the cache. Each round reads all files
once (1 MiB at a time) and verifies the log once; the share is the time of reading over that of verifying, the median
of the rounds::

    python tests/benchmarks/bench_verify.py --megabytes 512 --records 300 --share 0.5

Numbers are of this machine as it is now. Exit 1 below the share, or where the report is not what was written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import walkit

READ_BYTES = 1 << 20
VALUE_BYTES = 100
KEY_BYTES = 12


def make(path: Path, megabytes: int, records: int) -> int:
    """Make a log of frames of so many records; return how many records it has."""
    keys = [b"%0*d" % (KEY_BYTES, n) for n in range(records)]
    values = [b"%0*d" % (VALUE_BYTES, n) for n in range(records)]
    frames = (megabytes << 20) // (records * (KEY_BYTES + VALUE_BYTES) + 128)
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        for _ in range(frames):
            log.append_many(values, keys)
    return frames * records


def read_plainly(path: Path) -> float:
    """Read every file of the log; return the seconds it took."""
    began = time.perf_counter()
    for file in sorted(path.iterdir()):
        fd = os.open(file, os.O_RDONLY)
        try:
            at = 0
            while data := os.pread(fd, READ_BYTES, at):
                at += len(data)
        finally:
            os.close(fd)
    return time.perf_counter() - began


def main() -> int:
    """Make the log, take turns, print the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=512)
    parser.add_argument("--records", type=int, default=300, help="records of a frame")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, help="fail below this share of plain reading")
    parser.add_argument("--path", help="where to measure; default: the system's place for temporary files")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="walkit-verify-", dir=arguments.path))
    try:
        records = make(folder / "log", arguments.megabytes, arguments.records)
        read_plainly(folder / "log")
        plain, checked = [], []
        for _ in range(arguments.rounds):
            plain.append(read_plainly(folder / "log"))
            began = time.perf_counter()
            report = walkit.verify(folder / "log")
            checked.append(time.perf_counter() - began)
        share = median(a / b for a, b in zip(plain, checked, strict=True))
        print(
            f"{len(report.segments)} segments, frames of {arguments.records:,} records: read plainly "
            f"{median(plain) * 1e3:.1f} ms, verified {median(checked) * 1e3:.1f} ms: {share:.2f} of plain reading"
        )
        right = report.ok and report.last_lsn == records
        return 0 if right and (arguments.share is None or share >= arguments.share) else 1
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    raise SystemExit(main())
