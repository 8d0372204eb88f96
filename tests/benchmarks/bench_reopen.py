"""How much memory a large log takes to recover after a kill, and how fast a closed one opens: run by hand.

A writer in a child process fills a log with puts over keys drawn at random and is killed with SIGKILL; a fresh
process opens the Store, and says its peak of memory (VmHWM) before and after. Then the log is closed, and others
open it again, with its pages dropped from the cache and without::

    python tests/benchmarks/bench_reopen.py --gigabytes 10 --keys 100_000 --memory-mb 500
    python tests/benchmarks/bench_reopen.py --gigabytes 1 --open-ms 20

Numbers are of this machine as it is now. Exit 1 where a limit was passed, or a record is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import walkit
from walkit.bench.recovery import drop_cached, fill_and_kill
from walkit.bench.recovery_load import LAST_KEY, RecoveryLoad

OPENINGS = 5
KEY_BYTES = 16


def peak_mb() -> float:
    """Return the peak of this process's resident memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("VmHWM:"))
    return int(line.split()[1]) / 1024


def open_here(path: Path, way: str) -> dict[str, object]:
    """Open the Store or the log in this process, once."""
    before_mb, began = peak_mb(), time.perf_counter()
    opened = walkit.Store.open(path) if way == "store" else walkit.open(path)
    open_ms = (time.perf_counter() - began) * 1e3
    log = opened.log if isinstance(opened, walkit.Store) else opened
    recovery = opened.recovery
    found = {
        "open_ms": open_ms,
        "before_mb": before_mb,
        "peak_mb": peak_mb(),
        "last_lsn": log.acked_lsn,
        "last_key": isinstance(opened, walkit.Store) and opened.get(LAST_KEY) is not None,
        "verdict": recovery.verdict,
        "phases": {phase.name: round(phase.duration_s * 1e3, 1) for phase in recovery.phases},
    }
    opened.close()
    return found


def open_apart(path: Path, way: str) -> dict[str, object]:
    """Open in a process of its own."""
    command = [sys.executable, __file__, "--log", str(path), "--here", way]
    found: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def main() -> int:
    """Make the log, kill its writer, open it in fresh processes, print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--frame-records", type=int, default=1000)
    parser.add_argument("--log", type=Path, help="where to make it, kept; default: a temporary one")
    parser.add_argument("--memory-mb", type=float, help="fail where the recovery took more")
    parser.add_argument(
        "--open-ms", type=float, help="fail where the median opening of the closed log took more"
    )
    parser.add_argument("--here", choices=("store", "log"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(open_here(given.log, given.here)))
        return 0
    load = RecoveryLoad(
        operations=int(given.gigabytes * 1e9 / (given.value_bytes + KEY_BYTES)),
        keys=given.keys,
        record_bytes=given.value_bytes,
        frame_records=given.frame_records,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = given.log or Path(folder) / "log"
        fill_and_kill("walkit", path, load)
        files = {file: 0 for file in path.rglob("*") if file.is_file()}
        size = sum(os.stat(file).st_blocks * 512 for file in files)
        print(
            f"{load.operations:,} puts of {given.value_bytes} bytes over {given.keys:,} keys: {size / 1e9:.2f} GB"
        )
        killed = open_apart(path, "store")
        print(
            f"  Store.open after the kill: {killed['open_ms']:,.0f} ms, peak {killed['peak_mb']:,.0f} MB "
            f"({killed['before_mb']:,.0f} before), {killed['phases']}"
        )
        whole = killed["last_lsn"] == load.operations and bool(killed["last_key"])
        times = {}
        for cache in ("warm", "cold"):
            openings = []
            for _ in range(OPENINGS):
                if cache == "cold":
                    drop_cached({file: 0 for file in path.rglob("*") if file.is_file()})
                openings.append(open_apart(path, "log"))
            whole = whole and all(
                (o["last_lsn"], o["verdict"]) == (load.operations, "clean") for o in openings
            )
            times[cache] = sorted(float(str(o["open_ms"])) for o in openings)[OPENINGS // 2]
            print(f"  walkit.open of the closed log, {cache}: median {times[cache]:.1f} ms of {OPENINGS}")
    over = bool(given.memory_mb) and float(str(killed["peak_mb"])) > given.memory_mb
    slow = bool(given.open_ms) and max(times.values()) > given.open_ms
    print(f"  whole: {whole}" + ", TOO MUCH MEMORY" * over + ", TOO SLOW" * slow)
    return 0 if whole and not over and not slow else 1


if __name__ == "__main__":
    sys.exit(main())
