"""A primary with a paced load, a replica or a delta reader as a child: `python -m walkit.workload.replicated_process`.

`primary PATH LOAD`, `replica PATH ADDRESS NAME CODEC` and `delta PATH ADDRESS NAME LOG`. Standard output has a JSON
line four times a second; standard input is the parent's: see `parent_watch`. The parent's side is `replicated`.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import asdict
from time import perf_counter_ns
from typing import Any

from walkit.errors import WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import open_log
from walkit.replication import DeltaReader, Primary, Replica
from walkit.replication.core.lag import Lag
from walkit.workload.line_reporter import LineReporter, report_lines
from walkit.workload.parent_watch import end_with

LINE_S = 0.25
KEYS = 1_000
SPANS_MAX = 60
TICK_S = 0.005
"""A paced writer appends the due records at this interval."""


def serve(path: str, load: dict[str, int], lines: LineReporter, stop: threading.Event) -> None:
    """Append at a pace to the log at `path`, and serve it, until `stop`; a log that has its size rests."""
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
                at_ns=perf_counter_ns(),
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


def follow(
    path: str, address: str, name: str, codec: str, lines: LineReporter, stop: threading.Event
) -> None:
    """Follow a primary into the folder `path` until `stop`; a replica that has failed reports it and remains."""
    with Replica(path, address, codec or None, name=name) as replica:
        while True:
            over = stop.wait(LINE_S)
            lines.write(
                at_ns=perf_counter_ns(),
                clock_s=time.time(),
                status=asdict(replica.status()),
                traffic=asdict(replica.statistics()),
            )
            if over:
                return


def read_deltas(
    path: str, address: str, name: str, log: str, lines: LineReporter, stop: threading.Event
) -> None:
    """Follow the log in the folder `log` by polls of its primary, checkpoints in `path`, until `stop`."""
    lag = Lag()
    history: deque[dict[str, Any]] = deque(maxlen=SPANS_MAX)
    with DeltaReader(log, address, checkpoint=path, claim=name.replace(" ", "-")) as reader:
        while True:
            over = stop.wait(LINE_S)
            status, now_s, now_ms = reader.status(), time.time(), time.monotonic() * 1000
            lag.source_at(status.known_lsn, 0, status.applied_lsn, now_ms)
            lag.reached(status.applied_lsn)
            why = status.error or status.trouble
            if not history or history[-1]["state"] != status.state:
                if history:
                    history[-1]["until"] = now_s
                history.append({"state": status.state, "since": now_s, "until": None, "why": why})
            lines.write(
                at_ns=perf_counter_ns(),
                clock_s=now_s,
                status={
                    "state": status.state,
                    "lsn": status.applied_lsn,
                    "error": status.error,
                    "why": "" if status.state == "following" else status.trouble,
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


def main() -> int:
    """Run one of the three; 0 if it was stopped, 1 if it failed and said why."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C of the terminal is for the parent
    stop = threading.Event()
    end_with(sys.stdin.fileno(), stop)
    kind, path, *more = sys.argv[1:]

    def work(lines: LineReporter) -> Any:
        if kind == "primary":
            return serve(path, json.loads(more[0]), lines, stop)
        if kind == "delta":
            return read_deltas(path, more[0], more[1], more[2], lines, stop)
        return follow(path, more[0], more[1], more[2], lines, stop)

    return report_lines(work)


if __name__ == "__main__":
    raise SystemExit(main())
