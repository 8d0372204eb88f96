"""Histories in which the storage fails: an operation that a seed draws, in one of several ways, then a new opening."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Literal, TypeAlias

from walkit.config import LogOptions, Retention
from walkit.crashlab.crash_rules import Oracle
from walkit.crashlab.failing_histories import (
    consuming,
    damaged,
    each_way,
    filling,
    parallel,
    retaining,
    store,
    store_by_itself,
    trimming,
    without_manifest,
    writing,
)
from walkit.crashlab.failing_script import FailingScript
from walkit.crashlab.recording import CHANGES, describe
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.format.file_names import COMPACTION_NEW_NAME, SNAPSHOT_NEW_NAME, TRIM_NEW_NAME
from walkit.format.manifest import MANIFEST_NAME
from walkit.models.faults import ASIDE, Operation, OperationName

Way: TypeAlias = Literal["error", "landed", "short", "full", "lasting", "hang", "slow"]
"""error: nothing is done, EIO is told. landed: it is done, and EIO is told. short: half of a write arrives. full: it
is ENOSPC. lasting: each change fails from then on, and each operation of the target. hang: it continues once every
other thread waits for it. slow: each change hangs from then on."""
WAYS: tuple[Way, ...] = ("error", "landed", "short", "full", "lasting", "hang", "slow")
History: TypeAlias = Callable[[FailingScript], None]
READS = frozenset[OperationName](("read", "open", "drop_cached"))
OTHERS = ASIDE | READS
POINTS_MAX = 24
"""So many points are kept of each draw, from the failure on."""


@dataclass(frozen=True)
class Target:
    """Which operations may fail, and how: one of the first `up_to` of them does."""

    up_to: int
    operations: frozenset[OperationName] = CHANGES
    file: str = "*"
    job: str | None = None
    """The kind of maintenance job that does it; None if that does not matter."""
    ways: tuple[Way, ...] = WAYS
    covers: str = ""
    """The name of the event in `COVERAGE`."""
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
        if self.is_met or operation.name not in target.operations:
            return
        if not fnmatchcase(operation.file, target.file) or target.job not in (None, self._job()):
            return
        self._left -= 1
        if self._left:
            return
        self.is_met = True
        storage = self._storage
        del storage.points[self._since :]  # earlier points belong to other scenarios
        storage.take(f"{describe(operation)}: {self._way}")
        name, file = operation.name, operation.file
        if self._way in ("hang", "slow"):
            self._script.is_slow = True
            storage.turns.wait(last=True)
            if self._way == "slow":
                storage.watch = self._slow
        elif self._way == "lasting":
            self._script.fails_on = True
            for each in CHANGES | target.operations:
                storage.fail(each, times=None)
        elif self._way == "short" and operation.size and name in ("write", "synced_write"):
            storage.fail(name, file, short_bytes=operation.size // 2)
        else:
            code = errno.ENOSPC if self._way == "full" else errno.EIO
            storage.fail(name, file, errno=code, landed=self._way == "landed")

    def _slow(self, operation: Operation) -> None:
        if operation.name in CHANGES:
            self._storage.turns.wait(last=True)

    def _job(self) -> str | None:
        return None if threading.get_ident() == self._reader else self._storage.job()

    def stop(self) -> None:
        """Let nothing fail from now on."""
        self._storage.watch = lambda operation: None
        self._storage.clear()
        self._script.is_slow = self._script.fails_on = False

    def end(self) -> None:
        """Let nothing fail from now on, and keep the points from the failure on."""
        self.stop()
        kept = self._since + POINTS_MAX if self.is_met else self._since
        del self._storage.points[kept:]
        if self._target.covers:
            self._storage.note(self._target.covers, self._since)


def _failing(
    history: History, resume: History, targets: tuple[Target, ...], oracle: Oracle, given: Script
) -> None:
    """Run the history once for each target, and resume it."""
    script = FailingScript(given)
    for target in targets:
        script.begin()
        if target.in_recovery:
            since = len(script.storage.points)
            history(script)
            del script.storage.points[since:]
            script.cut_power(script.chance.randrange(1000))
        failure = _Failure(script, target)
        script.storage.watch = failure.meet
        if not target.in_recovery:
            with script.failing():
                history(script)
            script.check_left(oracle)
        if script.options.ack_order == "completion":
            failure.end()
            continue
        with script.failing():
            resume(script)
        script.check_left(oracle)
        failure.stop()
        if script.chance.random() < 0.3:
            script.cut_power(script.chance.randrange(1000))
        resume(script)
        failure.end()


def _continue(script: FailingScript, is_store: bool) -> None:
    """Open the rest, and append."""
    if is_store:
        with script.during("recovery"):
            store = script.open_store()
        with store:
            script.restarted(store.log)
            script.put(store, b"key 1", 300)
        return
    with script.during("recovery"):
        script.repair()
        log = script.open()
    with log:
        script.restarted(log)
        script.append(log, 700)
        script.note_durable(log)


SYNCS = frozenset[OperationName](("sync",))
NAMING = frozenset[OperationName](("sync", "replace", "sync_directory"))
NOT_FULL = tuple(way for way in WAYS if way != "full")
"""For records in flight together: a full disk may refuse one and take the next, which then has the other's LSN."""
FRAMES_FAIL = (
    *(Target(25, frozenset(("synced_write",)), ways=NOT_FULL),) * 2,
    Target(60, ways=NOT_FULL),
)
PARALLEL = replace(SMALL, in_flight=4, frame_bytes_max=4096)


def failing_scenario(
    name: str,
    text: str,
    history: History,
    targets: tuple[Target, ...],
    options: LogOptions = SMALL,
    is_store: bool = False,
    *,
    resume: History | None = None,
    kind: type[Scenario] = Scenario,
) -> Scenario:
    """Return a scenario of a history in which an operation fails; by default the rest is opened and appended to."""
    covers = tuple(dict.fromkeys(target.covers for target in targets if target.covers))
    resume = resume or partial(_continue, is_store=is_store)
    oracle = kind(name, text, lambda script: None, options, is_store).oracle()
    return kind(name, text, partial(_failing, history, resume, targets, oracle), options, is_store, covers)


FAULT_SCENARIOS = (
    failing_scenario(
        "faults",
        "operations of appends, rotations and openings fail, and the log is opened again",
        writing,
        (
            Target(60),
            Target(30, file="*.segment"),
            Target(60),
            Target(12, job="prepare"),
            Target(90, OTHERS),
            Target(50, CHANGES | READS, in_recovery=True),
            Target(60, OTHERS, in_recovery=True),
        ),
    ),
    failing_scenario(
        "faults-ways",
        "eight frames in flight, durability none: records are appended in each way that there is",
        each_way,
        (Target(40, ways=NOT_FULL), Target(90, OTHERS, ways=NOT_FULL), Target(60, ways=NOT_FULL)),
        replace(SMALL, durability="none", in_flight=8, frame_bytes_max=8192),
    ),
    failing_scenario(
        "faults-consumers",
        "cursors, a claim, a drain and readers meet failing operations of every kind",
        consuming,
        (
            Target(60),
            Target(90, OTHERS),
            Target(20, file="claim*"),
            Target(8, file="cursor-*"),
            Target(220, OTHERS),
        ),
    ),
    failing_scenario(
        "faults-retention",
        "a log keeps itself small on its maintenance thread, which fails",
        retaining,
        (Target(12, job="retain"), Target(12, OTHERS, job="retain"), Target(100)),
        replace(SMALL, retention=Retention(bytes_max=70_000)),
    ),
    *(
        failing_scenario(
            name,
            text,
            history,
            tuple(
                Target(up_to, operations, in_recovery=True)
                for operations in (CHANGES, ASIDE - {"size"})
                for up_to in (12, 50)
            ),
            options,
        )
        for name, text, history, options in (
            (
                "faults-salvage",
                "a header and a frame are damaged, and the opening that salvages the rest fails",
                damaged,
                replace(SMALL, recovery="salvage"),
            ),
            ("faults-repair", "the same, and the manifest: its repair fails", without_manifest, SMALL),
        )
    ),
    failing_scenario(
        "faults-unsynced",
        "durability none: the sync of a seal fails and hangs",
        filling,
        (
            # Whatever the maintenance does then: a device thread makes the sync that a seal needs.
            Target(3, SYNCS, "*.segment", ways=("error", "landed", "lasting"), covers="seal fails"),
            Target(3, SYNCS, "*.segment", ways=("hang",), covers="sync hangs"),
            Target(60),
            Target(50, CHANGES | READS, in_recovery=True),
        ),
        replace(SMALL, durability="none"),
    ),
    failing_scenario(
        "faults-interval",
        "durability interval: an operation fails, among them the log's own syncs",
        writing,
        (Target(60), Target(4, SYNCS, "*.segment"), Target(60)),
        replace(SMALL, durability="interval", interval_ms=5),
    ),
    failing_scenario(
        "faults-zeroing",
        "zeroing ahead of the frames fails",
        filling,
        (
            Target(2, CHANGES, "*.segment", "zero", ("error", "landed", "short", "lasting"), "zero fails"),
            Target(2, CHANGES, "*.segment", "zero", ("hang", "full"), "zero fails"),
        ),
        replace(SMALL, segment_bytes=3 << 20),
    ),
    failing_scenario(
        "faults-trim",
        "trims, a rewriting and a retention fail at one of their operations, and are asked for again",
        trimming,
        (
            Target(8, NAMING | {"synced_write"}, f"{MANIFEST_NAME}*", covers="manifest fails"),
            Target(4, file=TRIM_NEW_NAME),
            Target(8, file="claim*"),
            Target(4, frozenset(("remove", "replace"))),
            Target(140),
            Target(160, OTHERS),
        ),
    ),
    failing_scenario(
        "faults-store",
        "checkpoints and compactions fail at one of their operations, and are asked for again",
        store,
        (
            Target(2, SYNCS, SNAPSHOT_NEW_NAME, covers="snapshot fails"),
            Target(3, NAMING, "snapshot-*"),
            Target(6, file=COMPACTION_NEW_NAME),
            Target(6, frozenset(("remove", "replace"))),
            Target(160),
            Target(200, OTHERS),
            Target(50, CHANGES | READS, in_recovery=True),
            Target(60, OTHERS, in_recovery=True),
        ),
        is_store=True,
    ),
    failing_scenario(
        "faults-store-by-itself",
        "a Store with a journal, which takes its checkpoints by itself: one of them fails",
        store_by_itself,
        (Target(3, file=SNAPSHOT_NEW_NAME), Target(3, NAMING), Target(90)),
        is_store=True,
    ),
    failing_scenario(
        "faults-parallel",
        "four frames in flight, of which one fails or hangs",
        parallel,
        FRAMES_FAIL,
        PARALLEL,
    ),
    failing_scenario(
        "faults-completion",
        "the same, acknowledged as they are written",
        parallel,
        FRAMES_FAIL,
        replace(PARALLEL, ack_order="completion", recovery="holes"),
    ),
)
