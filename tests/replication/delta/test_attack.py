"""A delta reader survives late answers, an unreadable manifest, damaged checkpoints, hung storage, forks."""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import quick
from tests.replication.proxy import TcpProxy
from tests.support.threads import Task, wait_until
from walkit.errors import DivergenceError, LogClosedError, LogLockedError
from walkit.format.manifest import MANIFEST_NAME
from walkit.models import FaultyStorage
from walkit.replication import DeltaReader, Primary
from walkit.replication.delta import loop as delta_loop
from walkit.replication.logs.source import StoredSource
from walkit.replication.replica.rewind import rewind
from walkit.storage import FileStorage

WAIT_S = 30.0


def test_a_late_answer_is_not_a_cut_history(stack: ExitStack, tmp_path: Path) -> None:
    """Hold the first answer back while the reader reads the log past it: it continues, and is answered again."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    log.append(b"1", key=b"k")
    primary = stack.enter_context(Primary(log))
    proxy = stack.enter_context(TcpProxy(primary.address))
    proxy.hold_after = b"walkit.replication"
    reader = stack.enter_context(DeltaReader(tmp_path / "log", proxy.address, backoff=quick()))
    wait_until(lambda: primary.delta_statistics().sessions > 0)
    for n in range(2, 6):
        reader.wait_for(log.append(b"%d" % n, key=b"k").last_lsn, WAIT_S)
    proxy.hold_after = b""
    proxy.answers_flow.set()
    polls = reader.statistics().polls
    wait_until(lambda: reader.statistics().polls > polls or reader.error is not None)
    assert reader.error is None
    assert reader.wait_for(log.append(b"6", key=b"k").last_lsn, WAIT_S) == 6


def test_no_frame_of_an_opening_is_applied_before_its_history_is_known(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Put an older log back while the manifest cannot be read: nothing of it is applied, then it is refused."""
    place = tmp_path / "log"
    with walkit.open(place) as log:
        log.append(b"1", key=b"k")
    shutil.copytree(place, tmp_path / "backup")
    storage = FaultyStorage(FileStorage(str(place)))
    with walkit.open(place) as log, Primary(log) as primary:
        address = primary.address
        log.append(b"2", key=b"k")
        reader = stack.enter_context(DeltaReader(storage, address, backoff=quick()))
        reader.wait_for(2, WAIT_S)
        with DeltaReader(place, address, checkpoint=tmp_path / "own") as saved:
            saved.wait_for(2, WAIT_S)
    fault = storage.fail("open", MANIFEST_NAME, times=None)
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with walkit.open(place) as log:
        log.append(b"other 2", key=b"k")
        stack.enter_context(Primary(log, address))
        polls = reader.statistics().polls
        wait_until(lambda: reader.statistics().polls > polls + 1 or reader.error is not None)
        log.append(b"other 3", key=b"k")
        wait_until(lambda: reader.statistics().polls > polls + 4 or reader.error is not None)
        assert reader.state == {b"k": b"2"}
        fault.cancel()
        with pytest.raises(DivergenceError):
            reader.wait_for(3, WAIT_S)
        assert reader.state == {b"k": b"2"}
        with pytest.raises(DivergenceError):
            DeltaReader(place, address, checkpoint=tmp_path / "own")


def test_a_stop_does_not_wait_for_a_storage_that_hangs(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hang the storage of checkpoints, then that of the log's manifest: `stop` returns, and names the hung threads."""
    monkeypatch.setattr(delta_loop, "STOP_S", 0.2)
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = FaultyStorage(FileStorage(str(tmp_path / "own")))
    reader = DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0)
    hang = own.hang("sync", "*")
    stack.callback(reader.stop)  # once nothing hangs, it gives the folder back
    stack.callback(hang.release)
    reader.start()
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    assert hang.entered.wait(WAIT_S)
    Task(reader.stop).result()
    assert "hangs" in reader.status().trouble
    with pytest.raises(LogLockedError):  # what hangs may still write there
        DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own")


def test_a_forked_child_changes_nothing_of_its_parents_reader(stack: ExitStack, tmp_path: Path) -> None:
    """Stop, wait and take a checkpoint in a forked child: errors there; the parent keeps claim, folder and threads."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = tmp_path / "own"
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address, checkpoint=own))
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    child = os.fork()
    if not child:
        code = 1
        try:
            for act in (lambda: reader.wait_for(2, WAIT_S), reader.checkpoint, reader.start):
                with pytest.raises(LogClosedError):
                    act()
            reader.stop()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert log.claims()
    with pytest.raises(LogLockedError):
        DeltaReader(tmp_path / "log", primary.address, checkpoint=own)
    assert reader.wait_for(log.append(b"2", key=b"k").last_lsn, WAIT_S) == 2
    assert reader.checkpoint() == 2


class Exhausted(FileStorage):
    """A folder under a process that has no memory left, while `now` is set."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.now = threading.Event()

    def open(self, name: str, mode: Any) -> Any:
        """Refuse."""
        if self.now.is_set():
            raise MemoryError("no memory for a checkpoint")
        return super().open(name, mode)


def test_an_error_on_the_thread_of_claim_and_checkpoints_is_not_silent(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Have checkpoints raise what no storage should: the reader ends with an error that names it."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log))
    own = Exhausted(str(tmp_path / "own"))
    reader = DeltaReader(tmp_path / "log", primary.address, checkpoint=own, checkpoint_s=0)
    own.now.set()
    with reader:
        log.append(b"1", key=b"k")
        wait_until(lambda: reader.error is not None)
        assert "no memory" in str(reader.error)
        own.now.clear()


@pytest.mark.parametrize("how", ["rewind", "backup"])
def test_a_cut_history_is_noticed_without_a_primary(stack: ExitStack, tmp_path: Path, how: str) -> None:
    """Cut the log under a reader that reads it alone, and write fewer other records: DivergenceError, with no wait."""
    place, first_cut = tmp_path / "log", 6
    with walkit.open(place) as log:
        for n in range(1, first_cut):
            log.append(b"%d" % n, key=b"%d" % n)
    shutil.copytree(place, tmp_path / "backup")
    with walkit.open(place) as log:
        for n in range(first_cut, 20):
            log.append(b"%d" % n, key=b"%d" % n)
    source = StoredSource(FileStorage(str(place)))
    reader = stack.enter_context(DeltaReader(place, "127.0.0.1:9", backoff=quick()))
    assert reader.wait_for(19, WAIT_S) == source.durable()[0] == 19
    if how == "rewind":
        rewind(place, first_cut, force=True)
    else:
        place.rename(tmp_path / "gone")
        shutil.copytree(tmp_path / "backup", place)
    with walkit.open(place) as log:
        lsn = log.append(b"other", key=b"k").last_lsn
        assert lsn == first_cut
        wait_until(lambda: source.durable()[0] == lsn)
        wait_until(lambda: reader.error is not None)
    assert isinstance(reader.error, DivergenceError) and reader.error.first_lsn <= first_cut
    assert b"k" not in reader.state
