"""The writer as a child process, so that it can be killed: its own side, and its parent's.

The child drives a Store and writes one JSON line to its standard output about fifty times a second: how many groups of
each writer are acknowledged, up to which group each writer may submit from now on, and the samples of latency. A writer
never passes what was announced, so a parent that kills the child knows two exact sets: what was acknowledged (it must
be there), and what may have been submitted (nothing else may be there). A line that was cut by the kill was never
acted on by either side.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from walkit.config import LogOptions
from walkit.errors import WalkitError
from walkit.measure import RunRecorder
from walkit.measure.recorder import ThreadRecorder
from walkit.store import Store
from walkit.workload.drive import Workload, Writers
from walkit.workload.operations import Mask, OperationStream, operation_mask

REPORT_S = 0.02
WINDOW_GROUPS = 256
"""Groups that a writer may submit beyond what is acknowledged, before the next line."""


class Announcer:
    """The child's side of the promise: writers wait until what they want to submit has been announced."""

    def __init__(self, writers: int) -> None:
        self._announced = [0] * writers
        self._changed = threading.Condition()

    def may_begin(self, writer: int, group: int) -> bool:
        """Wait until `group` of this writer has been announced."""
        if group >= self._announced[writer]:
            with self._changed:
                self._changed.wait_for(lambda: group < self._announced[writer])
        return True

    def announce(self, bounds: list[int]) -> None:
        """The bounds have been written to the pipe: writers may go up to them."""
        with self._changed:
            self._announced = bounds
            self._changed.notify_all()


def main(arguments: list[str] | None = None) -> int:
    """Run the child: drive the flights into a Store at PATH, telling the parent through standard output."""
    parser = argparse.ArgumentParser(prog="python -m walkit.workload", description=main.__doc__)
    parser.add_argument("path")
    parser.add_argument("--operations", type=int, default=400_000)
    parser.add_argument("--writers", type=int, default=64)
    parser.add_argument("--durability", choices=("sync", "interval", "none"), default="sync")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    workload = Workload(operations=options.operations, writers=options.writers)
    parts = workload.stream().route(options.writers)
    with Store.open(options.path, options=LogOptions(durability=options.durability)) as store:
        recorder = RunRecorder("child", durability=options.durability)
        announcer = Announcer(len(parts))
        writers = Writers(store, parts, recorder, announcer.may_begin)
        _run(writers, announcer, recorder, sys.stdout)
    if writers.errors:
        print(json.dumps({"error": str(writers.errors[0])}), flush=True)
        return 1
    return 0


def _run(writers: Writers, announcer: Announcer, recorder: RunRecorder, out: IO[str]) -> None:
    sent = [0] * len(writers.parts)
    threads = recorder.threads
    recorder.start()
    writers.start()
    alive = True
    while alive:
        alive = not writers.wait(REPORT_S)
        done = list(writers.done)
        bounds = [acked + WINDOW_GROUPS for acked in done]
        out.write(
            json.dumps({"acked": done, "announced": bounds, "samples": _new_samples(threads, sent)}) + "\n"
        )
        out.flush()
        announcer.announce(bounds)


def _new_samples(threads: list[ThreadRecorder], sent: list[int]) -> str:
    """Return the samples recorded since the last line: rows of (start, end, records) in ns, packed."""
    parts = []
    for index, thread in enumerate(threads):
        rows = np.stack(thread.samples(sent[index]))
        sent[index] += rows.shape[1]
        parts.append(rows)
    return base64.b64encode(np.concatenate(parts, axis=1).astype("<i8").tobytes()).decode()


@dataclass(frozen=True, kw_only=True)
class ChildOutcome:
    """What the parent knows of a child that ended. Masks are over operation numbers."""

    acknowledged: Mask
    """Operations of which the child said that they were acknowledged."""
    submitted: Mask
    """Operations that may have been submitted."""
    returncode: int
    killed: bool
    killed_after_s: float | None


class ChildWriter:
    """Starts a child writer and follows what it says. Used by one thread."""

    def __init__(self, path: str | os.PathLike[str], workload: Workload, *, durability: str = "sync") -> None:
        self.path = os.fspath(path)
        self.workload = workload
        self.durability = durability
        self.recorder = RunRecorder(
            "flights, until the kill", durability=durability, path=os.path.dirname(self.path)
        )
        self._samples = self.recorder.thread()
        self._acked = [0] * workload.writers
        self._announced = [0] * workload.writers
        self._error: str | None = None
        self._records = 0
        self._changed = threading.Condition()
        self._process: subprocess.Popen[str] | None = None
        self._killed_after_s: float | None = None

    def start(self) -> None:
        """Start the child and the thread that reads its pipe."""
        command = [
            sys.executable,
            "-m",
            "walkit.workload",
            self.path,
            f"--operations={self.workload.operations}",
            f"--writers={self.workload.writers}",
            f"--durability={self.durability}",
        ]
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self._reader = threading.Thread(target=self._read, name="child-pipe", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith("\n"):
                break  # cut by the kill: the child had not gone past it
            said: dict[str, Any] = json.loads(line)
            with self._changed:
                if "error" in said:
                    self._error = said["error"]
                    continue
                if not self._records:
                    self.recorder.start()
                self._acked, self._announced = said["acked"], said["announced"]
                rows = np.frombuffer(base64.b64decode(said["samples"]), "<i8").reshape(3, -1)
                if rows.shape[1]:
                    self._samples.record_many(rows[0], rows[1], rows[2])
                    self._records += int(rows[2].sum())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    @property
    def records(self) -> int:
        """Records acknowledged so far."""
        return self._records

    def wait_for(self, records: int, on_progress: Callable[[int], None] | None = None) -> bool:
        """Wait until so many records are acknowledged; False where the child ended before."""
        while True:
            with self._changed:
                self._changed.wait(0.1)
            if on_progress is not None:
                on_progress(self._records)
            if self._records >= records:
                return True
            if not self._reader.is_alive():
                return False

    def kill(self) -> None:
        """End the child with SIGKILL: it can do nothing about it, and nothing more."""
        assert self._process is not None
        self.recorder.event("kill -9")
        self._killed_after_s = (time.perf_counter_ns() - self.recorder.start_ns) / 1e9
        self._process.kill()

    def outcome(self, stream: OperationStream) -> ChildOutcome:
        """Wait for the child's end, read its pipe to the end, and tell what is known."""
        assert self._process is not None
        self._process.wait()
        self._reader.join()
        if self._error is not None:
            raise WalkitError(f"the child writer failed: {self._error}")
        parts = stream.route(self.workload.writers)
        bounds = [min(b, part.group_count) for b, part in zip(self._announced, parts, strict=True)]
        return ChildOutcome(
            acknowledged=operation_mask(parts, self._acked, len(stream)),
            submitted=operation_mask(parts, bounds, len(stream)),
            returncode=self._process.returncode,
            killed=self._process.returncode == -signal.SIGKILL,
            killed_after_s=self._killed_after_s,
        )
