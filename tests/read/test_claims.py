"""Claims: the records that consumers of other processes need are kept, refused at once, or given up with an event."""

from __future__ import annotations

import errno
import pickle
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from IPython.lib.pretty import pretty

import walkit
from tests.support.crash_recorder import Filmed
from tests.support.logs import faulty_log, lsns, memory_log, tiny
from tests.support.threads import wait_until
from walkit.config import Retention
from walkit.errors import (
    ClaimError,
    DivergenceError,
    FormatVersionError,
    GapError,
    LogNotFoundError,
    OptionsError,
    StorageError,
)
from walkit.format.checksum import crc32c
from walkit.format.consumer_file import ClaimRecord, whole_claim
from walkit.format.file_names import CLAIMS_LOCK_NAME
from walkit.format.layout import CLAIM_LEASE_US_MAX, CLAIMS_MAX
from walkit.log.claims import ClaimTable
from walkit.models import CrashingStorage
from walkit.read import claim as claim_module
from walkit.read.claim import Claim
from walkit.record import STAMP_MAX
from walkit.segments.consumer_files import claim_facts, claims_locked, state_of, stored_claim, write_claim
from walkit.segments.history import identity_at
from walkit.segments.manifest_store import load_manifest
from walkit.storage.bulk import write_whole
from walkit.storage.interface import LockHolder

HARD_CAP = Retention(hard_bytes_max=3 * 64 * 1024)
Events = list[tuple[str, dict[str, Any]]]


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log of 80 records in ten segments."""
    with memory_log() as made:
        fill(made, 80)
        yield made


def fill(log: walkit.WriteAheadLog, count: int) -> None:
    """Append records of which eight fill a segment, and wait until full segments are sealed."""
    log.append_many([bytes(7000)] * count)
    log.wait_idle()


def place_of(log: walkit.WriteAheadLog) -> Any:
    """The storage of a log, by which another process would take a claim."""
    return log.parts.storage


def heard(log: walkit.WriteAheadLog) -> Events:
    """A list to which the events of a log are added from now on."""
    seen: Events = []
    log.events.add_listener(lambda name, about: seen.append((name, about)))
    return seen


def of_claims(seen: Events) -> list[str]:
    """The names of the events about claims, without their common prefix."""
    return [name.removeprefix("walkit.claim.") for name, _ in seen if name.startswith("walkit.claim.")]


def put_claim(log: walkit.WriteAheadLog, name: str, **changed: Any) -> ClaimRecord:
    """Write the file of a claim as another process would, an hour's lease from now on unless `changed` says more."""
    manifest = load_manifest(place_of(log))
    now_us = time.time_ns() // 1000
    mark = ClaimRecord(1, manifest.log_id, b"another consumer", 0, 0, 1, 3_600_000_000, now_us)._replace(
        **changed
    )
    write_claim(place_of(log), name, mark)
    return mark


def spoil(log: walkit.WriteAheadLog, name: str = "c") -> None:
    """Flip one bit of a claim's file."""
    data = bytearray(whole_claim(put_claim(log, name, first_lsn=50)))
    data[4096 + 60] ^= 1
    write_whole(place_of(log), f"claim-{name}", "spoiled.new", bytes(data))


def names_of(log: walkit.WriteAheadLog) -> set[str]:
    """The names of the claims whose files are there."""
    return {fact.name for fact in log.claims()}


# -- the records that a claim keeps


def test_a_claim_keeps_back_the_trim(log: walkit.WriteAheadLog) -> None:
    """F-18.4: claim, advance, release: a trim and a drain stop below the oldest claim; preview and report name it."""
    low = walkit.claim(place_of(log), "low", 5)
    high = walkit.claim(place_of(log), "high", 50)
    report = log.trim(70)
    assert report == 4 and log.first_lsn == 5
    shown: str = pretty(log.claims())  # type: ignore[no-untyped-call]
    assert "<Claim low live: LSN 5 and later, until " in shown
    assert log.parts.trimmer.preview(70).limit == report.limit == "claim low"
    assert "claim low" in report._repr_html_()
    low.advance(30)
    assert lsns(log.drain(70)) == list(range(5, 71)) and log.first_lsn == 30
    low.release()
    low.release()
    assert (low.state, log.trim(70)) == ("released", 49)
    high.advance(81)
    assert log.trim(70).limit == "" and log.first_lsn == 71 and high.first_lsn == 81


def test_claims_of_this_and_another_process_count_alike(log: walkit.WriteAheadLog) -> None:
    """Hold and claim different records: the older of the two decides, whichever it is; `below_claims` asks both."""
    hold, claim = log.hold("h", 20), walkit.claim(place_of(log), "c", 40)
    assert isinstance(hold, walkit.Claim) and type(claim) is walkit.Claim
    assert (log.trim(70), log.trim(70).limit) == (19, "claim h")
    hold.advance(60)
    assert log.trim(70) == 39
    claim.advance(57)
    report = log.enforce_retention(Retention(below_claims=True))
    assert (report.low_watermark, report.reasons, report.claims_dropped) == (56, ("claims",), ())
    hold.release()
    assert log.enforce_retention(Retention(records_max=1)).kept_by == ("claim c",)


def test_a_checkpoint_keeps_what_a_claim_needs() -> None:
    """Take checkpoints of a store beside a claim: the state is saved, the log stays from the claim on."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=tiny()) as store:
        for i in range(80):
            store.put(b"%d" % (i % 7), bytes(7000))
        claim = walkit.claim(storage, "reader", 30)
        assert store.checkpoint(trim=False).low_watermark == 0
        assert store.checkpoint().low_watermark == 29
        assert lsns(store.log.read(30)) == list(range(30, 81))
        claim.advance(81)
        assert store.checkpoint().low_watermark == 80


def test_a_compaction_keeps_what_a_claim_needs() -> None:
    """Compact a store beside a claim: every record from the claim on stays, earlier ones may go."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=tiny()) as store:
        for i in range(80):
            store.put(b"%d" % (i % 7), b"%d" % i * 3500)
        claim = walkit.claim(storage, "reader", 30)
        before = [(r.lsn, r.value) for r in store.log.read(30)]
        assert store.compact().segments_rewritten > 0
        assert store.log.complete_from_lsn <= 30
        assert [(r.lsn, r.value) for r in store.log.read(30)] == before
        claim.release()
        assert store.compact().segments_rewritten > 0 and store.log.complete_from_lsn > 30
        with pytest.raises(GapError) as gap:
            walkit.claim(storage, "reader", 30)
        assert gap.value.oldest == store.log.complete_from_lsn
        thinned = walkit.claim(storage, "reader", 30, complete=False)
        thinned.renew()
        assert walkit.claim(storage, "new").first_lsn == store.log.complete_from_lsn


def test_a_claim_that_comes_during_a_compaction_is_kept() -> None:
    """Claim from the progress of a compaction, after its survey: the result leaves the claimed records alone."""
    storage = CrashingStorage()
    with walkit.Store.open(storage=storage, options=tiny()) as store:
        for i in range(80):
            store.put(b"%d" % (i % 7), b"%d" % i * 3500)
        claims: list[Claim] = []

        def progress(phase: str, done: int, total: int) -> None:
            if phase == "rewrite" and not claims:
                claims.append(walkit.claim(storage, "reader", 9))

        store.compact(progress=progress)
        assert store.log.complete_from_lsn <= 9 == claims[0].first_lsn
        assert lsns(store.log.read(9)) == list(range(9, 81))


def test_a_claim_is_honoured_or_a_gap_at_once(log: walkit.WriteAheadLog) -> None:
    """F-18.3: claim trimmed records: GapError with the oldest LSN, and no file; existing ones are kept."""
    log.trim(20)
    with pytest.raises(GapError) as gap:
        walkit.claim(place_of(log), "c", 20)
    assert (gap.value.wanted, gap.value.oldest) == (20, 21) and log.claims() == []
    assert walkit.claim(place_of(log), "c").first_lsn == 21
    assert log.trim(70) == 20


def test_a_claim_outlives_openings(log: walkit.WriteAheadLog) -> None:
    """Claim, close the log, open it again: the claim still counts; a copy of the object's words says the same."""
    storage = place_of(log)
    with walkit.claim(storage, "c", 12, lease_s=60.0) as claim:
        log.close()
        with walkit.open(storage=storage, options=tiny()) as again:
            assert again.trim(70) == 11
            (fact,) = again.claims()
            assert (fact.name, fact.state, fact.first_lsn, fact.owner) == ("c", "live", 12, claim.owner.hex)
            assert (claim.lease_s, claim.state) == (60.0, "held")
            assert abs((claim.expires - datetime.now(UTC)).total_seconds()) < 61
            assert "first_lsn=12" in repr(claim) and "first LSN needed" in claim._repr_html_()
    assert claim.state == "released"
    with walkit.open(storage=storage, mode="r") as reader:
        assert reader.claims() == []


def test_a_block_that_fails_leaves_the_claim(log: walkit.WriteAheadLog) -> None:
    """Raise within the block of a claim: its file stays, and the consumer can start again with its owner id."""
    claim = walkit.claim(place_of(log), "c", 12)

    def work() -> None:
        with claim:
            claim.advance(15)
            raise KeyError

    with pytest.raises(KeyError):
        work()
    assert log.trim(70) == 14
    assert walkit.claim(place_of(log), "c", owner=claim.owner).first_lsn == 15


# -- refusals


@pytest.mark.parametrize("name", ["", "a b", "a/b", "..", "c.new", "ü", "x" * 65, None, 3])
def test_invalid_names(log: walkit.WriteAheadLog, name: Any) -> None:
    """Claim by an invalid name, or one too long: refused, nothing is written."""
    before = place_of(log).names()
    with pytest.raises(OptionsError, match="name"):
        walkit.claim(place_of(log), name, 1)
    assert place_of(log).names() == before


@pytest.mark.parametrize(
    "wrong",
    [
        {"first_lsn": 0},
        {"first_lsn": -1},
        {"first_lsn": 1 << 63},
        {"first_lsn": True},
        {"first_lsn": "5"},
        {"first_lsn": 82},
        {"lease_s": 0},
        {"lease_s": -1},
        {"lease_s": float("nan")},
        {"lease_s": float("inf")},
        {"lease_s": 1e30},
        {"lease_s": "x"},
        {"lease_s": None},
        {"lease_s": CLAIM_LEASE_US_MAX / 1e6 + 1},
        {"owner": "me"},
    ],
    ids=str,
)
def test_what_no_claim_has(log: walkit.WriteAheadLog, wrong: Any) -> None:
    """Give an LSN, a lease or an owner that cannot be: refused, nothing is written."""
    with pytest.raises(OptionsError):
        walkit.claim(place_of(log), "c", **{"first_lsn": 5, **wrong})
    assert log.claims() == []


def test_a_place_without_a_log_gets_no_lock_file() -> None:
    """Claim and drop without a log: LogNotFoundError, and the place is as it was."""
    storage = CrashingStorage()
    with pytest.raises(LogNotFoundError):
        walkit.claim(storage, "c")
    assert storage.names() == []


def test_a_claim_never_moves_back(log: walkit.WriteAheadLog) -> None:
    """Advance below its position, beyond the end, to no number, or after its release: refused, nothing moves."""
    claim = walkit.claim(place_of(log), "c", 30)
    for wrong in (29, 0, -1, 82, 1 << 70, "31", None, True):
        with pytest.raises(OptionsError):
            claim.advance(wrong)  # type: ignore[arg-type]
    assert stored_claim(place_of(log), "c") is not None and log.claims()[0].first_lsn == 30
    claim.release()
    for call in (claim.renew, lambda: claim.advance(31)):
        with pytest.raises(ClaimError) as refused:
            call()
        assert refused.value.reason == "released"
    assert log.claims() == []


def test_the_65th_claim_is_refused(log: walkit.WriteAheadLog) -> None:
    """F-18.9: take 64 claims: one more is refused; with room, or once a lease is over, it is taken."""
    claims = [walkit.claim(place_of(log), f"c{n}", 10) for n in range(CLAIMS_MAX)]
    with pytest.raises(ClaimError) as full:
        walkit.claim(place_of(log), "more", 10)
    assert (full.value.reason, full.value.name) == ("full", "more") and len(log.claims()) == CLAIMS_MAX
    claims[7].renew()
    claims[0].release()
    walkit.claim(place_of(log), "more", 10)
    put_claim(log, "c1", lease_us=1)
    seen: list[str] = []
    walkit.claim(
        place_of(log), "again", 10, events=lambda name, about: seen.append(f"{name} {about['name']}")
    )
    assert seen == ["walkit.claim.expire c1"] and len(log.claims()) == CLAIMS_MAX


def test_a_name_of_another_owner_is_left_to_it(log: walkit.WriteAheadLog) -> None:
    """Take a name whose lease runs: refused, but with its owner's id or by force; the others are refused then."""
    first = walkit.claim(place_of(log), "c", 20)
    with pytest.raises(ClaimError) as taken:
        walkit.claim(place_of(log), "c", 30)
    assert (taken.value.reason, taken.value.owner) == ("taken", first.owner.hex)
    assert taken.value.lease_until_us == int(first.expires.timestamp() * 1e6)
    assert str(pickle.loads(pickle.dumps(taken.value))) == str(taken.value)
    session = walkit.claim(place_of(log), "c", owner=first.owner)
    assert session.first_lsn == 20
    forced = walkit.claim(place_of(log), "c", 40, owner=uuid.UUID(int=7), take_over=True)
    for other in (first, session):
        for call in (other.renew, lambda other=other: other.advance(50)):
            with pytest.raises(ClaimError) as refused:
                call()
            assert refused.value.reason == "taken" and other.state == "lost"
        other.release()
    assert log.claims()[0].first_lsn == forced.first_lsn == 40


def test_a_claim_that_somebody_dropped(log: walkit.WriteAheadLog) -> None:
    """Drop a claim by its name: the log is trimmed, its consumer gets an error, and can take it again."""
    claim = walkit.claim(place_of(log), "c", 20)
    assert log.drop_claim("c") and not log.drop_claim("c")
    with pytest.raises(ClaimError) as dropped:
        claim.renew()
    assert (dropped.value.reason, claim.state) == ("dropped", "lost")
    assert walkit.claim(place_of(log), "c", 20, owner=claim.owner).first_lsn == 20
    with walkit.open(storage=place_of(log), mode="r") as reader:
        assert reader.drop_claim("c")
    assert log.trim(70) == 70


# -- leases and clocks


def test_a_lease_that_is_over(log: walkit.WriteAheadLog) -> None:
    """F-18.5: write a claim whose lease is over: it keeps nothing, the trim removes it with an event."""
    seen = heard(log)
    put_claim(log, "old", first_lsn=10, lease_us=1)
    assert log.claims()[0].state == "expired"
    assert log.trim(70) == 70
    assert of_claims(seen) == ["expire"] and log.claims() == []
    assert seen[0][1]["name"] == "old" and seen[0][1]["first_lsn"] == 10


def test_a_consumer_whose_lease_ran_out(log: walkit.WriteAheadLog) -> None:
    """Renew after the lease: in force again while all is there, also after its file went; a GapError once it is not."""
    claim = walkit.claim(place_of(log), "c", 30, lease_s=1e-6)
    assert claim.state == "expired"
    claim.renew()
    assert log.trim(20) == 20 and names_of(log) == set(), "the trim has removed it"
    claim.renew()
    claim.advance(35)
    assert log.trim(70) == 70
    with pytest.raises(GapError) as gap:
        claim.renew()
    assert (gap.value.wanted, gap.value.oldest, claim.state) == (35, 71, "lost")
    assert log.claims() == []


def test_a_wall_clock_that_is_set_back_does_not_lengthen_a_lease() -> None:
    """F-18.5: see a claim of the future: an event, and it counts for its lease by the writer's own clock, no longer."""
    with memory_log() as log:
        fill(log, 8)
        mark = put_claim(log, "c", first_lsn=3, lease_us=60_000_000)
        seen, clock = heard(log), [0.0]
        table = ClaimTable(
            place_of(log),
            log.parts.manifest_store,
            log.events,
            wall_us=lambda: mark.written_us - 10**12,
            own_s=lambda: clock[0],
        )
        manifest = log.parts.manifest_store.current
        for at, count in ((0.0, 1), (59.9, 1), (60.0, 0), (3600.0, 0)):
            clock[0] = at
            assert len(table.live(manifest)) == count
        assert [(n, about["ahead_s"]) for n, about in seen] == [("walkit.claim.clock", 1e6)]
        put_claim(log, "c", first_lsn=3, lease_us=60_000_000, written_us=mark.written_us + 1)
        assert len(table.live(manifest)) == 1, "renewed, it counts again"
        with log.events.held(), table.shut():
            clock[0] += 61
        with log.events.held(), table.shut():
            pass
        assert of_claims(seen) == ["clock", "clock", "expire"] and log.claims() == []


def test_a_claim_saved_while_the_clock_was_ahead_ends_with_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-18.5: claim a year ahead, set the clock right, open for seconds only: one event, and it ends with its lease."""
    storage, real_ns, set_s = CrashingStorage(), time.time_ns, [365 * 86_400]
    with walkit.open(storage=storage, options=tiny()) as log:
        fill(log, 8)
        own = log.hold("own", 3, lease_s=60)
        monkeypatch.setattr(time, "time_ns", lambda: real_ns() + set_s[0] * 10**9)
        claim = walkit.claim(storage, "c", 3, lease_s=60)
        own.renew()
    for seconds, events in ((0, ["clock", "clock"]), (30, []), (61, ["expire", "expire"])):
        set_s[0] = seconds
        with walkit.open(storage=storage, options=tiny()) as log:
            seen = heard(log)
            assert log.trim(8) == (8 if seconds > 60 else 2)
            assert of_claims(seen) == events
            if seconds == 0:
                claim.renew()
    assert claim.state == "expired"


def test_a_claim_of_a_clock_that_is_far_wrong(log: walkit.WriteAheadLog) -> None:
    """Put a claim of the last microsecond that a file can name: it is listed, refused to others, dated and dropped."""
    put_claim(log, "c", first_lsn=30, written_us=(1 << 64) - 1)
    assert log.claims()[0].lease_until == "9999-12-31 23:59:59 UTC"
    with pytest.raises(ClaimError, match="9999"):
        walkit.claim(place_of(log), "c", 30)
    assert log.trim(70) == 29 and log.claims()[0].lease_until < "9999", "the trim has dated it"
    assert log.drop_claim("c")


def test_the_state_of_a_claim_is_pure(log: walkit.WriteAheadLog) -> None:
    """F-18.5: judge a claim at the edges of its lease, below the low watermark, and of another log."""
    log.trim(20)
    manifest = log.parts.manifest_store.current
    mark = ClaimRecord(1, manifest.log_id, bytes(16), 1, 1, 21, 100, 1000)
    states = [state_of(mark, manifest, now) for now in (0, 1000, 1099, 1100, 5000)]
    assert states == ["live", "live", "live", "expired", "expired"]
    assert state_of(mark._replace(first_lsn=20), manifest, 1000) == "passed"
    assert state_of(mark._replace(log_id=mark.log_id ^ 1), manifest, 1000) == "foreign"


# -- damage


def test_a_damaged_claim_keeps_everything(log: walkit.WriteAheadLog) -> None:
    """F-18.6: damage a claim: nothing is trimmed, an event gives the reason, once; its owner's renewal repairs it."""
    seen = heard(log)
    claim = walkit.claim(place_of(log), "c", 50)
    file = place_of(log).open("claim-c", "write")
    file.write(4096 + 60, [b"\x99"])
    file.close()
    for _ in range(2):
        assert log.trim(70) == 0
        assert log.enforce_retention(Retention(records_max=1)).kept_by == ("claim c",)
    assert of_claims(seen) == ["damage"] and "checksum" in seen[0][1]["error"]
    (fact,) = log.claims()
    assert (fact.state, fact.first_lsn, fact.needed_lsn) == ("damaged", None, 1) and fact.fault is not None
    claim.renew()
    assert log.claims()[0].state == "live" and log.trim(70) == 49


def test_a_damaged_claim_can_be_taken_and_dropped(log: walkit.WriteAheadLog) -> None:
    """Damage a claim whose consumer forgot all: it may take it again, at existing records; anyone may drop it."""
    spoil(log)
    seen: list[str] = []
    assert walkit.claim(place_of(log), "c", 40, events=lambda name, _: seen.append(name)).first_lsn == 40
    assert seen == ["walkit.claim.damage"]
    spoil(log)
    assert log.drop_claim("c") and log.trim(70) == 70


def test_a_damaged_claim_is_over_after_the_longest_lease() -> None:
    """F-18.6: look at a damaged claim for thirty days by the writer's own clock: then it no longer counts, and goes."""
    with memory_log() as log:
        fill(log, 8)
        spoil(log)
        clock = [0.0]
        table = ClaimTable(place_of(log), log.parts.manifest_store, log.events, own_s=lambda: clock[0])
        manifest = log.parts.manifest_store.current
        assert [c.needed_lsn for c in table.live(manifest)] == [1]
        clock[0] = CLAIM_LEASE_US_MAX / 1e6 - 1
        assert [c.needed_lsn for c in table.live(manifest)] == [1]
        clock[0] += 1
        assert table.live(manifest) == ()
        with table.shut():
            pass
        assert log.claims() == []


def test_a_claim_of_a_newer_walkit(log: walkit.WriteAheadLog) -> None:
    """F-18.6: a claim of a newer version keeps everything, and no older walkit overwrites it."""
    data = bytearray(whole_claim(put_claim(log, "c", first_lsn=50)))
    data[4096 + 8] = 9
    data[4096 + 624 : 4096 + 628] = crc32c(data[4096 : 4096 + 624]).to_bytes(4, "little")
    write_whole(place_of(log), "claim-c", "newer.new", bytes(data))
    assert log.trim(70) == 0 and log.claims()[0].state == "damaged"
    with pytest.raises(FormatVersionError):
        walkit.claim(place_of(log), "c", 10, take_over=True)


def test_a_claim_that_cannot_be_opened_keeps_everything() -> None:
    """F-18.6: let the opening of a claim's file fail: nothing is trimmed until it can be read."""
    storage, log = faulty_log()
    with log:
        fill(log, 40)
        walkit.claim(storage, "c", 30)
        fault = storage.fail("open", "claim-c", times=None)
        assert log.trim(40) == 0
        fault.cancel()
        assert log.trim(40) == 29


def test_what_a_dead_consumer_left_half_written(log: walkit.WriteAheadLog) -> None:
    """Leave the file of a claim half written: it does not count, and the next one that is written removes it."""
    place_of(log).open("claim-dead.new", "create").write(0, [b"half"])
    assert log.trim(20) == 20 and log.claims() == []
    walkit.claim(place_of(log), "c", 30)
    assert "claim-dead.new" not in place_of(log).names()


# -- the hard cap


def test_the_hard_cap_is_above_a_claim(log: walkit.WriteAheadLog) -> None:
    """F-18.7: enforce a hard cap past a live and a damaged claim: both go, with events; their consumers get a gap."""
    seen = heard(log)
    slow, quick = walkit.claim(place_of(log), "slow", 9), walkit.claim(place_of(log), "quick", 80)
    spoil(log, "spoiled")
    report = log.enforce_retention(HARD_CAP)
    assert report.claims_dropped == ("spoiled", "slow")
    assert "spoiled, slow" in report._repr_html_()
    assert of_claims(seen) == ["damage", "drop", "drop"] and names_of(log) == {"quick"}
    assert seen[1][1]["oldest"] == log.first_lsn == report.low_watermark + 1
    with pytest.raises(GapError):
        slow.renew()
    with pytest.raises(GapError):
        slow.advance(10)
    quick.advance(81)
    assert walkit.claim(place_of(log), "slow", owner=slow.owner).first_lsn == log.first_lsn


def test_what_is_left_of_a_claim_that_the_cap_has_passed(log: walkit.WriteAheadLog) -> None:
    """F-18.7: put a claim below the low watermark, as a crash leaves it: it keeps nothing, and is removed."""
    seen = heard(log)
    log.trim(20)
    put_claim(log, "passed", first_lsn=5)
    assert log.claims()[0].state == "passed"
    assert log.trim(70) == 70 and of_claims(seen) == ["drop"] and log.claims() == []


# -- other histories


def cut_log(reopened: bool) -> tuple[CrashingStorage, Claim]:
    """A log of which ten records were cut after a claim on them was taken; opened again and appended to, or not."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny()) as log:
        log.append_many([b"old"] * 5)
    log = walkit.open(storage=storage, options=tiny(durability="none"))
    log.append_many([b"old"] * 10)
    mark = log.parts.contents.view().manifest.lineage[-1]
    before = storage.crash(keep="none")
    with walkit.open(storage=before, options=tiny()) as again:
        assert again.acked_lsn == 5
        if reopened:
            again.append_many([b"new"] * 20)
    owner = uuid.UUID(int=1)
    found = load_manifest(before)
    claimed = ClaimRecord(
        1, found.log_id, owner.bytes, mark.number, mark.id, 12, 60_000_000, time.time_ns() // 1000
    )
    write_claim(before, "c", claimed)
    log.close()
    events = walkit.open(storage=before, mode="r").events
    claim = Claim(before, events, "c", owner, 60_000_000)
    claim._mark = claimed
    return before, claim


@pytest.mark.parametrize("reopened", [False, True])
def test_a_claim_on_records_that_were_cut(reopened: bool) -> None:
    """F-18.8: cut records that a consumer has read, give the numbers again or not: DivergenceError by each way on."""
    storage, claim = cut_log(reopened)
    ways = (
        claim.renew,
        lambda: claim.advance(15),
        lambda: walkit.claim(storage, "c", owner=claim.owner),
        lambda: walkit.claim(storage, "c", 12, owner=claim.owner),
        lambda: walkit.claim(storage, "other", 12, epoch_id=claim.epoch_id),
    )
    for way in ways:
        with pytest.raises(DivergenceError) as diverged:
            way()
        assert diverged.value.first_lsn == 6
    assert [f.first_lsn for f in claim_facts(storage, load_manifest(storage))] == [12]
    good = walkit.claim(storage, "c", 6, take_over=True)
    again = walkit.claim(storage, "good", 6, epoch_id=good.epoch_id)
    assert (good.epoch_id, good.first_lsn) == (again.epoch_id, again.first_lsn)


def test_a_claim_after_a_rebuilt_manifest(log: walkit.WriteAheadLog) -> None:
    """Trim up to a claim, lose the manifest, repair: trimmed records have no epoch now, and the claim remains."""
    claim = walkit.claim(place_of(log), "c", 33)
    assert log.trim(70) == 32
    log.close()
    storage = place_of(log)
    storage.remove("manifest")
    walkit.repair(storage)
    assert identity_at(load_manifest(storage), 32).epoch == 0, "its epoch is forgotten"
    claim.renew()
    assert (
        walkit.claim(storage, "d", claim.first_lsn, epoch_id=load_manifest(storage).lineage[0].id).first_lsn
        == 33
    )
    with walkit.open(storage=storage, options=tiny()) as again:
        assert again.trim(70) == 32
        claim.advance(40)
        assert again.claims()[0].first_lsn == 40


def test_a_claim_of_another_log(log: walkit.WriteAheadLog) -> None:
    """Put a claim of another log beside this one: it keeps nothing, its consumer is refused, another takes the name."""
    owner = uuid.UUID(int=3)
    put_claim(log, "c", log_id=77, owner=owner.bytes)
    assert log.claims()[0].state == "foreign" and log.trim(20) == 20
    with pytest.raises(DivergenceError):
        walkit.claim(place_of(log), "c", 30, owner=owner)
    assert walkit.claim(place_of(log), "c", 30).first_lsn == 30


def test_a_claim_at_the_end_of_a_dead_writer() -> None:
    """Claim after the last record of a log whose writer was killed: its durable slot, or a scan, has its end."""
    storage = CrashingStorage()
    log = walkit.open(storage=storage, options=tiny())
    log.append_many([b"x"] * 30)
    for image in (storage.process_kill(), storage.crash(keep="all")):
        assert walkit.claim(image, "c", 31).first_lsn == 31
        with pytest.raises(OptionsError, match="ends at 30"):
            walkit.claim(image, "d", 32)
    log.close()


# -- the lock


def test_a_lock_that_is_not_to_be_had(log: walkit.WriteAheadLog) -> None:
    """F-18.3: hold the claims' lock: claims and whatever drops records wait for a bounded time."""
    claim = walkit.claim(place_of(log), "c", 30)
    log.parts.claims._wait_s = 0.01
    lock = place_of(log).lock(CLAIMS_LOCK_NAME)
    assert not isinstance(lock, LockHolder)
    generation = log.parts.manifest_store.current.generation
    for call in (lambda: log.trim(20), lambda: log.enforce_retention(Retention(records_max=60))):
        with pytest.raises(StorageError, match="process") as busy:
            call()
        assert (busy.value.errno, busy.value.name) == (errno.ETIMEDOUT, CLAIMS_LOCK_NAME)
    with pytest.raises(StorageError), claims_locked(place_of(log), 0.01):
        pass
    assert log.parts.manifest_store.current.generation == generation
    log.append(b"appending needs no claim")
    lock.release()
    claim.renew()
    assert log.trim(20) == 20


def test_retention_in_the_background_does_not_wait_for_a_consumer() -> None:
    """Hold the claims' lock while segments are sealed: retention gives up with an event, frames find their segments."""
    storage = CrashingStorage()
    with walkit.open(storage=storage, options=tiny(retention=Retention(records_max=10))) as log:
        log.parts.claims._wait_s = 3600.0
        seen = heard(log)
        lock: Any = storage.lock(CLAIMS_LOCK_NAME)
        fill(log, 40)
        # The events of the maintenance thread come from another thread.
        wait_until(lambda: any(name == "walkit.maintenance.fail" for name, _ in seen))
        failures = [about for name, about in seen if name == "walkit.maintenance.fail"]
        assert all("claims" in about["error"] for about in failures)
        assert log.first_lsn == 1
        lock.release()
        fill(log, 10)
        assert log.first_lsn > 30


def test_a_writing_that_failed_and_landed() -> None:
    """Fail the last step of an advance, and trim up to the stored LSN: renewing continues there, and misses nothing."""
    storage, log = faulty_log()
    with log:
        fill(log, 40)
        claim = walkit.claim(storage, "c", 10)
        storage.fail("sync", "claim-c")
        with pytest.raises(StorageError):
            claim.advance(20)
        assert claim.first_lsn == 10 and log.trim(30) == 19
        claim.renew()
        assert (claim.first_lsn, claim.state) == (20, "held")


# -- who sees them


def test_claims_are_shown_beside_holds(log: walkit.WriteAheadLog) -> None:
    """Look at a log with a hold, a claim and a cursor: the inventory has them all, and the bytes that are kept."""
    log.cursor("c").advance(3)
    walkit.claim(place_of(log), "c", 30)
    inventory = log.inventory()
    assert [(c.name, c.first_lsn) for c in inventory.claims] == [("c", 30)]
    assert inventory.held_bytes == sum(s.size_bytes for s in inventory.segments if s.last_lsn >= 30) > 0
    html = inventory._repr_html_()
    assert "claim c" in html and "cursor c" in html
    with walkit.open(storage=place_of(log), mode="r") as reader:
        assert reader.inventory().claims == inventory.claims == tuple(reader.claims())


def test_checks_name_claims_and_change_none(log: walkit.WriteAheadLog) -> None:
    """Verify and repair a log with a live, a damaged and a half-written claim: notes, no problem, no file changed."""
    walkit.claim(place_of(log), "c", 30)
    spoil(log, "d")
    place_of(log).open("claim-e.new", "create").close()
    log.close()
    storage = place_of(log)
    report = walkit.verify(storage)
    notes = " ".join(report.notes)
    assert report.ok and "claim 'c' (live) needs LSN 30" in notes and "claim 'd' (damaged)" in notes
    assert "claim-e.new is left" in notes and "not the log's" not in notes
    before = {n: storage.open(n, "read").read(0, 99) for n in storage.names() if n.startswith("claim-")}
    walkit.repair(storage)
    assert {
        n: storage.open(n, "read").read(0, 99) for n in storage.names() if n.startswith("claim-")
    } == before


# -- crashes between any two steps


def test_a_power_cut_at_every_step_of_the_hard_cap() -> None:
    """F-18.7: cut the power at each operation of a drop past a claim: the log is whole, no claim goes first."""
    film = Filmed(CrashingStorage(), every_way=True)
    with walkit.open(storage=film, options=tiny()) as log:
        fill(log, 40)
        walkit.claim(film, "slow", 9)
        film.running = True
        report = log.enforce_retention(HARD_CAP)
        film.running = False
        film.take("after it")
        assert report.claims_dropped == ("slow",)
    for what, image in film.images:
        with walkit.open(storage=image, options=tiny()) as again:
            states = {f.name: f.state for f in again.claims()}
            if again.first_lsn == 1:
                assert states == {"slow": "live"}, what
                with pytest.raises(ClaimError):
                    walkit.claim(image, "slow", 30)
            else:
                assert again.first_lsn == report.low_watermark + 1 and states in ({}, {"slow": "passed"}), (
                    what
                )
                assert again.trim(30) == 30 and again.claims() == [], what
            assert lsns(again.read()) == list(range(again.first_lsn, 41)), what


@pytest.mark.parametrize("at_ns", [-5 * 10**9, 2**63 * 4000, STAMP_MAX * 1000 + 1000])
def test_a_clock_that_no_claim_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_ns: int
) -> None:
    """Claim, and renew, while the wall clock is before 1970 or after 9999: ClaimError "clock", nothing is written."""
    with walkit.open(tmp_path / "log") as log:
        log.append(b"v")
        claim = walkit.claim(tmp_path / "log", "before")
        stored = (tmp_path / "log" / "claim-before").read_bytes()
        monkeypatch.setattr(claim_module, "now_us", lambda: at_ns // 1000)
        for write in (claim.renew, lambda: walkit.claim(tmp_path / "log", "now")):
            with pytest.raises(ClaimError) as caught:
                write()
            assert caught.value.reason == "clock"
        monkeypatch.undo()
        assert (tmp_path / "log" / "claim-before").read_bytes() == stored
        assert [fact.name for fact in log.claims()] == ["before"]
        claim.renew()
