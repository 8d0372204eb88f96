"""A session of the dashboard with a real child process: what it does, says, and leaves behind, without a browser."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import pytest

from tests.views.waiting import eventually
from walkit.views import Session, Shell
from walkit.views.history import History, Point
from walkit.views.page import make_shell
from walkit.views.page_live import LivePage
from walkit.views.page_recovery import RecoveryPage
from walkit.workload import ContinuousLoad

LOAD = ContinuousLoad(writers=3)


def live_of(shell: Shell) -> LivePage:
    shell.go("live")
    assert isinstance(shell.page, LivePage)
    return shell.page


def recovery_of(shell: Shell) -> RecoveryPage:
    shell.go("recovery")
    assert isinstance(shell.page, RecoveryPage)
    return shell.page


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture
def session() -> Iterator[Session]:
    """A session; when it is closed no folder, process or thread of it may be left."""
    before, threads = children(), set(threading.enumerate())
    made = Session()
    try:
        yield made
        eventually(lambda: not made.busy)
        for each in (made, made.jobs):
            each._check()
    finally:
        made.close()
    made.close()
    assert not Path(made.folder).exists()
    assert children() <= before
    assert set(threading.enumerate()) <= threads


def test_writing_is_seen_until_it_is_stopped(session: Session) -> None:
    """Start, stop, start: points on one clock with a gap between, the sentence names the activity."""
    history = History()

    def seen() -> int:
        reading = session.read()
        history.add(reading.points, reading.events)
        return len(history)

    assert "Nothing has been written yet" in session.read().status
    for turn in (1, 2):
        wanted = len(history) + 2
        session.start(LOAD)
        eventually(partial(lambda enough: seen() >= enough, wanted))
        reading = session.read()
        history.add(reading.points, reading.events)
        assert reading.status.startswith("Writing: 3 threads, 100 B; process")
        assert reading.latency is not None and reading.latency.count > 0
        session.stop()
        eventually(lambda: not session.busy)
        assert not session.writing
        assert (seen(), session.read().problem) == (len(history), None)
        assert session.read().status == "Nothing is being written."
        gaps = [i for i, rate in enumerate(history.series().records_per_s.tolist()) if rate != rate]
        assert len(gaps) == turn


def test_frames_in_flight_and_their_order_are_chosen_and_shown() -> None:
    """Choose frames in flight, an order and a policy on the page: the load has them, and its sentence names them."""
    shell = make_shell()
    page = live_of(shell)
    try:
        assert page.controls.loads == (ContinuousLoad(raw=True),)
        page.controls.named["inflight"].value, page.controls.named["order"].value = 4, "completion"
        page.controls.named["policy"].value = "one-record"
        (load,) = page.controls.loads
        assert (load.in_flight, load.ack_order, load.policy) == (4, "completion", "one-record")
        assert "4 in flight, completion order, one-record" in str(load)
        page.session.start(replace(load, raw=False))
        eventually(lambda: shell.refresh() and (history_of(page).last or Point(0)).in_flight > 0)
        assert "frames in flight" in page.live.cards.object
        assert "4 in flight, completion order" in page.live.status.object
        page.session.stop()
        eventually(lambda: not page.session.busy)
        page.session.start(ContinuousLoad(writers=1))
        eventually(lambda: not page.session.busy)
        assert page.session.read().problem is None
    finally:
        shell.close()


def history_of(page: LivePage, place: str = "this disk") -> History:
    return page.live.histories.get(place, History())


def test_what_cannot_be_done_is_a_sentence(session: Session) -> None:
    """Stop without writers, two wishes at once: refused in words, and the session goes on."""
    session.stop()
    eventually(lambda: not session.busy)
    assert session.read().problem == "Stopping the writers failed: no writers are at work."
    session.start(LOAD)
    session.start(LOAD)
    assert session.read().problem == "Still starting the writers; ask again when that is done."
    eventually(lambda: not session.busy)
    assert session.writing


def test_a_child_that_dies_by_itself_is_told(session: Session) -> None:
    """A child that somebody else kills: the page shows it within the next readings, and can start another."""
    before = children()
    session.start(LOAD)
    eventually(lambda: not session.busy)
    (pid,) = children() - before
    psutil.Process(pid).kill()
    eventually(lambda: session.read().problem)
    assert "signal 9" in str(session.read().problem)
    assert not session.writing


def test_closing_ends_what_is_under_way(session: Session) -> None:
    """Closed in the middle of a kill and recovery: the fixture finds nothing left, and later wishes are refused."""
    session.recovery.do("sigkill", LOAD)
    session.close()
    session.start(LOAD)
    assert "session has ended" in str(session.read().problem)


# Slow: another process imports panel, 6 s. dashboards/test_command ends a server with a session by default.
@pytest.mark.slow
def test_a_session_that_is_dropped_is_cleaned_up() -> None:
    """A process that forgets its session, and one that exits with it: neither leaves folder or child."""
    program = (
        "import time; from walkit.views import Session; from walkit.workload import ContinuousLoad; import psutil\n"
        "s = Session(); s.start(ContinuousLoad(writers=1))\n"
        "while s.busy: time.sleep(0.01)\n"
        "print(s.folder, *[c.pid for c in psutil.Process().children()], flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    folder, pid = done.stdout.split()
    assert not Path(folder).exists()
    assert not psutil.pid_exists(int(pid))


def test_a_new_log_replaces_a_broken_one(session: Session) -> None:
    """If the log's folder is a file, no writer starts; after a new log they do; the old one is gone."""
    old = Path(session.path)
    old.write_text("not a log")
    session.start(LOAD)
    eventually(lambda: not session.busy)
    assert "NotALogError" in str(session.read().problem)
    session.new_log()
    eventually(lambda: not session.busy)
    assert not old.exists()
    session.start(LOAD)
    eventually(lambda: not session.busy)
    assert session.read().problem is None
    assert Path(session.path) != old and Path(session.path).is_dir()
    session.new_log()
    eventually(lambda: not session.busy)
    assert "stop them first" in str(session.read().problem)


def test_this_disk_and_a_modelled_volume_write_side_by_side(session: Session) -> None:
    """Two loads of one seed: a child each, points of both on one clock, the model's raw rate calculated; both stop."""
    disk = replace(LOAD, raw=True)
    session.start(disk, replace(disk, device="gp3"))
    seen: dict[str, list[float]] = {"this disk": [], "gp3, modelled": []}
    raw: dict[str, str] = {}

    def told() -> bool:
        for place, reading in session.readings().items():
            seen[place] += [point.time_s for point in reading.points]
            raw[place] = reading.raw
        return all(len(times) >= 2 for times in seen.values())

    eventually(told)
    assert "calculated from the model" in raw["gp3, modelled"]
    assert "measured at" in raw["this disk"] and "median of 5" in raw["this disk"]
    assert all(times == sorted(times) for times in seen.values())
    assert abs(seen["this disk"][0] - seen["gp3, modelled"][0]) < 60
    assert "the same on gp3, modelled" in session.status()
    session.stop()
    eventually(lambda: not session.busy)
    assert not session.writing and session.read().problem is None
