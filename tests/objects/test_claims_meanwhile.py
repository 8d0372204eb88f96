"""Claims and files that change on object storage between a look at the claims object and the swap that follows it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

import walkit
from tests.objects.races import OPTIONS
from tests.support.threads import Task
from walkit.errors import CorruptionError, LogFencedError, LogNotFoundError, ObjectStoreError
from walkit.objects.claims_object import ClaimsObject
from walkit.objects.entrance import folder_at
from walkit.objects.layout import CLAIMS_KEY, MANIFEST_KEY, Claims
from walkit.objects.requests import Patience, PatientReads
from walkit.objects.view import ObjectEnd
from walkit.read.claim import Claim
from walkit.segments.manifest_store import load_manifest
from walkit.segments.rewrite import SegmentReplacer
from walkit.storage.object_memory import MemoryObjectStore, ObjectFault, ObjectRequest


class Meanwhile:
    """A plan that runs `act` once, before the next request of `method` for one key, after `arm`."""

    def __init__(
        self, act: Callable[[], object], method: str = "put_if_match", key: str = CLAIMS_KEY
    ) -> None:
        self.act, self.wanted, self.is_armed, self.is_done = act, (method, key), False, False

    def __call__(self, request: ObjectRequest) -> None:
        if self.is_armed and not self.is_done and (request.method, request.key) == self.wanted:
            self.is_done = True
            Task(self.act).result()


def test_a_claim_that_is_renewed_while_a_trim_is_under_way_stays() -> None:
    """Let a lease end, and renew it before a trim's swap: the claim stands afterwards, and keeps its records."""
    base, claims = MemoryObjectStore(), list[Claim]()

    def renew() -> None:
        claims.append(walkit.claim(base.client(), "reader", owner=claims[0].owner))

    plan = Meanwhile(renew)
    with walkit.open(base.client(plan), options=OPTIONS) as log:
        for n in range(10):
            log.append(b"%d" % n)
        claims.append(walkit.claim(base.client(), "reader", 5, lease_s=1e-6))
        plan.is_armed = True
        assert log.trim(3) == 3 and plan.is_done
        assert [(c.name, c.state) for c in log.claims()] == [("reader", "live")]
        assert log.trim(10) == 4
        claims[1].renew()


def test_a_claim_that_moves_out_of_the_way_of_a_hard_cap_stays() -> None:
    """Move a claim before the swap of a retention that passes it: it stands, above all that was dropped."""
    base, claims = MemoryObjectStore(), list[Claim]()
    plan = Meanwhile(lambda: claims[0].advance(log.acked_lsn - 3))
    with walkit.open(base.client(plan), options=replace(OPTIONS, segment_bytes=64 << 10)) as log:
        claims.append(walkit.claim(base.client(), "slow", 1))
        for _ in range(120):
            log.append(bytes(8000))
        plan.is_armed = True
        log.enforce_retention(walkit.Retention(hard_bytes_max=512 << 10))
        assert plan.is_done and 1 < log.first_lsn < claims[0].first_lsn
        claims[0].renew()
        assert [(c.name, c.state) for c in log.claims()] == [("slow", "live")]


def test_a_claim_of_another_owner_is_not_dated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a claim that a fast clock wrote to another owner, before a trim corrects its time: the new one stands."""
    base, claims = MemoryObjectStore(), list[Claim]()

    def change() -> None:
        claims[0].release()
        claims.append(walkit.claim(base.client(), "reader", 2))

    plan = Meanwhile(change)
    with walkit.open(base.client(plan), options=OPTIONS) as log:
        for n in range(10):
            log.append(b"%d" % n)
        with monkeypatch.context() as clock:
            now_us = walkit.read.claim.now_us()
            clock.setattr("walkit.read.claim.now_us", lambda: now_us + 60_000_000)
            claims.append(walkit.claim(base.client(), "reader", 8))
        plan.is_armed = True
        assert log.trim(1) == 1 and plan.is_done and log.trim(10) == 1
        assert [(c.first_lsn, c.owner) for c in log.claims()] == [(2, claims[1].owner.hex)]


def ledger_of(base: MemoryObjectStore, epoch: int = 1) -> ClaimsObject:
    reads = PatientReads(base, lambda: Patience(0))
    return ClaimsObject(reads, Claims.decode(base.get(CLAIMS_KEY).data).log_id, epoch, pace_s=0)


def named(claims: Claims) -> Claims:
    """Return claims with a file of the first epoch, as a writer of it names one."""
    return replace(claims, files={"s": ("files/s", 1)}) if claims.epoch == 1 else claims


def claimed(claims_object: ClaimsObject) -> Callable[[], None]:
    """Return a change of the draft by a consumer."""

    def change() -> None:
        claims_object.draft = replace(claims_object.draft, claims={"reader": "00"})

    return change


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_file_is_deleted_after_the_put_that_stops_naming_it(is_lost: bool) -> None:
    """Drop a file within a larger turn: it is there until the turn is put, and stays if that put fails."""
    base = MemoryObjectStore()
    walkit.open(base).close()
    fails = [ObjectFault(before=ObjectStoreError)] * is_lost
    is_armed = False

    def plan(request: ObjectRequest) -> ObjectFault | None:
        return fails.pop() if is_armed and fails and request.method == "put_if_match" else None

    claims_object = ledger_of(base.client(plan))
    base.put_if_absent("files/s", b"s")
    claims_object.ready["s"] = ("files/s", 1)
    claims_object.in_turn(lambda: setattr(claims_object, "draft", named(claims_object.draft)))

    def drop() -> None:
        claims_object.draft = replace(claims_object.draft, files={})
        claims_object.drop_ready(["s"])
        assert "files/s" in base.objects.held

    is_armed = True
    with pytest.raises(ObjectStoreError) if is_lost else nullcontext():
        claims_object.in_turn(drop)
    assert ("files/s" in base.objects.held) == is_lost


def test_the_end_is_found_after_a_fence_and_a_trim() -> None:
    """Know a log up to an opening, trim all that follows the opening, and append once: the last record is found."""
    base = MemoryObjectStore()
    with walkit.open(base, options=OPTIONS) as log:
        log.append(b"before")
    end = ObjectEnd(base)
    assert end.folder().last_lsn() == 1
    with walkit.open(base, options=OPTIONS) as log:
        for _ in range(3):
            log.append(b"dropped")
        assert log.trim(4) == 4
        last = log.append(b"the last").last_lsn
        assert end.folder().last_lsn() == last


def test_a_flush_waits_for_a_change_that_another_turn_has_taken() -> None:
    """Flush while another thread's put has the change, and let that put fail: the flush puts it."""
    base, under_way, go = MemoryObjectStore(), threading.Event(), threading.Event()
    walkit.open(base).close()

    def plan(request: ObjectRequest) -> ObjectFault | None:
        if request.method != "put_if_match" or under_way.is_set():
            return None
        under_way.set()
        assert go.wait(20)
        return ObjectFault(before=ObjectStoreError)

    claims_object = ledger_of(base.client(plan))
    claims_object.later(named)
    other = Task(claims_object.in_turn, claimed(claims_object))
    assert under_way.wait(20)
    flushed = Task(claims_object.flush)
    go.set()
    with pytest.raises(ObjectStoreError):
        other.result()
    flushed.result()
    assert Claims.decode(base.get(CLAIMS_KEY).data).files == {"s": ("files/s", 1)}


def test_a_flush_of_a_fenced_writer_fails_though_a_claim_took_its_change() -> None:
    """Open again between a writer's change and a turn of its claims: the change is left out, and the flush fails."""
    base = MemoryObjectStore()
    walkit.open(base).close()
    claims_object = ledger_of(base)
    claims_object.later(named)
    walkit.open(base).close()
    claims_object.in_turn(claimed(claims_object))
    with pytest.raises(LogFencedError):
        claims_object.flush()
    assert not Claims.decode(base.get(CLAIMS_KEY).data).files


@pytest.mark.parametrize("key", [CLAIMS_KEY, MANIFEST_KEY])
def test_a_consumer_reads_manifest_and_claims_beside_a_compaction(key: str) -> None:
    """Compact before the look of a consumer at either object: its manifest is one that a log can have."""
    base = MemoryObjectStore()

    def compact() -> None:
        with walkit.Store.open(base.client(), replace(OPTIONS, segment_bytes=64 << 10)) as store:
            for n in range(30):
                store.put(b"hot", b"%d" % n + bytes(9000))
            assert store.compact().records_after < 30

    walkit.open(base).close()
    plan = Meanwhile(compact, "get", key)
    folder = folder_at(base.client(plan))
    plan.is_armed = True
    load_manifest(folder)
    assert plan.is_done and load_manifest(folder).end.last_lsn == 30


def test_a_claim_on_a_log_that_is_being_made_finds_no_log() -> None:
    """Claim before the first put of the claims object, and after its loss: no log so far, and damage."""
    base = MemoryObjectStore()

    def claim_early() -> None:
        with pytest.raises(LogNotFoundError, match="being made"):
            walkit.claim(base.client(), "reader")

    plan = Meanwhile(claim_early, "put_if_absent")
    plan.is_armed = True
    walkit.open(base.client(plan)).close()
    assert plan.is_done
    walkit.claim(base.client(), "reader").release()
    base.delete(CLAIMS_KEY)
    with pytest.raises(CorruptionError, match="claims is missing"):
        walkit.claim(base.client(), "reader")


def test_a_fenced_writer_changes_no_claim_of_the_newer_one() -> None:
    """Hold by two writers under one name: the first is fenced, and neither moves nor removes the second's."""
    base = MemoryObjectStore()
    first = walkit.open(base.client(), options=OPTIONS)
    for n in range(10):
        first.append(b"%d" % n)
    older = first.hold("h", 8)
    with walkit.open(base.client(), options=OPTIONS) as second:
        second.hold("h", 2)
        for change in (older.renew, older.release):
            with pytest.raises(LogFencedError):
                change()
        first.close()
        assert walkit.open(base.client(), "r").claims()[0].first_lsn == 2


@pytest.mark.parametrize("when", ["read", "published"])
@pytest.mark.parametrize("up_to", [5, 10, 25, 60])
def test_a_trim_into_a_group_ends_its_compaction(
    monkeypatch: pytest.MonkeyPatch, up_to: int, when: str
) -> None:
    """Trim a part of a group of bulks, or all, before it is read or published: no later record goes, and no error."""
    base, trims = MemoryObjectStore(), list[int]()
    write = SegmentReplacer.write

    def trimmed(*given: Any) -> Any:
        written = write(*given) if when == "published" else None
        if not trims:
            trims.append(Task(lambda: store.log.trim(up_to)).result())
        return written or write(*given)

    with walkit.Store.open(base.client(), replace(OPTIONS, segment_bytes=64 << 10)) as store:
        for n in range(60):
            store.put(b"hot", b"%d" % n + bytes(6000))
            store.log.append(b"an event" + bytes(6000))
        store.checkpoint(trim=False)
        monkeypatch.setattr(SegmentReplacer, "write", trimmed)
        store.compact()
        assert store.log.first_lsn == trims[0] + 1 > 1
        for _ in range(2):
            events = [r.lsn for r in store.log.read() if r.key is None]
            assert events == [lsn for lsn in range(2, 121, 2) if lsn > trims[0]]
            store.compact()
        assert store.log.statistics().segments < 15 and walkit.verify(base.client()).ok
        assert dict(store.items()) == {b"hot": b"59" + bytes(6000)}
