"""The child's side of a steady load: `python -m walkit.workload.steady_process PATH LOAD`. Its parent's is `steady`.

Standard input is the leash: the line "stop" ends the load and closes the log; its end means that the parent is gone,
and ends the process at once, as if it had been killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections import deque
from dataclasses import asdict
from time import perf_counter_ns
from typing import IO, Any

from walkit.config import MIB
from walkit.errors import WalkitError
from walkit.log.open import open_log
from walkit.log.wal import WriteAheadLog
from walkit.measure import LatencyHistogram
from walkit.measure.run import plain
from walkit.workload.parent_watch import ORPHANED, end_with
from walkit.workload.steady import SteadyLoad

LINE_S = 0.25
"""Time between two lines."""
KEPT_BYTES_MAX = 128 * MIB
"""Bytes of frames above which the older half of the log is trimmed."""
VALUES = 64
"""Different values that are written in turn."""


class SteadyWriters:
    """The writers of one load: threads, or tasks on one thread with an event loop. The first error ends them all."""

    def __init__(self, log: WriteAheadLog, load: SteadyLoad) -> None:
        self.latencies_ns: deque[int] = deque()
        """Of the records acknowledged since whoever empties it last did."""
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()
        self._log, self._load = log, load
        pick = random.Random(7)
        self._values = [pick.randbytes(load.record_bytes) for _ in range(VALUES)]
        count, target = (load.writers, self._write) if load.style == "threads" else (1, self._loop)
        self._threads = [
            threading.Thread(target=self._guard, args=(target,), name=f"writer-{i}", daemon=True)
            for i in range(count)
        ]

    def start(self) -> None:
        """Begin to append."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each writer finish the record under way, and wait for that."""
        self.stopped.set()
        for thread in self._threads:
            thread.join()

    def _guard(self, write: Any) -> None:
        try:
            write()
        except BaseException as error:  # noqa: BLE001 - the line that the parent reads says it
            self.errors.append(error)
            self.stopped.set()

    def _write(self) -> None:
        append, values, note, stopped = (
            self._log.append,
            self._values,
            self.latencies_ns.append,
            self.stopped.is_set,
        )
        turn = 0
        while not stopped():
            turn += 1
            began = perf_counter_ns()
            append(values[turn % VALUES])
            note(perf_counter_ns() - began)

    def _loop(self) -> None:
        asyncio.run(self._write_all())

    async def _write_all(self) -> None:
        await asyncio.gather(*(self._write_async() for _ in range(self._load.writers)))

    async def _write_async(self) -> None:
        append, values, note, stopped = (
            self._log.append_async,
            self._values,
            self.latencies_ns.append,
            self.stopped.is_set,
        )
        turn = 0
        while not stopped():
            turn += 1
            began = perf_counter_ns()
            await append(values[turn % VALUES])
            note(perf_counter_ns() - began)


class Speaker:
    """Makes the lines."""

    def __init__(self, out: IO[str], log: WriteAheadLog, writers: SteadyWriters) -> None:
        self._out, self._log, self._writers = out, log, writers
        self._events: deque[tuple[int, str, Any]] = deque()

    def event(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep an event of the log for the next line."""
        self._events.append((perf_counter_ns(), name, plain(attributes)))

    def say(self) -> None:
        """Write one line, whole."""
        latencies = taken(self._writers.latencies_ns)
        said = {
            "at_ns": perf_counter_ns(),
            "statistics": asdict(self._log.statistics()),
            "latency": LatencyHistogram.from_samples(latencies).encode() if latencies else None,
            "events": taken(self._events),
        }
        self._out.write(json.dumps(said) + "\n")
        self._out.flush()


def taken(queue: deque[Any]) -> list[Any]:
    """Take what stands in the queue now; others may go on appending."""
    return [queue.popleft() for _ in range(len(queue))]


def keep_small(log: WriteAheadLog) -> None:
    """Trim the older half of a log that has grown past its size."""
    if log.statistics().log_bytes > KEPT_BYTES_MAX:
        log.trim((log.first_lsn + log.durable_lsn) // 2)


def drive_and_tell(log: WriteAheadLog, load: SteadyLoad, out: IO[str], stop: threading.Event) -> None:
    """Drive the load until `stop`, and tell the parent all along. Raises the writers' first error."""
    writers = SteadyWriters(log, load)
    speaker = Speaker(out, log, writers)
    log.events.add_listener(speaker.event)
    speaker.say()
    writers.start()
    while not stop.wait(LINE_S) and not writers.stopped.is_set():
        speaker.say()
        keep_small(log)
    writers.stop()
    speaker.say()
    if writers.errors:
        raise writers.errors[0]


def main(arguments: list[str] | None = None) -> int:
    """Drive the load into the log at PATH, telling standard output about it in JSON lines."""
    path, text = sys.argv[1:] if arguments is None else arguments
    load = SteadyLoad(**json.loads(text))
    stop = threading.Event()
    # The lines have standard output to themselves: what a library prints goes elsewhere.
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
        end_with(sys.stdin.fileno(), stop)
        with open_log(path, options=load.options) as log:
            drive_and_tell(log, load, out, stop)
    except BrokenPipeError:
        os._exit(ORPHANED)
    except (WalkitError, OSError) as error:
        out.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        out.flush()
        return 1
    finally:
        sys.stdout = out
    return 0


if __name__ == "__main__":
    sys.exit(main())
