"""`walkit serve`, `follow` and `status`: what they take, and the handlers that call the room of replication."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from walkit.cli import values
from walkit.cli.output import SCHEMA_VERSION, bar, json_text, publish, say
from walkit.cli.quiet import quiet_grpc
from walkit.cli.token import add_token_options, token_of
from walkit.cli.usage import UsageError

if TYPE_CHECKING:
    from walkit.replication import ClientTLS, DeltaReaderStatus, ReplicaStatus, ServerTLS


def serve(args: argparse.Namespace) -> int:
    """Serve a log until it is interrupted."""
    with quiet_grpc():
        from walkit.replication.commands import serve as serving

    return serving(
        args.log,
        args.listen,
        token=token_of(args),
        tls=_server_tls(args),
        insecure=args.insecure,
        metrics_port=args.metrics_port,
    )


def status(args: argparse.Namespace) -> int:
    """Show the status of a primary. Returns 1 unless it serves."""
    with quiet_grpc():
        from walkit.replication import primary_status
    found = primary_status(args.address, token=token_of(args), tls=_client_tls(args), insecure=args.insecure)
    publish("status", found.lines, found.to_dict, as_json=args.json, out=args.out)
    return 0 if found.state == "serving" else 1


def follow(args: argparse.Namespace) -> int:
    """Follow a served log until it is interrupted, or fails."""
    if args.delta is not None:
        return _follow_delta(args)
    with quiet_grpc():
        from walkit.replication.commands import follow as following
    if args.rejoin and not _rejoined(args):
        return 1

    return following(
        args.address,
        args.folder,
        token=token_of(args),
        tls=_client_tls(args),
        codec=None if args.codec == "none" else args.codec or "zstd",
        new_identity=args.new_identity,
        checkpoint_every=args.checkpoint_every,
        rewind=args.rewind,
        force_rewind=args.force_rewind,
        insecure=args.insecure,
        show=_as_json if args.json else None,
    )


def _rejoined(args: argparse.Namespace) -> bool:
    """Make the folder one that can follow, if that is agreed to; False if not."""
    from walkit.replication import rejoin

    shown = {"token": token_of(args), "tls": _client_tls(args), "insecure": args.insecure}
    report = rejoin(args.folder, args.address, dry_run=True, force=args.force_rewind, **shown)
    say(str(report))
    if report.action == "follow":
        return True
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("--rejoin would change the folder: run it in a terminal, or with --yes")
        if input("go on? [y/N] ").strip().lower() not in ("y", "yes"):
            return False
    rejoin(args.folder, args.address, force=args.force_rewind, **shown)
    return True


def _as_json(status: ReplicaStatus | DeltaReaderStatus) -> str:
    """Return a status as one line of JSON, without the states of the past."""
    facts = asdict(status)
    facts.pop("history", None)
    return json_text({"schema": f"walkit.follow/{SCHEMA_VERSION}", **facts}, indent=None)


def _follow_delta(args: argparse.Namespace) -> int:
    """Follow a log of this machine by delta poll."""
    for option in ("new_identity", "rewind", "force_rewind", "rejoin", "checkpoint_every", "codec"):
        if getattr(args, option) not in (None, False):
            name = option.replace("_", "-")
            raise UsageError(
                f"--{name} is for replicas: a delta reader has no log and no identity of its own"
            )
    with quiet_grpc():
        from walkit.replication.commands import follow_delta as following

    return following(
        args.delta,
        args.address,
        args.folder,
        token=token_of(args),
        tls=_client_tls(args),
        insecure=args.insecure,
        show=_as_json if args.json else None,
    )


def heal(args: argparse.Namespace) -> int:
    """Heal a damaged log from a peer. Returns 1 if damage is left."""
    if args.policy is not None:
        raise UsageError("--policy decides what to give up, and --from gives nothing up: take one of them")
    with quiet_grpc():
        from walkit.replication.healing.heal import heal as heal_log
    with bar(f"heal {args.log}") as progress:
        report = heal_log(
            args.log,
            args.source,
            dry_run=args.dry_run,
            token=token_of(args),
            tls=_client_tls(args),
            insecure=args.insecure,
            progress=progress,
        )
    publish("heal", lambda: report.text().splitlines(), report.to_dict, as_json=args.json, out=args.out)
    return 1 if report.ok is False else 0


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a primary: address, credentials of replicas, and its own."""
    parser.add_argument(
        "--listen", metavar="HOST:PORT", default="127.0.0.1:0", help="port 0 takes a free one"
    )
    add_token_options(parser, "the token that a replica has to show")
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
    parser.add_argument(
        "--insecure", action="store_true", help="off loopback also without TLS, or without a token"
    )
    parser.add_argument(
        "--metrics-port",
        type=values.count,
        metavar="N",
        help="let this machine read the metrics there, as Prometheus does",
    )


def add_heal_options(parser: argparse.ArgumentParser) -> None:
    """Add the peer of a repair, the credentials for it, and the trusted authorities."""
    parser.add_argument(
        "--from",
        dest="source",
        metavar="HOST:PORT",
        help="heal the log with frames of a peer that serves the same log: its primary, or a replica of it",
    )
    add_client_options(parser)


def add_client_options(parser: argparse.ArgumentParser) -> None:
    """Add the credentials for a primary, and the trusted authorities."""
    add_token_options(parser, "the primary's token")
    parser.add_argument(
        "--tls", action="store_true", help="the primary has to show a certificate of a well-known authority"
    )
    parser.add_argument(
        "--tls-ca",
        metavar="FILE",
        help="the same, of these authorities, in PEM; implies --tls, as the next ones do",
    )
    parser.add_argument(
        "--tls-certificate", metavar="FILE", help="show this certificate, if the primary requires one"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="the certificate's private key")
    parser.add_argument(
        "--tls-server-name",
        metavar="NAME",
        help="the name in the primary's certificate, if it is not HOST",
    )
    parser.add_argument(
        "--insecure", action="store_true", help="off loopback send the token also without TLS, in the clear"
    )


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add what a replica shows and trusts, and how it takes what comes."""
    parser.add_argument(
        "--delta",
        metavar="LOG",
        help="keep the state of LOG, which is on this machine and served at HOST:PORT, by delta poll; DIR has its "
        "checkpoints",
    )
    add_client_options(parser)
    parser.add_argument("--json", action="store_true", help="print each status as one line of JSON")
    parser.add_argument(
        "--codec",
        choices=("zstd", "snappy", "none"),
        help="how frames are compressed on their way (default: zstd); stored bytes are the same",
    )
    parser.add_argument(
        "--new-identity",
        action="store_true",
        help="follow as another replica with the data that is there, as a copied folder must",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=values.count,
        metavar="RECORDS",
        help="save the replica's state every RECORDS records, and drop its log below that",
    )
    parser.add_argument(
        "--rewind",
        action="store_true",
        help="if the histories differ, cut the replica's log back to the last common record; the rest is kept in "
        "lost+found",
    )
    parser.add_argument(
        "--rejoin",
        action="store_true",
        help="compare the histories first: the folder stays as it is, is rewound, or is kept under another name and "
        "an empty one takes its place; asks before it changes anything",
    )
    parser.add_argument(
        "--yes", action="store_true", help="with --rejoin: change the folder without a question"
    )
    parser.add_argument(
        "--force-rewind",
        action="store_true",
        help="the same, even past records that holds, claims and replicas of this one have read",
    )


def _server_tls(args: argparse.Namespace) -> ServerTLS | None:
    from walkit.replication import ServerTLS

    certificate, key, client_ca = args.tls_certificate, args.tls_key, args.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs --tls-certificate FILE and --tls-key FILE")
    return ServerTLS(certificate=certificate, key=key, client_ca=client_ca)


def _client_tls(args: argparse.Namespace) -> ClientTLS | None:
    from walkit.replication import ClientTLS

    given = {
        "ca": args.tls_ca,
        "certificate": args.tls_certificate,
        "key": args.tls_key,
        "server_name": args.tls_server_name,
    }
    return ClientTLS(**given) if args.tls or any(given.values()) else None
