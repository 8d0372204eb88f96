"""Histories of a log or a Store, each call of which may meet a failing storage."""

from __future__ import annotations

from functools import partial

from walkit.config import Retention, StoreOptions
from walkit.crashlab.crash_rules import quiet
from walkit.crashlab.failing_script import FailingScript
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.format.manifest import MANIFEST_NAME
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import claim as take_claim
from walkit.objects.entrance import open_log
from walkit.recovery.verify import scan, verify


def writing(script: FailingScript) -> None:
    """Append to a new log in several ways, over three segments."""
    with script.open() as log:
        script.append(log, 300, b"k")
        script.transaction(log, 3, 400)
        script.append_many(log, 3, 5_000)
        for number in range(10):
            script.append(log, 12_000)
            script.note_durable(log)
            if number == 5:
                with script.failing():
                    script.sync(log)
        script.delete(log, b"k")


def filling(script: FailingScript) -> None:
    """Fill segments one after the other, or a large one, which is zeroed ahead of the frames."""
    with script.open() as log:
        for _ in range(22):
            script.append(log, 14_000)
            script.note_durable(log)
        script.settle(log)
        script.append(log, 100)
        script.note_durable(log)


def trimming(script: FailingScript) -> None:
    """Trim below a claim of the log's own process, which advances, and without it, and enforce a retention."""
    with script.open() as log:
        for _ in range(30):
            script.append(log, 4_000)
        if log.acked_lsn < 9:
            return  # a claim begins at most one after the end
        claim = log.hold("slow", 10)
        script.keep_from("slow", 10)
        script.repeated(lambda: script.trim(log, 15))
        with script.failing():
            claim.advance(min(13, log.acked_lsn + 1))
        script.keep_from("slow", claim.first_lsn)
        with script.failing():
            script.trim(log, 18)
        script.let_go("slow")
        with script.failing():
            claim.release()
        for lsn in (20, 22, 22):
            script.repeated(partial(script.trim, log, lsn))
            script.check_live(log)
            script.append(log, 4_000)
        script.may_drop(len(script.ledger.rows))
        with script.failing():
            log.enforce_retention(Retention(records_max=5))
        script.append(log, 100)


def parallel(script: FailingScript) -> None:
    """Have many records in flight together."""
    with script.open() as log:
        for _ in range(3):
            script.submit(log, 12, 3_500)
            script.note_durable(log)


def store(script: FailingScript) -> None:
    """Write to a Store, take checkpoints, and compact it."""
    with script.open_store() as store:
        for number in range(9):
            script.put(store, b"key %d" % (number % 3), 12_000)
        script.repeated(lambda: script.checkpoint(store, trim=False))
        script.delete(store, b"key 1")
        for _ in range(6):
            script.put(store, b"key 0", 12_000)
        script.repeated(lambda: script.compact(store))
        script.check_live(store)
        script.put(store, b"key 2", 200)
        script.repeated(lambda: script.checkpoint(store))
        script.check_live(store)
        script.put(store, b"key 3", 200)


def store_by_itself(script: FailingScript) -> None:
    """Write to a Store that takes its checkpoints by itself."""
    with script.open_store(StoreOptions(checkpoint_every=4, journal_slots=64)) as store:
        for number in range(12):
            script.may_drop(number + 1)
            script.put(store, b"key %d" % (number % 4), 9_000)


def each_way(script: FailingScript) -> None:
    """Append in each way that there is, over several segments."""
    with script.open() as log:
        for _ in range(3):
            script.append_in_other_ways(log, 3_000)
            script.submit(log, 4, 6_000)
            script.append_many(log, 3, 400)
            script.note_durable(log)


def retaining(script: FailingScript) -> None:
    """Append to a log that keeps itself small on its maintenance thread."""
    with script.open() as log:
        for number in range(1, 21):
            script.may_drop(number)
            script.append(log, 12_000)
        script.note_durable(log)


def consuming(script: FailingScript) -> None:
    """Read a log through cursors, readers and a drain, and claim a part of it that trims keep."""
    with script.open() as log:
        for _ in range(5):
            script.append_many(log, 5, 2_500)
        if log.acked_lsn < 25:
            return
        _claiming(script, log)
        _reading(script)
        with script.failing(), script.ledger.moving("cursor reader", 0):
            log.cursor("reader", start_lsn=1)
        for lsn in (21, 24):
            with script.failing(), script.ledger.moving("cursor reader", lsn):
                log.cursor("reader").advance(lsn)
        script.append_many(log, 5, 2_500)
        script.may_drop(26)
        with script.failing():
            for record in log.drain(26):
                script.check(record)
        script.append(log, 300)
        script.note_durable(log)


def _claiming(script: FailingScript, log: WriteAheadLog) -> None:
    claim = None
    with script.failing(), script.ledger.moving("claim slow", 10):
        claim = take_claim(script.storage, "slow", 10, wait_s=1.0, events=quiet)
    if claim is not None:
        script.keep_from("slow", 10)
    with script.failing():
        script.trim(log, 15)
    if claim is not None:
        script.keep_from("slow", 13)
        with script.failing(), script.ledger.moving("claim slow", 13):
            claim.advance(13)
        with script.failing():
            script.trim(log, 20)
        with script.failing():
            claim.renew()
        script.let_go("slow")
        with script.failing(), script.ledger.moving("claim slow", 0):
            claim.release()
    with script.failing():
        script.trim(log, 20)


def _reading(script: FailingScript) -> None:
    """Read beside the writer; that changes nothing."""
    with script.failing(), open_log(storage=script.storage, mode="r", events=quiet) as reader:
        for record in (*reader.read(), *reader.follow(reader.first_lsn, timeout=0)):
            script.check(record)
        script.note_durable(reader)
    for look in (scan, verify):
        with script.failing():
            look(script.storage)


def damaged(script: FailingScript) -> None:
    """Write a log, close it, and damage the header of its first segment and a frame of its second."""
    with script.open() as log:
        for number in range(10):
            script.append(log, 14_000, b"key %d" % number)
    segments = [name for name in script.storage.inner.names() if name.endswith(".segment")]
    script.damage(segments[0], 0)
    script.damage(segments[1], SEGMENT_HEADER_BYTES + 14_144 + 300, lost=6)
    script.foresee_repair()


def without_manifest(script: FailingScript) -> None:
    """Do the same, and damage the manifest."""
    damaged(script)
    script.damage(MANIFEST_NAME, 60)
    script.foresee_repair()
