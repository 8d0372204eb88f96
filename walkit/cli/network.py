"""`walkit serve`, `follow`, `status`, `promote` and `repair --from`: handlers that call the room of replication."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from walkit.cli.output import SCHEMA_VERSION, bar, echo, json_text, publish
from walkit.cli.usage import UsageError
from walkit.events import EventSink

if TYPE_CHECKING:
    from walkit.replication import ClientTLS, DeltaReaderStatus, ReplicaStatus, ServerTLS

TOKEN_VARIABLE = "WALKIT_TOKEN"
TOKEN_BYTES_MAX = 4096
VERBOSITY = "GRPC_VERBOSITY"
PROMOTED = "walkit.replica.promote"


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
    found = primary_status(args.address, **_access(args))
    publish("status", args, found.lines, found.to_dict)
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
        codec=None if args.codec == "none" else args.codec or "zstd",
        new_identity=args.new_identity,
        checkpoint_every=args.checkpoint_every,
        rewind=args.rewind,
        force_rewind=args.force_rewind,
        payload_log=args.payload_log,
        show=_as_json if args.json else None,
        **_access(args),
    )


def _rejoined(args: argparse.Namespace) -> bool:
    """Make the folder one that can follow, if that is agreed to; False if not."""
    from walkit.replication import rejoin

    shown = _access(args)
    report = rejoin(args.folder, args.address, dry_run=True, force=args.force_rewind, **shown)
    echo(str(report))
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
    replicas = (
        "new_identity",
        "rewind",
        "force_rewind",
        "rejoin",
        "checkpoint_every",
        "codec",
        "payload_log",
    )
    for option in replicas:
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
        show=_as_json if args.json else None,
        **_access(args),
    )


def heal(args: argparse.Namespace) -> int:
    """Heal a damaged log from a peer. Returns 1 if damage is left."""
    if args.policy is not None:
        raise UsageError("--policy decides what to give up, and --from gives nothing up: take one of them")
    with quiet_grpc():
        from walkit.replication.healing.heal import heal as heal_log
    with bar(f"heal {args.log}") as progress:
        report = heal_log(args.log, args.source, dry_run=args.dry_run, progress=progress, **_access(args))
    publish("heal", args, lambda: report.text().splitlines(), report.to_dict)
    return 1 if report.ok is False else 0


def _server_tls(args: argparse.Namespace) -> ServerTLS | None:
    from walkit.replication import ServerTLS

    certificate, key, client_ca = args.tls_certificate, args.tls_key, args.tls_client_ca
    if certificate is None and key is None and client_ca is None:
        return None
    if certificate is None or key is None:
        raise UsageError("TLS needs --tls-certificate FILE and --tls-key FILE")
    return ServerTLS(certificate=certificate, key=key, client_ca=client_ca)


def _access(args: argparse.Namespace) -> dict[str, Any]:
    """Return the credentials for a primary."""
    return {"token": token_of(args), "tls": _client_tls(args), "insecure": args.insecure}


def _client_tls(args: argparse.Namespace) -> ClientTLS | None:
    from walkit.replication import ClientTLS

    given = {
        "ca": args.tls_ca,
        "certificate": args.tls_certificate,
        "key": args.tls_key,
        "server_name": args.tls_server_name,
    }
    return ClientTLS(**given) if args.tls or any(given.values()) else None


def promote(args: argparse.Namespace) -> int:
    """Promote a replica, and print what it is now."""
    with quiet_grpc():
        from walkit.replication.replica.promote import promote as promote_replica

    others = EventSink()

    def on_event(name: str, attributes: dict[str, Any]) -> None:
        if name != PROMOTED:  # what is printed below says it
            others.pass_on(name, attributes)

    report = promote_replica(args.log, on_event)
    publish("promote", args, report.lines, report.to_dict)
    return 0


def token_of(args: argparse.Namespace) -> str | None:
    """Return the requested token, or None. UsageError for a file or a variable without one."""
    path = args.token_file
    if path is None:
        token = os.environ.get(TOKEN_VARIABLE)
        if token == "":
            raise UsageError(f"{TOKEN_VARIABLE} is set and empty: unset it, or give it the token")
        return token
    try:
        with open(path, "rb") as file:
            content = file.read(TOKEN_BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"--token-file {path}: {error.strerror or error}") from None
    lines = content.splitlines()
    first = lines[0].strip() if lines else b""
    if not first or len(content) > TOKEN_BYTES_MAX or any(line.strip() for line in lines[1:]):
        raise UsageError(f"--token-file {path}: the token is its only line, of up to {TOKEN_BYTES_MAX} bytes")
    try:
        return first.decode("ascii")
    except UnicodeDecodeError:
        raise UsageError(f"--token-file {path}: a token is printable ASCII") from None


@contextmanager
def quiet_grpc() -> Iterator[None]:
    """Let gRPC be imported in the block, and keep it silent afterwards, unless its logging is configured.

    gRPC reads the variable once, at its import, so it is put back at the end: only commands import gRPC like this, and
    a program that uses `walkit.replication` keeps gRPC, and its environment, as they are.
    """
    if VERBOSITY in os.environ or "GRPC_TRACE" in os.environ:
        yield
        return
    os.environ[VERBOSITY] = "NONE"
    try:
        yield
    finally:
        del os.environ[VERBOSITY]
