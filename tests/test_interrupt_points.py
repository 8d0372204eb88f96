"""Ctrl-C at every point where CPython may deliver it: logs, stores, replicas; all locks are free afterwards."""

from __future__ import annotations

import gc
import signal
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Any

import pytest

import walkit
from tests.support.imports import replica_on, runs_after
from tests.support.interrupts import ShootingStorage, Strike
from tests.support.threads import GUARD_S, wait_until
from walkit._internal.threads import current_frames
from walkit.models import CrashingStorage
from walkit.replication import Primary, Replica
from walkit.replication.logs.imported_log import ImportedLog
from walkit.segments.manifest_store import LOCK_NAME, load_manifest

OPTIONS = walkit.LogOptions(segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, idle_marker_ms=0)
RECORDS = 30
STEPS = {
    "create": 3,
    "open": 5,
    "recover": 7,
    "open a store": 7,
    "trim": 7,
    "retention": 11,
    "hold": 11,
    "follow": 97,
    "read on": 499,
    "wait for maintenance": 3,
    "snapshot": 11,
    "checkpoint": 13,
    "compact": 47,
    "close": 11,
    "close a store": 13,
    "open a replica": 293,
    "start": 97,
    "stop": 193,
}
"""Number of points to strike of a call that has many, or shares most with another; all points of any other."""
Log = walkit.WriteAheadLog


@cache
def made(killed: bool) -> CrashingStorage:
    """A store with sealed segments and two values for each key; with `killed` as its writer left it when it died."""
    storage = CrashingStorage()
    store = walkit.Store.open(storage=storage, options=OPTIONS)
    for number in range(RECORDS):
        store.put(b"%02d" % (number % 10), b"%06d" % number * 1000)
    left = storage.process_kill()
    store.close()
    return left if killed else storage


@dataclass
class Scene:
    """The scene of one strike: a storage, and the log or store that is open on it, if any."""

    storage: ShootingStorage
    opened: Any = None
    made: object = None
    """The result of the call: an opened log must not be dropped before its check."""

    @property
    def log(self) -> Log:
        """The open log."""
        log = getattr(self.opened, "log", self.opened)
        assert isinstance(log, Log)
        return log

    def end(self) -> None:
        """Close the log or store; no further interrupt comes."""
        self.storage.arm(0)
        opened: Any = self.opened or self.made
        opened.close()


Act = Callable[[Scene], object]


def open_log(scene: Scene) -> object:
    return walkit.open(storage=scene.storage, options=OPTIONS)


def open_store(scene: Scene) -> object:
    return walkit.Store.open(storage=scene.storage, options=OPTIONS)


def create(scene: Scene) -> object:
    return walkit.open(storage=scene.storage, mode="x", options=OPTIONS)


def close(scene: Scene) -> object:
    return scene.opened.close()


def trim(scene: Scene) -> object:
    return scene.log.trim(12)


def retain(scene: Scene) -> object:
    return scene.log.enforce_retention(walkit.Retention(records_max=12))


def hold(scene: Scene) -> object:
    return scene.log.hold("consumer", 20)


def snapshot(scene: Scene) -> object:
    return scene.opened.snapshot()


def checkpoint(scene: Scene) -> object:
    return scene.opened.checkpoint()


def compact(scene: Scene) -> object:
    return scene.opened.compact(progress=lambda *_: None)


def follow(scene: Scene) -> object:
    return list(scene.log.follow(RECORDS, timeout=0.001))


def open_with_journal(scene: Scene) -> object:
    slots = walkit.StoreOptions(journal_slots=1024)
    return walkit.Store.open(storage=scene.storage, options=OPTIONS, store_options=slots)


def ask_for_checkpoint(scene: Scene) -> object:
    demand = scene.opened.journal._admission.demand
    assert demand is not None
    demand()
    return None


def wait_for_maintenance(scene: Scene) -> object:
    scene.log.wait_idle()
    return None


def read_on(scene: Scene) -> object:
    with walkit.open(storage=scene.storage, mode="r") as reader:
        return list(reader.follow(RECORDS + 2, timeout=0.001))


OPENING: dict[str, tuple[Act, Callable[[], CrashingStorage]]] = {
    "create": (create, CrashingStorage),
    "open": (open_log, lambda: made(False).process_kill()),
    "recover": (open_log, lambda: made(True).process_kill()),
    "open a store": (open_store, lambda: made(False).process_kill()),
}
WORKING: dict[str, tuple[Act, Act]] = {
    "trim": (open_log, trim),
    "retention": (open_log, retain),
    "hold": (open_log, hold),
    "follow": (open_log, follow),
    "read on": (open_log, read_on),
    "wait for maintenance": (open_log, wait_for_maintenance),
    "ask for a checkpoint": (open_with_journal, ask_for_checkpoint),
    "snapshot": (open_store, snapshot),
    "checkpoint": (open_store, checkpoint),
    "compact": (open_store, compact),
    "close": (open_log, close),
    "close a store": (open_store, close),
}


def ready(name: str) -> tuple[Act, Scene]:
    """Return what is to be struck, and where."""
    if name in OPENING:
        act, storage = OPENING[name]
        return act, Scene(ShootingStorage(storage()))
    begin, act = WORKING[name]
    scene = Scene(ShootingStorage(made(False).process_kill()))
    scene.opened = begin(scene)
    scene.log.append(b"%06d" % RECORDS * 1000, key=b"last")
    return act, scene


def in_time(work: Callable[[], object], where: str) -> None:
    """Do it on another thread; if it hangs, fail with the stacks of all threads."""
    errors: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(GUARD_S)
    if thread.is_alive():
        stacks = ["".join(traceback.format_stack(frame)) for frame in current_frames().values()]
        pytest.fail(f"struck at {where}, then a hang:\n" + "\n".join(stacks))
    if errors:
        raise AssertionError(f"struck at {where}: {errors[0]!r}") from errors[0]


def goes_on(scene: Scene, expected: int) -> None:
    """Every lock of the open log is free: all that writers and its host may ask for is done, then it closes."""
    log = scene.log
    # Held from before it is written: a checkpoint that was asked for may come late, cover the record and drop it.
    kept = log.hold("another", expected + 1)
    assert log.append(b"after").last_lsn == expected + 1
    log.sync()
    log.trim(expected // 10, waste_ratio=0)
    log.enforce_retention(walkit.Retention(records_max=25))
    assert [record.lsn for record in log.follow(expected + 1, timeout=0)] == [expected + 1]
    kept.release()
    if isinstance(scene.opened, walkit.Store):
        scene.opened.checkpoint()
        scene.opened.compact()
    scene.opened.close()


def check(scene: Scene, where: str, expected: int) -> None:
    """The log is open, listed and whole, or closed and unlocked; then it can be opened again, and lacks nothing."""
    storage = scene.storage
    listed = [log for log in walkit.open_logs() if log.parts.storage is storage]
    if listed:
        if scene.opened is None:
            scene.opened = listed[0]
        in_time(lambda: goes_on(scene, expected), where)
        expected += 1
    wait_until(
        lambda: not storage.is_locked(LOCK_NAME), f"the lock, which an interrupt at {where} has left taken"
    )
    log = walkit.open(storage=storage, options=OPTIONS)
    assert log.acked_lsn == expected, where
    log.close()


@pytest.fixture(autouse=True)
def plain_handler() -> Iterator[None]:
    """Interrupts are Python's own in these tests, and a log that an interrupt dropped on its way may warn."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
    signal.signal(signal.SIGINT, before)


def struck(
    name: str, call: Callable[[Callable[[], object]], object], shoot_at: int = 0
) -> tuple[Scene, BaseException | None]:
    """Do it with an interrupt on its way; return the scene, and the interrupt if it came through."""
    act, scene = ready(name)
    scene.storage.arm(shoot_at)
    try:
        scene.made = call(lambda: act(scene))
    except KeyboardInterrupt as error:
        return scene, error
    return scene, None


def expected_of(name: str) -> int:
    """Return the last LSN that must be there afterwards."""
    return 0 if name == "create" else RECORDS + (name in WORKING)


def strike_at(name: str, numbers: Iterator[int]) -> int:
    """Strike at these points, to the last; return how many were struck."""
    for number in numbers:
        strike = Strike(number)
        scene, interrupt = struck(name, strike.run)
        if not strike.where:
            scene.end()
            return number
        assert strike.swallowed or interrupt is not None, f"the interrupt at {strike.where} was lost"
        check(scene, f"{name}, point {number}: {strike.where}", expected_of(name))
    raise AssertionError("no end")


@pytest.mark.parametrize("name", [*OPENING, *WORKING])
def test_an_interrupt_at_points_of_the_main_thread(name: str) -> None:
    """Strike at each point, or some of many: the log is open, listed and at work, or closed and unlocked."""
    step = STEPS.get(name, 1)
    # Those that share points begin at different ones.
    first = 1 + [*OPENING, *WORKING].index(name) % step
    assert strike_at(name, count(first, step)) > 2


@pytest.mark.slow  # some 3,500 points, a minute; each way is struck at some of them by default
@pytest.mark.parametrize("name", [*OPENING, *WORKING])
def test_an_interrupt_at_each_point_of_the_main_thread(name: str) -> None:
    """Strike at one point after the other, to the last: see above."""
    assert strike_at(name, count(1)) > 2


# Slow: each operation. By default SIGINT comes at each third one, and the main thread is struck at points between them.
@pytest.mark.parametrize("step", [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [*OPENING, *WORKING])
def test_an_interrupt_at_operations_of_the_storage(name: str, step: int) -> None:
    """Send SIGINT to the main thread as operations of the storage begin: as above, and nothing is cut in two."""
    for number in count(1, step):
        scene, _ = struck(name, lambda act: act(), number)
        if not scene.storage.shot:
            scene.end()
            break
        check(scene, f"{name}, operation {number}", expected_of(name))
    assert number > 3 or name in ("follow", "wait for maintenance", "ask for a checkpoint", "read on")


@cache
def imported() -> tuple[CrashingStorage, int]:
    """The storage of a killed replica of that store, with half of its records; and its last LSN."""
    storage, manifest = CrashingStorage(), load_manifest(made(False))
    log = replica_on(storage, manifest)
    runs = list(runs_after(made(False), log.end, 1))
    for run in runs[: len(runs) // 2]:
        log.import_run(run, manifest.lineage)
    left, lsn = storage.process_kill(), log.durable_lsn
    log.close()
    return left, lsn


@dataclass
class Following:
    """The scene of one strike: a storage, the address of a primary, and the log or replica open on it, if any."""

    storage: ShootingStorage
    address: str
    opened: Replica | ImportedLog | None = None

    def replica(self) -> Replica:
        """Open a replica."""
        return Replica(self.storage, self.address, options=OPTIONS)

    def log(self) -> ImportedLog:
        """Open a replica's log."""
        return ImportedLog(self.storage, OPTIONS)

    def end(self) -> None:
        """Stop or close what is open."""
        if isinstance(self.opened, Replica):
            self.opened.stop()
        elif self.opened is not None:
            self.opened.close()


Begin = Callable[[Following], Replica | ImportedLog | None]
FOLLOWING: dict[str, tuple[Begin, Callable[[Following], object]]] = {
    "open a replica's log": (lambda _: None, Following.log),
    "open a replica": (lambda _: None, Following.replica),
    "open and start": (lambda _: None, lambda scene: scene.replica().start()),
    "start": (Following.replica, lambda scene: scene.opened.start()),  # type: ignore[union-attr]
    "stop": (lambda scene: scene.replica().start(), Following.end),
    "stop a new one": (Following.replica, Following.end),
    "close a replica's log": (Following.log, Following.end),
}


QUIET = ("open a replica's log", "open a replica")
"""Only the caller's own work is done on the storage here, and no replica's thread."""


@pytest.fixture(scope="module")
def primary() -> Iterator[Primary]:
    """A primary that serves that store."""
    with Primary(made(False).process_kill()) as primary:
        yield primary


def check_following(scene: Following, name: str, where: str) -> None:
    """An open log is usable, or was to end and ends now; a closed one has a free lock. No record is missing."""
    if isinstance(scene.opened, Replica) and name == "start":
        replica = scene.opened
        in_time(lambda: replica.start().wait_for(RECORDS, GUARD_S), where)
    in_time(scene.end, where)
    gc.collect()  # objects that the interrupt dropped may be in a cycle with its frames
    wait_until(
        lambda: not scene.storage.is_locked(LOCK_NAME), f"the lock, which an interrupt at {where} left taken"
    )
    log = scene.log()
    assert log.durable_lsn >= imported()[1], where
    log.close()


def strike_following(name: str, address: str, numbers: Iterator[int]) -> int:
    """Strike at these points, to the last; return how many were struck."""
    begin, act = FOLLOWING[name]
    for number in numbers:
        scene, strike = Following(ShootingStorage(imported()[0].process_kill()), address), Strike(number)
        scene.opened = begin(scene)
        try:
            done, interrupted = strike.run(lambda scene=scene: act(scene)), False  # type: ignore[misc]
        except KeyboardInterrupt:
            done, interrupted = None, True
        if not strike.where:
            scene.opened = scene.opened or done  # type: ignore[assignment]
            scene.end()
            return number
        assert strike.swallowed or interrupted, f"the interrupt at {strike.where} was lost"
        del done
        check_following(scene, name, f"{name}, point {number}: {strike.where}")
    raise AssertionError("no end")


SEEN_EACH_TIME = ("open a replica", "start", "stop")
"""The rest is struck at each of its points by `make test-all`; opening a replica opens its log."""


@pytest.mark.parametrize("name", SEEN_EACH_TIME)
def test_an_interrupt_at_points_of_opening_a_replica(name: str, primary: Primary) -> None:
    """Strike at some points, as above: the replica or its log is open and usable, or ends when asked; or unlocked."""
    assert strike_following(name, primary.address, count(1, STEPS[name])) > 2


@pytest.mark.slow  # minutes, since a replica is started for most points; three ways are struck at some by default
@pytest.mark.parametrize("name", FOLLOWING)
def test_an_interrupt_at_each_point_of_opening_a_replica(name: str, primary: Primary) -> None:
    """Strike at one point after the other, to the last: see above."""
    assert strike_following(name, primary.address, count(1)) > 2


@pytest.mark.slow  # a quarter of a minute; the points above are between these operations
@pytest.mark.parametrize("name", QUIET)
def test_an_interrupt_at_each_operation_of_a_replicas_storage(name: str, primary: Primary) -> None:
    """Send SIGINT to the main thread as each operation of the storage begins: as above."""
    begin, act = FOLLOWING[name]
    for number in count(1):
        scene = Following(ShootingStorage(imported()[0].process_kill()), primary.address)
        scene.opened = begin(scene)
        scene.storage.arm(number)
        try:
            done = act(scene)
        except KeyboardInterrupt:
            done = None
        scene.storage.arm(0)
        if isinstance(done, Replica | ImportedLog):
            scene.opened = done
        del done
        if not scene.storage.shot:
            scene.end()
            break
        check_following(scene, name, f"{name}, operation {number}")
    assert number > 1
