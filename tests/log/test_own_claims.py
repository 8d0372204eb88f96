"""Claims of the log's own process: values in memory, files that follow, and their lease after the process has died."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.support.logs import faulty_log, memory_log, tiny
from tests.support.mounts import mounted
from tests.support.threads import GUARD_S, Task, wait_until
from walkit.errors import ClaimError, GapError, LogClosedError, OptionsError, StorageError
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.format.layout import CLAIMS_MAX
from walkit.log.claims import RENEW_S_MIN
from walkit.models import CrashingStorage, FaultyStorage
from walkit.segments.consumer_files import stored_claim
from walkit.storage.interface import LockHolder

RECORDS = 80


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log of 80 records in ten segments."""
    with memory_log() as made:
        made.append_many([bytes(7000)] * RECORDS)
        made.wait_idle()
        yield made


def stored(log: walkit.WriteAheadLog, name: str) -> int | None:
    """The position in the file of a claim; None without a file."""
    mark = stored_claim(log.parts.storage, name)
    return None if mark is None else mark.first_lsn


def test_a_claim_keeps_back_the_trim(log: walkit.WriteAheadLog) -> None:
    """F-18.10: hold, advance and release: each trim stops below the lowest value in memory, and no file below it."""
    low, high = log.hold("low", 5), log.hold("high", 50)
    assert isinstance(low, walkit.Claim) and log.trim(70) == 4 and log.first_lsn == 5
    low.advance(30)
    assert stored(log, "low") == 5, "advance writes nothing"
    assert log.trim(20) == 20 and stored(log, "low") == 30, "the file would have limited the trim"
    low.advance(40)
    assert log.trim(20) == 20 and stored(log, "low") == 30, "it would not"
    assert [(c.name, c.first_lsn) for c in log.claims()] == [("high", 50), ("low", 40)]
    low.release()
    low.release()
    assert log.trim(70) == 49 and log.first_lsn == 50 and low.state == "released"
    high.advance(RECORDS + 1)
    assert log.trim(70) == 70 and "high" in repr(high)


def test_advance_does_no_io() -> None:
    """Advance 10,000 times on a storage that counts: no call comes there, and the mean is microseconds."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([b"x"] * 10_000)
        claim = log.hold("c", 1)
        log.wait_idle()
        calls, began = len(storage.trace), time.perf_counter()
        for lsn in range(1, 10_001):
            claim.advance(lsn)
        each_us = (time.perf_counter() - began) * 100
        assert len(storage.trace) == calls
        assert each_us < 50, "far above the 2 us of a machine that does nothing else"
        assert claim.first_lsn == 10_000


def refused(log: walkit.WriteAheadLog, kind: type[Exception], act: Callable[[], object]) -> None:
    """The call is refused, and no claim but those of before is there."""
    before = [(c.name, c.first_lsn) for c in log.claims()]
    with pytest.raises(kind):
        act()
    assert [(c.name, c.first_lsn) for c in log.claims()] == before


def test_what_is_refused(log: walkit.WriteAheadLog) -> None:
    """Ask for claims and moves that cannot be, each from a table: refused by its error, and nothing is left."""
    log.trim(10)
    claim = log.hold("c", 20)
    for name, first_lsn, lease_s, kind in (
        ("", 20, 60, OptionsError),
        ("a b", 20, 60, OptionsError),
        ("h" * 65, 20, 60, OptionsError),
        ("h", 20, 0, OptionsError),
        ("h", 20, 31 * 86_400, OptionsError),
        ("h", 0, 60, OptionsError),
        ("h", RECORDS + 2, 60, OptionsError),
        ("h", 10, 60, GapError),
        ("c", 10, 60, GapError),
    ):
        refused(log, kind, lambda n=name, f=first_lsn, s=lease_s: log.hold(n, f, s))  # type: ignore[misc]
    for lsn in (19, RECORDS + 2, 0, 1.5):
        refused(log, OptionsError, lambda lsn=lsn: claim.advance(lsn))  # type: ignore[misc]
    newer = log.hold("c", 30)
    refused(log, ClaimError, lambda: claim.advance(40))
    refused(log, ClaimError, claim.renew)
    claim.release()
    assert log.trim(70) == 29, "releasing an object whose claim was taken over gives up nothing"
    newer.release()
    refused(log, ClaimError, lambda: newer.advance(40))


def test_a_name_has_one_consumer(log: walkit.WriteAheadLog) -> None:
    """Take a name of a live claim in this and in another process: refused each way, by force too; dropped here."""
    place = log.parts.storage
    walkit.claim(place, "theirs", 20)
    mine = log.hold("mine", 30)
    refused(log, ClaimError, lambda: log.hold("theirs", 40))
    refused(log, ClaimError, lambda: walkit.claim(place, "mine", 40))
    refused(log, ClaimError, lambda: walkit.claim(place, "mine", 40, take_over=True))
    with walkit.open(storage=place, mode="r") as reader:
        refused(log, ClaimError, lambda: reader.drop_claim("mine"))
    assert log.drop_claim("mine") and not log.drop_claim("mine")
    refused(log, ClaimError, lambda: mine.advance(50))
    assert log.trim(70) == 19


def test_own_claims_have_a_limit_of_their_own(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take all the claims that others may have, then two of one's own under a limit of two: the third is refused."""
    monkeypatch.setattr("walkit.read.claim.OWN_CLAIMS_MAX", 2)
    place = log.parts.storage
    for number in range(CLAIMS_MAX):
        walkit.claim(place, f"c{number}", 30)
    log.hold("a", 30), log.hold("b", 30)
    with pytest.raises(ClaimError, match="has 2 claims"):
        log.hold("c", 30)
    with pytest.raises(ClaimError, match="has 64 claims"):
        walkit.claim(place, "one-more", 30)


def test_a_claim_that_could_not_be_written_keeps_nothing() -> None:
    """Fail the writing of a claim: StorageError, and no trim is kept back by it; an older one of the name stays."""
    storage, log = faulty_log()
    log.append_many([b"x"] * 20)
    older = log.hold("h", 10)
    storage.fail("sync", "claim-*", times=2)
    for name in ("h", "other"):
        with pytest.raises(StorageError):
            log.hold(name, 3)
    older.advance(15)
    assert log.trim(20) == 14
    log.close()


def test_a_claim_outlives_its_process_until_the_lease_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold, kill and reopen, close and reopen, and move the clock: it counts while its lease runs, and is reported."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x"] * 20)
    log.hold("reader", 5, lease_s=60).advance(6)
    image = storage.process_kill()
    log.close()
    events: list[tuple[str, dict[str, Any]]] = []
    for place, first in ((image, 5), (storage, 6)):  # the close has written the value
        with walkit.open(storage=place, options=tiny(), events=lambda *e: events.append(e)) as again:
            assert again.trim(20) == first - 1
            taken_over = again.hold("reader", 8, lease_s=60)
            assert again.trim(20) == 7 and taken_over.first_lsn == 8
    assert not [e for e in events if e[0] == "walkit.claim.expire"]
    later = time.time_ns() + 61 * 10**9
    with walkit.open(storage=storage, options=tiny(), events=lambda *e: events.append(e)) as again:
        monkeypatch.setattr(time, "time_ns", lambda: later)
        assert again.trim(20) == 20
    assert [facts["first_lsn"] for name, facts in events if name == "walkit.claim.expire"] == [8]


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_no_step_of_the_clock_ends_a_claim_that_lives(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch, step_s: int
) -> None:
    """Set the wall clock an hour back, or past the lease: the claim counts, and a file of the old clock is renewed."""
    claim = log.hold("alive", 5, lease_s=1)
    now_ns = time.time_ns() + step_s * 10**9
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    assert log.trim(70) == 4 and claim.state == "held"
    claim.renew()
    mark = stored_claim(log.parts.storage, "alive")
    assert mark is not None and mark.written_us == now_ns // 1000


def test_a_claim_is_renewed_for_the_next_process() -> None:
    """Hold, advance, and do nothing: the file has the value and a new lease, a third of it later."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([b"x"] * 20)
        claim = log.hold("reader", 5, lease_s=1.5)
        taken = stored_claim(storage, "reader")
        claim.advance(7)
        wait_until(lambda: stored_claim(storage, "reader") != taken, "the renewal")
        mark = stored_claim(storage, "reader")
        assert taken is not None and mark is not None and mark.first_lsn == 7
        assert mark.written_us - taken.written_us > 0.4e6  # by the wall clock, about half a second later


def test_a_claim_that_cannot_be_written_keeps_no_other_from_it() -> None:
    """Fail each sync of one claim: the next is renewed. Close while the lock is taken: it is waited for once."""
    storage, log = faulty_log()
    with log:
        log.hold("broken", 1, lease_s=1.5), log.hold("sound", 1, lease_s=1.5)
        taken = stored_claim(storage, "sound")
        storage.fail("sync", "claim-broken", times=None)
        wait_until(lambda: stored_claim(storage, "sound") != taken, "the renewal of the second")
    seen = list[str]()
    log = walkit.open(storage=CrashingStorage(), events=lambda name, _: seen.append(name))
    for number in range(3):
        log.hold(f"c{number}", 1)
    lock = log.parts.storage.lock(CLAIMS_LOCK_NAME)
    log.close()
    assert not isinstance(lock, LockHolder) and seen.count("walkit.maintenance.fail") == 1


def test_renewals_are_few() -> None:
    """Hold with a long lease, and with the shortest: the first is not written again, the last twice a second."""
    with memory_log() as log:
        log.append_many([b"x"] * 20)
        log.hold("long", 5)
        log.wait_idle()
        log.hold("short", 5, lease_s=0.001)
        began = time.monotonic()

        def writings(name: str) -> int:
            mark = stored_claim(log.parts.storage, name)
            return 0 if mark is None else mark.generation

        wait_until(lambda: writings("short") > 3, "the renewals")
        assert time.monotonic() - began > 0.9 * RENEW_S_MIN, "one writing takes it, others renew it"
        assert writings("long") == 1


def test_a_claim_file_is_never_above_the_durable_end() -> None:
    """Hold after the last record of a log of level none: its file is below the durable LSN, and follows a sync."""
    with memory_log(tiny(durability="none")) as log:
        log.append_many([b"x"] * 20)
        claim = log.hold("c", 15)
        assert stored(log, "c") == 1 and claim.first_lsn == 15
        log.sync()
        claim.renew()
        assert stored(log, "c") == 15 and log.trim(20) == 14


@pytest.mark.parametrize("name", ["own", "other"])
def test_a_file_that_was_removed_by_hand_is_written_again(log: walkit.WriteAheadLog, name: str) -> None:
    """Remove the file of a claim, or spoil it: memory keeps the records, and the next renewal writes the file."""
    claim = log.hold("own", 30)
    place = log.parts.storage
    if name == "own":
        place.remove("claim-own")
    else:
        place.open("claim-own", "write").write(4096, [b"spoiled"])
    assert log.trim(70) == 29 and log.first_lsn == 30
    claim.renew()
    assert stored(log, "own") == 30 and claim.state == "held"


def test_a_closed_logs_claim_never_touches_the_next_writers() -> None:
    """Advance, renew and release after another writer has the log: refused, and the files are as that one's."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append(b"1")
    claim = log.hold("h", 1)
    log.close()
    with walkit.open(storage=storage, options=tiny()) as new:
        new.hold("h", 2)
        for attempt in (claim.release, claim.renew, lambda: claim.advance(2)):
            with pytest.raises(LogClosedError):
                attempt()
        assert stored(new, "h") == 2 and claim.state == "log closed"


def test_a_block_that_fails_leaves_the_claim_to_its_lease(log: walkit.WriteAheadLog) -> None:
    """End the block of a claim with an exception: its file counts, this process does not renew it, and ends it not."""
    with contextlib.suppress(KeyError), log.hold("h", 30) as claim:
        claim.advance(40)
        raise KeyError
    assert claim.state == "lost" and stored(log, "h") == 40 and log.trim(70) == 39
    with log.hold("h", 50):
        pass
    assert stored(log, "h") is None


def test_claims_and_trims_from_many_threads(log: walkit.WriteAheadLog) -> None:
    """Take, advance and release claims on eight threads beside trims: a claimed record is never gone."""

    def work(who: int) -> None:
        for n in range(8):
            try:
                claim = log.hold(f"h{who}", log.first_lsn)
            except GapError:
                continue
            for _ in range(2):
                assert log.first_lsn <= claim.first_lsn
                assert next(log.read(claim.first_lsn)).lsn == claim.first_lsn
                log.trim(9 * n)
                claim.advance(min(claim.first_lsn + 1, RECORDS))
            claim.release()

    for task in [Task(work, who) for who in range(8)]:
        task.result()
    assert log.trim(RECORDS) == RECORDS


def test_a_claim_is_not_released_while_another_is_taken() -> None:
    """Release a claim while another is written to a device that is stuck: it counts until that has ended."""
    storage = FaultyStorage(CrashingStorage())
    with walkit.open(storage) as log:
        log.append(b"1")
        claim = log.hold("one", 1)
        stuck = storage.hang("replace")
        taking = Task(lambda: log.hold("other", 1))
        assert stuck.entered.wait(GUARD_S)
        claim.advance(2)  # it waits for no device
        leaving = Task(claim.release)
        assert claim.state == "held"
        stuck.release()
        taking.result()
        leaving.result()
        assert claim.state == "released" and [c.name for c in log.claims()] == ["other"]


def fill_to_the_last_byte(folder: Path) -> None:
    """Use up each inode and each byte, as another program does."""
    with contextlib.suppress(OSError), (folder / "full").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    with contextlib.suppress(OSError):
        for number in range(100_000):
            (folder / f"inode{number}").touch()
    with contextlib.suppress(OSError):
        os.truncate(folder / "full", os.path.getsize(folder / "full") + 4096)
        with (folder / "full").open("ab", buffering=0) as file:
            while True:
                file.write(b"x")


def test_a_claim_lives_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill a small file system to its last byte and inode: renewing, advancing, releasing and closing need no room."""
    monkeypatch.setattr("walkit.log.claims.RENEW_S_MIN", 0.05)
    with mounted(tmp_path, "-t", "tmpfs", "-o", "size=2m,nr_inodes=40", "tmpfs") as folder:
        log = walkit.open(
            folder / "log", options=walkit.LogOptions(segment_bytes=256 * 1024, frame_bytes_max=65536)
        )
        log.append_many([b"x"] * 50)
        claims = [log.hold("own", 5, 0.3), log.hold("gone", 5), walkit.claim(folder / "log", "theirs", 6)]
        log.wait_idle()
        fill_to_the_last_byte(folder)
        with pytest.raises(OSError):
            (folder / "one more").touch()
        for claim in claims:
            claim.advance(10)
            claim.renew()
        generation = log.claims()[1].mark
        wait_until(lambda: log.claims()[1].mark != generation, "a renewal by itself")
        claims[1].release()
        claims[2].release()
        fill_to_the_last_byte(folder)
        claims[0].advance(20)
        with contextlib.suppress(StorageError):
            log.close()  # the manifest of the last seal takes room
        assert stored_claim(walkit.storage.FileStorage(str(folder / "log")), "own").first_lsn == 20  # type: ignore[union-attr]
