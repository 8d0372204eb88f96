"""One person's scratch log, the writers on it, and a store: one of each for a browser session. No panel in here.

Slow work runs on a worker thread of the session, one job at a time; a view calls `read()` and never waits. An error is
shown as a sentence.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from typing import Any, Literal

from walkit._internal.text import counted
from walkit.compaction import CompactionReport
from walkit.config import LogOptions
from walkit.errors import OptionsError, WalkitError
from walkit.log.trim import TrimPreview, TrimReport
from walkit.measure import Run, RunEvent
from walkit.measure.run import plain
from walkit.plots import Amplification
from walkit.read.claim import Claim
from walkit.read.inventory import LogInventory
from walkit.state.checkpoint import CheckpointReport
from walkit.store import Store
from walkit.views.background_jobs import Jobs, sentence
from walkit.views.fault_lab import Killed, RecoveryLab
from walkit.views.history import EVENTS_MAX
from walkit.views.run_list import Entry
from walkit.views.sources import ChildSource, Reading
from walkit.workload.process import ChildWriterError
from walkit.workload.steady import ContinuousLoad, SteadyWriter
from walkit.workload.steady_run import SteadyRecord

logger = logging.getLogger("walkit")

Step = Literal["write", "hold", "cursor", "checkpoint", "compact", "trim"]
STEPS: dict[Step, str] = {
    "write": "writing records to the store",
    "hold": "taking or releasing a hold",
    "cursor": "moving the cursor",
    "checkpoint": "taking a checkpoint",
    "compact": "compacting",
    "trim": "trimming",
}
RECORDS = 6_000
"""Records of one writing."""
KEYS = 1_500
KEY_BYTES = 9
VALUE_BYTES = 160
STEPS_MAX = 60
"""Steps whose amplification is kept."""
OPTIONS = LogOptions(segment_bytes=256 * 1024, frame_bytes_max=64 * 1024, idle_marker_ms=0)


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """The effect of one step on the store's log."""

    step: Step
    words: str
    """The outcome, as a sentence."""
    before: LogInventory
    after: LogInventory
    report: CheckpointReport | CompactionReport | TrimReport | None = None
    preview: TrimPreview
    """The effect of the largest possible trim now."""
    history: tuple[Amplification, ...] = ()
    """After each of the last STEPS_MAX steps, this one included."""


class Shelf:
    """A store in a folder, made by its first step. Steps come from one thread; `close` may come from any."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._closed = False
        self._begin(1)

    def _begin(self, number: int) -> None:
        """Forget all of a store; the next one has this number."""
        self._number = number
        self._path = self._path_of(number)
        self._store: Store | None = None
        self._hold: Claim | None = None
        self._history: tuple[Amplification, ...] = ()
        self._upkeep_bytes = 0

    def _path_of(self, number: int) -> str:
        return os.path.join(self._folder, "store" if number == 1 else f"store-{number}")

    def _check(self) -> None:
        """Assert the invariants between two steps: nothing is kept of a store that is not open."""
        with self._lock:
            assert self._path == self._path_of(self._number)
            is_open = self._store is not None
            assert not (self._closed and is_open), "a store is open that nothing closes"
            is_fresh = self._hold is None and not self._history and not self._upkeep_bytes
            assert is_open or is_fresh or self._closed
            assert len(self._history) <= STEPS_MAX and self._upkeep_bytes >= 0

    def do(self, step: Step) -> StepReport:
        """Do one step and return its effect. Raises the store's errors; LogClosedError after `close`."""
        store = self._opened()
        before = store.inventory()
        report: CheckpointReport | CompactionReport | TrimReport | None = None
        if step == "checkpoint":
            report = store.checkpoint(trim=False)
            words = f"There is a snapshot at LSN {report.lsn:,}; an opening replays the records after it."
        elif step == "compact":
            report = store.compact()
            words = f"{counted(report.records_dropped, 'record')} and {counted(report.bytes_saved, 'byte')} are gone."
        elif step == "trim":
            report = store.log.trim(store.log.acked_lsn)
            words = (
                f"The low watermark is {report:,}: never past a hold, nor past the newest snapshot, which the state "
                f"needs. {report.bytes_saved:,} bytes are gone."
            )
        else:
            words = {
                "write": self._write,
                "hold": self._turn_hold,
                "cursor": self._cursor,
            }[step](store)
        after = store.inventory()
        self._note(store, step, after, report)
        self._check()
        return StepReport(
            step=step,
            words=words,
            before=before,
            after=after,
            report=report,
            preview=store.log.parts.trimmer.preview(store.log.acked_lsn),
            history=self._history,
        )

    def _note(
        self,
        store: Store,
        step: Step,
        after: LogInventory,
        report: CheckpointReport | CompactionReport | TrimReport | None,
    ) -> None:
        """Add the log's current cost to the history."""
        if isinstance(report, CheckpointReport):
            self._upkeep_bytes += report.snapshot_bytes
        elif isinstance(report, CompactionReport):
            self._upkeep_bytes += report.bytes_written
        elif report is not None:
            self._upkeep_bytes += report.rewritten.bytes_written
        measured = store.log.statistics()
        live_bytes = len(store) * (KEY_BYTES + VALUE_BYTES)
        if live_bytes and measured.user_bytes:
            written = (measured.frame_bytes + self._upkeep_bytes) / measured.user_bytes
            made = Amplification(step, after.size_bytes / live_bytes, written)
            self._history = (*self._history, made)[-STEPS_MAX:]

    def renew(self) -> None:
        """Close and remove the store, whatever has become of it; the next step makes another one."""
        with self._lock:
            store, path = self._store, self._path
            self._begin(self._number + 1)
        self._check()
        try:
            if store is not None:
                store.close()
        except WalkitError:
            logger.info("a store that is given up did not close in order", exc_info=True)
        finally:
            shutil.rmtree(path, ignore_errors=True)

    def _opened(self) -> Store:
        with self._lock:
            if self._closed:
                raise OptionsError("the session has ended")
            if self._store is None:
                self._store = Store.open(self._path, options=OPTIONS)
            return self._store

    def _write(self, store: Store) -> str:
        first = store.log.acked_lsn + 1
        numbers = range(first, first + RECORDS)
        store.put_many([b"key %05d" % (n % KEYS) for n in numbers], [b"%010d" % n * 16 for n in numbers])
        store.log.wait_idle()
        return (
            f"LSN {first:,} to {store.log.acked_lsn:,} were written: {RECORDS:,} records over {KEYS:,} keys."
        )

    def _turn_hold(self, store: Store) -> str:
        if self._hold is not None:
            self._hold.release()
            self._hold = None
            return "The claim is released: it no longer keeps records."
        first = max((store.log.first_lsn + store.log.acked_lsn) // 2, store.log.first_lsn)
        self._hold = store.log.hold("auditor", first)
        return f"The claim needs LSN {first:,} and later ones: no trim or compaction touches them."

    @staticmethod
    def _cursor(store: Store) -> str:
        store.log.drop_cursor("exporter")
        cursor = store.log.cursor("exporter", start_lsn=store.log.acked_lsn + 1)
        return f"The cursor is at LSN {cursor.lsn:,}. It records progress, and keeps no records."

    def close(self) -> None:
        """Close the store. Closing twice does nothing."""
        with self._lock:
            self._closed = True
            store, self._store = self._store, None
        if store is not None:
            store.close()


RECORDS_BEFORE_KILL = 200
"""Records that a writer started only to be killed writes before that."""
PATIENCE_S = 30.0
"""How long a child may take for its first records."""
RUNS_MAX = 50
"""Most Runs of finished writers that are kept; the files of older ones are removed."""
LIVE = "Live page"


class _Resources:
    """A folder, the child and the store that write in it, which must not outlive a session. Safe from any thread."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="walkit-dashboard-")
        self._lock = threading.Lock()
        self._gone = False
        self._writers: list[SteadyWriter] = []
        self.shelf = Shelf(self.folder)

    @property
    def gone(self) -> bool:
        """Whether the session has ended."""
        return self._gone

    def start(self, writer: SteadyWriter) -> None:
        """Start a child, unless the session has ended meanwhile."""
        with self._lock:
            if self._gone:
                raise OptionsError("the session has ended")
            self._writers = [each for each in self._writers if each.talking]
            writer.start()
            self._writers.append(writer)

    def remove(self) -> None:
        """Kill the child, close the store and remove the folder; as often as one likes."""
        with self._lock:
            self._gone = True
            for writer in self._writers:
                writer.close()
            self.shelf.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class Session:
    """A scratch log, child processes that write on request, and their sources by place: each is a `Source`.

    A load on this disk writes to the scratch log, one on a modelled volume to memory of its own. `start`, `stop` and
    the others return at once. `close` ends the children and removes the log; so does the end of this process,
    and dropping the session.
    """

    def __init__(self) -> None:
        self._belongings = _Resources()
        self.folder = self._belongings.folder
        self.path = os.path.join(self.folder, "log")
        """The scratch log that is written to, or was last."""
        self.step_report: StepReport | None = None
        """The report of the last step on the session's store."""
        self.jobs = Jobs("walkit-session")
        self.recovery = RecoveryLab(self.folder, self.jobs, self._kill, self._event)
        """Faults, and their recoveries."""
        self.runs: tuple[Entry, ...] = ()
        """The Runs of ended writers, the newest last; replaced when more come."""
        self._runs_made = 0
        self._writers: list[SteadyWriter] = []
        self._records: list[SteadyRecord] = []
        self._logs_made = 1
        self._start_ns: int | None = None
        self._durability = ""
        self._sources: dict[str, deque[ChildSource]] = {}
        self._place = ""
        self._events: deque[tuple[int, str, dict[str, Any]]] = deque(maxlen=EVENTS_MAX)
        self._finalizer = weakref.finalize(self, self._belongings.remove)

    # -- requests

    @property
    def busy(self) -> bool:
        """Whether something that was asked for is under way."""
        return self.jobs.current is not None

    @property
    def writing(self) -> bool:
        """Whether a child is at work."""
        return bool(self._writers)

    @property
    def moving(self) -> bool:
        """Whether anything runs: a job or the writers."""
        return self.busy or self.writing

    @property
    def activity(self) -> str:
        """The session's activity when no job is under way, in a word or two."""
        return "writing" if self.writing else "idle"

    @property
    def log_name(self) -> str:
        """The scratch log's name on the page, as on the Inspector; empty before there is one."""
        name = os.path.basename(self.path).removeprefix("log")
        return f"scratch{name}" if self._start_ns is not None else ""

    @property
    def durability(self) -> str:
        """The durability of the newest writers' log; empty before there are any."""
        return self._durability

    def start(self, *loads: ContinuousLoad) -> None:
        """Start writers, those of each load in a child of its own. Loads of one time are on different places."""
        self.jobs.start("starting the writers", lambda _: self._start(*loads))

    def new_log(self) -> None:
        """Remove the scratch log, whatever has become of it, so that the next writers begin another one."""
        self.jobs.start("making a new log", lambda _: self._new_log())

    def stop(self) -> None:
        """Let the writers finish the record under way, and close the log."""
        self.jobs.start("stopping the writers", lambda _: self._stop())

    def maintenance(self, step: Step) -> None:
        """Do one step on the session's store, which the first one makes: see `Shelf`."""
        self.jobs.start(STEPS[step], lambda _: self._upkeep(step))

    def new_store(self) -> None:
        """Remove the session's store, whatever has become of it; the next step makes another one."""
        self.jobs.start("making a new store", lambda _: self._new_store())

    def refuse(self, problem: str) -> None:
        """Say why something was not even tried."""
        self.jobs.problem = problem

    # -- the worker thread

    def _start(self, *loads: ContinuousLoad) -> None:
        if self._writers:
            raise OptionsError("the writers are at work already; stop them first")
        self._start_ns = self._start_ns or perf_counter_ns()
        self._durability, self._place = loads[0].durability, loads[0].place
        try:
            for load in loads:
                path = os.path.join(self.folder, self._name_of(load))
                record = SteadyRecord(path, load)
                writer = SteadyWriter(path, load, on_line=record.take)
                self._belongings.start(writer)
                self._writers.append(writer)
                self._records.append(record)
                self._sources.setdefault(load.place, deque()).append(ChildSource(writer, self._start_ns))
                if not load.device:
                    self.path = path
            for writer in self._writers:
                if not writer.wait_for(0, PATIENCE_S):
                    writer.kill()
                    writer.wait()
                    raise OptionsError(f"the writers said nothing for {PATIENCE_S:.0f} seconds")
        except BaseException:
            self._end()
            raise
        self._check()

    def _check(self) -> None:
        """Assert the invariants between two jobs; on their thread, or while none is under way."""
        assert len(self._writers) == len(self._records), "a writer's records go to another one's Run"
        assert not self._writers or (self._start_ns is not None and self._place in self._sources)
        assert len(self.runs) <= min(RUNS_MAX, self._runs_made)

    def _name_of(self, load: ContinuousLoad) -> str:
        """The name of a load's log. The order is fixed for a log's life, so each has a log of its own."""
        name = "log" if load.ack_order == "append" else "log-completion"
        return name if self._logs_made == 1 else f"{name}-{self._logs_made}"

    def _stop(self) -> None:
        if not self._writers:
            raise OptionsError("no writers are at work")
        try:
            for writer in self._writers:
                writer.stop()
        finally:
            self._end()

    def _end(self) -> None:
        """Free the children, which have ended or are made to, and keep the Run of each."""
        writers, self._writers = self._writers, []
        records, self._records = self._records, []
        failures = [None if writer.talking else _failure_of(writer) for writer in writers]
        for writer in writers:
            writer.close()
        for writer, record, failure in zip(writers, records, failures, strict=True):
            self._keep(record.run(interrupted=writer.killed_ns is not None, failure=failure))
        self._check()

    def _keep(self, run: Run | None) -> None:
        """Save a Run where the Runs page finds it; None is of writers that ended before their first record."""
        if run is None or self._belongings.gone:
            return
        self._runs_made += 1
        path = Path(self.folder) / "runs" / f"live-{self._runs_made:04d}.parquet"
        run.save(path)
        entry = Entry.of(run, id=f"live:{self._runs_made}", path=path, origin=LIVE)
        kept = (*self.runs, entry)
        for old in kept[:-RUNS_MAX]:
            old.path.unlink(missing_ok=True)
        self.runs = kept[-RUNS_MAX:]

    def _reap(self) -> None:
        """Free the children after one has ended by itself; raises ChildWriterError if it failed."""
        try:
            for writer in self._writers:
                if not writer.talking:
                    writer.wait()
        finally:
            self._end()

    def _new_log(self) -> None:
        if self._writers:
            raise OptionsError("the writers are at work; stop them first")
        for name in ("log", "log-completion"):
            old = os.path.join(self.folder, name if self._logs_made == 1 else f"{name}-{self._logs_made}")
            if os.path.isdir(old):
                shutil.rmtree(old)
            elif os.path.lexists(old):
                os.unlink(old)
        self._logs_made += 1
        self.path = os.path.join(self.folder, f"log-{self._logs_made}")
        self._durability = ""
        self._event("new log", {"name": self.log_name})

    def _kill(self, load: ContinuousLoad) -> Killed:
        """Kill the writers of the scratch log; if none run, start some with `load` first."""
        if not self._writers:
            self._start(load)
        writer = self._writers[0]
        if writer.load.device:
            raise OptionsError(
                "a modelled volume ends with its process; stop it, and kill writers on this disk"
            )
        if not writer.wait_for(RECORDS_BEFORE_KILL, PATIENCE_S) and not writer.talking:
            self._reap()
            raise OptionsError("the writers ended before they could be killed")
        writer.kill()
        try:
            writer.wait()
        finally:
            self._end()
        told = writer.statistics
        assert told is not None and writer.killed_ns is not None
        self._events.append((writer.killed_ns, "SIGKILL", {"acked_lsn": told.acked_lsn}))
        return Killed(self.path, writer.load, told.acked_lsn)

    def _upkeep(self, step: Step) -> None:
        self.step_report = self._belongings.shelf.do(step)

    def _new_store(self) -> None:
        self._belongings.shelf.renew()
        self.step_report = None

    def _event(self, name: str, attributes: dict[str, Any]) -> None:
        self._events.append((perf_counter_ns(), name, attributes))

    # -- views

    def readings(self) -> dict[str, Reading]:
        """Return new readings, by place, in the order in which the places were first written to. Never waits."""
        found = {place: _new_of(sources) for place, sources in list(self._sources.items())}
        if any(not writer.talking for writer in self._writers) and not self.busy:
            self.jobs.start("writing", lambda _: self._reap())
        first = next(iter(found), None)
        if first is not None:
            found[first] = replace(found[first], events=[*found[first].events, *self._own_events()])
        status, problem = self.status(), self.jobs.problem
        return {
            place: replace(each, status=status, problem=problem, ended=False) for place, each in found.items()
        }

    def read(self) -> Reading:
        """Return the new reading of the place that the newest writers write to first; others are dropped."""
        found = self.readings().get(self._place)
        return found or Reading(status=self.status(), problem=self.jobs.problem)

    def status(self) -> str:
        """Return the session's activity, as a sentence."""
        job = self.jobs.current
        if job is not None and job.title != "writing":
            return f"{sentence(job)}."
        writers = list(self._writers)
        if writers:
            said = f"Writing: {writers[0].load}; process {writers[0].pid}"
            more = (f"; the same on {each.load.place}; process {each.pid}" for each in writers[1:])
            return "".join([said, *more, "."])
        return "Nothing is being written." if self._sources else "Nothing has been written yet: press Start."

    def _own_events(self) -> list[RunEvent]:
        events = []
        while self._events:
            at_ns, name, attributes = self._events.popleft()
            more = {key: plain(value) for key, value in attributes.items()}
            events.append(RunEvent((at_ns - (self._start_ns or at_ns)) / 1e9, name, more))
        return events

    def close(self) -> None:
        """Kill the child, wait for a running job, and remove the log. Closing twice does nothing."""
        self._belongings.remove()
        self.jobs.close()
        self._finalizer()  # once more: the ended job may have written into the folder


def _failure_of(writer: SteadyWriter) -> str | None:
    """Return why a child that has ended failed; None if it did not."""
    try:
        writer.wait()
    except ChildWriterError as error:
        return str(error)
    return None


def _new_of(sources: deque[ChildSource]) -> Reading:
    """Return the new reading of the children of one place, one after the other."""
    found = Reading(status="")
    while sources:
        reading = sources[0].read()
        found = replace(
            reading,
            points=[*found.points, *reading.points],
            details=[*found.details, *reading.details],
            bands=[*found.bands, *reading.bands],
            events=[*found.events, *reading.events],
        )
        if len(sources) == 1:
            break  # the newest one is asked again: its totals stay on the page
        sources.popleft()
    return found
