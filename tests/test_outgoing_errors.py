"""Errors that leave walkit: its own tree, TypeError and ValueError, whatever a public callable is given."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import mmap
import pickle
import re
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import walkit
from tests.support.examples import RELEASE
from tests.support.logs import SEGMENTS, faulty_log, run_python, tiny
from walkit.errors import WalkitError
from walkit.format.layout import RECORDS_PER_FRAME_MAX
from walkit.log.append import Transaction
from walkit.storage import MemoryStorage


def none() -> None:
    """Return None."""


EMPTY = pa.array([], pa.binary())
GIVEN: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("first_lsn", "last_lsn", "lsn", "start_lsn", "up_to_lsn", "at_lsn"), lambda: 2),
    **dict.fromkeys(
        ("progress", "limits", "epoch_id", "owner", "options", "store_options", "storage", "storage_options"),
        none,
    ),
    "events": none,
    **dict.fromkeys(("trim", "bodies", "dry_run", "complete", "take_over"), lambda: True),
    **dict.fromkeys(("timeout", "wait_s", "lease_s"), lambda: 1.0),
    **dict.fromkeys(("callback", "observer"), lambda: str),
    **dict.fromkeys(("key", "value", "default"), lambda: b"k"),
    **dict.fromkeys(("keys", "values"), lambda: [b"v"]),
    "at": lambda: "acked",
    "batch": lambda: pa.record_batch({"x": [1]}),
    "diff": lambda: pa.table(dict.fromkeys(("key", "change", "left_value", "right_value"), EMPTY)),
    "exact_from_lsn": none,
    "machine": walkit.state.KeyedTable,
    "mode": lambda: "r",
    "name": lambda: "name",
    "policy": lambda: "prefix",
    "payload_log": none,
    "resolve": lambda: "link",
    "payloads": lambda: True,
    "records": lambda: pa.table({"value": [b"v"]}),
    "time": lambda: datetime(2026, 1, 1, tzinfo=UTC),
    "timestamp": lambda: 1,
    "waste_ratio": lambda: 0.5,
}
"""A good argument for each parameter of a public callable; a parameter that is not here is a new one to think of."""
PLACES = ("path", "a", "b", "target", "log")
"""Parameters that are given a log."""
NOT_VARIED = {"bytes_per_s"}
"""A pace that is slow makes a call slow."""

NAIVE = datetime.fromtimestamp(0, UTC).replace(tzinfo=None)
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 2**31, 2**63, 2**64, 1.5, float("nan"), float("inf"), -float("inf"), 10**400),
    *("", "text", "a\0b", "\ud800", "../x", b"", b"\xff", bytearray(b"x"), memoryview(b"xyz")[::2]),
    *(object(), [], [None], [1], ["text"], {}, {"key": 1}, (), (1, 2, 3), set(), print, int, iter([b"x"])),
    *(np.int64(2), np.float32(2), np.array([1, 2]), np.array([object()]), NAIVE, NAIVE.max),
    *(
        pa.array([1]),
        pa.table({"value": [1.5]}),
        pa.array(["x"]).dictionary_encode(),
        pa.scalar(1),
        pa.schema([]),
    ),
    *(pa.table({"value": [b"v"], "kind": [2**40], "timestamp": ["x"]}), Exception("x"), b"x".join, 3 + 4j),
]

NOT_CALLED = {
    "close",
    "follow",
    "doctor",
    "scratch",
    "open_logs",
    "read",
    "release_payload",
    "add_waiter",
    "wait_done",
}
"""Those that end the log, wait without an end, or measure a disk; reads without arguments; internals of a ticket."""


def in_transaction(log: walkit.WriteAheadLog, name: str, **given: Any) -> None:
    """Call one method of a transaction, and commit it."""
    with log.transaction() as transaction:
        getattr(transaction, name)(**given)


def callables(store: walkit.Store) -> Iterator[tuple[str, Callable[..., Any], list[str]]]:
    """Yield each public callable that takes something, with its parameters."""
    log = store.log
    reader, claimed = (
        walkit.open(log.location, mode="r"),
        walkit.claim(log.location, "claimed", 2, lease_s=60),
    )
    things = {"Store": store, "log": log, "reader": reader, "cursor": log.cursor("c"), "claim": claimed}
    things |= {
        "hold": log.hold("h", 2),
        "ticket": log.submit(b"v"),
        "past": store.state_at(3),
        "walkit": walkit,
    }
    for kind, thing in things.items():
        for name in walkit.__all__ if thing is walkit else dir(type(thing)):
            found = getattr(thing, name) if thing is walkit else getattr(type(thing), name)
            if not name.startswith("_") and name not in NOT_CALLED and inspect.isroutine(found):
                method = getattr(thing, name)
                yield f"{kind}.{name}", method, list(inspect.signature(method).parameters)
    for name in ("put", "delete", "append"):
        parameters = list(inspect.signature(getattr(Transaction, name)).parameters)
        parameters.remove("self")
        yield f"transaction.{name}", partial(in_transaction, log, name), parameters


def leaves(call: Callable[..., Any], given: dict[str, Any]) -> BaseException | None:
    """Return the error that leaves a call, or the reading of three items of its result."""
    try:
        found = call(**given)
        if inspect.iscoroutine(found):
            found = asyncio.run(found)
        if isinstance(found, Iterator):
            list(itertools.islice(found, 3))
        if isinstance(found, walkit.Store | walkit.WriteAheadLog | walkit.LogReader):
            found.close()
    except BaseException as error:
        return error
    return None


def test_no_other_error_leaves_a_public_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each parameter of each public call hostile values: walkit's errors, TypeError, ValueError leave."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    with walkit.open(tmp_path / "log", options=walkit.LogOptions(durability="none")) as log:
        log.append_many([b"v"] * 4, [b"k"] * 4)
    findings, calls, turns = set(), 0, itertools.count()
    with walkit.Store.open(tmp_path / "store", walkit.LogOptions(durability="none")) as store:
        store.put_many([b"a", b"b", b"c"], [b"v"] * 3)
        store.log.sync()
        for name, call, parameters in callables(store):
            good = {
                p: GIVEN[p]() if p in GIVEN else tmp_path / "log" for p in parameters if p not in NOT_VARIED
            }
            assert {p for p in parameters if p not in GIVEN} <= {*PLACES, *NOT_VARIED}, (
                f"{name} has new parameters"
            )
            for parameter in good:
                # A third of the values for each parameter, another third for the next, and all for a release.
                for hostile in HOSTILE if RELEASE else HOSTILE[next(turns) % 3 :: 3]:
                    fresh = {p: GIVEN[p]() if p in GIVEN else tmp_path / "log" for p in good}
                    error = leaves(call, fresh | {parameter: hostile})
                    calls += 1
                    if error is not None and not isinstance(error, WalkitError | TypeError | ValueError):
                        findings.add(f"{name}({parameter}={hostile!r:.40}): {error!r:.120}")
    assert calls > (4000 if RELEASE else 1300)
    assert not findings, "\n".join(sorted(findings))


def test_no_other_error_leaves_the_making_of_options() -> None:
    """Give each field of each class of options hostile values: the same errors."""
    findings = set()
    for kind in (walkit.LogOptions, walkit.Retention, walkit.StoreOptions, walkit.workload.Workload):
        for parameter in inspect.signature(kind).parameters:
            for hostile in HOSTILE:
                error = leaves(kind, {parameter: hostile})
                if error is not None and not isinstance(error, WalkitError | TypeError | ValueError):
                    findings.add(f"{kind.__name__}({parameter}={hostile!r:.40}): {error!r:.120}")
    assert not findings, "\n".join(sorted(findings))


def test_no_other_error_leaves_the_making_of_a_follower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give each parameter of a Primary, a Replica and a DeltaReader every fifth hostile value: the same errors."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    findings, numbers = set(), itertools.count()
    with walkit.open(tmp_path / "log") as log:
        log.append(b"v", key=b"k")
        good: dict[Any, Callable[[], dict[str, Any]]] = {
            walkit.replication.Primary: lambda: {"source": log},
            walkit.replication.Replica: lambda: {
                "dir": tmp_path / f"{next(numbers)}",
                "source": "127.0.0.1:1",
            },
            walkit.replication.DeltaReader: lambda: {"storage": tmp_path / "log", "source": "127.0.0.1:1"},
        }
        for kind, given in good.items():
            for parameter in inspect.signature(kind).parameters:
                for hostile in HOSTILE[::5]:
                    error = leaves(lambda k=kind, **named: k(**named).stop(), {**given(), parameter: hostile})
                    if error is not None and not isinstance(error, WalkitError | TypeError | ValueError):
                        findings.add(f"{kind.__name__}({parameter}={hostile!r:.40}): {error!r:.120}")
    assert not findings, "\n".join(sorted(findings))


def test_every_report_and_result_can_be_pickled(tmp_path: Path) -> None:
    """Make each public report of a log by its call, and pickle it, as process pools do. A new one must be here."""
    made: list[Any] = []
    store = walkit.Store.open(tmp_path / "log")
    with store, store.log as log:
        made += [store.put(b"k", b"v"), log.append_many([bytes(2000)] * 100, [b"k"] * 100), store.recovery]
        log.observe(made.append)
        log.append(b"v")
        log.wait_idle(10)
        made += [store.checkpoint(), store.compact(), log.trim(2), log.enforce_retention(), log.statistics()]
        made += [
            store.inventory(),
            log.options,
            walkit.StoreOptions(),
            walkit.Retention(),
            *log.read(103, 104),
        ]
        made += [log.claims(), walkit.Batch([1], 1, [b"k"], [b"v"])]
    with walkit.open(tmp_path / "plain") as log:
        log.append(b"v", key=b"k")
        made += [
            walkit.recover(log, walkit.state.KeyedTable()),
            walkit.replay(log, walkit.state.KeyedTable()),
        ]
    made += [walkit.copy(tmp_path / "log", tmp_path / "copy"), walkit.repair(tmp_path / "log")]
    report = walkit.verify(tmp_path / "log")
    for each in (*made, report, walkit.scan(tmp_path / "log"), walkit.recovery_table()):
        assert type(pickle.loads(pickle.dumps(each))) is type(each)
    assert list(pickle.loads(pickle.dumps(report)).frame_rows()) == list(report.frame_rows())
    ends = ("Report", "Result", "Recovery", "Statistics", "Inventory", "Options", "Frames")
    public = {name for name in walkit.__all__ if name.endswith(ends)}
    assert public - {type(each).__name__ for each in (*made, report)} == set()


LIVE = r"Callable|Iterator|Generator|Lock|IO\b|MappingProxy|memoryview|StorageFile"
UNPICKLED = {
    "MemoryObjectStore._late",
    "MemoryObjectStore.sleep",
    "Scenario.run",
    "ScanReport.frame_rows",
    "StateImage.batches",
}
"""Fields for a function or iterator: a store in memory, a scenario, a snapshot, and a class with a pickled form."""


def test_no_public_dataclass_has_a_field_that_cannot_be_pickled() -> None:
    """Look at the fields of the dataclasses of all rooms: functions, iterators, locks and files are listed."""
    found = set()
    rooms = [room for room in (getattr(walkit, name) for name in dir(walkit)) if inspect.ismodule(room)]
    assert len(rooms) > 12
    for room in (walkit, *rooms):
        for kind in (getattr(room, name) for name in dir(room)):
            if inspect.isclass(kind) and is_dataclass(kind) and kind.__module__.startswith("walkit"):
                found |= {f"{kind.__name__}.{f.name}" for f in fields(kind) if re.search(LIVE, str(f.type))}
    assert found == UNPICKLED


def test_no_bare_os_error_leaves_without_a_descriptor(tmp_path: Path) -> None:
    """Leave a forked child no or three descriptors for each public name and call: StorageError, or it works."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"v", key=b"k")
    answers = json.loads(run_python(WITHOUT, tmp_path / "log", check=False).stdout)
    assert len(answers) > 50 and sum(answer.startswith("StorageError") for answer in answers.values()) > 30
    assert [e for e in answers.items() if not e[1].startswith(("StorageError", "fine"))] == []


WITHOUT = """
import json, os, resource, sys
import walkit
from datetime import UTC, datetime
place, before, now = sys.argv[1], set(sys.modules), datetime.now(UTC)
calls = {
    name: lambda name=name: getattr(walkit, name)
    for name in dir(walkit) if not name.startswith("_") and name not in vars(walkit)
}
calls |= {f"{name}(place)": lambda name=name: getattr(walkit, name)(place) for name in ("verify", "scan", "repair")}
calls |= {
    "copy": lambda: walkit.copy(place, f"{place}-{os.getpid()}"),
    "diff": lambda: walkit.diff(place, place),
    "replay": lambda: walkit.replay(place, walkit.state.KeyedTable()),
    "claim": lambda: walkit.claim(place, "c", 1, take_over=True),
    "lsn_at()": lambda: walkit.lsn_at(place, now),
    "recovery_table()": lambda: walkit.recovery_table(),
    "Store.open": lambda: walkit.Store.open(place).close(),
    "open": lambda: walkit.open(place).close(),
    "open for reading": lambda: walkit.open(place, mode="r").to_arrow(),
    "scratch()": lambda: walkit.scratch("x").close(),
}
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
answers = {}
for name, call in calls.items():
    for free in (0, 3) if "." in name or "(" in name or name not in dir(walkit) else (0,):
        read, sent = os.pipe()
        if not os.fork():
            taken = []
            try:
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            except OSError:
                pass
            for fd in taken[len(taken) - free:]:
                os.close(fd)
            try:
                call()
                answer = "fine"
            except BaseException as error:
                answer = f"{type(error).__name__}: {error}"
            os.write(sent, answer.encode()[:2000])
            os._exit(0)
        os.wait()
        answers[f"{name} with {free} free"] = os.read(read, 2000).decode()
        os.close(read), os.close(sent)
print(json.dumps(answers))
"""


CLOCK = """
import sys, time
import walkit
now = int(sys.argv[1])
time.time_ns, time.time = lambda: now, lambda: now / 1e9
with walkit.Store.open(sys.argv[2]) as store:
    store.put(b"k", b"v")
    store.log.hold("h", 1)
    store.log.cursor("c").advance(1)
    store.checkpoint(), store.compact(), store.log.enforce_retention(), store.inventory()
report = walkit.verify(sys.argv[2])
report.summary(), report.frames, report._repr_html_()
try:
    walkit.claim(sys.argv[2], "c", 1)
except walkit.ClaimError as error:
    print(report.ok, error.reason)
"""


# Slow: other times that no format has.
@pytest.mark.parametrize(
    "now", [-1000, *(pytest.param(now, marks=pytest.mark.slow) for now in (-(10**18), 5 * 10**21))]
)
def test_a_clock_before_1970_stops_nothing_but_claims(now: int, tmp_path: Path) -> None:
    """Write, keep and examine a store in a child whose wall clock is out of every format: a claim alone is refused."""
    assert run_python(CLOCK, str(now), tmp_path / "store").stdout == "True clock\n"


def test_a_buffer_over_the_limit_is_not_copied() -> None:
    """Append a lazily mapped gibibyte as each kind of buffer, by each call: refused, and its pages are not touched."""
    room = mmap.mmap(-1, 1 << 30)
    view, array = memoryview(room), np.frombuffer(room, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with walkit.open(storage=MemoryStorage()) as log:
        for value in (view, array, room):
            ways: list[Callable[[Any], object]] = [
                log.append,
                log.submit,
                lambda v: log.append_many([v]),
                lambda v: log.append(b"", key=v),
            ]
            ways.append(lambda v: in_transaction(log, "append", value=v))
            for way in ways:
                with pytest.raises(walkit.RecordTooLargeError):
                    way(value)
        assert log.appended_lsn == 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


def append_events(log: walkit.WriteAheadLog, count: int) -> None:
    """Append so many empty records in one transaction."""
    with log.transaction() as transaction:
        for _ in range(count):
            transaction.append(b"")


def test_errors_name_the_limit_and_the_way_out(tmp_path: Path) -> None:
    """Exceed a transaction, wait for a slow ticket, copy a live log by files: each error names the remedy."""
    with (
        walkit.open(storage=MemoryStorage()) as log,
        pytest.raises(walkit.RecordTooLargeError, match=r"1,048,577 records and .* is 1,048,576") as over,
    ):
        append_events(log, RECORDS_PER_FRAME_MAX + 1)
    assert (over.value.records, over.value.limit_records) == (
        RECORDS_PER_FRAME_MAX + 1,
        RECORDS_PER_FRAME_MAX,
    )
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    ticket = log.submit(b"slow")
    with pytest.raises(walkit.WaitTimeoutError, match="still on their way"):
        ticket.result(0.01)
    hang.release()
    log.close()
    with walkit.open(tmp_path / "log", options=tiny()) as log:
        log.append(b"v")
        (tmp_path / "copy").mkdir()
        shutil.copy(tmp_path / "log" / "manifest", tmp_path / "copy")
        log.append_many([bytes(3000)] * 100)
        for each in (tmp_path / "log").glob("*.segment"):
            shutil.copy(each, tmp_path / "copy")
    with pytest.raises(walkit.CorruptionError, match="walkit copy LOG DIR"):
        walkit.open(tmp_path / "copy")
