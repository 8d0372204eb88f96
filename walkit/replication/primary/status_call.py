"""The call `Status` of a primary, both sides of it: the state, the replicas, the delta readers and the claims."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from walkit.errors import WalkitError
from walkit.replication.delta.poll_server import SessionStatus
from walkit.replication.logs.source import Source
from walkit.replication.primary.replica_acks import AckStatus
from walkit.replication.primary.status import FollowerStatus, PrimaryStatus
from walkit.replication.protocol.checks import plain_text
from walkit.replication.protocol.failures import PeerError
from walkit.replication.protocol.wire import WireError, parsed, pb, sealed
from walkit.replication.transport.connection import Destination, call_error, destination_of
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.tls import ClientTLS
from walkit.segments.consumer_files import ClaimFact, claim_facts

STATUS_METHOD = "/walkit.replication.Replication/Status"
TIMEOUT_S = 10.0
REPLY_BYTES_MAX = 16 << 20
_PARTS: dict[str, tuple[Any, type]] = {
    "followers": (pb.Follower, FollowerStatus),
    "delta_readers": (pb.Reader, SessionStatus),
    "claims": (pb.HeldClaim, ClaimFact),
}
_NO_FACTS = (*_PARTS, "acks", "history", "owner", "mark", "claims_unread", "crc")


def primary_status(
    source: str, *, token: str | None = None, tls: ClientTLS | None = None, insecure: bool = False
) -> PrimaryStatus:
    """Ask the primary at an address for its status, with the claims on its log, as `walkit status` prints it.

    PeerError if it is not reached, or sends something else; OptionsError for token, TLS or an address that cannot be
    used, and if no walkit primary of this version listens there.
    """
    return request_status(destination_of(source, token, tls, insecure))


def request_status(destination: Destination) -> PrimaryStatus:
    """Do the work of `primary_status`."""
    address = destination.address
    channel = destination.channel(REPLY_BYTES_MAX)
    try:
        call = channel.unary_unary(STATUS_METHOD)
        question = sealed(pb.StatusQuestion())
        return decode_status(call(question, timeout=TIMEOUT_S, metadata=destination.metadata))
    except (grpc.RpcError, WireError) as error:
        said = f"it sent {error}" if isinstance(error, WireError) else call_error(error, destination)
        raise (
            said if isinstance(said, WalkitError) else PeerError(f"{address}: {said}", address=address)
        ) from error
    finally:
        channel.close()


def with_claims(status: PrimaryStatus, source: Source) -> PrimaryStatus:
    """Return the status with the claims on the log, as far as they can be read now."""
    try:
        facts = claim_facts(source.storage, source.manifest())
    except WalkitError:
        return status
    return replace(status, claims=tuple(replace(fact, owner=None, mark=None) for fact in facts))


def encode_status(status: PrimaryStatus) -> bytes:
    """Return the bytes of a StatusReply."""
    reply = pb.StatusReply(**_facts_out(status), claims_unread=status.claims is None)
    if status.acks is not None:
        reply.acks.CopyFrom(pb.Acks(**_facts_out(status.acks)))
    for name, (kind, _) in _PARTS.items():
        getattr(reply, name).extend(kind(**_facts_out(part)) for part in getattr(status, name) or ())
    return sealed(reply)


def decode_status(data: bytes) -> PrimaryStatus:
    """Return the status that a StatusReply has; WireError for anything else. Its texts are lines for a terminal."""
    reply = parsed(pb.StatusReply, data)
    parts: dict[str, Any] = {
        name: tuple(made(**_facts_in(part)) for part in getattr(reply, name))
        for name, (_, made) in _PARTS.items()
    }
    parts["acks"] = AckStatus(**_facts_in(reply.acks)) if reply.HasField("acks") else None
    if reply.claims_unread:
        parts["claims"] = None
    return PrimaryStatus(**_facts_in(reply), **parts)


def _facts_out(value: Any) -> dict[str, Any]:
    """Return the numbers and texts of a dataclass that are known."""
    facts = ((f.name, getattr(value, f.name)) for f in fields(value) if f.name not in _NO_FACTS)
    return {
        name: fact.encode("utf-8", "backslashreplace").decode() if isinstance(fact, str) else fact
        for name, fact in facts
        if fact is not None
    }


def _facts_in(message: Any) -> dict[str, Any]:
    """Return the numbers and texts of a message; None for those that are absent."""
    facts: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name not in _NO_FACTS:
            value = getattr(message, field.name)
            known = not field.has_presence or message.HasField(field.name)
            facts[field.name] = (plain_text(value) if isinstance(value, str) else value) if known else None
    return facts
