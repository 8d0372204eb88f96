"""TLS of primary and replica: which files, whether they can be used, and why a handshake fails, in words."""

from __future__ import annotations

import os
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from walkit.errors import OptionsError
from walkit.replication.transport.address import parse_address
from walkit.replication.transport.grpc_common import grpc

PEM_BYTES_MAX = 1 << 20
PROBE_S = 2.0
PROBES = 3
LASTING_FAULTS = (
    *("UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_REQUIRED", "CERTIFICATE_EXPIRED", "HANDSHAKE_FAILURE"),
    *("PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER"),
)
"""Endings of the OpenSSL reasons that a retry does not fix."""
Path = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTLS:
    """A primary's certificate and requirements: PEM files, read when it is made and again when it starts.

    `certificate` is its chain, its own first, and `key` the private key of that one, without a password. With
    `client_ca` only replicas with a certificate of that authority are served (mutual TLS).
    """

    certificate: Path
    key: Path
    client_ca: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientTLS:
    """A replica's authorities and certificate: PEM files, read when it is made and at each connection.

    `ca` are the authorities that may have signed the primary's certificate; without it those that gRPC brings.
    `certificate` and `key` are for a primary that asks for them. The certificate has to name the host of the address,
    or `server_name` if that is given.
    """

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None


def server_credentials(tls: object) -> Any:
    """Return gRPC's credentials of a primary, None without TLS; OptionsError for files that cannot be used."""
    if tls is None:
        return None
    if not isinstance(tls, ServerTLS):
        raise _refused("tls", f"is not a ServerTLS: {tls!r:.80}")
    certificate, key = _pair(tls.certificate, tls.key)
    ca = None if tls.client_ca is None else _authority(tls.client_ca, "client_ca")
    return grpc.ssl_server_credentials([(key, certificate)], ca, require_client_auth=ca is not None)


def channel_credentials(tls: object) -> Any:
    """Return gRPC's credentials of a replica, None without TLS; OptionsError for files that cannot be used."""
    if tls is None:
        return None
    if not isinstance(tls, ClientTLS):
        raise _refused("tls", f"is not a ClientTLS: {tls!r:.80}")
    ca = None if tls.ca is None else _authority(tls.ca, "ca")
    if (tls.certificate is None) != (tls.key is None):
        raise _refused("tls", "has a certificate or a key, and needs both or none")
    if tls.certificate is None or tls.key is None:
        return grpc.ssl_channel_credentials(ca)
    certificate, key = _pair(tls.certificate, tls.key)
    return grpc.ssl_channel_credentials(ca, key, certificate)


def name_options(tls: ClientTLS | None) -> tuple[tuple[str, str], ...]:
    """Return the channel option for the certificate's name, if it differs from the address."""
    if tls is None or tls.server_name is None:
        return ()
    return (("grpc.ssl_target_name_override", tls.server_name),)


def tls_fault(address: str, tls: ClientTLS | None) -> str:
    """Return the TLS fault of a failed connection to an address; "" without one.

    Connects and shakes hands, as gRPC gives its reason in words of its library that change. Each of several tries has
    to find the same fault, since a network can spoil one. Waits up to a few seconds; sends nothing after the handshake,
    the token neither.
    """
    fault = _probe(address, tls)
    for _ in range(PROBES - 1):
        if not fault or _probe(address, tls) != fault:
            return ""
    return fault


def _probe(address: str, tls: ClientTLS | None) -> str:
    host, port = parse_address(address, "source")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    if tls is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        if tls is not None:
            _trust(context, tls)
        with (
            socket.create_connection((host, port), PROBE_S) as plain,
            context.wrap_socket(plain, server_hostname=(tls and tls.server_name) or host) as secure,
        ):
            if tls is None:
                return "the server there speaks TLS: give tls=ClientTLS(...) (walkit follow --tls-ca FILE)"
            if secure.recv(1):
                return ""
            return "the primary ends the connection after the handshake: it wants another certificate of this replica"
    except ssl.SSLCertVerificationError as error:
        return f"the certificate of the primary is not taken: {error.verify_message}"
    except ssl.SSLError as error:
        return "" if tls is None else _ssl_error_text(error)
    except OSError:
        return ""  # it cannot be reached now, which is not a fault of TLS


def _ssl_error_text(error: ssl.SSLError) -> str:
    """Return the words of a handshake that fails for good; "" for one that may pass, as a damaged one does."""
    reason = error.reason or ""
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST"):
        return "the server there speaks no TLS"
    return f"the TLS handshake fails: {reason}" if reason.endswith(LASTING_FAULTS) else ""


def _trust(context: ssl.SSLContext, tls: ClientTLS) -> None:
    if tls.ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(tls.ca)
    if tls.certificate is not None:
        context.load_cert_chain(tls.certificate, tls.key, _no_password)


def _pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """Return the bytes of a certificate's chain and of its key, which belong together."""
    found = _read(certificate, "certificate"), _read(key, "key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, _no_password)
    except (ssl.SSLError, ValueError) as error:
        detail = getattr(error, "reason", None) or error
        raise _refused(
            "tls",
            f"certificate={os.fspath(certificate)!r} and key={os.fspath(key)!r} are not a pair in PEM: {detail}",
        ) from error
    return found


def _authority(path: Path, what: str) -> bytes:
    data = _read(path, what)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError as error:
        raise _refused(
            "tls", f"{what}={os.fspath(path)!r} holds no certificate in PEM: {error.reason}"
        ) from error
    return data


def _read(path: Path, what: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except (OSError, TypeError) as error:
        raise _refused("tls", f"{what}={path!r}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > PEM_BYTES_MAX:
        raise _refused("tls", f"{what}={os.fspath(path)!r} has more than {PEM_BYTES_MAX:,} bytes")
    return data


def _no_password() -> str:
    raise ValueError("the key has a password, and walkit asks for none")


def _refused(option: str, detail: str) -> OptionsError:
    return OptionsError(f"{option} {detail}", option=option)
