"""The way of a lone writer and the way of groups are one path: one trace through both gives the same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.fake_segments import DriverHarness, io_error
from tests.support.threads import Task
from walkit.errors import LogClosedError, LogFullError

Trace = list[tuple[str, Any]]
VALUES: Trace = [("put", b"%d" % n * n) for n in range(6)]
FULL = LogFullError("full", reason="disk", limit_bytes=1)
TRACES: dict[str, Trace] = {
    "records": [*VALUES, ("ticket", b"t"), ("keyed", b"k"), *VALUES],
    "segments": [("put", bytes(300)) for _ in range(9)],
    "watched": [("observe", None), *VALUES, ("frames", None), *VALUES],
    "no segment": [*VALUES, ("fail begin_segment", FULL), ("put", bytes(900)), *VALUES],
    "no write": [*VALUES, ("fail write", io_error()), *VALUES],
    "a broken write": [*VALUES, ("fail write", ZeroDivisionError()), *VALUES],
}
"""The steps that a driver is put through, in order."""


class Watcher:
    """Sees frames as they are written."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def writing(self, frame: Any) -> None:
        """See FrameObserver."""
        self.seen.append(("writing", frame.position))

    def wrote(self, frame: Any, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""
        self.seen.append(("wrote", frame.position))

    def synced(self, began_ns: int, ended_ns: int) -> None:
        """See FrameObserver."""


def outputs(trace: Trace, *, alone: bool, sync_writes: bool) -> list[Any]:
    """Return all that a driver gives back, writes, marks, counts and reports, after each step of a trace."""
    harness = DriverHarness(segment_bytes=1024, sync_writes=sync_writes)
    driver, core, watcher = harness.driver, harness.core, Watcher()
    driver.election.plain = alone  # otherwise a caller queues, leads, and writes its submissions as a group
    found: list[Any] = []
    acts: dict[str, Callable[[Any], Any]] = {
        "put": lambda value: driver.append_put(None, value),
        "keyed": lambda value: driver.append_put(b"key", value),
        "ticket": lambda value: harness.append(value).result(0),
        "observe": lambda _: driver.add_write_observer(watcher),
        "frames": lambda _: (
            driver.delivery.add_observer(lambda frame: watcher.seen.append(frame.last_lsn)).count
        ),
    }
    for what, value in trace:
        if what.startswith("fail "):
            harness.place.fail(what[5:], value)
            continue
        done = Task(acts[what], value).join()
        driver.delivery.drain()
        counters = driver.counters
        found.append(
            (
                done.value,
                repr(done.error),
                [(f.position, f.first_lsn, f.state, f.durable, f.user_bytes) for f in harness.place.assigned],
                (core.position, core.chain, core.appended_lsn, core.acked_lsn, core.durable_lsn),
                (core.written_position, core.promised_position, core.segment_end, core.taken_records),
                (repr(core.failure), core.failed_from, repr(driver.refusal), dict(driver.failure.taken)),
                (counters.frames_written, counters.frame_bytes, counters.user_bytes, counters.padding_bytes),
                (counters.syncs, harness.place.segments, harness.place.published, harness.place.syncs),
                (dict(driver.watch.calls), driver.election.leaders, list(watcher.seen)),
                [(name, repr(facts)) for name, facts in harness.events],
            )
        )
    driver.stop(LogClosedError())
    return found


@pytest.mark.parametrize("sync_writes", [True, False])
@pytest.mark.parametrize("trace", TRACES)
def test_a_lone_writer_and_a_group_of_one_give_the_same(trace: str, sync_writes: bool) -> None:
    """Run one trace through `Leader._write_alone` and `FrameWriter.commit`: every output is the same."""
    alone = outputs(TRACES[trace], alone=True, sync_writes=sync_writes)
    group = outputs(TRACES[trace], alone=False, sync_writes=sync_writes)
    for step, (one, other) in enumerate(zip(alone, group, strict=True)):
        assert one == other, step
