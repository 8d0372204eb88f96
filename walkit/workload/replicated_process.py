"""The roles of a replicated log: primary with a paced load, replica, delta reader. The parent's side is `replicated`.

Each writes a line four times a second, until it is asked to stop.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from dataclasses import asdict
from typing import Any

from walkit.errors import WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import open_log
from walkit.replication import DeltaReader, Primary, Replica
from walkit.replication.core.lag import Lag
from walkit.workload.role import LineReporter

LINE_S = 0.25
KEYS = 1_000
SPANS_MAX = 60
TICK_S = 0.005
"""A paced writer appends the due records at this interval."""


def serve(lines: LineReporter, path: str, load: dict[str, int]) -> None:
    """Append at a pace to the log at `path`, and serve it, until `stop`; a log that has its size rests."""
    stop = lines.leash()
    with open_log(path) as log, Primary(log) as primary:
        errors: list[WalkitError] = []
        full = threading.Event()
        writer = threading.Thread(
            target=_write, args=(log, load, stop, full, errors), name="writer", daemon=True
        )
        writer.start()
        while True:
            over = stop.wait(LINE_S)
            status = primary.status()
            if status.durable_position >= load["log_bytes_max"]:
                full.set()
            lines.write(
                clock_s=time.time(),
                address=status.address,
                durable_lsn=status.durable_lsn,
                durable_position=status.durable_position,
                resting=full.is_set(),
                trouble=status.trouble,
                followers=[{**asdict(f), "history": ()} for f in status.followers],
                traffic=asdict(primary.statistics()),
            )
            if over or errors:
                break
        stop.set()
        writer.join()
        if errors:
            raise errors[0]


def _write(
    log: WriteAheadLog,
    load: dict[str, int],
    stop: threading.Event,
    full: threading.Event,
    errors: list[WalkitError],
) -> None:
    rate, chance = load["records_per_s"], random.Random(load["seed"])
    # Half of each value is the same: there is something to compress.
    values = [
        chance.randbytes(load["record_bytes"] // 2).ljust(load["record_bytes"], b"w") for _ in range(64)
    ]
    began, written = time.monotonic(), 0
    try:
        while not stop.wait(TICK_S):
            due = int((time.monotonic() - began) * rate) - written
            # It has stood still for more than a second, or the log rests: that is not made up for.
            if due > rate:
                written += due - rate
                due = rate
            if due and not full.is_set():
                keys = [b"key %d" % chance.randrange(KEYS) for _ in range(due)]
                log.append_many([values[n % 64] for n in range(due)], keys=keys)
            written += due
    except WalkitError as error:
        errors.append(error)
        stop.set()


def follow(lines: LineReporter, path: str, address: str, name: str, codec: str) -> None:
    """Follow a primary into the folder `path` until `stop`; a replica that has failed reports it and remains."""
    stop = lines.leash()
    with Replica(path, address, codec or None, name=name) as replica:
        while True:
            over = stop.wait(LINE_S)
            lines.write(
                clock_s=time.time(),
                status=asdict(replica.status()),
                traffic=asdict(replica.statistics()),
            )
            if over:
                return


def read_deltas(lines: LineReporter, path: str, address: str, name: str, log: str) -> None:
    """Follow the log in the folder `log` by polls of its primary, checkpoints in `path`, until `stop`."""
    stop = lines.leash()
    lag = Lag()
    history: deque[dict[str, Any]] = deque(maxlen=SPANS_MAX)
    with DeltaReader(log, address, checkpoint=path, claim=name.replace(" ", "-")) as reader:
        while True:
            over = stop.wait(LINE_S)
            status, now_s, now_ms = reader.status(), time.time(), time.monotonic() * 1000
            lag.source_at(status.known_lsn, 0, status.applied_lsn, now_ms)
            lag.reached(status.applied_lsn)
            detail = status.error or status.trouble
            if not history or history[-1]["state"] != status.state:
                if history:
                    history[-1]["until"] = now_s
                history.append({"state": status.state, "since": now_s, "until": None, "detail": detail})
            lines.write(
                clock_s=now_s,
                status={
                    "state": status.state,
                    "lsn": status.applied_lsn,
                    "error": status.error,
                    "detail": "" if status.state == "following" else status.trouble,
                    "history": list(history),
                },
                lag={
                    "lag_records": status.lag_records,
                    "lag_bytes": status.lag_bytes,
                    "lag_ms": lag.ms(now_ms),
                },
                by_path={"delta_bytes": status.delta_bytes, "loaded_bytes": status.loaded_bytes},
            )
            if over:
                return
