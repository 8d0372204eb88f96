"""How fast a log is replayed into a keyed state, and in how much memory: run by hand, not by the tests.

Makes a log of puts over keys drawn at random, unless it is there already, and replays it into each machine in a process
of its own, so that the peak of its memory is its own::

    python tests/benchmarks/bench_replay.py --operations 10_000_000 --keys 1_000_000
    python tests/benchmarks/bench_replay.py --gigabytes 10 --keys 100_000 --log /data/big --memory-mb 500

Numbers are of this machine as it is now: compare those of one run. Exit 1 where a replay took more than `--memory-mb`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import walkit
from walkit.state import ArrowTable, KeyedTable, StateMachine

KEY_BYTES = 16
CALL_RECORDS = 100_000


class BatchByBatch(KeyedTable):
    """Makes objects of each batch's newest records at once, and gathers nothing."""

    gather = None  # type: ignore[assignment]


class RowByRow(KeyedTable):
    """Takes no columns: every record becomes objects."""

    apply_arrow = gather = None  # type: ignore[assignment]


MACHINES: dict[str, type[StateMachine]] = {
    "KeyedTable": KeyedTable,
    "ArrowTable": ArrowTable,
    "each batch alone": BatchByBatch,
    "row by row": RowByRow,
}


def make_log(path: Path, operations: int, keys: int, value_bytes: int) -> None:
    """Append puts, many a call; the values are random, so that nothing is small by accident."""
    rng = np.random.default_rng(7)
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        while log.acked_lsn < operations:
            count = min(CALL_RECORDS, operations - log.acked_lsn)
            names = np.char.mod(b"key-%012d", rng.integers(0, keys, count)).astype(f"S{KEY_BYTES}")
            log.append_many(packed(rng.bytes(value_bytes * count), count), packed(names.tobytes(), count))


def packed(data: bytes, count: int) -> pa.Array:
    """Return bytes as an Arrow array of `count` items of one length."""
    offsets = np.linspace(0, len(data), count + 1).astype(np.int32)
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def replay_here(path: Path, name: str) -> dict[str, float]:
    """Replay into the machine of this name, in this process."""
    machine = MACHINES[name]()
    before_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, cpu = time.perf_counter(), time.process_time()
    with walkit.open(path, mode="r") as log:
        report = walkit.replay(log, machine)
    return {
        "records": report.records,
        "wall_s": time.perf_counter() - began,
        "cpu_s": time.process_time() - cpu,
        "before_mb": before_mb,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "applied_lsn": machine.applied_lsn,
    }


def replay_apart(path: Path, name: str) -> dict[str, float]:
    """Replay in a process of its own."""
    command = [sys.executable, __file__, "--log", str(path), "--here", name]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, float] = json.loads(found)
    return result


def main() -> int:
    """Make the log, replay it, print a line for each machine."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, help="so many operations that the log is this large")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--log", type=Path, help="kept; default: a temporary one")
    parser.add_argument("--machines", nargs="+", choices=MACHINES, default=list(MACHINES))
    parser.add_argument("--memory-mb", type=float, help="fail where a replay's process took more")
    parser.add_argument("--here", choices=MACHINES, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(replay_here(given.log, given.here)))
        return 0
    operations = given.operations
    if given.gigabytes:
        operations = int(given.gigabytes * 1e9 / (given.value_bytes + KEY_BYTES))
    with tempfile.TemporaryDirectory() as folder:
        path = given.log or Path(folder) / "log"
        make_log(path, operations, given.keys, given.value_bytes)
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(
            f"{operations:,} puts of {given.value_bytes} bytes over {given.keys:,} keys: {size / 1e9:.2f} GB"
        )
        found = {name: replay_apart(path, name) for name in given.machines}
    slowest = max(result["wall_s"] for result in found.values())
    for name, result in found.items():
        rate = result["records"] / result["wall_s"]
        print(
            f"  {name:18} {rate / 1e6:6.2f} M records/s  x{slowest / result['wall_s']:5.2f}   "
            f"cpu {result['cpu_s']:6.2f} s   peak {result['peak_mb']:7,.0f} MB ({result['before_mb']:,.0f} before)"
        )
    over = [n for n, result in found.items() if given.memory_mb and result["peak_mb"] > given.memory_mb]
    for name in over:
        print(f"{name} took more than {given.memory_mb:,.0f} MB")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
