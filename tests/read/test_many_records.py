"""Logs of a few kilobytes that stand for millions of records: memory has a bound in records, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import walkit

RECORDS = 16_000_000
MEMORY_MAX = 300 << 20
"""Limit for reading beside the imports. The columns of all these records would take some 500 MB."""

CHILD = """
import json, os, pathlib, sys
import pyarrow.compute, walkit
from walkit.state.table import KeyedTable

events, keyed = sys.argv[1:]

def status(name):
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

def opened(path):
    with walkit.Store.open(path) as store:
        return [len(store), store.log.acked_lsn]

def replayed(path):
    with walkit.open(path, mode="r") as log:
        return [walkit.replay(log, KeyedTable()).records]

def saved(path):
    with walkit.Store.open(path) as store:
        return [len(store.state_at(1000)), store.checkpoint().records]

def read(path):
    with walkit.open(path, mode="r") as log:
        return [sum(len(batch) for batch in log.read_batches())]

for what, act in {
    "replay": lambda: replayed(events) + replayed(keyed),
    "open a store of events": lambda: opened(events),
    "open a store of one key": lambda: opened(keyed),
    "checkpoint": lambda: saved(keyed),
    "read and verify": lambda: [*read(events), walkit.verify(events).ok, walkit.scan(keyed).ok],
    "diff": lambda: [len(walkit.diff(keyed, events))],
}.items():
    if os.fork() == 0:  # with a memory of its own
        before = status("VmRSS")
        print(json.dumps([what, act(), status("VmHWM") - before]), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, what
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A log of events, in turn empty and absent, so that frames differ, and one of records of the empty key."""
    folder = tmp_path_factory.mktemp("many")
    empty = pa.array([b""] * 1_000_000, pa.binary())
    absent = pa.nulls(1_000_000, pa.binary())
    options = walkit.LogOptions(durability="none")
    for name, values, keys in (("events", (empty, absent), None), ("keyed", (empty, empty), empty)):
        with walkit.open(folder / name, options=options) as log:
            for turn in range(RECORDS // 1_000_000):
                log.append_many(values[turn % 2], keys)
        assert sum(file.stat().st_size for file in (folder / name).iterdir()) < 100_000
    return folder / "events", folder / "keyed"


def test_memory_does_not_grow_with_the_records(logs: tuple[Path, Path]) -> None:
    """16 M records in some 20 KB, read by processes of their own: all are there, no peak is above 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *map(str, logs)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert {what: found for what, found, _ in told} == {
        "replay": [RECORDS, RECORDS],
        "open a store of events": [0, RECORDS],
        "open a store of one key": [1, RECORDS],
        "checkpoint": [1, 1],
        "read and verify": [RECORDS, True, True],
        "diff": [1],
    }
    for what, _, peak in told:
        assert peak < MEMORY_MAX, f"{what}: {peak:,} bytes"
