"""The status of both sides: a lag only with contact, a closed log as closed, and why nothing moves."""

from __future__ import annotations

import errno
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.replication.processes import Command
from tests.support.crashes import SMALL
from walkit.errors import (
    CorruptionError,
    GapError,
    LogNotFoundError,
    NotALogError,
    OptionsError,
    SegmentMissingError,
    StorageError,
)
from walkit.format.manifest import LogEnd
from walkit.metrics import prometheus_text
from walkit.models import CrashingStorage
from walkit.replication import (
    DeltaReader,
    FollowerStatus,
    PeerError,
    Primary,
    PrimaryStatus,
    Replica,
    ReplicaStatus,
    SessionStatus,
    primary_status,
)
from walkit.replication.core import absence
from walkit.replication.core.absence import Absence
from walkit.replication.core.publisher import CONTACT_MS
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.primary.replica_acks import AckStatus
from walkit.replication.primary.status_call import decode_status, encode_status
from walkit.replication.protocol.messages import Heartbeat, Refusal, Welcome
from walkit.replication.protocol.wire import WireError
from walkit.replication.replica.status import STALL_MS, replica_status
from walkit.segments.consumer_files import ClaimFact
from walkit.segments.manifest_store import load_manifest
from walkit.storage import FileStorage

NO_LAG = (None, None, None)


def lag_of(
    status: ReplicaStatus | FollowerStatus | SessionStatus,
) -> tuple[int | None, int | None, float | None]:
    """The three figures of the lag."""
    return status.lag_records, status.lag_bytes, status.lag_ms


def test_a_closed_log_shows_in_the_status_of_both_sides(tmp_path: Path) -> None:
    """Close a served log while another opening writes it: the rest comes, then both sides say closed, and no lag."""
    log = walkit.open(tmp_path / "p", options=SMALL)
    with (
        Primary(log) as primary,
        Replica(tmp_path / "r", primary.address, backoff=quick()) as replica,
        Replica(tmp_path / "late", primary.address, backoff=quick()) as late,
    ):
        late.stop()
        log.append_many([bytes(900)] * 200)
        assert primary.status().state == "serving" and primary.status().detail == ""
        log.close()
        end = load_manifest(FileStorage(str(tmp_path / "p"))).end
        until(lambda: replica.status().reason == "closed", "the primary's last word")
        assert replica.log.end == end
        with walkit.open(tmp_path / "p", options=SMALL) as other:
            other.append_many([b"of another opening"] * 10)
            status = replica.status()
            assert status.state == "connecting" and lag_of(status) == NO_LAG
            assert "was closed" in status.detail and "was closed" in status.trouble
            assert status.stalled_s is not None and f"LSN {end.last_lsn:,}" in status.line()
            assert "was closed" in status._repr_html_()
            closed = primary.status()
            assert (closed.state, closed.durable_lsn) == ("closed", end.last_lsn)
            assert "was closed" in closed.detail and "was closed" in closed._repr_html_()
            with Replica(tmp_path / "late", primary.address, backoff=quick()) as again:
                until(lambda: again.status().reason == "closed", "the refusal")
                assert (again.status().lsn, again.status().source_lsn) == (0, None)
            with Primary(other, primary.address.rpartition(":")[0] + ":0") as right:
                assert right.status().state == "serving"
        primary.stop()
        assert primary.status().state == "stopped"


def test_the_status_of_a_primary_is_to_be_had_from_outside(tmp_path: Path) -> None:
    """Ask a primary with a replica, a delta reader and a claim by its address: all it knows, also as metrics."""
    with (
        walkit.open(tmp_path / "p") as log,
        Primary(log, token="t") as primary,
        Replica(tmp_path / "r", primary.address, name="r\u00fc", token="t") as replica,
        DeltaReader(tmp_path / "p", primary.address, token="t", claim="reader") as reader,
    ):
        done = log.append_many([bytes(900)] * 20)
        replica.wait_for(done, 30)
        reader.wait_for(done, 30)
        log.hold("mailer", 5)

        def all_is_known() -> bool:
            found = primary_status(primary.address, token="t")
            lags = [f.lag_records for f in found.followers] + [r.lag_records for r in found.delta_readers]
            return lags == [0, 0] and {"mailer", "reader"} <= {c.name for c in found.claims or ()}

        until(all_is_known, "both at the end")
        found = primary_status(primary.address, token="t")
        here = primary.status()
        assert (found.state, found.durable_lsn, found.address) == ("serving", 20, primary.address)
        (follower,) = found.followers
        assert (follower.name, follower.id, follower.acked_lsn) == ("r\u00fc", replica.status().id, 20)
        assert follower.state == here.followers[0].state and follower.history == ()
        assert [r.applied_lsn for r in found.delta_readers] == [20]
        assert here.claims is None and 5 in [c.first_lsn for c in found.claims or ()]
        words = str(found)
        assert "1 replica\n" in words and "1 delta reader\n" in words and "mailer" in words
        text = prometheus_text(found.metrics())
        assert f'walkit_peer_lag_records{{id="{follower.id}",kind="replica",name="r\u00fc"}} 0' in text
        assert (
            'walkit_peer_lsn{id="' + found.delta_readers[0].id + '",kind="delta reader",name=""} 20' in text
        )
        with pytest.raises(OptionsError):
            primary_status(primary.address, token="another")
    with pytest.raises(PeerError):
        primary_status(primary.address)


def test_what_is_not_known_of_a_peer_is_absent_after_the_wire() -> None:
    """Encode statuses with and without a lag and with claims that were not read: None stays None, and 0 stays 0."""
    unknown = {"lag_records": None, "lag_bytes": None, "lag_ms": None}
    known = {"lag_records": 0, "lag_bytes": 0, "lag_ms": 0.0}
    acks = AckStatus(replicas=1, counted=0, reached_lsn=0, state="waiting", waiting_records=0, late_records=2)
    for lag in (unknown, known):
        reader = SessionStatus(
            id="1", state="syncing", applied_lsn=0, answered_lsn=0, held_bytes=0, waiting=0, **lag
        )
        follower = FollowerStatus(
            name="r",
            id="k",
            acked_lsn=0,
            in_flight_bytes=0,
            state="streaming",
            detail="",
            state_s=0.0,
            history=(),
            **lag,
        )
        for claims in (
            None,
            (),
            (ClaimFact(name="c", state="damaged", fault="!", label="r"),),
        ):
            status = PrimaryStatus(
                address="a", state="absent", detail="w\udcff\x1b", durable_lsn=1, durable_position=2,
                followers=(follower,), delta_readers=(reader,), claims=claims, acks=acks if claims else None,
            )  # fmt: skip
            assert decode_status(encode_status(status)) == replace(status, detail="w\\udcff ")
            assert ("\nwalkit_peer_lag_records{" in prometheus_text(status.metrics())) == (lag is known)
            assert str(status)
    for at in range(len(data := encode_status(status))):
        with pytest.raises(WireError):
            decode_status(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])


def test_a_lag_is_known_only_with_contact(tmp_path: Path) -> None:
    """Ask before, in, after and again in contact: None, a number, None, a number; both sides keep their states."""
    events: list[tuple[str, dict[str, Any]]] = []
    with walkit.open(tmp_path / "p", events=lambda *event: events.append(event)) as log:
        primary = Primary(log)
        assert primary.status().state == "new"
        address = primary.start().address
        replica = Replica(tmp_path / "r", address, backoff=quick())
        assert (replica.status().state, replica.status().source_lsn, lag_of(replica.status())) == (
            "new", None, NO_LAG,
        )  # fmt: skip
        assert (replica.status().history, replica.status().state_s) == ((), None)
        with replica:
            until(lambda: replica.status().state == "streaming", "the first contact")
            assert lag_of(replica.status()) == (0, 0, 0.0)
            assert (replica.status().detail, replica.status().stalled_s) == ("", None)
            log.append(b"x")
            replica.wait_for(1, WAIT_S)
            until(lambda: [lag_of(f) for f in primary.status().followers] == [(0, 0, 0.0)], "the last ack")
            (follower,) = primary.status().followers
            assert (follower.state, follower.detail, follower.history[0].state) == (
                "streaming",
                "",
                "greeting",
            )
            assert follower.state_s >= 0 and f"{follower.id}  streaming" in primary.status()._repr_html_()
            primary.stop()
            until(lambda: replica.status().state == "connecting", "the end of the contact")
            assert (replica.status().state_s or 0) < WAIT_S and replica.status().history[-1].until is None
            log.append(b"y")
            status = replica.status()
            assert lag_of(status) == NO_LAG and status.source_lsn == 1
            assert "lag unknown; does not advance since " in status.line()
            first = status.since
            until(lambda: replica.status().reconnects > 2, "attempts")
            assert first is not None and replica.status().since == pytest.approx(first, abs=0.5)
            with Primary(log, address):
                replica.wait_for(2, WAIT_S)
                until(lambda: lag_of(replica.status()) == (0, 0, 0.0), "the lag to be known again")
        assert replica.status().state == "stopped" and lag_of(replica.status()) == NO_LAG
        states = [span.state for span in replica.status().history]
        assert states[0] == "connecting" and states[-1] == "stopped" and states.count("streaming") == 2

    def sessions() -> list[str]:
        return [facts["state"] for name, facts in events if name == "walkit.session.move"]

    until(lambda: sessions().count("ended") >= 2, "the events, which another thread sends")
    assert "streaming" in sessions()


def test_silence_and_missing_frames_are_told_with_their_time() -> None:
    """Let a primary say nothing, or frames not come, in the core's own time: why and since when, and no lag of 0."""

    def status(now_ms: float, waiting: bool = False) -> ReplicaStatus:
        return replica_status(
            core, LogEnd(), source="there:1", applied_lsn=0, life="", waiting=waiting, now_ms=now_ms
        )

    core = Subscriber("r")
    core.start(100)
    assert status(200).detail == "there:1 has not answered yet" and status(200).stalled_s == 0.1
    core.connected(300)
    core.receive(
        Welcome(version=4, log_id=5, created_us=0, ack_order="append", source_lsn=0, source_position=0), 400
    )
    assert lag_of(status(400 + CONTACT_MS)) == (0, 0, 0.0) and status(400 + CONTACT_MS).detail == ""
    silent = status(401 + CONTACT_MS)
    assert (silent.state, lag_of(silent)) == ("streaming", NO_LAG)
    assert silent.detail == "the primary is connected and says nothing"
    assert silent.stalled_s == (1 + CONTACT_MS) / 1000
    assert lag_of(status(401 + CONTACT_MS, waiting=True)) == (0, 0, 0.0)
    beat = Heartbeat(sent_position=0, source_lsn=7, source_position=700)
    core.receive(beat, 50_000)
    assert (status(50_000).state, status(50_000).detail) == ("streaming", "")
    core.receive(beat, 50_000 + STALL_MS)
    assert status(50_000 + STALL_MS).state == "catching up"
    late = status(50_001 + STALL_MS)
    assert late.detail == "the frames that are missing have not come"
    assert late.stalled_s == pytest.approx((1 + STALL_MS) / 1000)
    assert lag_of(late) == (7, 700, 1 + STALL_MS)
    core.receive(Refusal(reason="unheard of", message="no"), 60_000)
    assert (core.reason, core.trouble, status(60_500).stalled_s) == ("protocol", "no", 0.5)


def test_follow_prints_why_it_does_not_advance(tmp_path: Path) -> None:
    """Follow an address without a server, then a log that is closed: each line has state, reason and time."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"x")
        with Primary(log) as primary:
            address = primary.address
        follower = Command("follow", address, str(tmp_path / "r"))

        def says(start: str, part: str) -> bool:
            return any(line.startswith(start) and part in line for line in follower.lines)

        until(
            lambda: says("connecting: LSN 0, lag unknown; does not advance since 2", "unavailable"),
            "a reason",
        )
        with Primary(log, address):
            until(lambda: says("streaming: LSN 1 of 1, lag 0 records", ""), "the stream")
            log.close()
            unknown = "connecting: LSN 1 of 1, lag unknown; does not advance since 2"
            until(lambda: says(unknown, "was closed"), "the closing")
        assert follower.end(signal.SIGINT) == 0


def test_a_log_of_level_none_is_refused_by_path_too(tmp_path: Path) -> None:
    """Serve by path and reader a log whose last opening is at none, open or closed: refused; at sync: served."""
    path = tmp_path / "p"
    with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
        for source in (log, path, str(path), walkit.open(path, mode="r")):
            with pytest.raises(OptionsError) as refused:
                Primary(source)
            assert (refused.value.option, refused.value.stored) == ("durability", "none")
        log.append(b"x")
    with pytest.raises(OptionsError):
        Primary(path)
    for level in ("interval", "sync"):
        with walkit.open(path, options=walkit.LogOptions(durability=level)):
            Primary(path)
    with Primary(path) as primary, Replica(tmp_path / "r", primary.address, backoff=quick()) as replica:
        replica.wait_for(1, WAIT_S)
        with walkit.open(path, options=walkit.LogOptions(durability="none")) as log:
            log.append(b"y")
            until(lambda: replica.status().reason == "level", "the end of the session")
            assert "durability='none': " in replica.status().detail
            assert primary.status().state == "failed" and "durability='none': " in primary.status().detail
        with walkit.open(path):
            replica.wait_for(2, WAIT_S)
            assert primary.status().state == "serving", primary.status()


def test_the_level_is_noted_only_when_it_changes() -> None:
    """Open a log at sync, none, none, interval: the manifest is written for it twice, and says none in between."""
    storage = CrashingStorage()
    said = []
    for level in ("sync", "none", "none", "interval"):
        options = walkit.LogOptions(durability=level)
        with walkit.open(storage=storage, options=options):
            manifest = load_manifest(storage)
            said.append((manifest.generation, manifest.extra))
    assert said == [(0, {}), (1, {"durability": "none"}), (1, {"durability": "none"}), (2, {})]


def test_a_log_that_goes_away_is_absent_and_one_that_is_damaged_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Take a served log away, put half of it back, then all: absent, then served again. Damage later is final."""
    with walkit.open(tmp_path / "p") as log:
        log.append(b"x")
    manifest, away = tmp_path / "p" / "manifest", tmp_path / "away"
    good = manifest.read_bytes()
    with (
        Primary(tmp_path / "p") as primary,
        Replica(tmp_path / "r", primary.address, backoff=quick()) as replica,
    ):
        replica.wait_for(1, WAIT_S)
        assert primary.status().state == "serving"
        (tmp_path / "p").rename(away)
        until(lambda: primary.status().state == "absent", "the log to be missed")
        assert primary.status().durable_lsn == 1 and primary.error is None
        until(lambda: replica.status().reason == "absent", "the word to the replica")
        (tmp_path / "p").mkdir()
        manifest.write_bytes(good[:40])
        until(lambda: "CorruptionError" in primary.status().detail, "the part of it")
        assert (primary.status().state, primary.error) == ("absent", None)
        manifest.unlink()
        away.rename(tmp_path / "p")
        until(lambda: primary.status().state == "serving", "the way back")
        with walkit.open(tmp_path / "p") as log:
            replica.wait_for(log.append(b"y"), WAIT_S)
        monkeypatch.setattr(absence, "AFTER_ABSENT_MS", 0.0)
        manifest.write_bytes(good[:40])
        until(lambda: primary.status().state == "failed", "the damage")
        assert isinstance(primary.error, CorruptionError)
        with pytest.raises(LogNotFoundError):
            Primary(tmp_path / "q")


AWAY, DAMAGE = StorageError("", errno=errno.EIO), SegmentMissingError("", segment="1")
ABSENT = (
    (AWAY, 0.0, True),
    (LogNotFoundError("p"), 0.0, True),
    (NotALogError("p", "a file"), 0.0, True),
    (DAMAGE, 0.0, False),
    (StorageError("read short"), 0.0, False),
    (StorageError("", errno=errno.ENOENT), 5.0, True),
    (StorageError("", errno=errno.ESTALE), 5.0, True),
    (DAMAGE, 6.0, True),
    (DAMAGE, 60_004.0, True),
    (DAMAGE, 60_005.0, False),
    (GapError(1, 2), 6.0, False),
)


def test_which_errors_mean_that_a_storage_is_away() -> None:
    """Take each kind of error at its time: absent, or damage within a minute after; everything else is final."""
    found = Absence()
    assert [found.covers(error, at) for error, at, _ in (*ABSENT[3:4], *ABSENT[:3])] == [
        False,
        True,
        True,
        True,
    ]
    later = Absence()
    assert [later.covers(error, at) for error, at, _ in ABSENT[3:]] == [each for _, _, each in ABSENT[3:]]
