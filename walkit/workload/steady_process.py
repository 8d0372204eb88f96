"""The role of a steady load, which ends at the line "stop". Its parent's side is `steady`."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from itertools import cycle, islice
from math import inf
from statistics import fmean
from time import perf_counter_ns, sleep
from typing import Any

from walkit.config import MIB
from walkit.errors import StorageError
from walkit.log.wal import WriteAheadLog
from walkit.measure import FrameSampler, LatencyHistogram, RawRate, raw_rates
from walkit.measure.baseline import ROUNDS
from walkit.models.device import device_model
from walkit.models.throttled import ThrottledStorage
from walkit.objects.entrance import open_log
from walkit.storage.address import storage_at
from walkit.storage.interface import Storage
from walkit.storage.memory import MemoryStorage
from walkit.workload.role import LineReporter, taken
from walkit.workload.spec import OpenLoop
from walkit.workload.steady import ContinuousLoad

LINE_S = 0.25
"""Time between two lines."""
QUEUE_LOOKS = 25
"""How often between two lines the length of the queue is read."""
KEPT_BYTES_MAX = 64 * MIB
"""Bytes of frames above which the older half of the log is trimmed; on a modelled volume they are in memory."""
VALUES = 64
"""Different values that are written in turn."""
NAP_S = 0.05
"""A writer that waits for a record to arrive looks this often whether it is to stop."""
TURN_S = 10.0
"""Time between two rounds of the bare device in a closed loop; its writers wait for a round."""
LATENCIES_MAX = 1_000_000
"""Latencies that are kept between two lines; older ones are dropped."""


class SteadyWriters:
    """The writers of one load: threads, or tasks on one thread with an event loop. The first error ends them all."""

    def __init__(self, log: WriteAheadLog, load: ContinuousLoad) -> None:
        self.latencies_ns: deque[int] = deque(maxlen=LATENCIES_MAX)
        """Latencies of the records acknowledged since it was last emptied."""
        self.errors: list[BaseException] = []
        self.stopped = threading.Event()
        self._log, self._load = log, load
        pick = random.Random(load.seed)
        self._values = [pick.randbytes(load.record_bytes) for _ in range(VALUES)]
        self._due: Iterator[int] | None = None
        self._due_lock = threading.Lock()
        if load.arrivals_per_s:
            self._due = OpenLoop(rate=load.arrivals_per_s).due_ns_for_ever(load.seed)
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to append, for the first time or after `stop`."""
        load = self._load
        count, target = (load.writers, self._write) if load.style == "threads" else (1, self._loop)
        self._threads = [
            threading.Thread(target=self._guard, args=(target,), name=f"writer-{i}", daemon=True)
            for i in range(count)
        ]
        self.stopped.clear()
        self._start_ns = perf_counter_ns()
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

    def _due_ns(self) -> int:
        """Return when a writer's next record begins: when it arrives in an open loop, else now."""
        if self._due is None:
            return perf_counter_ns()
        with self._due_lock:
            return self._start_ns + next(self._due)

    def _nap_s(self, due_ns: int) -> float | None:
        """Return how long to sleep before one looks again; None if the record has arrived, or none is written."""
        left_ns = due_ns - perf_counter_ns()
        return None if left_ns <= 0 or self.stopped.is_set() else min(left_ns / 1e9, NAP_S)

    def _write(self) -> None:
        append, note = self._log.append, self.latencies_ns.append
        waits = self._due is not None
        for value in cycle(self._values):
            due_ns = self._due_ns()
            while waits and (nap_s := self._nap_s(due_ns)) is not None:
                sleep(nap_s)
            if self.stopped.is_set():
                return
            append(value)
            note(perf_counter_ns() - due_ns)

    def _loop(self) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self._write_async() for _ in range(self._load.writers)))

        asyncio.run(all_of_them())

    async def _write_async(self) -> None:
        append, note = self._log.append_async, self.latencies_ns.append
        waits = self._due is not None
        for value in cycle(self._values):
            due_ns = self._due_ns()
            # Between naps it looks whether it is to stop, which another thread says.
            while waits and (nap_s := self._nap_s(due_ns)) is not None:  # noqa: ASYNC110
                await asyncio.sleep(nap_s)
            if self.stopped.is_set():
                return
            await append(value)
            note(perf_counter_ns() - due_ns)


def keep_small(log: WriteAheadLog) -> None:
    """Trim the older half of a log that has grown past its size."""
    if log.statistics().log_bytes > KEPT_BYTES_MAX:
        log.trim((log.first_lsn + log.durable_lsn) // 2)


def drive_until(
    log: WriteAheadLog,
    load: ContinuousLoad,
    lines: LineReporter,
    stop: threading.Event,
    rounds: Iterator[RawRate],
) -> None:
    """Drive the load until `stop`, with lines to the parent all along. Raises the writers' first error.

    `rounds` are those of the bare device: some before the writers begin, then one in turn with a closed loop.
    """
    writers = SteadyWriters(log, load)
    sampler = FrameSampler(in_order=load.ack_order == "append", synced=load.durability == "sync")
    waiting: deque[int] = deque()

    def report(raw: RawRate | None = None) -> None:
        latencies, queue = taken(writers.latencies_ns), taken(waiting)
        frames = sampler.take()
        lines.write(
            at_ns=perf_counter_ns(),
            latency=LatencyHistogram.from_samples(latencies).encode() if latencies else None,
            events=lines.take_events(),
            queue=(fmean(queue), max(queue)) if queue else None,
            frames=None if frames is None else frames.as_plain(),
            **({} if raw is None else {"raw": asdict(raw)}),
        )

    lines.follow(log)
    log.observe_writes(sampler)
    *_, raw = [None, *islice(rounds, ROUNDS)]
    report(raw)
    writers.start()
    # Arrivals do not wait for the device, and a model has no other rate later.
    is_alone = raw is None or not raw.rounds or load.arrivals_per_s > 0
    turn_ns = inf if is_alone else perf_counter_ns() + TURN_S * 1e9
    while not stop.wait(LINE_S / QUEUE_LOOKS) and not writers.stopped.is_set():
        waiting.append(log.parts.core.pending_records)
        if len(waiting) == QUEUE_LOOKS:
            turn = perf_counter_ns() > turn_ns
            if turn:
                writers.stop()
            report()
            keep_small(log)
            if turn and not writers.errors:
                found = next(rounds, None)
                turn_ns = inf if found is None else perf_counter_ns() + TURN_S * 1e9
                report(found)
                writers.start()
    writers.stop()
    report()
    if writers.errors:
        raise writers.errors[0]


def raws_of(path: str, load: ContinuousLoad) -> Iterator[RawRate]:
    """Yield the bare device's rate for frames of this load after each round; ends if the place has no room for it."""
    size, threads = load.expected_frame_bytes, load.in_flight
    if load.device:
        model = device_model(load.device)
        most = min(model.writes_per_s(size), threads * 1e6 / model.service_us(size))
        yield RawRate(
            writes_per_s=most,
            lowest=most,
            highest=most,
            rounds=0,
            block_bytes=size,
            threads=threads,
            mode=model.name,
        )
        return
    with suppress(StorageError):  # the log itself reports a full disk
        yield from raw_rates(path, block_bytes=size, threads=threads, direct=load.direct_io)


def volume_of(path: str, load: ContinuousLoad) -> Storage:
    """Return where a load's log is: the folder at `path`, or the modelled device in the memory of this process."""
    if not load.device:
        return storage_at(path)
    return ThrottledStorage(MemoryStorage(), load.device, seed=load.seed)


def drive(lines: LineReporter, path: str, load: dict[str, Any]) -> None:
    """Drive the load into the log at `path` until it is asked to stop."""
    stop, wanted = lines.leash(), ContinuousLoad(**load)
    with open_log(storage=volume_of(path, wanted), options=wanted.options) as log:
        drive_until(log, wanted, lines, stop, raws_of(path, wanted) if wanted.raw else iter(()))
