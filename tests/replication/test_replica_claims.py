"""The claims of replicas: they keep what was not acknowledged, of an open log and of one written elsewhere."""

from __future__ import annotations

import errno
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, Caller, until
from tests.replication.test_authentication import frames_of_log
from tests.support.crashes import SMALL
from walkit.errors import OptionsError, WalkitError
from walkit.events import EventSink
from walkit.format.file_names import claim_file_name
from walkit.format.layout import CLAIMS_MAX
from walkit.format.manifest import LogEnd
from walkit.models import FaultyStorage
from walkit.replication import Primary, Replica
from walkit.replication.core.publisher import Publisher
from walkit.replication.primary import claims as replica_claims
from walkit.replication.primary.claims import ReplicaClaims, replicas_with_claims
from walkit.replication.primary.server import HOLDS
from walkit.replication.protocol.identity import mint
from walkit.replication.protocol.messages import Ack, Chunk, Fetch, Heartbeat, Plan, Refusal
from walkit.segments.consumer_files import claims_locked
from walkit.segments.manifest_store import load_manifest
from walkit.storage.file import FileStorage


def test_a_replica_holds_a_log_back(tmp_path: Path) -> None:
    """Serve the folder of an open log; follow and leave: a trim keeps what was not acknowledged; it comes later."""
    with walkit.open(tmp_path / "p", options=SMALL) as log:
        log.append_many([bytes(2000)] * 50)
        with Primary(tmp_path / "p", lease_s=4) as primary:
            with Replica(tmp_path / "r", primary.address) as replica:
                replica.wait_for(50, WAIT_S)
                until(lambda: [c.first_lsn for c in log.claims()] == [51], "the claim")
            for _ in range(3):
                log.append_many([bytes(2000)] * 50)
            assert log.trim(log.acked_lsn) == 50
            with Replica(tmp_path / "r", primary.address) as replica:
                replica.wait_for(200, WAIT_S)
                until(lambda: primary.status().followers[0].held_from is not None, "the status")
                until(lambda: [c.first_lsn for c in log.claims()] == [201], "the claim to move")
            assert log.trim(200) == 200


def test_a_replica_below_the_low_watermark_streams_on_and_is_kept_from_there(tmp_path: Path) -> None:
    """Trim within a segment, and follow from its first record on: one session, and a claim once it has passed that."""
    events: list[tuple[str, dict[str, Any]]] = []
    with (
        walkit.open(tmp_path / "p", events=lambda *event: events.append(event)) as log,
        Primary(log, lease_s=1.0) as primary,
    ):
        for _ in range(40):
            log.append_many([bytes(8_000)] * 50)
        assert log.trim(1_900) == 1_900
        assert load_manifest(FileStorage(str(tmp_path / "p"))).low_watermark == 1_900
        with Replica(tmp_path / "r", primary.address) as replica:
            replica.wait_for(2_000, WAIT_S)
            until(lambda: [c.first_lsn for c in log.claims()] == [2_001], "the claim")
            assert replica.log.first_lsn == 1
            until(lambda: [f.held_from for f in primary.status().followers] == [2_001], "the status")

    def streams() -> int:
        return [about["state"] for name, about in events if name == "walkit.session.move"].count("streaming")

    until(lambda: streams() == 1, "the event")
    assert "walkit.replica.unclaimed" not in [name for name, _ in events]


def test_a_clock_that_is_set_forward_ends_no_claim_of_a_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set the wall clock a day forward beside a replica that idles: its claim counts again soon, as it was."""
    monkeypatch.setattr(replica_claims, "MOVE_S", 0.05)
    with (
        walkit.open(tmp_path / "p", options=SMALL) as log,
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        last = log.append(b"v").last_lsn
        replica.wait_for(last, WAIT_S)
        until(lambda: [c.first_lsn for c in log.claims()] == [last + 1], "the claim")
        right_ns = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: right_ns() + 86_400_000_000_000)
        until(lambda: [(c.first_lsn, c.state) for c in log.claims()] == [(last + 1, "live")], "the renewal")


def test_a_read_only_folder_has_no_claims_and_the_status_shows_it(tmp_path: Path) -> None:
    """Fail each writing of a claim with EROFS: records come, the status has the reason, with one event."""
    storage = FaultyStorage(FileStorage(str(tmp_path / "p")))
    storage.create()
    events: list[tuple[str, dict[str, Any]]] = []
    with (
        walkit.open(storage=storage, options=SMALL, events=lambda *event: events.append(event)) as log,
        Primary(log, lease_s=1.0) as primary,
        Replica(tmp_path / "r", primary.address) as replica,
    ):
        replica.wait_for(log.append(b"v").last_lsn, WAIT_S)
        until(lambda: len(log.claims()) == 1, "the claim")
        storage.fail("write", claim_file_name(log.claims()[0].name), times=None, errno=errno.EROFS)
        replica.wait_for(log.append(b"w").last_lsn, WAIT_S)
        until(lambda: "can only be read" in primary.status().trouble, "the trouble")
        until(lambda: "walkit.replica.unclaimed" in dict(events), "the event")
    assert [name for name, _ in events].count("walkit.replica.unclaimed") == 1


def test_two_primaries_serve_one_session_of_an_id(tmp_path: Path) -> None:
    """Follow by one primary, then with the same id by another of the same log: the first session ends as busy."""
    with (
        walkit.open(tmp_path / "p", options=SMALL) as log,
        Primary(log, lease_s=1.0, publisher=lambda: Publisher(heartbeat_ms=20)) as first,
        Primary(tmp_path / "p", lease_s=1.0, publisher=lambda: Publisher(heartbeat_ms=20)) as second,
        Caller(first.address) as one,
    ):
        log.append(b"v")
        log.wait_idle()
        end = frames_of_log(log)[-1]
        one.welcomed("r")
        one.send(Ack(end=end))
        until(lambda: len(log.claims()) == 1, "the claim of the first")
        before = log.claims()[0].mark
        with Caller(second.address) as other:
            manifest = log.parts.manifest_store.current
            facts: dict[str, Any] = {"log_id": manifest.log_id, "lineage": manifest.lineage, "end": end}
            other.hello_as(one.identity, **facts).next_of(Heartbeat)
            other.send(Ack(end=end))
            until(lambda: log.claims()[0].mark != before, "the claim of the second")
            assert one.next_of(Refusal).reason == "busy"


@pytest.mark.parametrize("lease_s", [0, 0.5, float("nan"), 1e9])
def test_a_lease_that_cannot_be_renewed_is_refused(tmp_path: Path, lease_s: float) -> None:
    """Make primaries with such leases: an OptionsError that names the option."""
    with walkit.open(tmp_path / "p") as log, pytest.raises(OptionsError) as refused:
        Primary(log, lease_s=lease_s)
    assert refused.value.option == "lease_s"


def test_a_stopped_holder_of_the_lock_is_waited_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop the claims of eight replicas while another has the claims' lock: one wait, and they stand as before."""
    monkeypatch.setattr(replica_claims, "LOCK_S", 0.3)
    keys = [mint().key for _ in range(8)]
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        log.append_many([b"value"] * 20)
        storage = FileStorage(tmp_path / "log")
        claims = ReplicaClaims(storage, EventSink(None))
        claims.start()
        for key in keys:
            claims.keep(
                key,
                "r",
                LogEnd(last_lsn=1, position=64),
                log.parts.core.identity.epoch_id,
                lambda error: None,
            )
        until(lambda: replicas_with_claims(storage) == frozenset(keys), "eight claims")
        for key in keys:
            claims.keep(
                key,
                "r",
                LogEnd(last_lsn=19, position=640),
                log.parts.core.identity.epoch_id,
                lambda error: None,
            )
        with claims_locked(storage):
            began = time.monotonic()
            claims.stop()
            assert time.monotonic() - began < 4 * 0.3 < len(keys) * 0.3
        assert all(claims.held_from(key) == 2 for key in keys)
        assert "was not free" in claims.trouble
        claims.start()
        claims.stop()
        assert {fact.first_lsn for fact in log.claims()} == {20} and claims.trouble == ""


def test_the_claim_of_an_ended_session_is_written_once_more_and_not_renewed(tmp_path: Path) -> None:
    """Leave with more acknowledged than is written: the claim moves there, and the thread writes it no more."""
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        log.append_many([b"value"] * 20)
        key, claims = mint().key, ReplicaClaims(FileStorage(tmp_path / "log"), EventSink(None))
        claims.start()
        for first_lsn in (2, 20):
            claims.keep(
                key, "r", LogEnd(last_lsn=first_lsn - 1), log.parts.core.identity.epoch_id, lambda error: None
            )
            until(lambda: claims.held_from(key) is not None, "the first claim")
        claims.leave(key)
        until(lambda: claims.held_from(key) is None, "the last writing")
        assert [fact.first_lsn for fact in log.claims()] == [20]
        claims.stop()


def test_an_ended_session_does_not_overwrite_a_bootstraps_claim(tmp_path: Path) -> None:
    """Let the last write of a session wait for the lock while its replica starts again: all is kept for that one."""
    with walkit.open(tmp_path / "log", options=SMALL) as log:
        log.append_many([b"value"] * 20)
        epoch_id = log.parts.core.identity.epoch_id
        storage, held = FileStorage(tmp_path / "log"), threading.Event()
        claims = ReplicaClaims(storage, EventSink(None))
        for _ in range(5):
            key, lost = mint().key, list[WalkitError]()
            claims.keep(key, "r", LogEnd(last_lsn=14, position=640), epoch_id, lost.append)
            with claims_locked(storage):
                claims.start()  # it writes, and waits for the lock
                claims.leave(key)
                anew = threading.Thread(target=claims.take_all, args=(key, "r", lost.append))
                anew.start()
                held.wait(0.1)
            anew.join()
            claims.stop()
            assert claims.held_from(key) == 1 and not lost
            assert [fact.first_lsn for fact in log.claims() if fact.name == key] == [1]


def test_replicas_leave_claims_for_other_consumers(tmp_path: Path) -> None:
    """Let 48 replicas that went away have claims: one more is refused, and the primary reports it; a backup fits."""
    with walkit.open(tmp_path / "p", options=SMALL) as log, Primary(log) as primary:
        log.append(b"v")
        for _ in range(HOLDS):
            owner = uuid.uuid4()
            walkit.claim(tmp_path / "p", owner.hex, 1, owner=owner)
        with Replica(tmp_path / "r", primary.address) as replica:
            until(lambda: "48 replicas" in replica.status().detail, "the refusal")
            until(lambda: "48 replicas" in primary.status().trouble, "the trouble")
            walkit.copy(tmp_path / "p", tmp_path / "backup")
            for n in range(CLAIMS_MAX - HOLDS):
                walkit.claim(tmp_path / "p", f"other-{n}")
            log.drop_claim(owner.hex)
            replica.wait_for(1, WAIT_S)


@pytest.mark.parametrize("fetches", [False, True])
def test_bootstrap_claims_and_keeps_its_plan_from_the_first_fetch_on(tmp_path: Path, fetches: bool) -> None:
    """Ask for a plan, fetch once or not, go away, checkpoint, come again: after a fetch claim and plan are the same."""
    with walkit.Store.open(tmp_path / "p", options=SMALL) as store:
        for n in range(100):
            store.put(b"%d" % n, bytes(1000))
        store.checkpoint()
        with Primary(store.log, lease_s=2.0) as primary:
            identity = mint()

            def planned(fetch: bool) -> Plan:
                until(lambda: not primary.status().followers, "the end of the session before")
                with Caller(primary.address) as caller:
                    plan: Plan = caller.hello_as(identity, "r", bootstrap=True).next_of(Plan)
                    if fetch:
                        caller.send(Fetch(file=0, offset=0, size=100)).next_of(Chunk)
                        assert [(c.label, c.state) for c in store.log.claims()] == [("r", "live")]
                    return plan

            first = planned(fetches)
            store.put(b"more", bytes(1000))
            store.checkpoint()
            assert bool(store.log.claims()) is fetches
            assert [planned(False) == first for _ in range(2)] == [fetches] * 2
            until(lambda: planned(False).snapshot_lsn > first.snapshot_lsn, "the end of the lease")
