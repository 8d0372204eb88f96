"""Power cuts: at every acknowledgement, at every operation, and during recovery itself."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest

import walkit
from tests.log.crashes import SMALL, Script, dirty_image, log_of, recovered_rows, rows_of
from tests.log.damaged_logs import contents
from walkit.errors import CommitFailedError, LogFullError, LogPoisonedError, StorageError, WalkitError
from walkit.models import CrashingStorage
from walkit.models.faults import FaultyStorage


def crash_images(storage: CrashingStorage, seed: int) -> list[CrashingStorage]:
    """Return power cuts that lose all, keep all, and keep at random, torn by sector."""
    return [
        storage.crash(keep="none"),
        storage.crash(keep="all"),
        *(storage.crash(keep="random", seed=seed * 7 + i) for i in range(3)),
    ]


@pytest.mark.parametrize("codec", [None, "zstd"])
def test_every_acknowledged_record_survives_a_power_cut(codec: str | None) -> None:
    """Crash after each acknowledgement, losing everything unsynced or at random: the acknowledged prefix is there."""
    storage = CrashingStorage()
    options = walkit.LogOptions(
        segment_bytes=64 * 1024,
        frame_bytes_max=16 * 1024,
        idle_marker_ms=0,
        codec=codec,  # type: ignore[arg-type]
    )
    script = Script()
    with log_of(storage, options) as log:

        def after_ack() -> None:
            for image in crash_images(storage, len(script.appended)):
                script.check(recovered_rows(image))

        script.run(log, after_ack, 42 if codec is None else 14)
        assert log.statistics().rotations > 1 or codec is not None
    assert recovered_rows(storage) == script.appended


MUTANTS: dict[str, tuple[str, Callable[[FaultyStorage], object]]] = {
    "frames are written without sync": ("sync", lambda s: s.skip("synced_write", "*.segment")),
    "the manifest is not synced": ("sync", lambda s: s.skip("sync", "manifest.new")),
    "directories are not synced": ("sync", lambda s: s.skip("sync_directory")),
    "log.sync() does not sync the segments": ("none", lambda s: s.skip("sync", "*.segment")),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_taking_a_sync_out_is_noticed(mutant: str) -> None:
    """Let one kind of sync do nothing: the crash check after an acknowledgement must fail, or it proves nothing."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    durability, mutate = MUTANTS[mutant]
    mutate(faulty)
    script = Script()
    failures = 0
    log = log_of(faulty, replace(SMALL, durability=durability))  # type: ignore[arg-type]

    def after_ack() -> None:
        nonlocal failures
        if durability == "none":
            log.sync()
        for image in crash_images(storage, len(script.appended)):
            try:
                script.check(recovered_rows(image))
            except (AssertionError, WalkitError):
                failures += 1

    script.run(log, after_ack, 18)
    log.close()
    assert failures > 0


def test_a_sync_is_credited_only_with_writes_that_completed_before_it_began() -> None:
    """Durability interval: hang a sync, append behind it, let it end; the later records are not durable (B15)."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    options = walkit.LogOptions(durability="none", idle_marker_ms=0)
    log = log_of(faulty, options)
    log.append(b"before")
    hang = faulty.hang("sync", "*.segment")
    durable: list[int] = []
    syncer = threading.Thread(target=lambda: durable.append(log.sync()))
    syncer.start()
    assert hang.entered.wait(30)
    log.append(b"behind the sync")
    hang.release()
    syncer.join(30)
    assert durable == [1]
    assert log.durable_lsn == 1
    assert [value for _, _, value in recovered_rows(storage.crash(keep="none"))] == [b"before"]
    log.close()


@pytest.mark.parametrize("durability", ["sync", "interval", "none"])
def test_a_killed_process_loses_nothing_acknowledged(durability: str) -> None:
    """Kill the process (the page cache survives) after each acknowledgement, at every durability level."""
    storage = CrashingStorage()
    options = walkit.LogOptions(
        segment_bytes=64 * 1024,
        frame_bytes_max=16 * 1024,
        durability=durability,  # type: ignore[arg-type]
    )
    script = Script()
    with log_of(storage, options) as log:
        script.run(log, lambda: script.check(recovered_rows(storage.process_kill())), 36)


def test_what_sync_returned_for_survives_whatever_the_level() -> None:
    """Durability none: after log.sync() a power cut that loses everything unsynced keeps what came before it."""
    storage = CrashingStorage()
    options = walkit.LogOptions(
        segment_bytes=64 * 1024, frame_bytes_max=16 * 1024, durability="none", idle_marker_ms=0
    )
    script = Script()
    with log_of(storage, options) as log:
        synced = 0
        for i in range(60):
            value = b"x" * (i * 62 % 3000)
            script.appended.append((1, None, value))
            log.append(value)
            if i % 7 == 3:
                assert log.sync() == i + 1
                synced = i + 1
            script.acknowledged = synced
            script.check(recovered_rows(storage.crash(keep="none")))
            script.check(recovered_rows(storage.crash(keep="random", seed=i)))


@pytest.mark.parametrize("policy", ["prefix", "holes", "salvage"])
@pytest.mark.parametrize("torn_tail", ["on the disk", "in the page cache"])
def test_what_an_opening_leaves_is_on_the_disk(torn_tail: str, policy: str) -> None:
    """Open what a kill left in the page cache, or on the disk; cut the power: the records and the cut are there."""
    image, appended = dirty_image(30, replace(SMALL, durability="none"))
    if torn_tail == "on the disk":
        image = image.crash(keep="all")
    with log_of(image, replace(SMALL, recovery=policy)) as log:  # type: ignore[arg-type]
        assert log.recovery.cuts and rows_of(log) == appended
        left, after = (
            {name: data.rstrip(b"\0") for name, data in contents(place).items()}
            for place in (image, image.crash(keep="none"))
        )
        assert after == left and any(name.endswith(".tail") for name in left)
        assert recovered_rows(image.crash(keep="none")) == appended


def test_nothing_is_sealed_that_is_in_the_page_cache_only() -> None:
    """Kill a writer that never synced, fail the opening after its seal, cut the power: all records are there."""
    image, appended = dirty_image(30, replace(SMALL, durability="none"))
    faulty = FaultyStorage(image)
    faulty.fail("shorten")
    with pytest.raises(StorageError):
        log_of(faulty)
    assert recovered_rows(image.crash(keep="none")) == appended


def test_recovery_twice_is_the_same_as_once_and_so_is_a_crash_within_it() -> None:
    """Fail each operation of the opening in turn, crash there, open again: the same records, and lost+found kept."""
    for seed in range(2):
        image, appended = dirty_image(30 + seed)
        once = image.process_kill()
        assert recovered_rows(once) == appended
        assert recovered_rows(once) == appended
        crashed = 0
        for nth in range(1, 200):
            faulty = FaultyStorage(image.process_kill())
            fault_list = [
                faulty.fail(name, nth=nth, times=1)
                for name in (
                    "write",
                    "synced_write",
                    "sync",
                    "shorten",
                    "create",
                    "replace",
                    "remove",
                    "sync_directory",
                )
            ]
            with contextlib.suppress(StorageError):
                log_of(faulty).close()
            if not any(f.hits for f in fault_list):
                break
            crashed += 1
            inner = faulty.inner
            assert isinstance(inner, CrashingStorage)
            for after in (
                inner.crash(keep="random", seed=nth),
                inner.crash(keep="none"),
                inner.process_kill(),
            ):
                rows = recovered_rows(after)
                assert rows == appended[: len(rows)] and len(rows) == len(appended), (
                    nth,
                    len(rows),
                    len(appended),
                )
        assert crashed > 3


OPERATIONS = ("write", "synced_write", "sync", "allocate", "create", "replace", "sync_directory", "remove")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_one_failing_operation_loses_nothing_acknowledged(operation: str) -> None:
    """Fail the nth operation of a kind, for every n, in a log in use: typed errors, no acknowledged record lost."""
    hit = 0
    for nth in range(1, 40):
        storage = CrashingStorage()
        faulty = FaultyStorage(storage)
        script = Script()
        fault = faulty.fail(operation, nth=nth)  # type: ignore[arg-type]
        try:
            with log_of(faulty) as log:
                script.run(log, lambda: None, 30)
        except (StorageError, CommitFailedError, LogPoisonedError, LogFullError):
            pass
        if not fault.hits:
            break
        hit += 1
        for image in (
            storage.crash(keep="none"),
            storage.crash(keep="random", seed=nth),
            storage.process_kill(),
        ):
            rows = recovered_rows(image)
            assert len(rows) >= script.acknowledged
            assert rows == script.appended[: len(rows)]
    assert hit > 0


def test_pages_that_look_clean_after_a_failed_sync_are_not_believed() -> None:
    """Fail the sync of a frame; reopening must go by what the device holds, not by the page cache (ATC'20)."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    log = log_of(faulty)
    log.append(b"kept")
    faulty.fail("synced_write", "*.segment")
    with pytest.raises(CommitFailedError) as caught:
        log.append(b"lost with its pages")
    assert caught.value.outcome == "unknown" and caught.value.__cause__ is not None
    with pytest.raises(LogPoisonedError):
        log.append(b"refused")
    log.close()
    with log_of(storage) as again:
        assert [r.value for r in again.read()] == [b"kept"]
        again.append(b"after")
        image = storage.crash(keep="none")
        assert [r.value for r in again.read()] == [b"kept", b"after"]
    assert [value for _, _, value in recovered_rows(image)] == [b"kept", b"after"]


def test_what_follows_a_recovery_survives_the_next_crash() -> None:
    """Recover from a torn tail, append, crash again, several times over: no acknowledged record is unreachable (B1)."""
    storage, appended = dirty_image(24)
    expected = list(appended)
    for round_ in range(6):
        log = log_of(storage)
        assert rows_of(log) == expected
        for i in range(5):
            log.append(b"round %d, %d" % (round_, i))
            expected.append((1, None, b"round %d, %d" % (round_, i)))
        storage = storage.crash(keep="random" if round_ % 2 else "none", seed=round_)
        log.close()
    assert recovered_rows(storage) == expected


def test_lsns_of_acknowledged_records_are_never_given_again() -> None:
    """Trim everything, close, crash and reopen: the next LSN goes on where it was, though no segment is left."""
    storage = CrashingStorage()
    with log_of(storage) as log:
        for i in range(50):
            log.append(b"x" * 2000 + b"%d" % i)
    with log_of(storage) as log:
        log.trim(50)
        assert log.first_lsn == 51 and list(log.read()) == []
    with log_of(storage.crash(keep="none")) as log:
        assert log.append(b"next").first_lsn == 51
    assert SMALL.segment_bytes < 50 * 2000
