"""The fault loop: one scene again and again, with another call to the storage failing each time, then a power cut.

`Ledger` keeps what was appended, what was acknowledged or called durable, and which step runs; `Loop` runs a scene for
every call. A scene is a function that does things to a log through a ledger and survives what they raise; it may say
how its outcome is looked at.
"""

from __future__ import annotations

import contextlib
import faulthandler
import random
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import pytest

import walkit
from tests.commit.fake_segments import Task
from tests.log.everycall import EveryCall, Fault, Kind
from walkit.errors import (
    CommitFailedError,
    LogClosedError,
    LogFullError,
    LogPoisonedError,
    StorageError,
    WalkitError,
)
from walkit.models import CrashingStorage
from walkit.recovery.log_scan import read_durable_slot
from walkit.storage.interface import Storage

STEP_S = 30.0
"""How long one step may take. The longest that is right takes some hundred milliseconds on a busy machine."""
WRITE_S = 0.0002
"""How long a write takes where several frames are in flight, so that they are."""
SLOW_WRITE_S = 0.003
"""The same on a slow device: long enough that time's own syncs come in between."""
CALLS_MAX = 5000
"""A scene that makes more calls than this never ends."""
Row = tuple[int, bytes | None, bytes | None]
_T = TypeVar("_T")

REFUSALS = (LogFullError, LogPoisonedError, LogClosedError)
"""Nothing of the call was written, but for its acknowledged prefix."""


@dataclass
class Ledger:
    """What was done to a log in one run, and what it has promised."""

    options: walkit.LogOptions
    rows: list[Row] = field(default_factory=list)
    """By LSN from 1 on: what was appended, but for what was refused before it was written."""
    acknowledged: set[int] = field(default_factory=set)
    durable_lsn: int = 0
    """The last LSN that anything has called durable."""
    low_watermark: int = 0
    """The last LSN that was asked to be dropped."""
    given_up: set[int] = field(default_factory=set)
    """LSNs of damaged records, which salvage gives up."""
    errors: list[tuple[str, WalkitError]] = field(default_factory=list)
    in_order: bool = False
    """Whether the log closed without an error and had not failed: then all of it is sealed."""
    at: str = "begin"
    """The step that is under way."""
    since: float = field(default_factory=time.monotonic)
    after_step: Callable[[], object] = lambda: None

    def begin(self, name: str) -> None:
        """Say what is under way from now on."""
        self.at, self.since = name, time.monotonic()

    def step(self, name: str, act: Callable[[], _T]) -> _T | None:
        """Do something that may meet the fault; None where it raised one of walkit's errors."""
        self.begin(name)
        try:
            return act()
        except WalkitError as error:
            self.errors.append((name, error))
            return None
        finally:
            self.after_step()

    def appended(self, name: str, rows: Iterable[Row], act: Callable[[], walkit.AppendResult | None]) -> None:
        """Append these rows in one call, or several that end in order."""
        rows, first = list(rows), len(self.rows) + 1
        self.rows += rows
        self.begin(name)
        try:
            result = act()
        except CommitFailedError as error:
            self._acknowledge(first, error.acknowledged_prefix)
            self.errors.append((name, error))
        except REFUSALS as error:
            self._acknowledge(first, error.acknowledged_prefix)
            del self.rows[first - 1 + error.acknowledged_prefix :]
            self.errors.append((name, error))
        else:
            assert result is not None
            assert (result.first_lsn, result.last_lsn) == (first, len(self.rows)), f"{name} gave {result}"
            self._acknowledge(first, len(rows))
        self.after_step()

    def _acknowledge(self, first_lsn: int, count: int) -> None:
        self.acknowledged.update(range(first_lsn, first_lsn + count))

    def outcomes(self, name: str, rows: list[Row], results: Iterable[Callable[[], Any]]) -> None:
        """Append rows one by one, all before the first is waited for; each of `results` returns or raises what came."""
        self.begin(name)
        for row, result in zip(rows, results, strict=True):
            try:
                got = result().first_lsn
            except CommitFailedError as error:
                self.rows.append(row)
                self.errors.append((name, error))
            except REFUSALS as error:
                self.errors.append((name, error))
            else:
                self.rows.append(row)
                self.acknowledged.add(len(self.rows))
                assert got == len(self.rows), f"{name} gave LSN {got}, and not {len(self.rows)}"
        self.after_step()

    def called_durable(self, lsn: int | None) -> None:
        """Somebody has called everything up to here durable."""
        self.durable_lsn = max(self.durable_lsn, lsn or 0)

    def check_errors(self) -> None:
        """Every error of the storage says which one it was."""
        nameless = [e for _, e in self.errors if isinstance(e, StorageError) and e.errno is None]
        assert not nameless, f"no errno: {nameless!r}"

    def copy(self) -> Ledger:
        """Return what is known now; what comes later is not in it."""
        return replace(
            self, rows=list(self.rows), acknowledged=set(self.acknowledged), errors=list(self.errors)
        )

    def promised(self) -> set[int]:
        """Return the LSNs that a power cut must leave."""
        durable = set(range(1, self.durable_lsn + 1))
        return (durable | self.acknowledged if self.options.durability == "sync" else durable) - self.given_up

    def check_records(self, records: Iterable[walkit.Record], first_lsn: int, last_lsn: int) -> None:
        """Compare what an opening has found: all that was promised, and nothing that was never appended."""
        found = {r.lsn: (int(r.kind), r.key, r.value) for r in records}
        promised = self.promised()
        missing = sorted(lsn for lsn in promised if lsn >= first_lsn and lsn not in found)
        assert not missing, f"promised and missing: LSNs {missing}, found {sorted(found)[-1:]}"
        begins = self.low_watermark + 1
        while begins in self.given_up:
            begins += 1
        assert first_lsn <= begins, f"begins at {first_lsn}, trimmed to {self.low_watermark}"
        assert last_lsn >= max(promised, default=0), f"ends at {last_lsn}"
        wrong = [lsn for lsn, row in found.items() if lsn > len(self.rows) or row != self.rows[lsn - 1]]
        assert not wrong, f"LSNs {wrong} are not what was appended ({len(self.rows)} rows)"


class Scene(Protocol):
    """What is done, and how its outcome is looked at. Its methods may run in several threads."""

    def fitted(self, options: walkit.LogOptions) -> walkit.LogOptions:
        """Return the options of the log, in whose place the scene may want others."""

    def image(self, ledger: Ledger) -> CrashingStorage:
        """Return a storage to begin with, and note in the ledger what stands in it."""

    def play(self, storage: EveryCall, ledger: Ledger) -> Callable[[], object] | None:
        """Do it, and return what closes it; None where nothing was opened."""

    def look(self, storage: Storage, ledger: Ledger) -> None:
        """Open what is left, check it against the ledger, append to it, close it."""


@dataclass
class Run:
    """One run of a scene, with one fault."""

    fault: Fault
    ledger: Ledger
    storage: EveryCall
    cuts: list[tuple[str, CrashingStorage, Ledger]] = field(default_factory=list)
    """Power cuts: when, what is left, and what was promised by then."""

    def cut(self, when: str) -> None:
        """Cut the power of a copy, now; what the durable slot says has been called durable."""
        self.ledger.called_durable(read_durable_slot(self.storage.inner).lsn)
        known = self.ledger.copy()
        self.cuts.append((when, self.storage.inner.crash(keep="none"), known))

    def __str__(self) -> str:
        hits = ", ".join(self.storage.hits[:2])
        return f"{self.fault} ({hits}), step {self.ledger.at!r}"


class Loop:
    """Runs a scene with each fault of a kind; what is wrong is collected, with the call that was hit.

    Every `step`th call is failed, or `drawn` calls that a seed draws; `threads` runs go on side by side.
    """

    def __init__(
        self,
        scene: Scene,
        options: walkit.LogOptions,
        kind: Kind,
        *,
        forever: bool = False,
        step: int = 1,
        drawn: int | None = None,
        threads: int = 1,
    ) -> None:
        self.scene, self.options = scene, scene.fitted(options)
        self.kind, self.forever = kind, forever
        self.wrong: list[str] = []
        self.runs = 0
        self._numbers: Iterator[int] = iter(range(1, CALLS_MAX, step))
        self._drawn = drawn
        self._count = threads
        self._now: dict[int, Run] = {}
        self._guard = threading.Lock()
        self._ended = False

    def run(self) -> None:
        """Fail each call in turn until none is hit, or those that are drawn; fails with all that was found."""
        with _uncaught(self._note):
            if self._drawn is not None:
                self._numbers = _drawn_of(self._with_fault_at(CALLS_MAX).calls, self._drawn)
            tasks = [Task(self._all) for _ in range(self._count)]
            for task in tasks:
                self._watch(task)
                task.result()
        assert self.runs > 0, "no call was hit"
        if self.wrong:
            text = "\n".join(self.wrong[:12])
            pytest.fail(f"{len(self.wrong)} of {self.runs} runs went wrong\n{text}", pytrace=False)

    def _watch(self, task: Task) -> None:
        """Wait for a thread; a step that hangs fails the test at once, with the stacks of all threads."""
        while task.thread.is_alive():
            task.thread.join(0.2)
            for run in list(self._now.values()):
                if time.monotonic() - run.ledger.since > STEP_S:
                    pytest.fail(f"{run} hangs\n{_stacks()}", pytrace=False)

    def _note(self, what: str) -> None:
        with self._guard:
            self.wrong.append(what)

    def _all(self) -> None:
        while not self._ended:
            with self._guard:
                nth = next(self._numbers, None)
            if nth is None:
                assert self._drawn is not None, f"more than {CALLS_MAX} calls"
                return
            storage = self._with_fault_at(nth)
            with self._guard:
                self.runs += bool(storage.hits)
                self._ended = self._ended or (self._drawn is None and not storage.hits)

    def _with_fault_at(self, nth: int) -> EveryCall:
        ledger, fault = Ledger(self.options), Fault(self.kind, nth, self.forever)
        write_s = SLOW_WRITE_S if fault.slow else WRITE_S
        storage = EveryCall(self.scene.image(ledger), write_s=write_s if self.options.in_flight > 1 else 0.0)
        run = self._now[threading.get_ident()] = Run(fault, ledger, storage)
        try:
            self._play(run)
        except Exception as error:
            self._note(f"{run}: {type(error).__name__}: {error}; told {_told(ledger)}")
        del self._now[threading.get_ident()]
        return storage

    def _play(self, run: Run) -> None:
        """Run the scene, cut the power, and look at what is left."""
        storage, ledger = run.storage, run.ledger
        storage.arm(run.fault)
        if run.fault.nth % 2:  # every other time in its midst, else before it is closed
            ledger.after_step = lambda: None if run.cuts or not storage.hits else run.cut("after that step")
        close = self.scene.play(storage, ledger)
        ledger.after_step = lambda: None
        if not run.cuts:
            run.cut("before closing")
        if close is not None:
            ledger.step("close", close)
        storage.disarm()
        run.cut("after closing")
        assert not storage.inner.is_locked("lock"), "the lock is taken"
        leaked = sorted(file.name for file in storage.open_files)
        assert not leaked, f"still open: {leaked}"
        ledger.check_errors()
        assert not run.fault.slow or not ledger.errors, "a slow device is no error"
        for name, image, known in [*run.cuts, ("opened again", storage.inner, ledger)]:
            ledger.begin(f"look, {name}")
            self.scene.look(image, known)


def _drawn_of(calls: int, count: int) -> Iterator[int]:
    """Yield so many of these calls, one of each part: no two runs of a scene make just as many calls."""
    chance, count = random.Random(0), min(calls, count)
    for part in range(count):
        yield chance.randrange(calls * part // count, calls * (part + 1) // count) + 1


def _told(ledger: Ledger) -> str:
    return "; ".join(f"{name}: {type(error).__name__}" for name, error in ledger.errors[:4]) or "of no error"


def _stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


@contextlib.contextmanager
def _uncaught(note: Callable[[str], object]) -> Iterator[None]:
    """Note what ends a thread with an exception."""
    before = threading.excepthook
    threading.excepthook = lambda args: note(f"a thread ended with {args.exc_value!r}")
    try:
        yield
    finally:
        threading.excepthook = before
