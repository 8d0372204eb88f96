"""A signal handler that raises on the main thread, as for SIGALRM: its caller gets the error, and no call hangs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType

import pytest

import walkit
from tests.support.interrupts import Strike
from tests.support.logs import lsns, tiny
from tests.support.threads import Task
from walkit.errors import WalkitError
from walkit.models import CrashingStorage


class AlarmError(Exception):
    """Raised by the handler."""


@pytest.fixture
def alarm() -> Iterator[None]:
    """A handler of SIGALRM that raises."""

    def raise_here(number: int, frame: FrameType | None) -> None:
        raise AlarmError

    before = signal.signal(signal.SIGALRM, raise_here)
    yield
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("alarm")
# CPython drops the error of a handler that strikes within a weakref callback, and warns.
@pytest.mark.filterwarnings("ignore:Exception ignored in.*_remove:pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("durability", "first"),
    # Slow: a log for each point. The two others have each durability, and each place of the append.
    [
        ("sync", True),
        ("none", False),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("sync", False), ("none", True))),
    ],
)
def test_a_handler_that_raises_in_an_append_ends_all_waits(durability: str, first: bool) -> None:
    """Raise at each point of an append on the main thread with 8 in flight: others continue or fail, close ends."""
    nth, went_on = 0, 0
    while True:
        nth += 1
        storage = CrashingStorage()
        log = walkit.open(storage=storage, options=tiny(in_flight=8, durability=durability))
        acked = 0 if first else log.append(b"before").last_lsn
        strike = Strike(nth, signal.SIGALRM)
        with suppress(AlarmError, WalkitError):
            strike.run(lambda log=log: log.append(b"struck"))  # type: ignore[misc]
        others = [Task(log.append, b"other") for _ in range(3)]
        for other in others:
            if isinstance(other.join().error, WalkitError):
                continue
            acked = max(acked, other.result().last_lsn)
            went_on += 1
        Task(log.close).result()
        with walkit.open(storage=storage, options=tiny()) as again:
            assert lsns(again.read())[:acked] == list(range(1, acked + 1))
        if not strike.where:
            break
    assert nth > 20 and went_on > nth
