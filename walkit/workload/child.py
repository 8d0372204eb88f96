"""The writer as a child process, so that it can be killed: its parent's side. The child's is `child_process`.

The child drives a Store and writes a JSON line to its standard output about fifty times a second: how many groups of
each writer are acknowledged, up to which group each writer may submit from now on, the samples of latency, the events
and the metrics of the log. A line that a kill has cut was never acted on by either side.
"""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import IO, Any, Self

import numpy as np

from walkit.config import LogOptions
from walkit.errors import OptionsError, WalkitError
from walkit.measure import Run, RunEvent, RunRecorder
from walkit.metrics import LogStatistics
from walkit.workload.child_process import options_text
from walkit.workload.drive import Workload, finish_run, kinds_done
from walkit.workload.handover import stream_to_ipc
from walkit.workload.operations import Mask, OperationStream, operation_mask

LAST_WORDS_BYTES = 4000


class ChildWriterError(WalkitError):
    """The child writer ended in a way that nobody asked for. `returncode` is negative for a signal."""

    code = "child-writer"

    def __init__(self, message: str, *, returncode: int | None, output: str = "") -> None:
        super().__init__(f"{message}\n{output}" if output else message)
        self.returncode, self.output = returncode, output


@dataclass(frozen=True, kw_only=True)
class ChildOutcome:
    """What the parent knows of a child that ended. Masks have an element per operation number."""

    acknowledged: Mask
    """Operations of which the child said that they were acknowledged."""
    submitted: Mask
    """Operations that may have been submitted."""
    returncode: int
    killed: bool
    """True: it was still at work when `kill` ended it."""
    killed_after_s: float | None
    """Seconds from the first operation to the kill; None: it came to its end."""


class ChildWriter:
    """Starts a child that drives a workload into the Store at `path`, and follows what it says. Used by one thread.

    A context manager: `with` starts the child, and no child is left behind it. If this process itself dies, the
    child ends too.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        workload: Workload,
        *,
        stream: OperationStream | None = None,
        options: LogOptions | None = None,
    ) -> None:
        """Prepare; `stream` gives the workload's operations where they have been made already.

        OptionsError for what a child does not drive: generated operations (whose keys have no one order to check),
        tasks, and an open loop.
        """
        if workload.generated or workload.tasks or workload.arrival != "closed":
            raise OptionsError(
                "a child drives the flights, or a stream of one's own, with threads in a closed loop",
                option="workload",
                wanted=workload.as_dict(),
            )
        self.path = os.path.abspath(path)
        self.workload = workload
        self.options = options or LogOptions()
        self.stream = workload.stream() if stream is None else stream
        self.parts = self.stream.route(workload.writers)
        self.recorder = RunRecorder(
            f"{workload.name}, in a child process",
            durability=self.options.durability,
            path=self.path,
            options={**self.options.as_dict(), "operations": len(self.stream)},
            labels={"writers": workload.writers, "target": "Store"},
        )
        self._samples = self.recorder.thread()
        self._acked = [0] * workload.writers
        self._announced = [0] * workload.writers
        self._before = self._after = LogStatistics()
        self._events: list[tuple[int, str, dict[str, Any]]] = []
        self._last_ns = 0
        self._error: str | None = None
        self._records = 0
        self._changed = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._words: IO[bytes] | None = None
        self._killed_ns: int | None = None

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._running().pid

    @property
    def records(self) -> int:
        """Records acknowledged so far, as far as this process was told."""
        return self._records

    def start(self) -> None:
        """Start the child, hand it the operations, and begin to read its lines. ChildWriterError: it cannot be."""
        command = [
            sys.executable,
            "-P",  # a file of the current folder must not stand in for a module
            *("-m", "walkit.workload", self.path, "--operations-on-stdin"),
            f"--writers={self.workload.writers}",
            f"--options={options_text(self.options)}",
        ]
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        handed = stream_to_ipc(self.stream)
        self._words = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=self._words, env=environment, bufsize=0
            )
            self._reader = threading.Thread(target=self._read, name="child-pipe", daemon=True)
            self._reader.start()
            _write_all(self._process.stdin, handed)
        except BrokenPipeError:
            return  # it has ended already: outcome() says why
        except OSError as error:
            self.close()
            raise ChildWriterError(f"the child writer did not start: {error}", returncode=None) from error
        except BaseException:
            self.close()
            raise

    def _read(self) -> None:
        process = self._running()
        assert process.stdout is not None
        try:
            with open(process.stdout.fileno(), "rb", closefd=False) as lines:
                for line in lines:
                    if not line.endswith(b"\n"):
                        break  # cut by the kill
                    said = json.loads(line)
                    with self._changed:
                        self._take(said)
                        self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whatever it said, nobody may wait for what it says next
            self._error = f"a line that makes no sense: {error!r}"
            process.kill()
        with self._changed:
            self._changed.notify_all()

    def _take(self, said: dict[str, Any]) -> None:
        if "error" in said:
            self._error = said["error"]
            return
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
        """Wait until so many records are acknowledged; False where the child ended before. `on_progress(records)`."""
        assert self._reader is not None
        while True:
            ended = not self._reader.is_alive()
            if on_progress is not None:
                on_progress(self._records)
            if self._records >= records:
                return True
            if ended:
                return False
            with self._changed:
                self._changed.wait(0.1)

    def kill(self) -> None:
        """End the child with SIGKILL: it can do nothing about it, and nothing more."""
        self._killed_ns = perf_counter_ns()
        self._running().kill()

    def outcome(self) -> ChildOutcome:
        """Wait for the child's end, read its pipe to the end, and tell what is known.

        Waits as long as the child works, where it was not killed. Raises ChildWriterError where it failed.
        """
        process = self._running()
        assert self._reader is not None
        self._reader.join()
        process.wait()
        killed = self._killed_ns is not None and process.returncode == -signal.SIGKILL
        if self._error is not None or (process.returncode != 0 and not killed):
            raise self._failure(process.returncode)
        bounds = [min(b, part.group_count) for b, part in zip(self._announced, self.parts, strict=True)]
        size = int(self.stream.numbers[-1]) + 1 if len(self.stream) else 0
        return ChildOutcome(
            acknowledged=operation_mask(self.parts, self._acked, size),
            submitted=operation_mask(self.parts, bounds, size),
            returncode=process.returncode,
            killed=killed,
            killed_after_s=(self._killed_ns - self.recorder.start_ns) / 1e9
            if killed and self._killed_ns is not None
            else None,
        )

    def run(self) -> Run:
        """Return the Run of what the child had said until its end; `interrupted` where that was not its own."""
        killed_ns = self._killed_ns if self.outcome().killed else None
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

    def close(self) -> None:
        """Kill the child if it is still there, and free what it used. Closing twice does nothing."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                self.kill()
            process.wait()
            if self._reader is not None:
                self._reader.join()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._words is not None:
            self._words.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ChildWriterError("the child writer was not started", returncode=None)
        return self._process

    def _failure(self, returncode: int) -> ChildWriterError:
        if self._error is not None:
            return ChildWriterError(f"the child writer failed: {self._error}", returncode=returncode)
        how = f"exit status {returncode}"
        if returncode < 0:
            how = f"signal {-returncode}, which this process did not send"
        output = ""
        if self._words is not None and not self._words.closed:
            size = self._words.seek(0, os.SEEK_END)
            self._words.seek(max(size - LAST_WORDS_BYTES, 0))
            output = self._words.read().decode("utf-8", "replace").strip()
        return ChildWriterError(f"the child writer ended with {how}", returncode=returncode, output=output)


def _write_all(pipe: IO[bytes] | None, data: memoryview) -> None:
    assert pipe is not None
    while data:
        data = data[pipe.write(data) :]
