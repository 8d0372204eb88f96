"""The protocol's messages as protobuf bytes, and back. The only module that knows the generated code.

Field by field, so that a message of the wire is checked to be one of ours before a core sees it.
"""

from __future__ import annotations

from typing import Any

from walkit.errors import MissingExtraError, WalkitError
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.messages import (
    Ack,
    Batch,
    FromPublisher,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Refusal,
    Welcome,
)

try:
    from google.protobuf.message import DecodeError

    from walkit.replication import walkit_pb2
except ImportError as error:
    raise MissingExtraError("replication", "protobuf") from error

pb: Any = walkit_pb2

METHOD = "/walkit.replication.Replication/Follow"
LINEAGE_EPOCHS_MAX = 1 << 20


class WireError(WalkitError):
    """Bytes from the network are no message of this protocol."""

    code = "wire"


def encode_from_subscriber(message: FromSubscriber) -> bytes:
    """Return the bytes of a SubscriberMessage."""
    if isinstance(message, Hello):
        hello = pb.Hello(
            name=message.name,
            version_min=message.version_min,
            version_max=message.version_max,
            log_id=message.log_id,
            lineage=[_epoch_out(e) for e in message.lineage],
            end=_end_out(message.end),
            codecs=message.codecs,
        )
        outer = pb.SubscriberMessage(hello=hello)
    elif isinstance(message, Ack):
        outer = pb.SubscriberMessage(ack=pb.Ack(end=_end_out(message.end)))
    else:
        outer = pb.SubscriberMessage(nack=pb.Nack(end=_end_out(message.end)))
    data: bytes = outer.SerializeToString()
    return data


def decode_from_subscriber(data: bytes) -> FromSubscriber:
    """Return the message; WireError where it is none."""
    outer = _parsed(pb.SubscriberMessage, data)
    kind = outer.WhichOneof("message")
    if kind == "hello":
        m = outer.hello
        return Hello(
            name=m.name,
            version_min=m.version_min,
            version_max=m.version_max,
            log_id=m.log_id,
            lineage=_lineage_in(m.lineage),
            end=_end_in(m.end),
            codecs=tuple(m.codecs),
        )
    if kind == "ack":
        return Ack(end=_end_in(outer.ack.end))
    if kind == "nack":
        return Nack(end=_end_in(outer.nack.end))
    raise WireError(
        "the subscriber sent a message without content, or of a kind that this version does not know"
    )


def encode_from_publisher(message: FromPublisher) -> bytes:
    """Return the bytes of a PublisherMessage."""
    if isinstance(message, Batch):
        facts = {name: getattr(message, name) for name in _BATCH_FACTS}
        batch = pb.Batch(**facts, lineage=[_epoch_out(e) for e in message.lineage], data=message.data)
        outer = pb.PublisherMessage(batch=batch)
    elif isinstance(message, Heartbeat):
        outer = pb.PublisherMessage(heartbeat=pb.Heartbeat(**_facts(message, _HEARTBEAT_FACTS)))
    elif isinstance(message, Welcome):
        outer = pb.PublisherMessage(welcome=pb.Welcome(**_facts(message, _WELCOME_FACTS)))
    else:
        outer = pb.PublisherMessage(refusal=pb.Refusal(**_facts(message, _REFUSAL_FACTS)))
    data: bytes = outer.SerializeToString()
    return data


def decode_from_publisher(data: bytes) -> FromPublisher:
    """Return the message; WireError where it is none."""
    outer = _parsed(pb.PublisherMessage, data)
    kind = outer.WhichOneof("message")
    if kind == "batch":
        m = outer.batch
        return Batch(**_facts(m, _BATCH_FACTS), lineage=_lineage_in(m.lineage), data=m.data)
    if kind == "heartbeat":
        return Heartbeat(**_facts(outer.heartbeat, _HEARTBEAT_FACTS))
    if kind == "welcome":
        return Welcome(**_facts(outer.welcome, _WELCOME_FACTS))
    if kind == "refusal":
        return Refusal(**_facts(outer.refusal, _REFUSAL_FACTS))
    raise WireError(
        "the publisher sent a message without content, or of a kind that this version does not know"
    )


_BATCH_FACTS = (
    "after_position",
    "start_position",
    "end_position",
    "epoch",
    "epoch_id",
    "alignment",
    "frame_bytes_max",
    "source_lsn",
    "source_position",
    "codec",
)
_HEARTBEAT_FACTS = ("sent_position", "source_lsn", "source_position")
_WELCOME_FACTS = ("version", "log_id", "created_us", "ack_order", "source_lsn", "source_position")
_REFUSAL_FACTS = ("reason", "message", "lsn", "other_lsn", "version_min", "version_max")


def _facts(message: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _parsed(kind: Any, data: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(
            f"{len(data):,} bytes from the network are no message of this protocol: {error}"
        ) from error
    return message


def _epoch_out(epoch: EpochRecord) -> Any:
    return pb.Epoch(
        number=epoch.number,
        id=epoch.id,
        first_lsn=epoch.first_lsn,
        position=epoch.position,
        chain=epoch.chain,
    )


def _lineage_in(epochs: Any) -> tuple[EpochRecord, ...]:
    if len(epochs) > LINEAGE_EPOCHS_MAX:
        raise WireError(f"a lineage of {len(epochs):,} epochs")
    return tuple(
        EpochRecord(number=e.number, id=e.id, first_lsn=e.first_lsn, position=e.position, chain=e.chain)
        for e in epochs
    )


def _end_out(end: LogEnd) -> Any:
    return pb.LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain)


def _end_in(end: Any) -> LogEnd:
    return LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain)
