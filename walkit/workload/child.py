"""The writer as a child process, so that it can be killed: its parent's side. The child's is `child_process`.

The child drives a Store and writes a JSON line to its standard output about fifty times a second: how many groups of
each writer are acknowledged, up to which group each writer may submit from now on, the samples of latency, the events
and the metrics of the log. A line that a kill has cut was never acted on by either side.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from walkit._internal.arguments import refuse
from walkit.config import LogOptions
from walkit.measure import Run, RunEvent, RunRecorder
from walkit.metrics import LogStatistics
from walkit.workload.child_process import plain_options
from walkit.workload.drive import Workload, finish_run, kinds_done
from walkit.workload.operations import READ, Mask, OperationStream, operation_mask
from walkit.workload.process import ChildWriterError, TalkingChild
from walkit.workload.spec import OpenLoop
from walkit.workload.stream_ipc import stream_to_ipc

__all__ = ["ChildOutcome", "ChildWriter", "ChildWriterError"]


@dataclass(frozen=True, kw_only=True)
class ChildOutcome:
    """The parent's record of a child that ended. Masks have an element per operation number."""

    acknowledged: Mask
    """Operations of which the child said that they were acknowledged."""
    submitted: Mask
    """Operations that may have been submitted."""
    returncode: int
    killed: bool
    """True: it was still at work when `kill` ended it."""
    killed_after_s: float | None
    """Seconds from the first operation to the kill; None: it came to its end."""


def _require_possible(workload: Workload, stream: OperationStream) -> None:
    if workload.tasks:
        refuse(
            "tasks",
            workload.tasks,
            "a child drives threads; a task would block its loop at each announcement",
        )
    if bool((stream.kinds == READ).any()):
        refuse("mix", "read", "a child drives no reads; drive() does")


class ChildWriter(TalkingChild):
    """Starts a child that drives a workload into the Store at `path`, and follows its lines. Used by one thread."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        workload: Workload,
        *,
        stream: OperationStream | None = None,
        options: LogOptions | None = None,
    ) -> None:
        """Prepare; `stream` gives the workload's operations if they have been made already.

        Generated operations have keys of no single writer: after a kill no order could be checked. OptionsError for a
        workload that a child does not drive: tasks, whose loop cannot wait for an announcement, and reads, from which a
        kill takes nothing.
        """
        self.stream = workload.stream() if stream is None else stream
        _require_possible(workload, self.stream)
        self.path = os.path.abspath(path)
        self.workload = workload
        self.options = options or LogOptions()
        self.parts = self.stream.route(workload.writers)
        self.recorder = RunRecorder(
            f"{workload.name}, in a child process",
            durability=self.options.durability,
            path=self.path,
            options={**self.options.as_dict(), "operations": len(self.stream)},
            labels={"writers": workload.writers, "target": "Store"},
            seed=workload.seed if workload.generated or workload.arrival != "closed" else None,
            arrival="closed" if workload.arrival == "closed" else "open",
        )
        self._samples = self.recorder.thread()
        self._acked = [0] * workload.writers
        self._announced = [0] * workload.writers
        self._before = self._after = LogStatistics()
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._last_ns = 0
        self._records = 0
        self._preload = workload.preload_stream()
        arrival = asdict(workload.arrival) if isinstance(workload.arrival, OpenLoop) else None
        given = {
            "path": self.path,
            "writers": workload.writers,
            "options": plain_options(self.options),
            "arrival": arrival,
            "seed": workload.seed,
            "preloaded": self._preload is not None,
        }
        super().__init__("walkit.workload.child_process:drive", given, self._take)

    @property
    def records(self) -> int:
        """Records acknowledged so far, as far as this process knows."""
        return self._records

    def _hand_over(self) -> None:
        self.send(stream_to_ipc(self.stream))
        if self._preload is not None:
            self.send(stream_to_ipc(self._preload))

    def _take(self, said: dict[str, Any]) -> None:
        self._after = LogStatistics(**said["statistics"])
        if "acked" in said:
            self._acked, self._announced = said["acked"], said["announced"]
            self._events += [(at_ns, name, attributes) for at_ns, name, attributes in said["events"]]
            began, ended, records = np.frombuffer(base64.b64decode(said["samples"]), "<i8").reshape(3, -1)
            if len(ended):
                self._samples.record_many(began, ended, records)
                self._records += int(records.sum())
                self._last_ns = max(self._last_ns, int(ended.max()))
        elif "began" in said:
            # The clock is the machine's (CLOCK_MONOTONIC): the child's time 0 is good here.
            self.recorder.start()
            self.recorder.start_ns = said["began"]
        else:
            self._before = self._after

    def wait_for(self, records: int, on_progress: Callable[[int], object] | None = None) -> bool:
        """Wait until so many records are acknowledged; False if the child ended before. `on_progress(records)`."""

        def there() -> bool:
            if on_progress is not None:
                on_progress(self._records)
            return self._records >= records

        return self.wait_until(there)

    def outcome(self) -> ChildOutcome:
        """Wait for the child's end, read its pipe to the end, and return the known facts.

        Waits until the child ends, if it was not killed. Raises ChildWriterError if it failed.
        """
        killed = self.wait()
        bounds = [min(b, part.group_count) for b, part in zip(self._announced, self.parts, strict=True)]
        size = int(self.stream.numbers[-1]) + 1 if len(self.stream) else 0
        return ChildOutcome(
            acknowledged=operation_mask(self.parts, self._acked, size),
            submitted=operation_mask(self.parts, bounds, size),
            returncode=self.returncode,
            killed=killed,
            killed_after_s=(self.killed_ns - self.recorder.start_ns) / 1e9
            if killed and self.killed_ns is not None
            else None,
        )

    def run(self) -> Run:
        """Return the Run of the child's lines until its end; `interrupted` if it did not end by itself."""
        killed_ns = self.killed_ns if self.outcome().killed else None
        # It may have worked for some microseconds more, until the signal arrived.
        end_ns = max(killed_ns or 0, self._last_ns, self.recorder.start_ns)
        run = finish_run(
            self.recorder,
            self._before,
            self._after,
            operations=kinds_done(self.parts, self._acked),
            end_ns=end_ns,
            interrupted=killed_ns is not None,
        )
        told = list(self._events)
        if killed_ns is not None:
            told.append((killed_ns, "SIGKILL", {"pid": self.pid}))
        start_ns = self.recorder.start_ns
        return replace(run, events=tuple(RunEvent((at - start_ns) / 1e9, n, a) for at, n, a in sorted(told)))
