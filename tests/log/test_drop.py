"""Logs that were not closed: dropped, collected in cycles, or still open when the process ends."""

from __future__ import annotations

import gc
import os
import threading
import warnings
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import SEGMENTS, FaultyMemory, run_python, tiny, values
from tests.support.threads import GUARD_S, wait_until
from walkit.models import CrashingStorage


@pytest.fixture(autouse=True, scope="module")
def small_heap() -> Iterator[None]:
    """Collections of these tests leave out the objects that the process has loaded by now."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def own_events(small_heap: None) -> Iterator[None]:
    """Nothing of an earlier test is collected within one of these."""
    gc.collect()
    yield
    gc.collect()


def test_a_dropped_log_closes_itself_with_a_warning(tmp_path: Path) -> None:
    """Drop a log with records on their way: a ResourceWarning and an event, and it can be opened again at once."""
    events: list[str] = []
    log = walkit.open(tmp_path / "log", events=lambda name, _: events.append(name))
    log.append(b"1")
    ticket = log.submit(b"2")
    with pytest.warns(ResourceWarning, match="dropped without close"):
        del log
    assert ticket.result(0).first_lsn == 2
    wait_until(lambda: "walkit.log.close" in events, "the event, which another thread sends")
    assert events.count("walkit.log.close") == events.count("walkit.log.drop") == 1
    with walkit.open(tmp_path / "log") as log:
        assert log.recovery.verdict == "clean" and values(log.read()) == [b"1", b"2"]


def test_a_warning_that_is_an_error_does_not_keep_it_open(tmp_path: Path) -> None:
    """Turn warnings into errors and drop a log: it is closed all the same."""
    script = """
        import sys, walkit
        log = walkit.open(sys.argv[1])
        log.append(b"1")
        del log
        with walkit.open(sys.argv[1]) as log:
            print(log.acked_lsn)
    """
    done = run_python(script, tmp_path / "log", check=False)
    assert done.stdout == "1\n" and "ResourceWarning" in done.stderr


def test_a_closed_log_is_dropped_silently(tmp_path: Path) -> None:
    """Close, then drop: no warning, no event."""
    events: list[str] = []
    log = walkit.open(tmp_path / "log", events=lambda name, _: events.append(name))
    log.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del log
        gc.collect()
    assert "walkit.log.drop" not in events


def has_marks(log: walkit.WriteAheadLog) -> bool:
    """Whether the timer has written a mark."""
    return log.statistics().marker_frames > 0


def test_threads_of_a_log_do_not_keep_it_alive(tmp_path: Path) -> None:
    """Start every thread of a log, then drop it: it is collected, and all its threads end."""
    log = walkit.open(tmp_path / "log", options=tiny(idle_marker_ms=1))
    called = threading.Event()
    log.submit(b"1").add_done_callback(lambda _: called.set())
    assert called.wait(GUARD_S)
    log.append_many([bytes(3000)] * 30)
    wait_until(partial(has_marks, log))
    names = {t.name.split()[0] for t in threading.enumerate()}
    assert {"walkit-commit", "walkit-delivery", "walkit-timer", "walkit-maintenance"} <= names
    reference = weakref.ref(log)
    with pytest.warns(ResourceWarning):
        del log
    assert reference() is None
    wait_until(
        lambda: not [t for t in threading.enumerate() if t.name.startswith("walkit-")], "the threads to end"
    )


def test_what_still_needs_the_log_keeps_it_open(tmp_path: Path) -> None:
    """Keep a follower or a transaction and drop the log: it stays open until they are gone too."""
    log = walkit.open(tmp_path / "log")
    log.append(b"1")
    following, transaction = log.follow(1), log.transaction()
    del log
    assert next(following).value == b"1"
    with transaction as tx:
        tx.append(b"2")
    assert next(following).value == b"2"
    del transaction, tx
    with pytest.warns(ResourceWarning):
        del following


def test_a_log_in_a_cycle_is_collected_wherever_the_collector_runs() -> None:
    """Collect a dropped log on its own committer during a commit: it closes, and no thread waits forever."""

    class Owner:
        """Holds a log, and itself."""

        def __init__(self, log: walkit.WriteAheadLog) -> None:
            self.log, self.me = log, self

    caught: list[Any] = []

    class Collector:
        """Collects as a frame is written."""

        def writing(self, _: object) -> None:
            assert threading.current_thread().name.startswith("walkit-commit")
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                gc.collect()
                caught.extend(seen)

        def wrote(self, *_: object) -> None:
            pass

        synced = wrote

    storage = FaultyMemory()
    hang = storage.hang("allocate", SEGMENTS)
    gc.disable()
    try:
        owner = Owner(walkit.open(storage=storage, options=tiny()))
        owner.log.observe_writes(Collector())
        ticket = owner.log.submit(b"1")
        assert hang.entered.wait(GUARD_S)
        del owner
        hang.release()
        assert ticket.result(GUARD_S).first_lsn == 1
        wait_until(lambda: not storage.is_locked("lock"), "the dropped log to close")
    finally:
        gc.enable()
    assert [w.category for w in caught] == [ResourceWarning]
    with walkit.open(storage=storage.inner, options=tiny()) as log:
        assert values(log.read()) == [b"1"]


def test_a_log_dropped_in_its_own_callback_closes() -> None:
    """Drop the last reference on the delivery thread: it closes from there, and can be opened again."""
    storage = CrashingStorage()
    box = [walkit.open(storage=storage, options=tiny())]
    dropped = threading.Event()
    caught: list[Any] = []

    def drop(_: object) -> None:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            box.clear()
            caught.extend(seen)
        dropped.set()

    box[0].submit(b"1").add_done_callback(drop)
    assert dropped.wait(GUARD_S)
    wait_until(lambda: not storage.is_locked("lock"), "the dropped log to close")
    assert [w.category for w in caught] == [ResourceWarning]


EXITS = {
    "plainly": "",
    "with a follower": "following = log.follow(1); next(following)",
    "with a thread that appends": (
        "import threading\n"
        "def go():\n"
        "    try:\n"
        "        while True: log.append(b'x')\n"
        "    except walkit.LogClosedError: pass\n"
        "threading.Thread(target=go, daemon=True).start()\n"
        "import time\n"
        "while log.acked_lsn < 50: time.sleep(0.001)"
    ),
    "in a cycle": "class Owner: pass\nowner = Owner(); owner.me = owner; owner.log = log; del owner, log",
}


def test_the_end_of_the_process_loses_nothing_and_prints_nothing(tmp_path: Path) -> None:
    """End a process with open logs and records on their way: no warning, no noise, all of them are there, clean."""
    script = """
import gc, sys, walkit
gc.disable()  # a cycle stays until the end
for place, ending in zip(sys.argv[1::2], sys.argv[2::2]):
    log = walkit.open(place)
    for n in range(20):
        log.submit(b"%d" % n)
    names = {"walkit": walkit, "log": log}
    del log
    exec(ending, names)
    globals()[place] = names
"""
    places = {tmp_path / name: ending for name, ending in EXITS.items()}
    done = run_python(script, *(word for pair in places.items() for word in pair))
    assert not done.stdout
    for place in places:
        with walkit.open(place) as log:
            assert log.recovery.verdict == "clean"
            assert values(log.read(1, 20)) == [b"%d" % n for n in range(20)], place


def test_a_process_that_ends_with_an_exception_shows_only_that(tmp_path: Path) -> None:
    """End by an exception: its traceback and nothing of walkit's, and the log is whole."""
    script = "import sys, walkit\nlog = walkit.open(sys.argv[1])\nlog.submit(b'1')\nraise SystemError('mine')"
    done = run_python(script, tmp_path / "log", check=False)
    assert done.returncode == 1 and done.stderr.rstrip().endswith("SystemError: mine")
    assert "walkit." not in done.stderr.replace("walkit.open", "")
    with walkit.open(tmp_path / "log") as log:
        assert values(log.read()) == [b"1"]


def is_gone(place: str) -> bool:
    """Whether nothing is at this place."""
    return not os.path.exists(place)


def test_a_scratch_log_that_is_dropped_is_removed() -> None:
    """Drop a scratch log, closed or not: its folder goes with it, without a warning."""
    for closes in (True, False):
        log = walkit.scratch("name", options=tiny())
        log.append(b"1")
        place = log.location
        assert os.path.isdir(place) and log in walkit.open_logs()
        if closes:
            log.close()
            assert os.path.isdir(place), "its owner may still want to read it"
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            del log
        wait_until(partial(is_gone, place), "the folder to go")
