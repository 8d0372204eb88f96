"""Histories in which the storage fails: an operation that a seed draws, in one of several ways, then a new opening."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, TypeAlias

from walkit.config import LogOptions, Retention, StoreOptions
from walkit.crashlab.failing_script import FailingScript
from walkit.crashlab.recording import CHANGES, words_of
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.format.manifest import MANIFEST_NAME
from walkit.format.names import COMPACTION_NEW_NAME, SNAPSHOT_NEW_NAME, TRIM_NEW_NAME
from walkit.models.faults import Operation
from walkit.segments.manifest_store import LOCK_NAME

Way: TypeAlias = Literal["error", "landed", "short", "full", "lasting", "hang"]
"""error: nothing is done, EIO is told. landed: it is done, and EIO is told. short: half of a write arrives. full: it
is ENOSPC. lasting: each change fails from then on. hang: it continues once every other thread waits for it."""
WAYS: tuple[Way, ...] = ("error", "landed", "short", "full", "lasting", "hang")
READS = frozenset(("read", "open"))
POINTS_MAX = 24
"""So many points are kept of each draw, from the failure on."""


@dataclass(frozen=True)
class Target:
    """Which operations may fail, and how: one of the first `up_to` of them does."""

    up_to: int
    operations: frozenset[str] = CHANGES
    file: str = "*"
    job: str | None = None
    """The kind of maintenance job that does it; None if that does not matter."""
    ways: tuple[Way, ...] = WAYS
    covers: str = ""
    """The name in `COVERAGE` of what happens then."""
    in_recovery: bool = False
    """Whether it is an operation of the opening after a power cut."""


class _Failure:
    """One operation that fails."""

    def __init__(self, script: FailingScript, target: Target) -> None:
        self._script, self._target = script, target
        self._storage = script.storage
        self._left = 1 + script.chance.randrange(target.up_to)
        self._way = script.chance.choice(target.ways)
        self._reader = threading.get_ident()
        self._since = len(self._storage.points)
        self.is_met = False

    def meet(self, operation: Operation) -> None:
        """Fail the operation if it is the one."""
        target = self._target
        mine = operation.name in READS and threading.get_ident() == self._reader and target.in_recovery
        if self.is_met or not (operation.name in target.operations or mine):
            return
        if not fnmatchcase(operation.file, target.file) or target.job not in (None, self._job()):
            return
        self._left -= 1
        if self._left:
            return
        self.is_met = True
        storage = self._storage
        del storage.points[self._since :]  # what comes before is that of other scenarios
        storage.take(f"{words_of(operation)}: {self._way}")
        name, file = operation.name, operation.file
        if self._way == "hang":
            storage.turns.wait(last=True)
        elif self._way == "lasting":
            for each in CHANGES:
                storage.fail(each, times=None)
        elif self._way == "short" and operation.size and name in ("write", "synced_write"):
            storage.fail(name, file, short_bytes=operation.size // 2)
        else:
            code = errno.ENOSPC if self._way == "full" else errno.EIO
            storage.fail(name, file, errno=code, landed=self._way == "landed")

    def _job(self) -> str | None:
        return None if threading.get_ident() == self._reader else self._storage.job()

    def end(self) -> None:
        """Let nothing fail from now on, and keep the points from the failure on."""
        self._storage.watch = lambda operation: None
        self._storage.clear()
        kept = self._since + POINTS_MAX if self.is_met else self._since
        del self._storage.points[kept:]
        if self._target.covers:
            self._storage.note(self._target.covers, self._since)


def _failing(
    history: Callable[[FailingScript], None], targets: tuple[Target, ...], is_store: bool, given: Script
) -> None:
    """Run the history once for each target."""
    script = FailingScript(given)
    for target in targets:
        script.begin()
        if target.in_recovery:
            history(script)
            script.cut_power(script.chance.randrange(1000))
        failure = _Failure(script, target)
        script.storage.watch = failure.meet
        if not target.in_recovery:
            with script.failing():
                history(script)
            _check_closed(script)
        if script.options.ack_order == "completion":
            failure.end()
            continue
        with script.failing():
            _continue(script, is_store)
        _check_closed(script)
        script.storage.watch = lambda operation: None
        script.storage.clear()
        if script.chance.random() < 0.3:
            script.cut_power(script.chance.randrange(1000))
        _continue(script, is_store)
        failure.end()


def _continue(script: FailingScript, is_store: bool) -> None:
    """Open what is left, and append."""
    if is_store:
        with script.during("recovery"):
            store = script.open_store()
        with store:
            script.restarted(store.log)
            script.put(store, b"key 1", 300)
        return
    with script.during("recovery"):
        log = script.open()
    with log:
        script.restarted(log)
        script.append(log, 700)
        script.note_durable(log)


def _check_closed(script: FailingScript) -> None:
    assert not script.storage.inner.is_locked(LOCK_NAME), "the lock is taken"


def _writing(script: FailingScript) -> None:
    with script.open() as log:
        script.append(log, 300, b"k")
        script.transaction(log, 3, 400)
        script.append_many(log, 3, 5_000)
        for number in range(10):
            script.append(log, 12_000)
            script.note_durable(log)
            if number == 5:
                with script.failing():
                    script.sync(log)
        script.delete(log, b"k")


def _sealing(script: FailingScript) -> None:
    with script.open() as log:
        for _ in range(16):
            script.append(log, 12_000)
            script.note_durable(log)


def _zeroing(script: FailingScript) -> None:
    with script.open() as log:
        for _ in range(22):
            script.append(log, 14_000)
        script.settle(log)
        script.append(log, 100)
        script.note_durable(log)


def _trimming(script: FailingScript) -> None:
    with script.open() as log:
        for _ in range(30):
            script.append(log, 4_000)
        hold = log.hold("slow", 10)
        script.keep_from("slow", 10)
        with script.failing():
            script.trim(log, 15)
        script.let_go("slow")
        with script.failing():
            hold.release()
        for lsn in (20, 22, 22):
            with script.failing():
                script.trim(log, lsn)
            script.append(log, 4_000)
        script.may_drop(len(script.ledger.rows))
        with script.failing():
            log.enforce_retention(Retention(records_max=5))
        script.append(log, 100)


def _parallel(script: FailingScript) -> None:
    with script.open() as log:
        for _ in range(3):
            script.submit(log, 12, 3_500)
            script.note_durable(log)


def _store(script: FailingScript) -> None:
    with script.open_store() as store:
        for number in range(9):
            script.put(store, b"key %d" % (number % 3), 12_000)
        with script.failing():
            script.checkpoint(store, trim=False)
        script.delete(store, b"key 1")
        for _ in range(6):
            script.put(store, b"key 0", 12_000)
        for _ in range(2):
            with script.failing():
                script.compact(store)
        script.put(store, b"key 2", 200)
        with script.failing():
            script.checkpoint(store)
        script.put(store, b"key 3", 200)


def _store_by_itself(script: FailingScript) -> None:
    with script.open_store(StoreOptions(checkpoint_every=4, journal_slots=64)) as store:
        for number in range(12):
            script.may_drop(number + 1)
            script.put(store, b"key %d" % (number % 4), 9_000)


SYNCS = frozenset(("sync",))
NAMING = frozenset(("sync", "replace", "sync_directory"))
PARALLEL = replace(SMALL, in_flight=4, frame_bytes_max=4096)


def _scenario(
    name: str,
    text: str,
    history: Callable[[FailingScript], None],
    targets: tuple[Target, ...],
    options: LogOptions = SMALL,
    is_store: bool = False,
) -> Scenario:
    covers = tuple(dict.fromkeys(target.covers for target in targets if target.covers))
    run = partial(_failing, history, targets, is_store)
    return Scenario(name, text, run, options, is_store, covers)


FAULT_SCENARIOS = (
    _scenario(
        "faults",
        "operations of appends, rotations and openings fail, and the log is opened again",
        _writing,
        (
            Target(60),
            Target(30, file="*.segment"),
            Target(60),
            Target(12, job="prepare"),
            Target(50, in_recovery=True),
        ),
    ),
    _scenario(
        "faults-unsynced",
        "durability none: the sync of a seal fails and hangs",
        _sealing,
        (
            Target(1, SYNCS, "*.segment", "seal", ("error", "landed", "lasting"), "seal fails"),
            Target(1, SYNCS, "*.segment", "seal", ("hang",), "sync hangs"),
            Target(60),
            Target(50, in_recovery=True),
        ),
        replace(SMALL, durability="none"),
    ),
    _scenario(
        "faults-interval",
        "durability interval: an operation fails, among them the log's own syncs",
        _writing,
        (Target(60), Target(4, SYNCS, "*.segment"), Target(60)),
        replace(SMALL, durability="interval", interval_ms=5),
    ),
    _scenario(
        "faults-zeroing",
        "zeroing ahead of the frames fails",
        _zeroing,
        (
            Target(2, CHANGES, "*.segment", "zero", ("error", "landed", "short", "lasting"), "zero fails"),
            Target(2, CHANGES, "*.segment", "zero", ("hang", "full"), "zero fails"),
        ),
        replace(SMALL, segment_bytes=3 << 20),
    ),
    _scenario(
        "faults-trim",
        "trims, a rewriting and a retention fail at one of their operations, and are asked for again",
        _trimming,
        (
            Target(8, NAMING, f"{MANIFEST_NAME}*", covers="manifest fails"),
            Target(4, file=TRIM_NEW_NAME),
            Target(4, frozenset(("remove", "replace"))),
            Target(140),
        ),
    ),
    _scenario(
        "faults-store",
        "checkpoints and compactions fail at one of their operations, and are asked for again",
        _store,
        (
            Target(2, SYNCS, SNAPSHOT_NEW_NAME, covers="snapshot fails"),
            Target(3, NAMING, "snapshot-*"),
            Target(6, file=COMPACTION_NEW_NAME),
            Target(6, frozenset(("remove", "replace"))),
            Target(160),
            Target(50, in_recovery=True),
        ),
        is_store=True,
    ),
    _scenario(
        "faults-store-by-itself",
        "a Store with a journal, which takes its checkpoints by itself: one of them fails",
        _store_by_itself,
        (Target(3, file=SNAPSHOT_NEW_NAME), Target(3, NAMING), Target(90)),
        is_store=True,
    ),
    _scenario(
        "faults-parallel",
        "four frames in flight, of which one fails or hangs",
        _parallel,
        (Target(25, frozenset(("synced_write",))), Target(25, frozenset(("synced_write",))), Target(60)),
        PARALLEL,
    ),
    _scenario(
        "faults-completion",
        "the same, acknowledged as they are written",
        _parallel,
        (Target(25, frozenset(("synced_write",))), Target(25, frozenset(("synced_write",))), Target(60)),
        replace(PARALLEL, ack_order="completion", recovery="holes"),
    ),
)
