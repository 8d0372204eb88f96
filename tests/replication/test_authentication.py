"""Strangers on the wire cannot grow, poison, block or move a primary."""

from __future__ import annotations

import random
import ssl
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import walkit
from tests.replication.blocking_callers import UNLIMITED, WAIT_S, Caller, quick, sealed, until
from tests.replication.certificates import Authority
from tests.replication.forged_messages import forged_primary, welcome
from tests.replication.frame_history import whole
from tests.support.crashes import SMALL
from tests.support.imports import frames_of
from walkit.errors import FormatVersionError, OptionsError, StorageError
from walkit.format.manifest import MANIFEST_NAME, LogEnd
from walkit.models import CrashingStorage
from walkit.read.kept_claim import KeptClaim
from walkit.replication import ClientTLS, DeltaReader, Primary, Replica, ServerTLS, Tokens
from walkit.replication.core.backoff import Backoff
from walkit.replication.core.publisher import Publisher
from walkit.replication.delta.wire import POLL_METHOD
from walkit.replication.primary.frame_reader import FrameReader
from walkit.replication.primary.range_service import FRAMES_METHOD
from walkit.replication.primary.server import HOLDS
from walkit.replication.protocol import walkit_pb2
from walkit.replication.protocol.identity import Identity, mint
from walkit.replication.protocol.messages import (
    LINEAGE_EPOCHS_MAX,
    Ack,
    Batch,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Refusal,
    Welcome,
)
from walkit.replication.protocol.wire import SUBSCRIBER_BYTES_MAX
from walkit.replication.replica.identity_file import OwnIdentity, keep_identity
from walkit.replication.transport.access import TOKEN_KEY
from walkit.replication.transport.grpc_common import grpc
from walkit.storage.file import FileStorage
from walkit.store import Store

NOISE = random.Random(7).randbytes(500)
"""A value that does not compress."""


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log with a hundred records."""
    with walkit.open(storage=CrashingStorage(), options=SMALL) as log:
        for _ in range(100):
            log.append(NOISE)
        log.wait_idle()
        yield log


def held(log: walkit.WriteAheadLog) -> dict[str, int]:
    """The replicas with a claim, by their labels, and the LSN from which each of them keeps records."""
    return {c.label: c.needed_lsn for c in log.claims() if c.label}


def manifest_bytes(log: walkit.WriteAheadLog) -> int:
    """The size of the log's manifest."""
    with closing(log.parts.storage.open(MANIFEST_NAME, "read")) as file:
        return file.size()


def end_of(batch: Batch, log: walkit.WriteAheadLog) -> LogEnd:
    """Where a batch ends, as a replica that has imported it knows."""
    ends = [frame for frame in frames_of_log(log) if frame.position == batch.end_position]
    return ends[0]


def frames_of_log(log: walkit.WriteAheadLog) -> list[LogEnd]:
    """Where each frame of a log ends."""
    headers = [header for _, header, _ in frames_of(log.parts.storage)]
    return [LogEnd(last_lsn=h.last_lsn, position=h.end_position, chain=h.header_crc) for h in headers]


# -- names and claims


@pytest.mark.parametrize("name", ["", "x" * 129, "two\nlines", "a\x00b", "\u202eabc", "x" * 1_000_000])
def test_an_invalid_name_is_refused_before_anything_is_stored(log: walkit.WriteAheadLog, name: str) -> None:
    """Send hellos with an empty, a long and an unprintable name: each is refused, and the manifest is unchanged."""
    before = manifest_bytes(log)
    with Primary(log) as primary, Caller(primary.address) as caller:
        refusal = caller.hello(name).next()
        assert isinstance(refusal, Refusal)
        assert refusal.reason == "name"
        assert "1 to 128 printable characters" in refusal.message
        assert len(refusal.message) < 1000
        assert caller.next() is None
        assert "ipv4:127.0.0.1" in primary.status().trouble
    assert held(log) == {}
    assert manifest_bytes(log) == before


@pytest.mark.parametrize("name", ["", "x" * 129, "two\nlines", 7])
def test_a_replica_refuses_a_name_that_no_primary_takes(tmp_path: Path, name: str) -> None:
    """Make replicas with such names: an OptionsError before anything is made; 128 characters are a name."""
    with pytest.raises(OptionsError) as refused:
        Replica(tmp_path / "r", "127.0.0.1:1", name=name)
    assert refused.value.option == "name"
    assert not (tmp_path / "r").exists()
    Replica(tmp_path / "r", "127.0.0.1:1", name="ä" * 128).stop()
    long = tmp_path / ("long\n" * 40)
    replica = Replica(long, "127.0.0.1:1")
    replica.stop()
    assert len(replica.name) <= 128
    assert replica.name.isprintable()


def test_the_first_valid_acknowledgement_makes_a_claim(log: walkit.WriteAheadLog) -> None:
    """Send a hello, acknowledge nothing, then the batch: only the last makes a claim."""
    with Primary(log) as primary, Caller(primary.address) as caller:
        batch = caller.welcomed("r")
        assert held(log) == {}
        caller.send(Ack(end=LogEnd()))
        until(lambda: len(caller_history(primary)) > 1, "the empty acknowledgement")
        assert held(log) == {}
        end = end_of(batch, log)
        caller.send(Ack(end=end))
        until(lambda: held(log) == {"r": end.last_lsn + 1}, "the claim")


def caller_history(primary: Primary) -> list[str]:
    """The answers noted by the session of the only caller."""
    (session,) = primary._sessions
    return [event for event in session.core.history if " Ack(" in event or " Hello(" in event]


def test_replica_that_has_all_keeps_its_claim_by_acknowledging_the_newest_frame(
    log: walkit.WriteAheadLog,
) -> None:
    """Come back with everything: no hello moves the claim, but the acknowledgement of the newest frame, sent again."""
    end = frames_of_log(log)[-1]
    manifest = log.parts.manifest_store.current
    facts = {"log_id": manifest.log_id, "lineage": manifest.lineage, "end": end}
    identity = mint()
    claim = KeptClaim(log.parts.storage, identity.key, 60, uuid.UUID(hex=identity.key))
    claim.label = "r"
    claim.take(7)
    with (
        Primary(log, publisher=lambda: Publisher(heartbeat_ms=20)) as primary,
        Caller(primary.address) as caller,
    ):
        caller.hello_as(identity, "r", **facts).next_of(Welcome)
        assert held(log) == {"r": 7}
        assert end_of(caller.next_of(Batch), log) == end
        caller.next_of(Heartbeat)
        assert held(log) == {"r": 7}
        caller.send(Ack(end=end))
        until(lambda: held(log) == {"r": end.last_lsn + 1}, "the claim")


def test_as_many_replicas_as_may_have_a_claim_and_no_more(log: walkit.WriteAheadLog) -> None:
    """Come, acknowledge and go as 54 replicas: 48 claims; the others are refused for now, and known ones are not."""
    known: list[Identity] = []
    with Primary(log) as primary:
        for number in range(HOLDS + 6):
            with Caller(primary.address) as caller:
                answer = caller.hello(f"r{number}").next()
                if number < HOLDS:
                    assert isinstance(answer, Welcome)
                    known.append(caller.identity)
                    caller.send(Ack(end=end_of(caller.next_of(Batch), log)))
                    until(lambda n=number: f"r{n}" in held(log), "the claim")  # type: ignore[misc]
                else:
                    assert isinstance(answer, Refusal)
                    assert answer.reason == "full"
            until(lambda: not primary._sessions, "the session to end")
        assert len(held(log)) == HOLDS == 48
        with Caller(primary.address) as caller:
            manifest, end = log.parts.manifest_store.current, frames_of_log(log)[-1]
            facts = {"log_id": manifest.log_id, "lineage": manifest.lineage, "end": end}
            assert isinstance(caller.hello_as(known[3], "r3", **facts).next(), Welcome)
        with walkit.open(storage=CrashingStorage()) as other, pytest.raises(OptionsError, match="holds=0"):
            Primary(other, holds=0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of a call that gRPC drops
def test_an_id_is_free_though_a_file_of_its_session_does_not_close(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fail the closing of the file that a session reads: its replica has a place again, and its claim is left."""

    def broken(_: FrameReader) -> None:
        raise StorageError("close: EIO", name="segment")

    with Primary(log) as primary:
        first = Caller(primary.address)
        first.welcomed("twin")
        with monkeypatch.context() as patch:
            patch.setattr(FrameReader, "close", broken)
            first.close()
            until(lambda: primary.status().followers == (), "the first session to end")
        with Caller(primary.address) as second:
            assert isinstance(second.hello_as(first.identity, "twin").next(), Welcome)


def test_a_replica_comes_back_while_its_dead_session_lingers(
    log: walkit.WriteAheadLog, tmp_path: Path
) -> None:
    """Let a session of the same id fall silent with its call open: the replica tries again until it is ended."""
    with (
        Primary(log, publisher=lambda: Publisher(heartbeat_ms=50, silence_ms=600)) as primary,
        Caller(primary.address) as dead,
    ):
        dead.welcomed("r")
        storage = FileStorage(tmp_path / "r")
        storage.create()
        keep_identity(storage, OwnIdentity(dead.identity, "r"))
        with Replica(tmp_path / "r", primary.address, name="r", backoff=Backoff(5, 50)) as replica:
            until(lambda: "another session of replica 'r' is live" in replica.status().trouble, "a refusal")
            assert replica.wait_for(100, WAIT_S) == 100
            assert replica.status().error is None
        assert dead.ended.wait(WAIT_S)


# -- answers


def forged(sent: list[LogEnd]) -> dict[str, FromSubscriber]:
    """Answers that no replica gives, after frames up to each of these ends were sent and the second acknowledged."""
    first, second, last = sent[0], sent[1], sent[-1]
    return {
        "an LSN of 2^62 at a position that was sent": Ack(end=replace(second, last_lsn=1 << 62)),
        "another LSN at a position that was sent": Ack(end=replace(last, last_lsn=last.last_lsn - 1)),
        "another chain": Ack(end=replace(last, chain=last.chain ^ 1)),
        "a position that no frame ends at": Ack(end=replace(last, position=last.position - 64)),
        "a position that was not sent": Ack(end=replace(last, position=last.position + 64)),
        "less than before": Ack(end=first),
        "asking again for an acknowledged frame": Nack(end=first),
        "asking again from another chain": Nack(end=replace(second, chain=second.chain ^ 1)),
        "asking again from an LSN of 2^62": Nack(end=replace(second, last_lsn=1 << 62)),
        "asking for a frame never sent": Nack(end=last),
        "a second hello": Hello(name="r"),
    }


FORGED = tuple(forged([LogEnd()] * 2))


@pytest.mark.parametrize("what", FORGED)
def test_an_answer_that_fits_nothing_sent_ends_the_session(log: walkit.WriteAheadLog, what: str) -> None:
    """Take all frames, acknowledge some, then forge an answer: it is named with its peer, and no claim has moved."""
    with (
        Primary(log, publisher=lambda: Publisher(batch_bytes=4096)) as primary,
        Caller(primary.address) as caller,
    ):
        caller.hello("mallory").next_of(Welcome)
        ends = {end.position: end for end in frames_of_log(log)}
        whole = max(ends)
        sent: list[LogEnd] = []
        while not sent or sent[-1].position < whole:
            sent.append(ends[caller.next_of(Batch).end_position])
        caller.send(Ack(end=sent[1]))
        until(lambda: held(log) == {"mallory": sent[1].last_lsn + 1}, "the claim")
        refusal = caller.send(forged(sent)[what]).next_of(Refusal)
        assert refusal.reason == "protocol"
        assert "'mallory'" in refusal.message
        assert caller.next() is None
        assert "ipv4:127.0.0.1" in primary.status().trouble
        assert "'mallory'" in primary.status().trouble
        assert held(log) == {"mallory": sent[1].last_lsn + 1}
        assert log.trim(log.acked_lsn) <= sent[1].last_lsn


def test_what_comes_before_a_hello_or_is_too_long_after_it_ends_the_call(log: walkit.WriteAheadLog) -> None:
    """Acknowledge without a hello; say hello, then send a hundred kilobytes: refused, and nothing is kept."""
    with Primary(log) as primary:
        with Caller(primary.address) as caller:
            refusal = caller.send(Ack(end=LogEnd())).next()
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "protocol"
        with Caller(primary.address) as caller:
            caller.welcomed("r")
            refusal = caller.hello("x" * 100_000).next_of(Refusal)
            assert refusal.reason == "protocol"
            assert "bytes after the hello" in refusal.message
    assert held(log) == {}


def test_whatever_is_too_large_is_refused_and_costs_nothing(
    log: walkit.WriteAheadLog, tmp_path: Path
) -> None:
    """Send an id, a proof, codecs, a lineage, a message and a token over their limits: each is refused in words."""
    before = manifest_bytes(log)
    pb: Any = walkit_pb2
    long = [7] * (LINEAGE_EPOCHS_MAX + 1)
    hellos = {
        "the id of a replica of 500 bytes": pb.Hello(name="r", id=bytes(500)),
        "a hello with 10,000 codecs": pb.Hello(name="r", codecs=["zstd"] * 10_000),
        "a lineage of 65,537 epochs": pb.Hello(name="r", lineage=pb.Lineage(number=long)),
    }
    with Primary(log, tokens=Tokens(read=["t"])) as primary:
        for words, hello in hellos.items():
            with Caller(primary.address, token="t") as caller:
                refusal = caller.send(sealed(pb.SubscriberMessage(hello=hello))).next()
                assert isinstance(refusal, Refusal)
                assert refusal.reason == "protocol"
                assert words in refusal.message
                assert len(refusal.message) < 400
        with Caller(primary.address, token="t") as caller:
            caller.send(bytes(SUBSCRIBER_BYTES_MAX + 1))
            assert caller.next() is None
            assert caller.status.startswith("RESOURCE_EXHAUSTED")
        with Caller(primary.address, token="t" * 100_000) as caller:
            caller.hello("r")
            assert caller.next() is None
            assert caller.status
        with Replica(tmp_path / "r", primary.address, token="t") as replica:
            assert replica.wait_for(100, WAIT_S) == 100
    assert manifest_bytes(log) < before + 20_000


def test_a_replica_of_an_older_primary_fails_by_name(tmp_path: Path) -> None:
    """Answer as a primary of version 1 does, with a refusal and with a welcome: FormatVersionError, no waiting."""
    history = whole()
    refusal = Refusal(reason="version", message="1 to 1, the subscriber 4 to 4", version_min=1, version_max=1)
    for number, answer in enumerate((refusal, welcome(history, version=1))):
        with (
            forged_primary(lambda _, a=answer: [a]) as address,  # type: ignore[misc]
            Replica(tmp_path / str(number), address, backoff=Backoff(1, 2)) as replica,
            pytest.raises(FormatVersionError) as refused,
        ):
            replica.wait_for(1, WAIT_S)
        assert (refused.value.found, refused.value.supported) == ("1 to 1", "4 to 4")


# -- places


def test_callers_that_say_nothing_keep_no_one_out(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Open calls and say nothing in them: a replica is served beside them at once, and they are ended within 2 s."""
    with Primary(log) as primary, ExitStack() as stack:
        callers = [stack.enter_context(Caller(primary.address)) for _ in range(32)]
        until(lambda: len(primary._sessions) >= 32, "the silent callers")
        with Replica(tmp_path / "r", primary.address, backoff=Backoff(5, 50)) as replica:
            assert replica.wait_for(100, 12.0) == 100
        for caller in callers:
            assert caller.ended.wait(WAIT_S)
        until(lambda: not primary._sessions, "the sessions to end")


@pytest.mark.parametrize("method", [FRAMES_METHOD, POLL_METHOD])
@pytest.mark.parametrize("token", [None, "secret"])
def test_callers_that_send_no_question_keep_no_one_out(
    log: walkit.WriteAheadLog, tmp_path: Path, method: str, token: str | None
) -> None:
    """Open more calls of one question than are served, and ask none: a replica is served beside them."""
    asked = threading.Event()
    with Primary(log, token=token) as primary, ExitStack() as stack:
        stack.callback(asked.set)
        calls = []
        for _ in range(3):
            channel = stack.enter_context(grpc.insecure_channel(primary.address, options=UNLIMITED))
            for _ in range(80):
                silent = (b"" for _ in iter(asked.wait, True))
                calls.append(channel.stream_stream(method)(silent))
        until(lambda: sum(call.is_active() for call in calls) <= 32, "the silent calls to end")
        with Replica(tmp_path / "r", primary.address, token=token, backoff=Backoff(5, 50)) as replica:
            assert replica.wait_for(100, 12.0) == 100


def test_places_are_counted_and_refused_for_now(log: walkit.WriteAheadLog) -> None:
    """Fill two places of two: the third caller is refused for now, and is served when one is free."""
    with Primary(log, places=2) as primary, Caller(primary.address) as first:
        first.welcomed("a")
        with Caller(primary.address) as second, Caller(primary.address) as third:
            second.welcomed("b")
            refusal = third.hello("c").next()
            assert isinstance(refusal, Refusal)
            assert refusal.reason == "full"
        until(lambda: len(primary.status().followers) == 1, "the second session to end")
        with Caller(primary.address) as fourth:
            assert isinstance(fourth.hello("d").next(), Welcome)


def test_a_caller_that_reads_nothing_loses_its_place(tmp_path: Path) -> None:
    """Say hello to a large log and read no answer: the session, which waits to send, is ended when silent too long."""
    with walkit.open(tmp_path / "p") as log:
        log.append_many([NOISE * 100] * 400)
        with (
            Primary(log, publisher=lambda: Publisher(silence_ms=400)) as primary,
            Caller(primary.address, reads=False) as caller,
        ):
            caller.hello("deaf")
            until(lambda: len(primary.status().followers) == 1, "the session")
            until(lambda: not primary._sessions, "the session to end")


# -- addresses


@pytest.mark.parametrize(
    "listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:7070", "db.example:7070", "mixed.example:7070"]
)
@pytest.mark.parametrize("token", [None, "secret"])
def test_off_loopback_is_refused_unless_it_is_asked_for(
    log: walkit.WriteAheadLog, monkeypatch: pytest.MonkeyPatch, listen: str, token: str | None
) -> None:
    """Listen everywhere, at an address, at names that mean another host: OptionsError, with a token and without."""
    from socket import getaddrinfo

    known = {"db.example": ["192.0.2.7"], "mixed.example": ["127.0.0.1", "192.0.2.7"]}

    def look_up(host: str, *args: object, **named: object) -> object:
        found = [getaddrinfo(a, *args, **named) for a in known.get(host, [host])]  # type: ignore[arg-type]
        return [entry for entries in found for entry in entries]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    with pytest.raises(OptionsError, match="insecure=True") as refused:
        Primary(log, listen, token=token).start()
    assert refused.value.option == "listen"
    assert "--insecure" in str(refused.value)
    with pytest.raises(OptionsError) as refused:
        Primary(log, listen, insecure="yes")  # type: ignore[arg-type]
    assert refused.value.option == "insecure"


@pytest.mark.parametrize(
    "source",
    ["10.1.2.3:7070", "0.0.0.0:7070", "[2001:db8::7]:7070", "db.example:7070", "localhost.example:7070"],
)
def test_a_token_off_loopback_needs_tls(tmp_path: Path, source: str) -> None:
    """Give readers a token and an address elsewhere: OptionsError, no folder; with TLS or insecure=True each opens."""
    Store.open(tmp_path / "p").close()
    makers: tuple[Callable[..., Replica | DeltaReader], ...] = (
        lambda **more: Replica(tmp_path / "r", source, token="s3cret", **more),
        lambda **more: DeltaReader(tmp_path / "p", source, token="s3cret", **more),
    )
    for make in makers:
        with pytest.raises(OptionsError, match="insecure=True") as refused:
            make()
        assert refused.value.option == "source"
        assert "--insecure" in str(refused.value) and "s3cret" not in str(refused.value)
        with pytest.raises(OptionsError) as refused:
            make(insecure="yes")
        assert refused.value.option == "insecure"
    assert not (tmp_path / "r").exists()
    for make in makers:
        make(insecure=True).stop()
        make(tls=ClientTLS()).stop()
    Replica(tmp_path / "bare", source).stop()


@pytest.mark.parametrize("source", ["127.8.9.1:7070", "[::1]:7070", "localhost:7070", "LocalHost.:7070"])
def test_a_token_may_go_to_the_loopback_address(tmp_path: Path, source: str) -> None:
    """Give a replica a token and a loopback address: it opens without TLS."""
    Replica(tmp_path / "r", source, token="s3cret").stop()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_loopback_is_served_by_every_name(log: walkit.WriteAheadLog, tmp_path: Path, host: str) -> None:
    """Listen at the loopback address as it may be written: the primary's address is one that a replica can follow."""
    try:
        primary = Primary(log, f"{host}:0").start()
    except OptionsError as error:
        if host == "[::1]" and "cannot listen" in str(error):
            pytest.skip("this machine has no IPv6")
        raise
    with primary, Replica(tmp_path / "r", primary.address) as replica:
        assert replica.wait_for(100, WAIT_S) == 100


# -- TLS, and the rights of tokens


@pytest.mark.parametrize("mutual", [False, True])
def test_a_replica_follows_over_tls(
    log: walkit.WriteAheadLog, tmp_path: Path, ours: Authority, mutual: bool
) -> None:
    """Follow by address and by name, with a certificate of the replica's own where it is asked for."""
    server = ours.server(client_ca=ours.ca if mutual else None)
    client = ours.client(shows=ours.issue("replica.example") if mutual else None)
    with Primary(log, tls=server, token="right") as primary:
        for host in ("127.0.0.1", "localhost"):
            address = primary.address.replace("127.0.0.1", host)
            with Replica(tmp_path / host, address, tls=client, token="right") as replica:
                assert replica.wait_for(100, WAIT_S) == 100


def test_a_certificate_of_another_name_is_taken_if_the_name_is_given(
    log: walkit.WriteAheadLog, tmp_path: Path, ours: Authority
) -> None:
    """Follow by address a primary whose certificate has another name, and say that name: it is served."""
    with (
        Primary(log, tls=ours.server("db.example")) as primary,
        Replica(
            tmp_path / "r", primary.address, tls=replace(ours.client(), server_name="db.example")
        ) as replica,
    ):
        assert replica.wait_for(100, WAIT_S) == 100


def test_files_that_cannot_be_used_are_refused_before_anything_listens(
    log: walkit.WriteAheadLog, tmp_path: Path, ours: Authority
) -> None:
    """Give files that are missing, no PEM, a folder, of two pairs, with a password: OptionsError, one sentence."""
    certificate, key = ours.issue()
    _, other_key = ours.issue()
    junk = tmp_path / "junk"
    junk.write_bytes(b"no certificate")
    for server in (
        ServerTLS(certificate=tmp_path / "missing", key=key),
        ServerTLS(certificate=junk, key=key),
        ServerTLS(certificate=certificate, key=tmp_path),
        ServerTLS(certificate=certificate, key=other_key),
        ServerTLS(certificate=certificate, key=key, client_ca=junk),
        "tls",
    ):
        with pytest.raises(OptionsError) as refused:
            Primary(log, tls=server)  # type: ignore[arg-type]
        assert refused.value.option == "tls"
        assert "\n" not in str(refused.value)
    for client in (
        ClientTLS(ca=junk),
        ClientTLS(ca=tmp_path / "missing"),
        ClientTLS(ca=ours.ca, certificate=certificate),
        ServerTLS(certificate=certificate, key=key),
    ):
        with pytest.raises(OptionsError) as refused:
            Replica(tmp_path / "r", "127.0.0.1:1", tls=client)  # type: ignore[arg-type]
        assert refused.value.option == "tls"
    assert not (tmp_path / "r").exists()


def test_off_loopback_both_tls_and_a_token_are_needed(
    log: walkit.WriteAheadLog, tmp_path: Path, ours: Authority
) -> None:
    """Listen everywhere with one of the two, and with both: one sentence names what is missing; both are served."""
    server = ours.server()
    for given, missing in (({"tls": server}, "a token"), ({"token": "x"}, "TLS"), ({}, "TLS and a token")):
        with pytest.raises(OptionsError, match=f"needs {missing}: give") as refused:
            Primary(log, "0.0.0.0:0", **given)
        assert refused.value.option == "listen"
    with Primary(log, "0.0.0.0:0", server, "x") as primary:
        address = primary.address.replace("0.0.0.0", "127.0.0.1")
        with Replica(tmp_path / "r", address, tls=ours.client(), token="x") as replica:
            assert replica.wait_for(100, WAIT_S) == 100


# -- tokens


def test_a_token_has_rights(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow with both of two read tokens, with an append token and with none: only the first two are served."""
    tokens = Tokens(read=["old", "new"], append=["writer"])
    with Primary(log, tokens=tokens) as primary:
        for token in ("old", "new"):
            with Replica(tmp_path / token, primary.address, token=token) as replica:
                assert replica.wait_for(100, WAIT_S) == 100
        refusals: tuple[tuple[str | None, str], ...] = (
            ("writer", "good to append, and not to read"),
            (None, "missing"),
            ("x", "another one"),
        )
        for wrong, words in refusals:
            with (
                Replica(tmp_path / "r", primary.address, token=wrong, backoff=quick()) as replica,
                pytest.raises(OptionsError, match=words) as refused,
            ):
                replica.wait_for(100, WAIT_S)
            assert refused.value.option == "token"
            assert "old" not in repr(tokens) and "x" not in str(refused.value.wanted)


def test_no_call_of_a_primary_appends(log: walkit.WriteAheadLog) -> None:
    """Call what a service of appending might be called, with a token that may: unknown, and the log is as it was."""
    with (
        Primary(log, tokens=Tokens(read=["r"], append=["a"])) as primary,
        grpc.insecure_channel(primary.address) as channel,
    ):
        for method in ("Append", "Write", "Import"):
            call = channel.stream_stream(f"/walkit.replication.Replication/{method}")
            with pytest.raises(grpc.RpcError) as refused:
                next(call(iter([b"forged"]), metadata=((TOKEN_KEY, "a"),), timeout=WAIT_S))
            assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert log.acked_lsn == 100


# -- a network that spoils


def test_the_probe_of_tls_leaves_the_token_at_home(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """Follow a listener with another authority's certificate: no byte of a token arrives in plain sight of it."""
    import socket
    import threading

    certificate, key = theirs.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    seen: list[bytes] = []

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    seen.append(secure.recv(4096))
            except OSError:
                seen.append(b"")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with (
            Replica(tmp_path / "r", address, tls=ours.client(), token="secret", backoff=quick()) as replica,
            pytest.raises(OptionsError, match="certificate of the primary is not taken"),
        ):
            replica.wait_for(1, WAIT_S)
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(WAIT_S)
    assert len(seen) >= 2
    assert not any(seen)
