"""Delta readers over real gRPC: their state is the log's at each LSN they announce, whatever happens to either side."""

from __future__ import annotations

import errno
import gc
import os
import random
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick
from tests.replication.delta.test_feed import is_observed
from tests.support.logs import tiny
from tests.support.threads import Task, wait_until
from walkit.errors import (
    CorruptionError,
    DivergenceError,
    GapError,
    LogClosedError,
    LogLockedError,
    LogNotFoundError,
    OptionsError,
    RecordTypeError,
    StorageError,
)
from walkit.models import CrashingStorage, FaultyStorage
from walkit.read.kept_claim import KeptClaim
from walkit.replication import DeltaOptions, DeltaReader, Primary, ReplayLimits
from walkit.replication.delta.client_channel import PollLink
from walkit.replication.replica.rewind import rewind
from walkit.segments.manifest_store import LOCK_NAME
from walkit.storage import FileStorage, MemoryStorage
from walkit.storage.interface import LockHolder
from walkit.store import Store


def expected(log: Any, lsn: int) -> dict[bytes, bytes | None]:
    """Return the state of a log at an LSN, by reading its records one by one."""
    state: dict[bytes, bytes | None] = {}
    for record in log.read(1, lsn):
        if record.key is None:
            continue
        if record.kind == walkit.Kind.DELETE:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


def mixed(log: walkit.WriteAheadLog, chance: random.Random, turns: int) -> int:
    """Append records of many sizes, deletes, events, batches and transactions; return the last LSN."""
    for _ in range(turns):
        key, value = b"%d" % chance.randrange(20), chance.randbytes(chance.choice([1, 100, 3000]))
        what = chance.randrange(6)
        if what == 0:
            log.delete(key)
        elif what == 1:
            log.append(value)
        elif what == 2:
            log.append_many([value] * 20, [b"%d" % n for n in range(20)])
        elif what == 3:
            with log.transaction() as tx:
                tx.put(b"left", value)
                tx.put(b"right", value)
        else:
            log.append(value, key=key)
    return log.acked_lsn


@pytest.mark.parametrize("buffer_bytes", [0, 2048])
def test_a_readers_state_is_the_logs(stack: ExitStack, tmp_path: Path, buffer_bytes: int) -> None:
    """Follow a mixed load by delta, by both paths and by the log alone: state, LSNs and transactions are the log's."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    chance = random.Random(buffer_bytes)
    mixed(log, chance, 30)
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(buffer_bytes=buffer_bytes)))
    limits = ReplayLimits(loads_max=3, load_bytes=4096, bytes_max=16384)
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address, limits=limits))
    for _ in range(8):
        lsn = mixed(log, chance, 10)
        image = dict(reader.state.items())
        assert image.get(b"left") == image.get(b"right")
        assert reader.wait_for(lsn, WAIT_S) == lsn
        assert dict(reader.state.items()) == expected(log, lsn)
    statistics = reader.statistics()
    assert (statistics.hit_rate > 0) == (statistics.deltas > 0) == (buffer_bytes > 0)
    assert statistics.loads > 0 == statistics.damaged
    assert isinstance(reader.state, Mapping) and reader.state.keys() == sorted(expected(log, lsn))
    assert reader.state.lsn_of(b"left") is not None
    status = reader.status()
    assert status.state == "following" and "hit rate" in reader._repr_html_()
    assert (status.lag_records, status.lag_bytes) == (0, 0)
    latencies = reader.latencies()
    assert len(latencies["replay"]) > 0 and all((ns >= 0).all() for ns in latencies.values())


def test_a_readers_lag_is_in_records_and_bytes(stack: ExitStack, tmp_path: Path) -> None:
    """Hang the reads of a reader's storage: it lacks the bytes from where it is to the log's end, and then none."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(buffer_bytes=0)))
    storage = FaultyStorage(FileStorage(str(tmp_path / "log")))
    reader = stack.enter_context(DeltaReader(storage, primary.address))
    first = log.append(b"1", key=b"k")
    reader.wait_for(first.last_lsn, WAIT_S)
    hang = storage.hang("read", "*")
    stack.callback(hang.release)
    last = [log.append(bytes(1_000), key=b"k") for _ in range(3)][-1]
    wait_until(lambda: reader.status().known_lsn == last.last_lsn)
    status = reader.status()
    assert (status.applied_lsn, status.lag_records) == (first.last_lsn, 3)
    assert status.lag_bytes == last.next_position - first.next_position > 3_000
    hang.release()
    reader.wait_for(last.last_lsn, WAIT_S)
    assert reader.status().lag_bytes == 0


def test_records_of_a_key_are_the_logs(stack: ExitStack, tmp_path: Path) -> None:
    """Ask for the records of three keys from some LSNs on: the log's, or a GapError after a trim, never a part."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    primary = stack.enter_context(Primary(log))
    before = mixed(log, random.Random(1), 60)
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address))
    last = mixed(log, random.Random(2), 120)
    reader.wait_for(last, WAIT_S)
    whole = list(log.read())
    for key in (b"1", b"19", b"left"):
        for lsn in (1, before + 1, last - 5, last + 1):
            assert reader.records_of(key, lsn) == [r for r in whole if r.key == key and r.lsn >= lsn]
    log.sync()
    log.wait_idle()
    wait_until(lambda: log.claims()[0].first_lsn == last + 1)
    assert log.trim(last // 2) > 0
    with pytest.raises(GapError):
        reader.records_of(b"1", 1)
    with pytest.raises(RecordTypeError):
        reader.records_of("text", 1)  # type: ignore[arg-type]
    reader.stop()
    with pytest.raises(LogClosedError):
        reader.records_of(b"1", last)


def test_status_of_a_reader_without_contact_knows_no_lag(stack: ExitStack, tmp_path: Path) -> None:
    """Take primary and storage away from a reader, and give both back: no lag is known meanwhile; trouble goes."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(buffer_bytes=0)))
    storage = FaultyStorage(FileStorage(str(tmp_path / "log")))
    reader = DeltaReader(storage, primary.address, backoff=quick())
    assert (reader.status().lag_records, reader.status().lag_bytes) == (None, None)
    stack.enter_context(reader)
    reader.wait_for(log.append(b"1", key=b"k").last_lsn, WAIT_S)
    assert reader.status().lag_records == 0 and not reader.status().trouble
    storage.fail("open", "*", times=None)
    primary.stop()
    wait_until(lambda: reader.status().lag_records is None)
    away = reader.status()
    assert (away.state, away.lag_bytes, away.known_lsn) == ("absent", None, 1) and away.trouble
    assert "lag unknown" in away.line() and "lag records" not in reader._repr_html_()
    storage.clear()
    again = Primary(log, primary.address, delta=DeltaOptions(buffer_bytes=0))
    stack.enter_context(again)
    wait_until(lambda: reader.status().state == "following" and not reader.status().trouble)
    assert reader.status().lag_records == 0
    # One that has seen no absence: it does not try damage again.
    reader = stack.enter_context(DeltaReader(storage, again.address, backoff=quick()))
    reader.wait_for(log.acked_lsn, WAIT_S)
    hang = storage.hang("read", "*.segment", times=None)
    result = log.append(b"2", key=b"k")
    (segment,) = (tmp_path / "log").glob("*1.segment")
    with segment.open("r+b") as file:  # no promise of the frame is broken before the reader reads it
        file.seek(4096 + result.next_position - 32)
        file.write(b"damaged")
    hang.release()
    wait_until(lambda: reader.error is not None)
    ended = reader.status()
    assert (ended.state, ended.applied_lsn, ended.known_lsn, ended.lag_records) == ("failed", 1, 2, None)


def test_damage_after_an_absence_that_a_look_saw_is_tried_again(stack: ExitStack, tmp_path: Path) -> None:
    """Take the storage away while nothing is loaded, damage the next record, give it back: it is tried until whole."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    storage = FaultyStorage(FileStorage(str(tmp_path / "log")))
    reader = stack.enter_context(DeltaReader(storage, "127.0.0.1:1", backoff=quick()))
    reader.wait_for(log.append(b"1", key=b"k"), WAIT_S)
    storage.fail("open", "*", times=None)
    wait_until(lambda: reader.status().state == "absent")
    assert not reader.statistics().retries
    result = log.append(b"2", key=b"k")
    (segment,) = (tmp_path / "log").glob("*1.segment")
    with segment.open("r+b", buffering=0) as file:
        file.seek(4096 + result.next_position - 32)
        whole = file.read(7)
        file.seek(-7, os.SEEK_CUR)
        file.write(b"damaged")
        storage.clear()
        wait_until(lambda: reader.error is not None or reader.statistics().retries > 0)
        assert reader.error is None
        file.seek(-7, os.SEEK_CUR)
        file.write(whole)
    assert reader.wait_for(result, WAIT_S) == 2


def test_a_transaction_larger_than_a_load_is_seen_all_or_not_at_all(stack: ExitStack, tmp_path: Path) -> None:
    """Read a frame of 200 KiB in loads of 4 KiB: every state that is seen has all of it or nothing."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=walkit.LogOptions()))
    for turn in (b"a", b"b"):
        with log.transaction() as tx:
            for n in range(200):
                tx.put(b"%d" % n, turn * 1000)
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(buffer_bytes=0)))
    limits = ReplayLimits(load_bytes=4096, bytes_max=1 << 20)
    reader = DeltaReader(tmp_path / "log", primary.address, limits=limits)
    seen: list[set[bytes | None]] = []
    task = Task(lambda: seen.extend(set(reader.state.values()) for _ in range(300)))
    stack.enter_context(reader)
    reader.wait_for(400, WAIT_S)
    task.result()
    assert all(values in (set(), {b"a" * 1000}, {b"b" * 1000}) for values in seen)
    assert set(reader.state.values()) == {b"b" * 1000}


@pytest.mark.parametrize("served", ["never", "stopped"])
def test_without_an_answer_the_reader_reads_the_log(stack: ExitStack, tmp_path: Path, served: str) -> None:
    """No primary, and one that stops: the reader follows the log all the same."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    log.append(b"1", key=b"k")
    address = "127.0.0.1:1"
    primary = None
    if served != "never":
        primary = stack.enter_context(Primary(log))
        address = primary.address
    reader = stack.enter_context(DeltaReader(tmp_path / "log", address, backoff=quick()))
    reader.wait_for(1, WAIT_S)
    if primary is not None:
        primary.stop()
    for n in range(2, 6):
        log.append(b"%d" % n, key=b"k")
        reader.wait_for(n, WAIT_S)
    assert reader.state[b"k"] == b"5"
    wait_until(lambda: reader.status().state == "reading the log")
    assert reader.status().trouble and reader.statistics().looks > 0


def test_deltas_come_from_a_primary_of_a_log_that_another_opening_writes(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Serve a log by its path, and write it in turn by three openings, with a burst: its reader gets deltas of each."""
    path = tmp_path / "log"
    walkit.open(path, options=tiny(segment_bytes=1 << 20)).close()
    primary = stack.enter_context(Primary(path, delta=DeltaOptions(buffer_bytes=4096)))
    reader = stack.enter_context(DeltaReader(path, primary.address, backoff=quick()))
    wait_until(lambda: bool(primary.status().delta_readers))
    for turn in range(3):
        with walkit.open(path, options=tiny(segment_bytes=1 << 20)) as log:
            before = reader.statistics().deltas

            def has_come(log: walkit.WriteAheadLog = log, before: int = before, turn: int = turn) -> bool:
                reader.wait_for(log.append(b"%d" % turn, key=b"k"), WAIT_S)
                return reader.statistics().deltas > before

            wait_until(has_come)
            last = log.append_many([bytes(1000)] * 20, [b"%d" % n for n in range(20)])
            reader.wait_for(last, WAIT_S)
            assert dict(reader.state.items()) == expected(log, last.last_lsn)
    wait_until(lambda: primary.status().delta_readers[0].lag_records == 0)
    assert primary.delta_statistics().ends and reader.statistics().damaged == 0
    path.rename(tmp_path / "away")
    wait_until(lambda: reader.status().state == "absent")
    (tmp_path / "away").rename(path)
    with walkit.open(path, options=tiny(segment_bytes=1 << 20)) as log:
        reader.wait_for(log.append(b"back", key=b"k"), WAIT_S)
    assert reader.error is None


def test_an_older_reader_reads_the_log_up_to_the_answered_end(stack: ExitStack, tmp_path: Path) -> None:
    """Follow as version 0: the answers have no delta, and the state is the log's."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    primary = stack.enter_context(Primary(log))
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address, version=0))
    lsn = mixed(log, random.Random(0), 40)
    reader.wait_for(lsn, WAIT_S)
    assert dict(reader.state.items()) == expected(log, lsn)
    assert reader.statistics().deltas == 0 < reader.statistics().polls
    assert reader.statistics().looks <= 1  # one where the machine takes seconds for this


def test_what_the_reader_has_not_read_is_kept(stack: ExitStack, tmp_path: Path) -> None:
    """Trim all of a log before a reader that was made is started: its claim keeps it, and is gone after its stop."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    lsn = mixed(log, random.Random(1), 60)
    wanted = expected(log, lsn)
    primary = stack.enter_context(Primary(log))
    reader = DeltaReader(tmp_path / "log", primary.address, claim="mailer")
    log.trim(lsn)
    assert log.first_lsn == 1
    assert [c.name for c in log.claims()] == ["mailer"]
    with reader:
        reader.wait_for(lsn, WAIT_S)
        assert dict(reader.state.items()) == wanted
        wait_until(lambda: log.claims()[0].first_lsn == lsn + 1)  # applied records are no longer needed
    assert not log.claims()
    log.trim(lsn)
    assert log.first_lsn == lsn + 1


def test_a_reader_of_a_read_only_folder_reports_that_it_has_no_claim(
    stack: ExitStack, tmp_path: Path
) -> None:
    """Refuse every write of the reader (EROFS): it follows, and a trim that overtakes it is a GapError."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    log.append(b"1", key=b"k")
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(buffer_bytes=0)))
    shared = ReadOnly(str(tmp_path / "log"))
    with DeltaReader(shared, primary.address) as reader:
        reader.wait_for(1, WAIT_S)
        assert "can only be read" in reader.status().claim
        assert not log.claims()
    late = DeltaReader(shared, primary.address)
    lsn = mixed(log, random.Random(2), 60)
    log.trim(lsn - 1)
    with late, pytest.raises(GapError):
        late.wait_for(lsn, WAIT_S)
    assert late.applied_lsn <= 1 and late.status().state == "failed"


class ReadOnly(FileStorage):
    """A folder of a file system that is mounted for reading."""

    def lock(self, name: str) -> Any:
        """Refuse."""
        raise StorageError("read-only", errno=errno.EROFS)


def test_a_reader_starts_from_the_logs_own_snapshot(stack: ExitStack, tmp_path: Path) -> None:
    """Checkpoint and compact a Store, so that the log's beginning is gone: a new reader has the store's state."""
    store = stack.enter_context(walkit.Store.open(tmp_path / "log", options=tiny()))
    for n in range(120):
        store.put(b"%d" % (n % 30), b"%d" % n * 50)
    store.checkpoint()
    for n in range(120):
        store.put(b"%d" % (n % 30), b"again %d" % n)
    store.compact()
    store.delete(b"7")
    primary = stack.enter_context(Primary(store))
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address))
    reader.wait_for(store.log.acked_lsn, WAIT_S)
    assert reader.state == dict(store.items())
    for n in range(60):
        store.put(b"%d" % (n % 30), b"third %d" % n * 50)
        if n % 25 == 0:
            store.checkpoint()
            store.compact()
    reader.wait_for(store.log.acked_lsn, WAIT_S)
    assert reader.state == dict(store.items())


def test_a_reader_continues_from_its_own_checkpoint(stack: ExitStack, tmp_path: Path) -> None:
    """Stop and start again with a checkpoint: it reads newer records, by its claim, even after a trim."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    primary = stack.enter_context(Primary(log))
    chance = random.Random(5)

    def reader() -> DeltaReader:
        return DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own")

    with reader() as first:
        lsn = mixed(log, chance, 50)
        first.wait_for(lsn, WAIT_S)
        assert first.checkpoint() == lsn
        with pytest.raises(LogLockedError):
            reader()
        later = mixed(log, chance, 20)
        first.wait_for(later, WAIT_S)
    with pytest.raises(LogClosedError):
        first.checkpoint()
    (kept,) = log.claims()
    assert kept.first_lsn == later + 1
    newest = mixed(log, chance, 20)
    wanted = expected(log, newest)
    log.trim(newest)
    with reader() as second:
        assert second.applied_lsn == later
        second.wait_for(newest, WAIT_S)
        assert dict(second.state.items()) == wanted
    files = sorted((tmp_path / "own").glob("snapshot-*"))
    assert len(files) == 2
    with files[-1].open("r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    with reader() as third:  # the older one is good, and the log reaches back to it
        third.wait_for(newest, WAIT_S)
        assert dict(third.state.items()) == wanted
    files[-1].write_bytes(b"")
    log.trim(log.acked_lsn)
    with pytest.raises(GapError):
        reader()


@pytest.mark.parametrize("opening", [False, True])
def test_a_durable_slot_that_a_power_cut_took_back_ends_no_reader(*, opening: bool) -> None:
    """Lose the slot, begin before and while the writer opens the log: checkpoint, claim and snapshot are taken."""
    storage, own = CrashingStorage(), MemoryStorage()
    with Store.open(None, storage=storage) as store:
        store.put(b"key", b"1")
        with DeltaReader(storage, "127.0.0.1:1", checkpoint=own) as reader:
            reader.wait_for(1, WAIT_S)
        image = storage.crash(keep="none")
        store.checkpoint()
        later = storage.crash(keep="none")
    if opening:
        assert not isinstance(image.lock(LOCK_NAME), LockHolder)
        assert not isinstance(later.lock(LOCK_NAME), LockHolder)
    for place, checkpoint in ((image, own), (later, MemoryStorage())):
        with DeltaReader(place, "127.0.0.1:1", checkpoint=checkpoint) as reader:
            assert reader.applied_lsn == 1 and dict(reader.state) == {b"key": b"1"}
            assert reader._loop.maintenance is not None
            reader._loop.maintenance.claim.keep(2, now=True)
        assert reader.error is None


def test_a_reader_whose_claim_ran_out_starts_from_the_logs_snapshot(stack: ExitStack, tmp_path: Path) -> None:
    """Stop a reader, drop its claim, checkpoint the log: it starts again from the log's snapshot, and reports it."""
    store = stack.enter_context(walkit.Store.open(tmp_path / "log", options=tiny()))
    primary = stack.enter_context(Primary(store))
    skipped: list[int] = []

    def note(event: str, facts: dict[str, Any]) -> None:
        if event == "walkit.snapshot.skip":
            skipped.append(facts["lsn"])

    def reader() -> DeltaReader:
        return DeltaReader(tmp_path / "log", primary.address, checkpoint=tmp_path / "own", events=note)

    with reader() as first:
        for number in range(100):
            store.put(b"key %d" % (number % 30), b"%d" % number)
        left = first.wait_for(store.log.acked_lsn, WAIT_S)
    for fact in store.log.claims():
        assert store.log.drop_claim(fact.name)
    for number in range(100, 200):
        store.put(b"key %d" % (number % 40), b"%d" % number)
    store.delete(b"key 7")
    store.checkpoint()
    assert store.log.first_lsn > left + 1
    with reader() as second:
        assert second.applied_lsn > left and skipped == [left]
        store.put(b"newest", b"one")
        second.wait_for(store.log.acked_lsn, WAIT_S)
        assert dict(second.state.items()) == dict(store.items())


def test_another_log_or_a_cut_history_is_refused(stack: ExitStack, tmp_path: Path) -> None:
    """Begin with another log's checkpoint, poll another log's primary, and cut what was applied: DivergenceError."""
    logs = [stack.enter_context(walkit.open(tmp_path / name)) for name in ("a", "b")]
    for log in logs:
        log.append(b"x", key=b"k")
    primaries = [stack.enter_context(Primary(log)) for log in logs]
    with DeltaReader(tmp_path / "a", primaries[0].address, checkpoint=tmp_path / "own") as reader:
        reader.wait_for(1, WAIT_S)
    with pytest.raises(DivergenceError):
        DeltaReader(tmp_path / "b", primaries[1].address, checkpoint=tmp_path / "own")
    with DeltaReader(tmp_path / "a", primaries[1].address) as reader, pytest.raises(DivergenceError):
        reader.wait_for(2, WAIT_S)


def test_an_earlier_readers_claim_on_records_that_were_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave a claim, cut the log before it, write other records, let the lease end: a new reader takes its name."""
    with walkit.open(tmp_path / "log") as log:
        for _ in range(9):
            log.append(b"old", key=b"k")
    owner = walkit.claim(tmp_path / "log", "c", 10, lease_s=60).owner
    rewind(tmp_path / "log", 6, force=True)
    with walkit.open(tmp_path / "log") as log, Primary(log) as primary:
        lsn = mixed(log, random.Random(3), 60)
        later_us = walkit.read.claim.now_us() + 61_000_000
        monkeypatch.setattr("walkit.read.claim.now_us", lambda: later_us)
        with pytest.raises(DivergenceError):
            walkit.claim(tmp_path / "log", "c")
        again = KeptClaim(tmp_path / "log", "c", 60, owner)  # of the same reader, which has lost its state
        again.take(None)
        assert again.first_lsn == 1
        again.release()
        with DeltaReader(tmp_path / "log", primary.address, claim="c") as reader:
            reader.wait_for(lsn, WAIT_S)
            assert dict(reader.state.items()) == expected(log, lsn)
            assert [c.name for c in log.claims()] == ["c"]


def test_a_failed_read_is_tried_again_and_damage_ends_the_reader(stack: ExitStack, tmp_path: Path) -> None:
    """Fail reads of segments a few times: all is applied. Damage a frame: a CorruptionError, and nothing after it."""
    log = stack.enter_context(walkit.open(tmp_path / "log", options=tiny()))
    lsn = mixed(log, random.Random(3), 60)
    wanted = expected(log, lsn)
    primary = stack.enter_context(Primary(log))
    faulty = FaultyStorage(FileStorage(str(tmp_path / "log")))
    reader = DeltaReader(faulty, primary.address)
    faulty.fail("read", "*.segment", times=3)
    with reader:
        reader.wait_for(lsn, WAIT_S)
        assert dict(reader.state.items()) == wanted
        assert reader.statistics().retries > 0
    oldest = min((tmp_path / "log").glob("*.segment"))
    late = DeltaReader(tmp_path / "log", primary.address)
    with oldest.open("r+b") as file:
        file.seek(4096 + 300)
        file.write(bytes(64))
    with late, pytest.raises(CorruptionError):
        late.wait_for(lsn, WAIT_S)
    assert late.applied_lsn < lsn and isinstance(late.error, CorruptionError)


def test_bad_arguments_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """Give no log, a wrong address, version and level: typed errors, and no claim or checkpoint is left."""
    with pytest.raises(LogNotFoundError):
        DeltaReader(tmp_path / "none", "127.0.0.1:1", checkpoint=tmp_path / "own")
    assert not (tmp_path / "own").exists() and not (tmp_path / "none").exists()
    walkit.open(tmp_path / "log").close()
    names = sorted(p.name for p in (tmp_path / "log").iterdir())
    wrong: list[dict[str, Any]] = [
        {"source": "nowhere"},
        {"version": 3},
        {"lease_s": 0},
        {"checkpoint_s": -1},
        {"token": "é"},
        {"checkpoint": tmp_path / "log"},
        {"limits": 4},
    ]
    usual: dict[str, Any] = {"source": "127.0.0.1:1", "checkpoint": tmp_path / "own"}
    for facts in wrong:
        with pytest.raises(OptionsError):
            DeltaReader(tmp_path / "log", **{**usual, **facts})
    assert not (tmp_path / "own").exists()
    assert sorted(p.name for p in (tmp_path / "log").iterdir()) == names
    walkit.open(tmp_path / "loose", options=walkit.LogOptions(durability="none")).close()
    with pytest.raises(OptionsError):
        DeltaReader(tmp_path / "loose", "127.0.0.1:1")


def test_a_reader_starts_and_stops_once_and_shows_its_status(stack: ExitStack, tmp_path: Path) -> None:
    """Start twice, stop twice, wait after it: as a Replica does; a dropped reader stops, and releases its claim."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    log.append(b"1", key=b"k")
    primary = stack.enter_context(Primary(log))
    reader = DeltaReader(tmp_path / "log", primary.address)
    assert reader.status().state == "new"
    assert reader.start() is reader.start()
    reader.wait_for(1, WAIT_S)
    with pytest.raises(TimeoutError):
        reader.wait_for(2, 0.01)
    reader.stop()
    reader.stop()
    with pytest.raises(LogClosedError):
        reader.wait_for(2, 1)
    with pytest.raises(LogClosedError):
        reader.start()
    assert reader.state[b"k"] == b"1" and reader.status().state == "stopped"
    with pytest.raises(OptionsError):
        reader.checkpoint()
    dropped = [DeltaReader(tmp_path / "log", primary.address).start()]
    with pytest.warns(ResourceWarning, match="dropped without stop"):
        dropped.clear()
    gc.collect()
    wait_until(lambda: not log.claims())


def test_records_that_a_salvage_gave_up_are_never_passed_over(stack: ExitStack, tmp_path: Path) -> None:
    """Salvage a log: a reader from before the loss is a GapError; a new one has the state that the log has now."""
    place = tmp_path / "log"
    with walkit.open(place, options=tiny()) as log, Primary(log) as primary:
        with DeltaReader(place, primary.address, checkpoint=tmp_path / "own") as reader:
            reader.wait_for(mixed(log, random.Random(4), 3), WAIT_S)
        mixed(log, random.Random(4), 60)
    damaged = sorted(place.glob("*.segment"))[1]
    with damaged.open("r+b") as file:
        file.seek(4096 + 300)
        file.write(bytes(64))
    log = stack.enter_context(walkit.open(place, options=tiny(recovery="salvage")))
    lsn = log.append(b"after", key=b"k").last_lsn
    primary = stack.enter_context(Primary(log))
    with pytest.raises(GapError), DeltaReader(place, primary.address, checkpoint=tmp_path / "own") as reader:
        reader.wait_for(lsn, WAIT_S)
    with DeltaReader(place, primary.address) as reader:
        reader.wait_for(lsn, WAIT_S)
        assert dict(reader.state.items()) == expected(log, lsn)


@pytest.mark.parametrize("leaves", [True, False])
def test_idle_primary_forgets_readers_that_are_gone(
    stack: ExitStack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaves: bool
) -> None:
    """Stop a reader and append nothing: it leaves at once, or its session expires; the log is no longer observed."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    options = DeltaOptions(expiry_ms=5000 if leaves else 100, retry_ms=100)
    if not leaves:
        monkeypatch.setattr(PollLink, "leave", lambda *_: None)  # as if it had been killed
    primary = stack.enter_context(Primary(log, delta=options))
    with DeltaReader(tmp_path / "log", primary.address) as reader:
        wait_until(lambda: bool(primary.status().delta_readers) and reader.status().state == "following")
        # A first poll that was slow is sent twice: then there are two sessions.
        sessions = len(primary.status().delta_readers)
    if leaves:
        assert len(primary.status().delta_readers) == sessions - 1
    wait_until(lambda: not primary.status().delta_readers)
    assert not is_observed(log)


def test_a_primary_that_lets_polls_wait_long_is_not_silent(stack: ExitStack, tmp_path: Path) -> None:
    """Idle through three polls of half a second: the log is not read in between, as with a silent primary."""
    log = stack.enter_context(walkit.open(tmp_path / "log"))
    lsn = log.append(b"1", key=b"k").last_lsn
    primary = stack.enter_context(Primary(log, delta=DeltaOptions(long_poll_ms=500)))
    reader = stack.enter_context(DeltaReader(tmp_path / "log", primary.address))
    reader.wait_for(lsn, WAIT_S)
    idle = reader.statistics().polls + 1  # the first poll that waits teaches the reader how long they do
    wait_until(lambda: reader.statistics().polls > idle)
    before = reader.statistics()
    wait_until(lambda: reader.statistics().polls >= before.polls + 3)
    # One or two on a busy machine; else six for each poll.
    assert reader.statistics().looks < before.looks + 6
