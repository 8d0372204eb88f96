"""Power cuts: at every acknowledgement, at every operation, and during recovery itself."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import replace

import pytest

import walkit
from tests.support.crashes import SMALL, Script, dirty_image, log_of, recovered_rows, rows_of
from tests.support.damaged_logs import contents
from walkit.errors import CommitFailedError, LogFullError, LogPoisonedError, StorageError
from walkit.format.manifest import MANIFEST_NAME
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


@pytest.mark.parametrize("operation", ["write", "create", "sync"])
def test_an_opening_syncs_its_folder_first(operation: str) -> None:
    """Fail the sync after a manifest, and the next opening's first change: a power cut leaves the new manifest."""
    storage = CrashingStorage()
    faulty = FaultyStorage(storage)
    with suppress(StorageError, LogPoisonedError), log_of(faulty) as log:
        Script().run(log, lambda: None, 40)
        faulty.fail("synced_write", MANIFEST_NAME)  # after an edit that fails comes a new base
        faulty.fail("sync_directory", times=None)
        with suppress(StorageError):
            log.trim(log.durable_lsn)
        log.trim(log.durable_lsn)
    newest = contents(storage)[MANIFEST_NAME]
    assert contents(storage.crash(keep="none"))[MANIFEST_NAME] != newest
    opening = FaultyStorage(storage.process_kill())
    opening.fail(operation)  # type: ignore[arg-type]
    with suppress(StorageError):
        log_of(opening).close()
    assert isinstance(opening.inner, CrashingStorage)
    assert contents(opening.inner.crash(keep="none"))[MANIFEST_NAME].startswith(newest.rstrip(b"\0"))


def test_nothing_is_sealed_that_is_in_the_page_cache_only() -> None:
    """Kill a writer that never synced, fail the opening after its seal, cut the power: all records are there."""
    image, appended = dirty_image(30, replace(SMALL, durability="none"))
    faulty = FaultyStorage(image)
    faulty.fail("shorten")
    with pytest.raises(StorageError):
        log_of(faulty)
    assert recovered_rows(image.crash(keep="none")) == appended


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
