"""One writer: the lock between processes and within one, its death, and forked copies."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

import walkit
from tests.support.logs import Child, lsns, run_python, tiny, values
from tests.support.threads import GUARD_S, wait_until
from walkit.errors import LogLockedError

HOLDER = """
import json, sys, walkit
log = walkit.open(sys.argv[1])
log.append(b"from the holder")
print(json.dumps([log.acked_lsn]), flush=True)
sys.stdin.readline()
log.close()
print("0", flush=True)
sys.stdin.readline()
"""


def test_a_second_opening_in_this_process_names_the_first(tmp_path: Path) -> None:
    """Open twice, plainly, through a symlink, by URL and by another spelling: the line to run names the right log."""
    path = tmp_path / "log"
    with walkit.open(tmp_path / "other"), walkit.open(path) as log, walkit.open("memory://third"):
        log.append(b"1")
        i = walkit.open_logs().index(log)
        (tmp_path / "link").symlink_to(path)
        spellings: list[str | Path] = [
            path,
            tmp_path / "link",
            f"file://{path}",
            str(path) + "/",
            tmp_path / "x" / ".." / "log",
        ]
        for spelling in spellings:
            with pytest.raises(
                LogLockedError, match=rf"again: walkit\.open_logs\(\)\[{i}\]\.close\(\)"
            ) as locked:
                walkit.open(spelling)
            assert locked.value.index == i
            assert locked.value.same_process and locked.value.pid == os.getpid()
            assert locked.value.command
        assert log.append(b"2").first_lsn == 2
        with pytest.raises(LogLockedError, match=rf"walkit\.open_logs\(\)\[{i + 1}\]\.close\(\)"):
            walkit.open("memory://third")
        walkit.open_logs()[i].close()
        assert log.closed
    with walkit.open(tmp_path / "link") as log:
        assert values(log.read()) == [b"1", b"2"]


def test_a_writer_in_another_process_is_named_and_its_death_frees_the_lock(tmp_path: Path) -> None:
    """Open a log that another process holds: its pid and command; after SIGKILL it opens at once, with its records."""
    with Child(HOLDER, tmp_path / "log") as child:
        assert child.read() == [1]
        with pytest.raises(LogLockedError, match=str(child.process.pid)) as locked:
            walkit.open(tmp_path / "log")
        assert (locked.value.pid, locked.value.same_process) == (child.process.pid, False)
        assert locked.value.command is not None and "python" in locked.value.command
        child.kill()
        with walkit.open(tmp_path / "log") as log:
            assert log.append(b"mine").first_lsn == 2


def test_a_close_in_another_process_frees_the_lock_while_it_lives(tmp_path: Path) -> None:
    """Let the other process close and live on: the log can be opened here."""
    with Child(HOLDER, tmp_path / "log") as child:
        child.read()
        child.send(None)
        assert child.read() == 0
        with walkit.open(tmp_path / "log") as log:
            assert values(log.read()) == [b"from the holder"]


def test_the_lock_file_stays_one_file(tmp_path: Path) -> None:
    """Open, close, fail to open and trim: the same lock file throughout, and it names no holder once it is free."""
    path = tmp_path / "log"
    inodes = set()
    for _ in range(3):
        with walkit.open(path) as log:
            log.append(b"x")
            log.trim(log.acked_lsn)
            inodes.add((path / "lock").stat().st_ino)
            assert json.loads((path / "lock").read_bytes())["pid"] == os.getpid()
            with pytest.raises(LogLockedError):
                walkit.open(path)
        inodes.add((path / "lock").stat().st_ino)
    assert len(inodes) == 1
    assert (path / "lock").read_bytes() == b""


def test_an_opening_that_fails_leaves_the_lock_free(tmp_path: Path) -> None:
    """Fail an opening for its options after the lock was taken: the next opening succeeds."""
    path = tmp_path / "log"
    with walkit.open(path) as log:
        log.append(b"x")
    manifest = (path / "manifest").read_bytes()
    (path / "manifest").write_bytes(manifest[:-1])
    with pytest.raises(walkit.CorruptionError):
        walkit.open(path)
    (path / "manifest").write_bytes(manifest)
    with walkit.open(path) as log:
        assert lsns(log.read()) == [1]


FORKED = """
import json, os, sys, threading, traceback
import walkit
from walkit.models import FaultyStorage
from walkit.storage import FileStorage

storage = FaultyStorage(FileStorage(sys.argv[1]))
log = walkit.open(storage=storage, options=walkit.LogOptions(idle_marker_ms=0))
log.append(b"before")
hold = log.hold("h", 1)
hang = storage.hang("synced_write", "*.segment")
waiting = threading.Thread(target=log.append, args=(b"while it forks",), daemon=True)
waiting.start()
assert hang.entered.wait(30)
in_flight = log.parts.core.in_flight[0].submissions[0]
queued = log.submit(b"queued while it forks")
locks = [log.parts.driver.lock, log.parts.manifest_store._lock, log._resources._close_lock, log.parts.orphan_files.lock]
locks += [log.parts.claims._turn, hold._moving]
taken, go_on = threading.Event(), threading.Event()
def hold_locks():
    for lock in locks:
        lock.acquire()
    taken.set()
    go_on.wait()
    for lock in reversed(locks):
        lock.release()
holder = threading.Thread(target=hold_locks, daemon=True)
holder.start()
assert taken.wait(30)

reader, writer = os.pipe()
child = os.fork()
if child == 0:
    answers = {}
    tx = log.transaction()
    def unknown(ticket):
        try:
            ticket.result(10)
        except walkit.CommitFailedError as error:
            raise error.__cause__
    def in_transaction():
        with tx:
            tx.put(b"k", b"v")
    attempts = {
        "append": lambda: log.append(b"child"), "submit": lambda: log.submit(b"child"),
        "timeout": lambda: log.append(b"child", timeout=1), "many": lambda: log.append_many([b"child"]),
        "transaction": in_transaction, "delete": lambda: log.delete(b"k"), "sync": log.sync,
        "read": lambda: log.read(), "follow": lambda: log.follow(1), "observe": lambda: log.observe(print),
        "hold": lambda: log.hold("c", 1), "move": lambda: hold.advance(2), "release": lambda: hold.release(),
        "trim": lambda: log.trim(1),
        "queued": lambda: queued.result(10), "in flight": lambda: unknown(in_flight),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
            answers[name] = "no error"
        except walkit.LogClosedError as error:
            answers[name] = "forked" if "forked" in str(error) or "closed" in str(error) else str(error)
        except BaseException as error:
            answers[name] = repr(error)
    answers["opened"] = len(walkit.open_logs())
    answers["close"] = log.close()
    try:
        walkit.open(sys.argv[1])
    except walkit.LogLockedError as error:
        answers["locked"] = [error.pid, error.same_process]
    os.write(writer, json.dumps(answers).encode())
    os._exit(0)
os.close(writer)
answers = os.read(reader, 1 << 16)
_, status = os.waitpid(child, 0)
go_on.set()
holder.join()
hang.release()
waiting.join()
log.append(b"after")
hold.release()
log.close()
with walkit.open(sys.argv[1]) as again:
    print(json.dumps([json.loads(answers), status, [r.value.decode() for r in again.read()], os.getpid()]))
"""


def test_a_forked_copy_refuses_everything_at_once_and_harms_nothing(tmp_path: Path) -> None:
    """Fork while a write hangs and a thread holds every lock: the child refuses all, the parent goes on."""
    done = run_python(FORKED, tmp_path / "log")
    answers, status, found, parent = json.loads(done.stdout)
    assert status == 0
    assert answers.pop("locked") == [parent, False]
    assert (answers.pop("opened"), answers.pop("close")) == (0, None)
    assert set(answers.values()) == {"forked"}, answers
    assert found == ["before", "while it forks", "queued while it forks", "after"]


def test_a_child_that_exits_does_not_free_the_parents_lock(tmp_path: Path) -> None:
    """Fork and let the child end in the usual way: the parent's log stays locked, open and whole."""
    script = """
        import os, sys, walkit
        log = walkit.open(sys.argv[1])
        log.append(b"1")
        if os.fork() == 0:
            sys.exit(0)
        os.wait()
        try:
            walkit.open(sys.argv[1])
        except walkit.LogLockedError as error:
            assert error.same_process
        else:
            raise SystemExit("the lock was lost")
        log.append(b"2")
        log.close()
    """
    run_python(script, tmp_path / "log")
    with walkit.open(tmp_path / "log") as log:
        assert values(log.read()) == [b"1", b"2"]


def test_a_child_may_open_the_log_once_the_parent_has_closed_it(tmp_path: Path) -> None:
    """Fork, close in the parent, open in the child: the child's old copy keeps no lock."""
    script = """
        import os, sys, walkit
        log = walkit.open(sys.argv[1])
        log.append(b"1")
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.read(reader, 1)
            with walkit.open(sys.argv[1]) as mine:
                mine.append(b"child")
            os._exit(0)
        log.close()
        os.write(writer, b"x")
        assert os.wait()[1] == 0
    """
    run_python(script, tmp_path / "log")
    with walkit.open(tmp_path / "log") as log:
        assert values(log.read()) == [b"1", b"child"]


def test_many_openings_at_once_have_one_winner(tmp_path: Path) -> None:
    """Open one path from twelve threads at once, again and again: one writer at a time, no record lost."""
    won: list[int] = []
    wrong: list[BaseException] = []

    def work() -> None:
        mine = 0
        while mine < 4:
            try:
                with walkit.open(tmp_path / "log", options=tiny()) as log:
                    won.append(log.append(b"x").first_lsn)
                    mine += 1
            except LogLockedError:
                continue
            except BaseException as error:
                wrong.append(error)
                return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    wait_until(lambda: not any(t.is_alive() for t in threads))
    assert not wrong
    assert won == list(range(1, 17))
