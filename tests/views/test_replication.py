"""The Replication page without a browser: real processes that are cut, killed and restarted, and none that remains."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.views.waiting import eventually
from walkit.errors import OptionsError
from walkit.views.page_replication import (
    POINTS_MAX,
    PRIMARY,
    REPLICAS_MAX,
    SPANS_MAX,
    Member,
    ReplicaHistory,
    ReplicationLab,
    ReplicationPage,
)
from walkit.views.workspace import DataRoot, Workspace
from walkit.workload.replicated import PacedLoad, ReplicatedChild

WAIT_S = 60.0


def done(lab: ReplicationLab) -> str | None:
    """Wait for the job under way; return what went wrong."""
    eventually(lambda: lab.jobs.current is None, "the job")
    for each in (lab, lab.jobs):
        each._check()
    return lab.jobs.problem


def member(lab: ReplicationLab, name: str) -> Member:
    """A member as it is now."""
    return next(one for one in lab.picture().members if one.name == name)


def living(pid: int) -> bool:
    """Whether there is a process with this id, of this program."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().count(b"replicated_process") > 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def lab() -> Iterator[ReplicationLab]:
    """A primary and two replicas that follow it; each test leaves them so."""
    made = ReplicationLab()
    made.start(PacedLoad(records_per_s=400), "zstd", 2)
    assert done(made) is None
    eventually(
        lambda: [m.state for m in made.picture().members] == ["serving", "streaming", "streaming"], "streams"
    )
    yield made
    made.close()


def test_a_cut_is_an_unknown_lag_and_healing_ends_it(lab: ReplicationLab) -> None:
    """Cut one link: its lag becomes unknown, the other one's stays known; heal it: known again, with a gap drawn."""
    lab.link("replica 1", "cut")
    assert done(lab) is None
    eventually(lambda: member(lab, "replica 1").lag_records is None, "the lag to be unknown")
    eventually(lambda: member(lab, "replica 1").state == "connecting", "the loss")
    assert member(lab, "replica 1").error and member(lab, "replica 1").link == "cut"
    assert member(lab, "replica 2").lag_records is not None
    lab.link("replica 1", "open")
    assert done(lab) is None
    eventually(lambda: member(lab, "replica 1").lag_records is not None, "the lag to be known")
    series = lab.picture().lag[0]
    assert series.name == "replica 1" and bool((series.records != series.records).any())
    lab.link(PRIMARY, "cut")
    assert "choose a replica" in (done(lab) or "")


# Slow: a lag has to grow. The cut above changes a link, and replication/test_status has the lag.
@pytest.mark.slow
def test_a_slow_link_is_a_lag_that_the_primary_sees(lab: ReplicationLab) -> None:
    """Slow one link down below what is sent: its lag grows over a second's records, and falls when it is healed."""
    lab.link("replica 2", "slow")
    assert done(lab) is None
    eventually(lambda: (member(lab, "replica 2").lag_records or 0) > 200, "a lag")
    lab.link("replica 2", "open")
    assert done(lab) is None
    eventually(lambda: (member(lab, "replica 2").lag_records or 1_000) < 200, "the lag to fall")


def test_a_kill_kills_and_a_restart_continues_with_the_files(lab: ReplicationLab) -> None:
    """Kill -9 the primary: it is gone, the table shows it; restart it: another process, nothing of its log is lost."""
    name = PRIMARY
    before = member(lab, name)
    assert before.pid is not None and living(before.pid)
    lab.kill(name)
    assert done(lab) is None
    assert not living(before.pid)
    killed = member(lab, name)
    assert (killed.state, killed.pid) == ("killed", None)
    lab.kill(name)
    assert "killed already" in (done(lab) or "")
    lab.restart(name)
    assert done(lab) is None
    after = member(lab, name)
    assert after.pid not in (None, before.pid) and (after.lsn or 0) >= (before.lsn or 0) > 0
    eventually(lambda: {m.state for m in lab.picture().members} == {"serving", "streaming"}, "the way back")
    assert "killed" in {bar.state for bar in lab.picture().bars if bar.lane == name}


# Slow: a process more. replication/test_bootstrap adds replicas by default.
@pytest.mark.slow
def test_a_new_replica_comes_to_the_end_of_a_growing_log(lab: ReplicationLab) -> None:
    """Add a third replica beside a running load: it streams, and its traffic is shown; a fourth is refused."""
    lab.add()
    assert done(lab) is None
    eventually(lambda: member(lab, "replica 3").state == "streaming", "the stream")
    eventually(lambda: "taken by replica 3" in lab.picture().traffic, "its traffic")
    sent = lab.picture().traffic["sent by the primary"]
    assert 0 < sent.zstd_bytes < sent.frame_bytes
    lab.add()
    assert f"{REPLICAS_MAX} replicas already" in (done(lab) or "")


# Slow: two starts. A kill and a restart are above.
@pytest.mark.slow
def test_a_process_that_ends_by_itself_is_said(lab: ReplicationLab) -> None:
    """Kill a replica from outside: the table shows its end and the signal, and a restart brings it back."""
    pid = member(lab, "replica 1").pid
    assert pid is not None
    os.kill(pid, 9)
    eventually(lambda: member(lab, "replica 1").state == "ended", "the end")
    assert "signal 9" in member(lab, "replica 1").error
    lab.restart("replica 1")
    assert done(lab) is None
    eventually(lambda: member(lab, "replica 1").state == "streaming", "the way back")


# Slow: 6 s. replication/delta/test_reader has a reader without an answer, by default.
@pytest.mark.slow
def test_a_delta_reader_whose_link_is_cut_reads_the_log(lab: ReplicationLab) -> None:
    """Add a reader, cut, heal, kill and restart it: it takes deltas, reads the log while cut, and continues."""
    lab.add_reader()
    assert done(lab) is None
    eventually(lambda: (member(lab, "reader 1").delta_bytes or 0) > 0, "bytes by delta")
    eventually(lambda: member(lab, "reader 1").state == "following", "answers")
    lab.link("reader 1", "cut")
    assert done(lab) is None
    eventually(lambda: member(lab, "reader 1").state == "reading the log", "the fall back")
    before = member(lab, "reader 1")
    assert before.lsn is not None and before.loaded_bytes is not None
    eventually(lambda: (member(lab, "reader 1").lsn or 0) > (before.lsn or 0), "records while it is cut")
    eventually(
        lambda: (member(lab, "reader 1").loaded_bytes or 0) > (before.loaded_bytes or 0), "bytes of the log"
    )
    lab.link("reader 1", "open")
    assert done(lab) is None
    eventually(lambda: member(lab, "reader 1").state == "following", "the way back")
    reader = member(lab, "reader 1")
    assert reader.lag_records is not None and reader.lag_bytes is not None and reader.loaded_bytes is not None
    lab.kill("reader 1")
    assert done(lab) is None
    killed = member(lab, "reader 1")
    assert (killed.state, killed.pid, killed.lag_records) == ("killed", None, None)
    lab.restart("reader 1")
    assert done(lab) is None
    eventually(lambda: member(lab, "reader 1").state == "following", "the next life")
    states = {bar.state for bar in lab.picture().bars if bar.lane == "reader 1"}
    assert {"following", "reading the log", "killed"} <= states


def test_closing_the_session_ends_every_process(tmp_path: Path) -> None:
    """Start on the page, close the workspace: no process and no file is left; asking after that is a sentence."""
    workspace = Workspace(DataRoot(tmp_path))
    page = ReplicationPage(workspace, lambda slug, state: None)
    page.refresh()
    assert page.kill.disabled and "press Start" in page.status.object
    page.count.value = 1
    page.start.clicks += 1
    assert page.start.disabled and "Starting the processes" in page.status.object
    assert done(page.lab) is None
    page.restore({"unit": "ms", "rate": "2000", "codec": ""})
    assert page.state() == {"rate": "2000", "codec": "", "unit": "ms"}
    page.restore({"unit": "weeks", "rate": "7", "codec": "lzma"})
    assert page.state() == {"rate": "2000", "codec": "", "unit": "ms"}
    page.refresh()
    assert page.which.options == [PRIMARY, "replica 1"] and page.links["Cut"].disabled
    page.which.value = "replica 1"
    assert not page.links["Cut"].disabled and page.view.lag.visible
    assert "replica 1" in page.view.members.object and not page.add.disabled
    pids = [one.pid for one in page.lab.picture().members]
    assert len(pids) == 2 and all(pid is not None and living(pid) for pid in pids)
    workspace.close()
    assert not any(pid is not None and living(pid) for pid in pids)
    page.start.clicks += 1
    assert "session has ended" in page.status.object


# Slow: a process that writes 20 kB. Nothing is lost if a load does not rest.
@pytest.mark.slow
def test_a_log_that_has_its_size_rests(tmp_path: Path) -> None:
    """A primary alone with a log of at most 20 kB: its lines report that it rests."""
    lines: list[dict[str, Any]] = []
    load = PacedLoad(records_per_s=500, log_bytes_max=20_000)
    child = ReplicatedChild.primary(str(tmp_path / "p"), load, lines.append)
    child.start_and_hear(WAIT_S)
    eventually(lambda: lines[-1]["resting"], "the log to have its size")
    child.stop(WAIT_S)
    assert child.failure() == "" and not child.talking
    with walkit.open(tmp_path / "p", mode="r") as log:
        assert log.durable_lsn >= lines[-1]["durable_lsn"] > 0


def test_a_load_out_of_bounds_is_refused() -> None:
    """Ask for a billion records per second: an OptionsError names the field."""
    with pytest.raises(OptionsError, match="records_per_s"):
        PacedLoad(records_per_s=10**9)


def test_stopping_ends_all_and_leaves_nothing(lab: ReplicationLab) -> None:
    """Stop: nothing runs, nothing is shown and no file is left; a kill is a sentence then. The last test of the lab."""
    pids = [one.pid for one in lab.picture().members]
    lab.stop()
    said: set[str] = set()
    while lab.jobs.current is not None:
        said |= {one.state for one in lab.picture().members}
    assert done(lab) is None and "starting" not in said, "what is being stopped does not start"
    assert (lab.picture().members, lab.picture().bars, lab.running) == ((), (), False)
    assert not any(pid is not None and living(pid) for pid in pids)
    lab.kill(PRIMARY)
    assert "press Start" in (done(lab) or "")


def test_what_is_remembered_is_bounded() -> None:
    """Take ten thousand lines with a life that ends each tenth time: points and states stay within their limits."""
    history = ReplicaHistory("r", 1_000.0)
    for n in range(10_000):
        now = 1_000.0 + n
        history.note_lag(now, {"lag_records": n, "lag_bytes": n, "lag_ms": None})
        span = {"state": "streaming", "since": now, "until": None, "detail": ""}
        history.take({"clock_s": now, "status": {"history": [span]}})
        if n % 10 == 0:
            history.end("killed", now)
            history.begin(now + 0.5)
    assert len(history.lag().time_s) == POINTS_MAX
    assert len(history.bars(20_000.0, 0.0)) <= SPANS_MAX + 1
    assert history.newest == (9_999, 9_999, None)
