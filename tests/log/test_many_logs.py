"""A long-lived program that opens and closes log after log keeps none of them: memory, threads and descriptors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LOGS, BEFORE, THREADS = 2_000, 500, 8
"""The growth up to this number of logs belongs to pools and the allocator."""
GROWTH_MAX = 16 << 20
"""Less than eight kilobytes for each log that comes after them."""

CHILD = """
import gc, json, os, pathlib, shutil, sys, threading
import walkit

folder, logs, before, count = pathlib.Path(sys.argv[1]), *map(int, sys.argv[2:])
numbers, turn, done, seen = iter(range(logs)), threading.Lock(), [], []

def status():
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    rss = next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) * 1024
    return rss, len(os.listdir("/proc/self/fd"))

def use(number):
    path = folder / str(number)
    options = walkit.LogOptions(durability="none", in_flight=1 + 7 * (number % 2))
    with walkit.open(path, options=options) as log:
        for _ in range(20):
            log.append(bytes(1000))
    with walkit.open(path, options=options) as log:
        assert len(list(log.read())) == 20
    shutil.rmtree(path)

def work():
    while True:
        with turn:
            number = next(numbers, None)
        if number is None:
            return
        use(number)
        with turn:
            done.append(number)
            if len(done) == before:
                gc.collect()
                seen.append(status())

threads = [threading.Thread(target=work) for _ in range(count)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
seen.append(status())
print(json.dumps([len(done), seen, threading.active_count()]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc says how much memory a process has")
def test_logs_that_were_closed_leave_nothing(tmp_path: Path) -> None:
    """Open, fill, open again and read 2,000 logs on eight threads: the memory of a quarter of them is enough."""
    command = [sys.executable, "-c", CHILD, str(tmp_path), str(LOGS), str(BEFORE), str(THREADS)]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600).stdout)
    done, ((rss_before, _), (rss_after, descriptors)), threads = said
    assert done == LOGS and threads == 1
    assert descriptors < 16
    assert rss_after - rss_before < GROWTH_MAX, f"{rss_before:,} bytes, then {rss_after:,}"
    print(f"{rss_before / 2**20:.1f} MiB, then {rss_after / 2**20:.1f} MiB")
