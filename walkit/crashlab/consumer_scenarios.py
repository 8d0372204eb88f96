"""Scenarios about those who read a log: their cursors and claims, and retention that drops their records."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace

from walkit.config import Retention
from walkit.crashlab.crash_rules import quiet
from walkit.crashlab.scenario import SMALL, Scenario
from walkit.crashlab.script import Script
from walkit.format.layout import SEGMENT_HEADER_BYTES
from walkit.log.wal import WriteAheadLog
from walkit.objects.entrance import claim as take_claim
from walkit.read.claim import Claim
from walkit.read.cursor import Cursor

RECORD_BYTES, FRAME_BYTES, PER_SEGMENT = 14_000, 14_144, 4
"""So many records of this size, each in a frame, fill a segment."""
LIMITS = {
    "bytes": Retention(bytes_max=120_000),
    "records": Retention(records_max=6),
    "age": Retention(age_s=1e-6),
}
"""A limit of each kind."""


def _new_cursor(script: Script, log: WriteAheadLog, name: str, start_lsn: int) -> Cursor:
    with script.ledger.moving(f"cursor {name}", start_lsn - 1):
        return log.cursor(name, start_lsn=start_lsn)


def _advance(script: Script, cursor: Cursor, lsn: int) -> None:
    with script.ledger.moving(f"cursor {cursor.name}", lsn):
        cursor.advance(lsn)


def _cursors(script: Script) -> None:
    with script.open() as log:
        for _ in range(6):
            script.append(log, 5_000)
        cursor, other = _new_cursor(script, log, "a", 1), _new_cursor(script, log, "b", 3)
        for lsn in (2, 3, 6):
            assert [record.lsn for record in cursor.read()] == list(range(cursor.lsn + 1, log.acked_lsn + 1))
            _advance(script, cursor, lsn)
            for _ in range(5):
                script.append(log, 5_000)
        _advance(script, cursor, log.acked_lsn)
        script.trim(log, 16)
        _advance(script, other, 20)
    with script.open() as log:
        cursor = log.cursor("a")
        script.append(log, 500)
        _advance(script, cursor, log.acked_lsn)
        with script.ledger.moving("cursor b", 0):
            log.drop_cursor("b")


def _cursors_unsynced(script: Script) -> None:
    with script.open() as log:
        for _ in range(4):
            script.append(log, 3_000)
        cursor = _new_cursor(script, log, "a", 1)
        for lsn in (2, 4):
            with script.ledger.moving("cursor a", lsn):
                cursor.advance(lsn)
            script.ledger.keep(lsn)  # a cursor is never ahead of the durable records
            for _ in range(3):
                script.append(log, 3_000)


def take(script: Script, first_lsn: int | None, owner: uuid.UUID, take_over: bool = False) -> Claim:
    """Take the claim of the reader, as its own process does."""
    place = "claim reader"
    wanted = first_lsn or script.ledger.places[place][1]
    with script.ledger.moving(place, wanted):
        claim = take_claim(script.place, "reader", first_lsn, owner=owner, take_over=take_over, events=quiet)
    script.keep_from("reader", wanted)
    return claim


def move(script: Script, claim: Claim, first_lsn: int) -> None:
    """Move the claim of the reader."""
    script.keep_from("reader", first_lsn)
    with script.ledger.moving("claim reader", first_lsn):
        claim.advance(first_lsn)


def release(script: Script, claim: Claim) -> None:
    """Release the claim of the reader."""
    script.let_go("reader")
    with script.ledger.moving("claim reader", 0):
        claim.release()


def _claims(script: Script) -> None:
    owners = [uuid.UUID(int=number) for number in (1, 2)]
    with script.open() as log:
        for _ in range(7):
            script.append_many(log, 4, 3_500)
        claim = take(script, 5, owners[0])
        script.trim(log, 20)
        move(script, claim, 12)
        script.trim(log, 20)
        claim = take(script, None, owners[0])  # the consumer has restarted
        claim.renew()
        for _ in range(5):
            script.append_many(log, 3, 4_500)
        release(script, claim)
        script.trim(log, 22)
        claim = take(script, 30, owners[1])
        take(script, 28, owners[0], take_over=True)
        script.trim(log, 40)
        with script.ledger.moving("claim reader", 0):
            script.let_go("reader")
            log.drop_claim("reader")
        script.trim(log, 40)
        take(script, 42, owners[0])
    with script.during("recovery"), script.open() as log:  # the claim outlives the writer
        script.trim(log, 43)
        script.append(log, 100)


def _droppable(records: int, over_limits: Callable[[int], bool]) -> int:
    """Return the last LSN of the segments that limits ask for, by how many records are left with the next of them."""
    lsn = 0
    while lsn + PER_SEGMENT < records and over_limits(records - lsn):
        lsn += PER_SEGMENT
    return lsn


def _bytes_of(records: int) -> int:
    return records * FRAME_BYTES + -(-records // PER_SEGMENT) * SEGMENT_HEADER_BYTES


def _over_limits(limits: Retention) -> Callable[[int], bool]:
    """Return which number of records is over the limits; any one is over a limit of age, if that is tiny."""
    return lambda records: (
        limits.age_s is not None
        or (limits.records_max is not None and records > limits.records_max)
        or (limits.bytes_max is not None and _bytes_of(records) > limits.bytes_max)
    )


def _retention(script: Script) -> None:
    over_limits = _over_limits(script.options.retention)
    with script.open() as log:
        for number in range(1, 18):
            script.may_drop(_droppable(number, over_limits))
            script.append(log, RECORD_BYTES)
            if number % 5 == 0:
                since, before = len(script.storage.points), log.first_lsn
                log.enforce_retention()
                if log.first_lsn > before:
                    script.storage.note("retention drops", since)
        log.enforce_retention()
        assert log.first_lsn == script.ledger.trimmed + 1  # it drops all that it may


def _below_claims(script: Script) -> None:
    with script.open() as log:
        for _ in range(17):
            script.append(log, RECORD_BYTES)
        claim = log.hold("reader", 1)
        script.keep_from("reader", 1)
        log.enforce_retention()
        assert log.first_lsn == 1
        for lsn in (6, 11, 16):
            claim.advance(lsn)
            script.keep_from("reader", lsn)
            script.may_drop(lsn - 1)
            since, before = len(script.storage.points), log.first_lsn
            log.enforce_retention()
            assert before < log.first_lsn <= lsn
            script.storage.note("retention drops", since)
        script.append(log, RECORD_BYTES)


def _hard_cap(script: Script) -> None:
    limits = script.options.retention
    assert limits.hard_bytes_max is not None
    with script.open() as log:
        owner = uuid.UUID(int=1)
        for number in range(1, 23):
            since, dropped = len(script.storage.points), ""
            script.may_drop(_droppable(number, _over_limits(limits)))
            # A segment counts whole while any record of it is kept.
            there = number - script.ledger.trimmed // PER_SEGMENT * PER_SEGMENT
            if _bytes_of(there) > limits.hard_bytes_max and script.ledger.kept_from:
                dropped = "slow" if "slow" in script.ledger.kept_from else "reader"
                script.let_go(dropped)
                if dropped == "reader":
                    script.ledger.places["claim reader"] = (0, 5)
                script.may_drop(_droppable(number, _over_limits(limits)))
            script.append(log, RECORD_BYTES)
            if number == 6:
                log.hold("slow", 2)
                script.keep_from("slow", 2)
                take(script, 5, owner)
            if dropped:
                log.enforce_retention()
                assert log.first_lsn == script.ledger.trimmed + 1
                script.storage.note("hard cap", since)
        assert not script.ledger.kept_from and not log.claims()


CONSUMER_SCENARIOS = (
    Scenario(
        "cursors",
        "two consumers advance their cursors while the log is appended, trimmed, closed and opened again",
        _cursors,
        covers=("cursor", "removal"),
    ),
    Scenario(
        "cursors-unsynced",
        "durability none: a cursor that advances makes the records up to it durable",
        _cursors_unsynced,
        replace(SMALL, durability="none"),
        covers=("cursor", "append"),
    ),
    Scenario(
        "claims",
        "claims are taken, advanced, taken over, released and taken again, and outlive the writer",
        _claims,
        covers=("claim", "claim limits", "removal", "recovery"),
    ),
    *(
        Scenario(
            f"retention-{name}",
            f"a log that may have so many {name} drops its oldest segments after each seal"
            if name != "age"
            else "a log drops each segment that is older than an instant",
            _retention,
            replace(SMALL, retention=limits),
            covers=("retain", "retention drops", "removal"),
        )
        for name, limits in LIMITS.items()
    ),
    Scenario(
        "retention-below-claims",
        "a log drops the segments that its only claim does not need, and none before that claim advances",
        _below_claims,
        replace(SMALL, retention=Retention(below_claims=True)),
        covers=("retention drops", "removal"),
    ),
    Scenario(
        "hard-cap",
        "claims of this and another process keep more than the retention wants, until the hard cap drops them",
        _hard_cap,
        replace(SMALL, retention=Retention(bytes_max=130_000, hard_bytes_max=250_000)),
        covers=("hard cap", "retain", "removal", "claim"),
    ),
)
