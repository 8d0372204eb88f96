"""Callbacks of `events=` that call the log of their event: no thread waits forever."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

import walkit
from tests.support.logs import reopened, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit._internal.threads import LogThread
from walkit.events import KEPT_MAX
from walkit.models import CrashingStorage

WAITING: dict[str, Callable[[walkit.WriteAheadLog], Any]] = {
    "append": lambda log: log.append(b"more"),
    "append in time": lambda log: log.append(b"more", timeout=GUARD_S),
    "append many": lambda log: log.append_many([b"more"]),
    "append many frames": lambda log: log.append_many([b"more" * 900] * 9),
    "append text": lambda log: log.append(bytearray(b"more")),
    "delete": lambda log: log.delete(b"k"),
    "sync": lambda log: log.sync(),
}
OTHERS: dict[str, Callable[[walkit.WriteAheadLog], Any]] = {
    "trim": lambda log: log.trim(1),
    "hold": lambda log: log.hold("other", log.first_lsn),
    "drain": lambda log: list(log.drain(log.first_lsn)),
    "retain": lambda log: log.enforce_retention(),
}


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("event", ["walkit.segment.prepare", "walkit.segment.rotate"])
@pytest.mark.parametrize("call", WAITING)
def test_events_of_a_segment_come_when_their_thread_may_wait(call: str, event: str, in_flight: int) -> None:
    """Call the log back from the events of its first segment: they come after the frame, and the call does its work."""
    seen: list[int] = []

    def called_back(name: str, _: dict[str, Any]) -> None:
        if name == event and not seen:
            seen.append(log.acked_lsn)
            WAITING[call](log)
            seen.append(log.acked_lsn)

    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(in_flight=in_flight), events=called_back)
    assert Task(lambda: log.append(b"first")).result().first_lsn == 1
    before, after = seen
    assert before == 1 and (after > 1) == (call != "sync")
    assert Task(lambda: log.append(b"second")).result().first_lsn == after + 1
    Task(log.close).result()
    found = values(reopened(storage))
    assert found[0] == b"first" and found[-1] == b"second" and len(found) == after + 1


@pytest.mark.parametrize("in_flight", [1, 3])
def test_records_submitted_during_a_rotation_follow_it(in_flight: int) -> None:
    """Submit from the event of a rotation, and ask for the result there: it is given."""
    tickets: list[Any] = []

    def called_back(name: str, _: dict[str, Any]) -> None:
        if name == "walkit.segment.rotate" and not tickets:
            tickets.append(log.submit(b"behind"))
            tickets[0].result()

    log = walkit.open(storage=CrashingStorage(), options=tiny(in_flight=in_flight), events=called_back)
    assert Task(lambda: log.append(b"first")).result().first_lsn == 1
    assert tickets[0].result(GUARD_S).first_lsn == 2
    log.close()


@pytest.mark.parametrize("call", OTHERS)
def test_claim_expiry_callback_may_use_log(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a lease run out, and call each method that replaces the manifest from its event: no lock is held by then."""
    done: list[str] = []

    def called_back(name: str, _: dict[str, Any]) -> None:
        if name == "walkit.claim.expire" and not done:
            OTHERS[call](log)
            done.append(call)

    log = walkit.open(storage=CrashingStorage(), options=tiny(), events=called_back)
    log.append_many([b"x"] * 20)
    with contextlib.suppress(KeyError), log.hold("gone", 1, lease_s=1):
        raise KeyError  # it counts until its lease is over
    later = time.time_ns() + 3600 * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: later)
    Task(lambda: log.trim(3)).result()
    assert done == [call]
    Task(log.close).result()


def test_held_events_are_sent_at_the_end_in_order() -> None:
    """Tell events within two blocks, the inner of which ends first, and raise: all come at the outer end, once."""
    told: list[Any] = []
    sink = walkit.events.EventSink(lambda name, facts: told.append(facts["number"]))

    def tell(number: int) -> None:
        sink.emit("walkit.segment.prepare", number=number)

    def tell_two() -> None:
        with sink.held():
            tell(1)
            with sink.held():
                tell(2)
            assert told == []
            raise KeyError

    with pytest.raises(KeyError):
        tell_two()
    tell(3)
    assert told == [1, 2, 3]


# Slow: a process for seconds. With "both" the main thread makes each call, too, and so does another beside it.
@pytest.mark.parametrize("on", [pytest.param("main", marks=pytest.mark.slow), "other", "both"])
def test_a_call_from_a_handler_of_logging_ends(on: str, tmp_path: Path) -> None:
    """Make each public call with a handler's lock held, while the log's own threads log at DEBUG: none waits for it."""
    command = [sys.executable, "-m", "tests.commit.logging_calls", str(tmp_path), on]
    done = subprocess.run(command, capture_output=True, text=True, timeout=GUARD_S * 20, check=False)
    assert done.returncode == 0, done.stderr


def test_events_of_the_logs_own_threads_come_in_order_and_are_bounded() -> None:
    """Block a callback, and send more events on a thread of a log than are kept: it ends, and the rest are counted."""
    told: list[Any] = []
    begun, go_on = Event(), Event()

    def called_back(_: str, facts: dict[str, Any]) -> None:
        begun.set()
        go_on.wait(GUARD_S)
        told.append(facts.get("number", facts))

    sink = walkit.events.EventSink(called_back)

    def send() -> None:
        sink.emit("walkit.segment.prepare", number=0)
        begun.wait(GUARD_S)
        for number in range(1, KEPT_MAX + 8):
            sink.emit("walkit.segment.prepare", number=number)

    thread = LogThread(target=send)
    thread.start()
    assert thread.wait(GUARD_S)
    go_on.set()
    wait_until(lambda: len(told) > KEPT_MAX + 1)
    assert told == [*range(KEPT_MAX + 1), {"events": 7}]
