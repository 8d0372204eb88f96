"""One person's scratch log and the writers on it, as the dashboard has one for each browser session. No panel in here.

What takes time runs on a worker thread of the session, one thing after the other; whoever renders asks `read()` and
never waits. What goes wrong is told as a sentence.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import perf_counter_ns
from typing import Any

from walkit.bench.recovery import bench_recovery
from walkit.bench.recovery_report import RecoveryRow
from walkit.errors import OptionsError, WalkitError
from walkit.log.open import open_log
from walkit.measure import RunEvent
from walkit.measure.run import plain
from walkit.recovery.report import RecoveryReport
from walkit.views.demo_store import STEPS, Shelf, Step, StepReport
from walkit.views.history import EVENTS_MAX
from walkit.views.sources import ChildSource, Reading
from walkit.workload.inject_torn_frame import leave_half_a_frame
from walkit.workload.steady import SteadyLoad, SteadyWriter

RECORDS_BEFORE_KILL = 200
"""Records that a writer started only to be killed writes before that."""
OPERATIONS_MEASURED = 20_000
FRAME_RECORDS_MEASURED = 200
CHECKPOINT_AGES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Shares of the operations that are behind the checkpoint, as recovery is measured; 1: there is none."""
PATIENCE_S = 30.0
"""How long a child may take for its first records."""


@dataclass(frozen=True, kw_only=True)
class KillReport:
    """What became of a log whose writer was killed."""

    load: SteadyLoad
    acked_lsn: int
    """Last LSN that the child had told to be acknowledged before it was killed."""
    torn_bytes: int
    """Bytes of half a frame that were left behind the log after the kill; 0: none."""
    recovery: RecoveryReport

    @property
    def lost(self) -> int:
        """Acknowledged records that are gone: 0 unless walkit has a bug."""
        return max(self.acked_lsn - self.recovery.last_lsn, 0)


class _Belongings:
    """A folder, the child and the store that write in it: what must not outlive a session. Safe from any thread."""

    def __init__(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="walkit-dashboard-")
        self._lock = threading.Lock()
        self._gone = False
        self._writer: SteadyWriter | None = None
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
            writer.start()
            self._writer = writer

    def remove(self) -> None:
        """Kill the child, close the store and remove the folder; as often as one likes."""
        with self._lock:
            self._gone = True
            if self._writer is not None:
                self._writer.close()
            self.shelf.close()
            shutil.rmtree(self.folder, ignore_errors=True)


class Session:
    """A scratch log, a child process that writes to it when asked, and what it shows: a `Source`.

    `start`, `stop` and `kill_and_recover` return at once. `close` ends the child and removes the log; so does the end
    of this process, and dropping the session.
    """

    def __init__(self) -> None:
        self._belongings = _Belongings()
        self.folder = self._belongings.folder
        self.path = os.path.join(self.folder, "log")
        self.kill_report: KillReport | None = None
        """Of the last kill."""
        self.step_report: StepReport | None = None
        """Of the last step on the session's store."""
        self.recovery_rows: tuple[RecoveryRow, ...] = ()
        """What has been measured of recovery times, so far; a new tuple where more has."""
        self._doing = ""
        self._problem: str | None = None
        self._writer: SteadyWriter | None = None
        self._start_ns: int | None = None
        self._sources: deque[ChildSource] = deque()
        self._events: deque[tuple[int, str, dict[str, Any]]] = deque(maxlen=EVENTS_MAX)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="walkit-session")
        self._finalizer = weakref.finalize(self, self._belongings.remove)

    # -- what can be asked for

    @property
    def busy(self) -> bool:
        """Whether something that was asked for is under way."""
        return bool(self._doing)

    @property
    def writing(self) -> bool:
        """Whether a child is at work."""
        return self._writer is not None

    def start(self, load: SteadyLoad) -> None:
        """Start the writers."""
        self._ask("starting the writers", lambda: self._start(load))

    def stop(self) -> None:
        """Let the writers finish the record under way, and close the log."""
        self._ask("stopping the writers", self._stop)

    def kill_and_recover(self, load: SteadyLoad, *, torn: bool = False) -> None:
        """Kill the child with SIGKILL and open its log again; where none is at work, one with `load` is started first.

        `torn` leaves half a frame behind the log before it is opened, as a write that was cut short does.
        """
        self._ask("killing the writers and recovering", lambda: self._kill_and_recover(load, torn))

    def upkeep(self, step: Step) -> None:
        """Do one step on the session's store, which the first one makes: see `Shelf`."""
        self._ask(STEPS[step], lambda: self._upkeep(step))

    def measure_recovery(self) -> None:
        """Measure how long a Store takes to be there again after a kill, for one checkpoint interval after the other.

        Some seconds: a child fills a store for each, of `OPERATIONS_MEASURED` puts, as `walkit bench recovery` does.
        """
        self._ask("measuring recovery times", self._measure_recovery)

    def refuse(self, problem: str) -> None:
        """Say why something was not even tried."""
        self._problem = problem

    def _ask(self, doing: str, job: Callable[[], None]) -> None:
        if self._doing:
            self._problem = f"Still {self._doing}; ask again when that is done."
            return
        self._doing, self._problem = doing, None
        try:
            self._worker.submit(self._work, doing, job)
        except RuntimeError:
            self._doing, self._problem = "", "The session has ended; load the page again."

    def _work(self, doing: str, job: Callable[[], None]) -> None:
        try:
            job()
        except (WalkitError, OSError) as error:
            self._problem = f"{doing.capitalize()} failed: {str(error).rstrip('.')}."
        except Exception as error:  # noqa: BLE001 - whoever looks at the page must learn of it
            self._problem = f"{doing.capitalize()} failed in a way that walkit did not foresee: {error!r}."
        finally:
            self._doing = ""

    # -- what the worker thread does

    def _start(self, load: SteadyLoad) -> None:
        if self._writer is not None:
            raise OptionsError("the writers are at work already; stop them first")
        # The order is fixed for a log's life, so each has a log of its own.
        self.path = os.path.join(self.folder, "log" if load.ack_order == "append" else "log-completion")
        writer = SteadyWriter(self.path, load)
        self._start_ns = self._start_ns or perf_counter_ns()
        self._belongings.start(writer)
        self._writer = writer
        self._sources.append(ChildSource(writer, self._start_ns))
        if not writer.wait_for(0, PATIENCE_S):
            self._reap()
            raise OptionsError(f"the writers said nothing for {PATIENCE_S:.0f} seconds")

    def _stop(self) -> None:
        if self._writer is None:
            raise OptionsError("no writers are at work")
        try:
            self._writer.stop()
        finally:
            self._reap()

    def _reap(self) -> None:
        """Free the child, which has ended or is made to; raises ChildWriterError where it ended by itself, badly."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        try:
            if not writer.writing:
                writer.wait()
        finally:
            writer.close()

    def _kill_and_recover(self, load: SteadyLoad, torn: bool) -> None:
        if self._writer is None:
            self._start(load)
        writer = self._writer
        assert writer is not None
        if not writer.wait_for(RECORDS_BEFORE_KILL, PATIENCE_S) and not writer.writing:
            self._reap()
            raise OptionsError("the writers ended before they could be killed")
        writer.kill()
        try:
            writer.wait()
        finally:
            self._reap()
        told = writer.statistics
        assert told is not None and writer.killed_ns is not None
        self._events.append((writer.killed_ns, "SIGKILL", {"acked_lsn": told.acked_lsn}))
        torn_bytes = leave_half_a_frame(self.path) if torn else 0
        with open_log(self.path, options=writer.load.options, events=self._event) as log:
            recovery = log.recovery
        self.kill_report = KillReport(
            load=writer.load, acked_lsn=told.acked_lsn, torn_bytes=torn_bytes, recovery=recovery
        )

    def _upkeep(self, step: Step) -> None:
        self.step_report = self._belongings.shelf.do(step)

    def _measure_recovery(self) -> None:
        rows: tuple[RecoveryRow, ...] = ()
        for number, age in enumerate(CHECKPOINT_AGES, 1):
            if self._belongings.gone:
                return
            self._doing = f"measuring recovery times: {number} of {len(CHECKPOINT_AGES)}"
            measured = bench_recovery(
                operations=(OPERATIONS_MEASURED,),
                frame_records=(FRAME_RECORDS_MEASURED,),
                checkpoint_age=(age,),
                cache=("warm",),
                path=self.folder,
                progress=False,
            )
            rows += tuple(row for row in measured.rows if row.way == "store")
            self.recovery_rows = rows

    def _event(self, name: str, attributes: dict[str, Any]) -> None:
        self._events.append((perf_counter_ns(), name, attributes))

    # -- what is shown

    def read(self) -> Reading:
        """Return what is new of the child, and what is being done. Never waits."""
        found = Reading(status="")
        while self._sources:
            source = self._sources[0]
            reading = source.read()
            found = replace(
                reading, points=[*found.points, *reading.points], events=[*found.events, *reading.events]
            )
            if len(self._sources) == 1:
                break  # the newest one is asked again: its totals stay on the page
            self._sources.popleft()
        if self._writer is not None and found.ended and not self._doing:
            self._ask("writing", self._reap)
        return replace(
            found,
            status=self._status(),
            events=[*found.events, *self._own_events()],
            problem=self._problem,
            ended=False,
        )

    def _status(self) -> str:
        writer = self._writer
        if self._doing and self._doing != "writing":
            return f"{self._doing.capitalize()}."
        if writer is not None:
            return f"Writing: {writer.load}; process {writer.pid}."
        return "Nothing is being written." if self._sources else "Nothing has been written yet: press Start."

    def _own_events(self) -> list[RunEvent]:
        events = []
        while self._events:
            at_ns, name, attributes = self._events.popleft()
            more = {key: plain(value) for key, value in attributes.items()}
            events.append(RunEvent((at_ns - (self._start_ns or at_ns)) / 1e9, name, more))
        return events

    def close(self) -> None:
        """Kill the child, wait for what is under way, and remove the log. Closing twice does nothing."""
        self._belongings.remove()
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._finalizer()  # once more: what was under way may have written into the folder
