"""TLS and tokens over real sockets: callers served, callers refused with their messages, and network faults."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import walkit
from tests.replication.blocking_callers import WAIT_S, quick, until
from tests.replication.certificates import Authority
from tests.support.crashes import SMALL
from walkit.errors import OptionsError
from walkit.models import CrashingStorage
from walkit.replication import ClientTLS, Primary, Replica, ServerTLS, Tokens
from walkit.replication.transport.access import TOKEN_KEY
from walkit.replication.transport.grpc_common import grpc


@pytest.fixture
def log() -> Iterator[walkit.WriteAheadLog]:
    """A log with twenty records."""
    with walkit.open(storage=CrashingStorage(), options=SMALL) as log:
        log.append_many([b"value"] * 20)
        yield log


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
                assert replica.wait_for(20, WAIT_S) == 20


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
        assert replica.wait_for(20, WAIT_S) == 20


def test_a_missing_primary_is_not_a_fault_of_tls(
    log: walkit.WriteAheadLog, tmp_path: Path, ours: Authority
) -> None:
    """Stop a primary with TLS and start it again with a new certificate: the replica waits, and goes on."""
    with Primary(log, tls=ours.server()) as primary:
        address = primary.address
        replica = Replica(tmp_path / "r", address, tls=ours.client(), backoff=quick()).start()
        replica.wait_for(20, WAIT_S)
    with replica:
        until(lambda: replica.status().state == "connecting", "the loss of contact")
        log.append(b"more")
        with Primary(log, address, ours.server()):
            assert replica.wait_for(21, WAIT_S) == 21


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
            assert replica.wait_for(20, WAIT_S) == 20


# -- tokens


def test_a_token_has_rights(log: walkit.WriteAheadLog, tmp_path: Path) -> None:
    """Follow with both of two read tokens, with an append token and with none: only the first two are served."""
    tokens = Tokens(read=["old", "new"], append=["writer"])
    with Primary(log, tokens=tokens) as primary:
        for token in ("old", "new"):
            with Replica(tmp_path / token, primary.address, token=token) as replica:
                assert replica.wait_for(20, WAIT_S) == 20
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
                replica.wait_for(20, WAIT_S)
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
    assert log.acked_lsn == 20


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
