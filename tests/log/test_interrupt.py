"""Ctrl-C: wherever it hits the main thread, the log is whole and can go on."""

from __future__ import annotations

import gc
import json
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.interrupts import interrupt_in
from tests.support.logs import SEGMENTS, faulty_log, lsns, reopened, run_python, segment_set, tiny, values
from tests.support.threads import GUARD_S, Task, wait_until
from walkit import _main_thread
from walkit.errors import LogClosedError, LogLockedError
from walkit.models import CrashingStorage
from walkit.segments.manifest_store import LOCK_NAME
from walkit.storage.openfile import FileStorageFile

STORM = """
import dataclasses, faulthandler, json, random, signal, sys, threading
import walkit
from walkit.commit.policy import Linger

path, way, wanted, companions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
faulthandler.dump_traceback_later(25, exit=True)
sys.setswitchinterval(1e-5)
options = walkit.LogOptions(segment_bytes=65536, frame_bytes_max=8192, idle_marker_ms=0, queue_bytes_max=16384)
if way == "policy":
    way = "submit"
    options = dataclasses.replace(options, in_flight=2, policy=Linger(wait_us=200, size_bytes=2048))
log = walkit.open(path, options=options)
told, stop, main = [], threading.Event(), threading.main_thread().ident
numbers = iter(range(10**9))

def shoot():
    chance = random.Random(7)
    while not stop.is_set():
        # The storm thins out until something gets through: how dense is too dense depends on the machine.
        for _ in range(chance.randrange(2000 << min(interrupts // 1000, 8))):
            pass
        signal.pthread_kill(main, signal.SIGINT)

def append_too():
    while not stop.is_set():
        log.append(b"other")

def once(value):
    if way == "append":
        told.append((log.append(value).first_lsn, value))
    elif way == "transaction":
        with log.transaction() as tx:
            tx.put(b"k", value)
            tx.put(b"k", value)
        told.append((tx.result.first_lsn, value))
    elif way == "timeout":
        told.append((log.append(value, timeout=30).first_lsn, value))
    elif way == "submit":
        told.append((log.submit(value).result().first_lsn, value))
    elif way == "many":
        told.append((log.append_many([value] * 3).first_lsn, value))

def interrupt(number, frame):
    # Only within `once`, and there as often as it comes: the test's own steps are not under test.
    while frame is not None:
        if frame.f_code is once.__code__:
            raise KeyboardInterrupt
        frame = frame.f_back

signal.signal(signal.SIGINT, interrupt)
interrupts = 0
threads = [threading.Thread(target=append_too, daemon=True) for _ in range(companions)]
threads.append(threading.Thread(target=shoot, daemon=True))
for thread in threads:
    thread.start()
while interrupts < wanted or len(told) < 20:
    try:
        once(b"main %d" % next(numbers))
    except KeyboardInterrupt:
        interrupts += 1
stop.set()
for thread in threads:
    thread.join()
after = log.append(b"after").first_lsn
assert not log.statistics().poisoned
log.close()
with walkit.open(path, options=options) as log:
    assert log.recovery.verdict == "clean"
    found = {record.lsn: record.value for record in log.read()}
assert sorted(found) == list(range(1, len(found) + 1))
assert found[after] == b"after"
assert not [(lsn, value) for lsn, value in told if found[lsn] != value]
print(json.dumps([interrupts, len(told)]))
"""


@pytest.mark.parametrize(
    ("way", "companions"),
    [
        ("append", 2),
        # Slow: a process for seconds. They wait in the same driver, which test_signal_handlers strikes at each point.
        *(
            pytest.param(*way, marks=pytest.mark.slow)
            for way in (("many", 2), ("transaction", 0), ("timeout", 0), ("policy", 2))
        ),
    ],
)
def test_a_storm_of_interrupts(tmp_path: Path, way: str, companions: int) -> None:
    """Send SIGINT repeatedly while the main thread appends: acknowledged records stay, the log continues."""
    done = run_python(STORM, tmp_path / "log", way, "30", str(companions))
    interrupts, told = json.loads(done.stdout)
    assert interrupts >= 30 and told >= 20


def interrupt_when(predicate: Any) -> Task:
    """Send one SIGINT to the main thread when the predicate holds."""
    main = threading.main_thread().ident
    assert main is not None

    def shoot() -> None:
        wait_until(predicate)
        signal.pthread_kill(main, signal.SIGINT)

    return Task(shoot)


@pytest.fixture(autouse=True)
def plain_handler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Interrupts are Python's own in these tests, and the wait for a hung call is short.

    Nothing is collected meanwhile: CPython loses an interrupt that comes in the callback of a weak reference.
    """
    monkeypatch.setattr(_main_thread, "GRACE_S", 0.02)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.disable()
    yield
    gc.enable()
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_while_waiting_leaves_the_record_on_its_way() -> None:
    """Interrupt an append that waits behind another thread's hung write: KeyboardInterrupt at once, written later."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    leader = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    shooter = interrupt_when(lambda: log.statistics().queue_records == 1)
    with pytest.raises(KeyboardInterrupt):
        log.append(b"waits")
    shooter.result()
    hang.release()
    leader.result()
    assert log.append(b"after").first_lsn == 4
    assert values(log.read()) == [b"first", b"hangs", b"waits", b"after"]
    log.close()


@pytest.mark.parametrize("write_timeout_ms", [None, 30_000])
def test_an_interrupted_close_frees_the_lock_only_when_upkeep_has_ended(write_timeout_ms: int | None) -> None:
    """Interrupt a close that waits for a maintenance job: the lock is held until the job is done, and free after it."""
    storage, log = faulty_log(write_timeout_ms=write_timeout_ms)
    entered, go_on = threading.Event(), threading.Event()

    def job() -> None:
        entered.set()
        go_on.wait(GUARD_S)

    log.parts.segments.maintenance.submit("zero", job)
    assert entered.wait(GUARD_S)
    shooter = interrupt_in("close", "join")
    with pytest.raises(KeyboardInterrupt):
        log.close()
    shooter.result()
    assert storage.is_locked(LOCK_NAME)
    go_on.set()
    wait_until(lambda: not storage.is_locked(LOCK_NAME))
    with walkit.open(storage=storage) as again:
        assert again.acked_lsn == 1


def test_an_interrupt_while_leading_waits_for_the_frame() -> None:
    """Interrupt an append in its own write: the frame is acknowledged first, then comes the KeyboardInterrupt."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)

    def shoot_and_release() -> None:
        assert hang.entered.wait(GUARD_S)
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGINT)
        hang.release()

    shooter = Task(shoot_and_release)
    with pytest.raises(KeyboardInterrupt):
        log.append(b"leads")
    shooter.result()
    assert log.acked_lsn == 2
    assert log.append(b"after").first_lsn == 3
    log.close()


def test_an_interrupt_while_waiting_for_room_queues_nothing() -> None:
    """Interrupt an append that waits for room: nothing of it is written."""
    storage, log = faulty_log(queue_bytes_max=4096)
    hang = storage.hang("synced_write", SEGMENTS)
    leader = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    log.submit(bytes(4000))
    shooter = interrupt_when(lambda: log.parts.driver.signal.waiting == 1)
    with pytest.raises(KeyboardInterrupt):
        log.append(bytes(500))
    shooter.result()
    hang.release()
    leader.result()
    assert log.append(b"after").first_lsn == 4
    log.close()


def test_an_interrupted_close_keeps_the_lock_and_can_be_called_again() -> None:
    """Interrupt a close that waits for a hung write: nothing is released; the next close ends it."""
    storage, log = faulty_log()
    hang = storage.hang("synced_write", SEGMENTS)
    leader = Task(log.append, b"hangs")
    assert hang.entered.wait(GUARD_S)
    shooter = interrupt_when(lambda: log.parts.driver.refusal is not None)
    with pytest.raises(KeyboardInterrupt):
        log.close()
    shooter.result()
    assert storage.is_locked("lock")
    with pytest.raises(LogLockedError):
        walkit.open(storage=storage.inner, options=tiny())
    with pytest.raises(LogClosedError):
        log.append(b"refused")
    hang.release()
    assert leader.result().first_lsn == 2
    log.close()
    assert values(reopened(storage.inner)) == [b"first", b"hangs"]


def test_an_interrupted_sync_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt sync() in the device, then call it again: only then is the record durable, and it really is."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny(durability="none"))
    log.append(b"1")
    segment = segment_set(log).current
    assert segment is not None
    sync = segment.file.sync
    interrupts = [KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        sync()

    monkeypatch.setattr(segment.file, "sync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        log.sync()
    assert (log.durable_lsn, log.statistics().poisoned) == (0, 0)
    assert log.sync() == 1
    assert lsns(reopened(storage.crash(keep="none"))) == [1]
    log.close()


def test_an_interrupted_read_leaves_the_log_fine() -> None:
    """Interrupt a reading loop again and again: each new reading begins at the given LSN."""
    _, log = faulty_log()
    log.append_many([bytes(1000)] * 200)
    for n in range(5):
        rounds: list[int] = []
        shooter = interrupt_when(partial(len, rounds))

        def read_on(rounds: list[int] = rounds) -> None:
            while True:
                rounds.append(len(list(log.read())))

        with pytest.raises(KeyboardInterrupt):
            read_on()
        shooter.result()
        assert lsns(log.read(n + 1, n + 2)) == [n + 1, n + 2]
    log.close()


@pytest.mark.parametrize("way", ["read", "read_batches"])
def test_an_interrupt_while_a_read_closes_its_file_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Strike in the close that ends a reading of whole frames: the Ctrl-C reaches the caller."""
    with walkit.open(tmp_path / "log") as log:
        log.append_many([bytes(1000)] * 20)
        close = FileStorageFile.close

        def struck(file: FileStorageFile) -> None:
            close(file)
            signal.raise_signal(signal.SIGINT)

        with monkeypatch.context() as patched:
            patched.setattr(FileStorageFile, "close", struck)
            with pytest.raises(KeyboardInterrupt):
                list(getattr(log, way)(1, 20))
