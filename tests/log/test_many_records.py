"""Logs of a few kilobytes that stand for tens of millions of records: memory has a bound in records, too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import walkit

RECORDS = 30_000_000
MEMORY_MAX = 300 << 20
"""What reading may take beside the imports. The columns of all these records would take some 900 MB."""

CHILD = """
import json, pathlib, sys
import pyarrow.compute, walkit
from walkit.state.table import KeyedTable

what, events, keyed = sys.argv[1:]

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
        sizes = [len(batch) for batch in log.read_batches()]
        return [sum(sizes), max(sizes)]

before = status("VmRSS")
found = {
    "open a store of events": lambda: opened(events),
    "open a store of one key": lambda: opened(keyed),
    "replay": lambda: replayed(events) + replayed(keyed),
    "checkpoint": lambda: saved(keyed),
    "read and verify": lambda: [*read(events), walkit.verify(events).ok, walkit.scan(keyed).ok],
    "diff": lambda: [len(walkit.diff(keyed, events))],
}[what]()
print(json.dumps([found, status("VmHWM") - before]))
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


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("open a store of events", [0, RECORDS]),
        ("open a store of one key", [1, RECORDS]),
        ("replay", [RECORDS, RECORDS]),
        ("checkpoint", [1, 1]),
        ("read and verify", [RECORDS, None, True, True]),
        ("diff", [1]),
    ],
)
def test_memory_does_not_grow_with_the_records(
    what: str, expected: list[int | None], logs: tuple[Path, Path]
) -> None:
    """30 M records in some 40 KB, read by a process of its own: all are there, and its peak stays below 300 MB."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, what, *map(str, logs)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    found, memory = json.loads(done.stdout)
    assert memory < MEMORY_MAX
    assert [
        None if wanted is None else value for value, wanted in zip(found, expected, strict=True)
    ] == expected
