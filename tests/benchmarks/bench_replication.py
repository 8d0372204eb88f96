"""Replication against its aims, each row measured n times in one run: lag, catch-up, bootstrap, CPU per record.

    python tests/benchmarks/bench_replication.py [--runs 5] [--rows lag,serve,catchup,...] [--dir DIR]

Rows: `lag` and `serve` are the time from a record's durability at the primary to its replica's acknowledgement (p99 of
20 MB/s of 1 KiB records), with the primary in the writer's process and in `walkit serve`; `catchup` a new replica of a
finished log, without codec, and beside it what gRPC makes of equal messages alone and with the bytes written and
synced as a replica does; `bootstrap` of a trimmed log; `cpu` the writer's CPU per record at 3,000 records/s with a
replica against alone; `beside` throughput in a closed loop with a replica, and the CPU of both processes; `idle` what
twenty replicas that have nothing to do take of one of the primary's cores; `record` how much the memory of `walkit
serve` grows by one record of 150 MiB, and in sizes of that record.
A replica is always a process of its own, on the same disk. Wants a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import walkit
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.replication import Primary
from walkit.replication.logs.source import StoredSource
from walkit.replication.transport.grpc_common import channel_options, grpc
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage
from walkit.workload.process import python_child
from walkit.workload.replicated import ReplicatedChild

RECORD = 1024
RATE_BYTES = 20_000_000
PACED_PER_S = 3_000
LAG_S = 5.0
CATCH_UP_BYTES = 512 << 20
BOOTSTRAP_BYTES = 1 << 30
WAIT_S = 300.0
TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def replica(folder: str, address: str) -> Iterator[ReplicatedChild]:
    """A replica in a process of its own, without a codec."""
    child = ReplicatedChild.replica(folder, address, "replica", "", lambda said: None)
    child.start_and_hear(WAIT_S)
    try:
        yield child
    finally:
        child.stop(WAIT_S)


@contextmanager
def served(folder: str) -> Iterator[str]:
    """`walkit serve` of a log in a process of its own; gives its address."""
    command, environment = python_child("walkit", "serve", folder)
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert child.stdout is not None
    try:
        words = child.stdout.readline().replace(",", " ").split()
        yield next(word for word in words if word.startswith("127.0.0.1:"))
    finally:
        child.terminate()
        child.wait(60)


def cpu_s(pid: int) -> float:
    """The processor time of a process so far, in s."""
    with open(f"/proc/{pid}/stat") as file:
        facts = file.read().rpartition(")")[2].split()
    return (int(facts[11]) + int(facts[12])) / TICKS


def until(holds: Callable[[], bool]) -> float:
    """Wait until something holds; return the time."""
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {WAIT_S:.0f} s")
        time.sleep(0.0005)
    return time.perf_counter()


def paced(log: walkit.WriteAheadLog, per_s: float, seconds: float) -> int:
    """Append records at this rate, each 5 ms what is due; return how many."""
    value, done, began = os.urandom(RECORD), 0, time.perf_counter()
    while (spent := time.perf_counter() - began) < seconds:
        due = int(spent * per_s) - done
        if due > 0:
            log.append_many([value] * due)
            done += due
        time.sleep(0.005)
    return done


def lag_ms(base: str, *, through_serve: bool) -> float:
    """p99 of the lag from durable to durable, sampled each ms in this process, of the paced load."""
    folder, copy = os.path.join(base, "log"), os.path.join(base, "copy")
    rows: list[tuple[float, int, int]] = []
    over = threading.Event()
    with walkit.open(folder, "x") as log:
        log.append(b"first")

        def sample(end: StoredSource) -> None:
            while not over.wait(0.001):
                rows.append((time.perf_counter(), log.durable_lsn, end.durable()[0]))

        with served(folder) if through_serve else Primary(log) as place:
            address = place if isinstance(place, str) else place.address
            with replica(copy, address):
                until(lambda: os.path.exists(os.path.join(copy, "manifest")))
                end = StoredSource(FileStorage(copy))
                until(lambda: end.durable()[0] >= 1)
                paced(log, RATE_BYTES / RECORD, 1.0)
                sampler = threading.Thread(target=sample, args=(end,))
                sampler.start()
                paced(log, RATE_BYTES / RECORD, LAG_S)
                over.set()
                sampler.join()
    at, ours, theirs = np.array(rows, np.float64).T
    missing = ours - theirs
    behind = np.where(missing > 0, at - np.interp(theirs + 1, ours, at), 0.0)
    return float(np.percentile(behind, 99) * 1000)


def fill(folder: str, size: int) -> None:
    """A closed log of so many bytes of values that no codec makes smaller."""
    with walkit.open(folder, "x") as log:
        values = [os.urandom(RECORD) for _ in range(1024)]
        for _ in range(size // (RECORD * len(values))):
            log.append_many(values)


def catch_up_mb_per_s(base: str) -> float:
    """MB of frames per second that a new replica of a finished log imports, durably."""
    folder = os.path.join(base, "log")
    fill(folder, CATCH_UP_BYTES)
    return _follow_mb_per_s(base, folder)


SENDER = """
import sys
from walkit.replication.transport.grpc_common import grpc, server_options
from walkit.replication.transport.threads import DaemonExecutor
message, times = bytes(int(sys.argv[1])), int(sys.argv[2])
server = grpc.server(DaemonExecutor(), options=server_options())
handler = grpc.unary_stream_rpc_method_handler(lambda request, context: (message for _ in range(times)))
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("floor", {"Send": handler}),))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
sys.stdin.read()
"""
MESSAGE_BYTES = 256 << 10
"""About what a batch of frames is."""
SYNC_BYTES = 4 << 20
"""A replica syncs about so many bytes at once."""


def grpc_mb_per_s(base: str, *, written: bool) -> float:
    """MB/s of a gRPC stream of messages as large as batches; `written`: to a file that is synced as a replica's."""
    times = CATCH_UP_BYTES // MESSAGE_BYTES
    code = [sys.executable, "-c", SENDER, str(MESSAGE_BYTES), str(times)]
    with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        address = f"127.0.0.1:{int(child.stdout.readline())}"
        with (
            open(os.path.join(base, "written"), "wb", buffering=0) as file,
            grpc.insecure_channel(address, options=channel_options(1 << 20)) as channel,
        ):
            began, waiting = time.perf_counter(), []
            for data in channel.unary_stream("/floor/Send")(b""):
                waiting.append(data)
                if written and len(waiting) * MESSAGE_BYTES >= SYNC_BYTES:
                    file.writelines(waiting)
                    os.fdatasync(file.fileno())
                    waiting.clear()
            took = time.perf_counter() - began
        child.stdin.close()
    return CATCH_UP_BYTES / 1e6 / took


def catch_up_and_floors(base: str) -> tuple[float, float, float]:
    """Catch-up, and what gRPC alone and gRPC with the bytes written and synced make in the same turn."""
    return (
        catch_up_mb_per_s(base),
        grpc_mb_per_s(base, written=False),
        grpc_mb_per_s(base, written=True),
    )


def bootstrap_mb_per_s(base: str) -> float:
    """The same of a log whose first segment was trimmed away, which comes by a bootstrap."""
    folder = os.path.join(base, "log")
    fill(folder, BOOTSTRAP_BYTES)
    with walkit.open(folder) as log:
        first = log.first_lsn
        log.trim(100_000)
        log.wait_idle()
        assert log.inventory().segments[0].first_lsn > first, "records that are still there come as a stream"
    return _follow_mb_per_s(base, folder)


def _follow_mb_per_s(base: str, folder: str) -> float:
    copy = os.path.join(base, "copy")
    manifest = load_manifest(FileStorage(folder))
    size = manifest.end.position - manifest.sealed[0].start_position
    with Primary(folder) as primary:
        lsn = primary.source.durable()[0]
        began = time.perf_counter()
        with replica(copy, primary.address):
            ended = until(lambda: any(f.acked_lsn >= lsn for f in primary.status().followers))
    return size / 1e6 / (ended - began)


def cpu_ratio(base: str) -> float:
    """The writer's CPU per record at a paced rate with a replica, divided by that without."""
    spent = []
    for name, followed in (("alone", False), ("followed", True)):
        with walkit.open(os.path.join(base, name), "x") as log, Primary(log) as primary:
            if followed:
                with replica(os.path.join(base, "copy"), primary.address):
                    spent.append(_paced_cpu(log))
            else:
                spent.append(_paced_cpu(log))
    return spent[1] / spent[0]


def _paced_cpu(log: walkit.WriteAheadLog) -> float:
    one, began = os.urandom(RECORD), time.perf_counter()
    for number in range(2 * PACED_PER_S):  # single appends, as a service makes them
        if number == PACED_PER_S:
            before = time.process_time()
        log.append(one)
        wait = began + number / PACED_PER_S - time.perf_counter()
        if wait > 0:
            time.sleep(wait)
    return (time.process_time() - before) / PACED_PER_S


def beside(base: str) -> tuple[float, float, float]:
    """Records/s of one writer with a replica; the share of a core that writer and replica take."""
    with (
        walkit.open(os.path.join(base, "log"), "x") as log,
        Primary(log) as primary,
        replica(os.path.join(base, "copy"), primary.address) as child,
    ):
        value, first = os.urandom(RECORD), log.append(b"first").last_lsn
        before, theirs, began = time.process_time(), cpu_s(child.pid), time.perf_counter()
        while time.perf_counter() - began < LAG_S:
            log.append_many([value] * 64)
        took = time.perf_counter() - began
        return (
            (log.acked_lsn - first) / took,
            (time.process_time() - before) / took,
            (cpu_s(child.pid) - theirs) / took,
        )


IDLE_CHILD = """
import sys
from walkit.replication import Replica
replicas = [Replica(f"{sys.argv[1]}-{n}", sys.argv[2]).start() for n in range(int(sys.argv[3]))]
for replica in replicas:
    replica.wait_for(1, 60)
print("ready", flush=True)
sys.stdin.read()
for replica in replicas:
    replica.stop()
"""
IDLE_SESSIONS = 20
IDLE_S = 10.0


def idle_percent(base: str) -> float:
    """The CPU of a primary's process for twenty idle replicas, in percent of a core."""
    with walkit.open(os.path.join(base, "log"), "x") as log, Primary(log) as primary:
        log.append(b"first")
        copies = os.path.join(base, "copy")
        code = [sys.executable, "-c", IDLE_CHILD, copies, primary.address, str(IDLE_SESSIONS)]
        with subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None and child.stdout is not None
            child.stdout.readline()
            time.sleep(1.0)  # until the claims have moved
            before, began = time.process_time(), time.perf_counter()
            time.sleep(IDLE_S)
            percent = 100 * (time.process_time() - before) / (time.perf_counter() - began)
            child.stdin.close()
    return percent


LARGE_BYTES = 150 << 20
LARGE = walkit.LogOptions(frame_bytes_max=256 << 20, segment_bytes=1 << 30, queue_bytes_max=256 << 20)
LARGE_CHILD = """
import sys, walkit
from walkit.replication import Replica
options = walkit.LogOptions(frame_bytes_max=256 << 20, segment_bytes=1 << 30)
with Replica(sys.argv[1], sys.argv[2], codec=None, options=options) as replica:
    replica.wait_for(2, 300)
    print("ready", flush=True)
"""


def large_record_mb(base: str) -> tuple[float, float]:
    """By how many MB `walkit serve` grows at most while a replica gets a record of 150 MiB; in sizes of it."""
    folder = os.path.join(base, "log")
    with walkit.open(folder, "x", options=LARGE) as log:
        log.append(b"first")
        log.append(os.urandom(LARGE_BYTES))
    command, environment = python_child("walkit", "serve", folder)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        words = server.stdout.readline().replace(",", " ").split()
        address = next(word for word in words if word.startswith("127.0.0.1:"))
        before = peak_bytes(server.pid)
        code = [sys.executable, "-c", LARGE_CHILD, os.path.join(base, "copy"), address]
        subprocess.run(code, stdout=subprocess.DEVNULL, check=True, timeout=WAIT_S)
        grown = peak_bytes(server.pid) - before
        server.terminate()
    return grown / 1e6, grown / LARGE_BYTES


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had resident."""
    with open(f"/proc/{pid}/status") as file:
        line = next(line for line in file if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


ROWS: dict[str, tuple[str, str, Callable[[str], float | tuple[float, ...]]]] = {
    "lag": ("lag p99, ms", "<= 10", lambda base: lag_ms(base, through_serve=False)),
    "serve": ("lag p99 through walkit serve, ms", "<= 15", lambda base: lag_ms(base, through_serve=True)),
    "catchup": ("catch-up; gRPC alone; and written, MB/s", ">= 300", catch_up_and_floors),
    "bootstrap": ("bootstrap of 1 GiB, MB/s", ">= 200", bootstrap_mb_per_s),
    "cpu": ("primary's CPU per record, with / alone", "<= 1.7", cpu_ratio),
    "beside": ("records/s; cores of writer, of replica", "reported", beside),
    "idle": ("20 idle sessions, % of a core", "<= 1", idle_percent),
    "record": ("serve grows by 150 MiB record, MB; sizes", "<= 3 sizes", large_record_mb),
}


def main() -> None:
    """Measure the rows by turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--dir")
    args = parser.parse_args()
    rows = args.rows.split(",")
    cases = [Case(row, ROWS[row][2]) for row in rows]
    with work_folder(args.dir) as base:
        turns = in_turns(cases, args.runs, base, lambda row: print(row, flush=True))
    found = {
        row: [value if isinstance(value, tuple) else (value,) for value in values]
        for row, values in zip(rows, turns, strict=True)
    }
    print(f"\n{'row':45} {'aim':9} n, then median (smallest to largest) of each number")
    for row in rows:
        columns = [
            f"{statistics.median(v):,.2f} ({min(v):,.2f} to {max(v):,.2f})"
            for v in zip(*found[row], strict=True)
        ]
        print(f"{ROWS[row][0]:45} {ROWS[row][1]:9} {len(found[row])}  {'; '.join(columns)}")


if __name__ == "__main__":
    main()
