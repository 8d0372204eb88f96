"""The TLS of `walkit serve` and `walkit follow`: files named on the command line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from walkit.cli.usage import UsageError

if TYPE_CHECKING:
    from walkit.replication import ClientTLS, ServerTLS


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add what a primary shows, and what it asks replicas for."""
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="serve with TLS: the certificate and its chain, in PEM"
    )
    parser.add_argument(
        "--tls-key", metavar="FILE", help="the certificate's private key, in PEM, without a password"
    )
    parser.add_argument(
        "--tls-client-ca",
        metavar="FILE",
        help="serve only replicas that show a certificate of these authorities",
    )


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add what a replica trusts, and what it shows."""
    parser.add_argument(
        "--tls", action="store_true", help="the primary has to show a certificate of a well-known authority"
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="the same, of these authorities, in PEM; implies --tls, as the next ones do",
    )
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="show this certificate, where the primary asks for one"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's private key")
    parser.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="the name in the primary's certificate, where it is not HOST",
    )


def server_tls(args: argparse.Namespace) -> ServerTLS | None:
    """Return the TLS of a primary that was asked for; UsageError where a part is missing."""
    from walkit.replication import ServerTLS

    certificate, key, client_ca = args.tls_certificate, args.tls_key, args.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs --tls-certificate FILE and --tls-key FILE")
    return ServerTLS(certificate=certificate, key=key, client_ca=client_ca)


def client_tls(args: argparse.Namespace) -> ClientTLS | None:
    """Return the TLS of a replica that was asked for."""
    from walkit.replication import ClientTLS

    given = {
        "ca": args.tls_ca,
        "certificate": args.tls_certificate,
        "key": args.tls_key,
        "server_name": args.tls_server_name,
    }
    if not args.tls and not any(given.values()):
        return None
    return ClientTLS(**given)
