"""The protocol's messages as protobuf bytes, and back. The only module that knows the generated code.

A message ends with the CRC-32C of all before it, which is compared before anything is unpacked. Then it is taken field
by field, so that a message of the wire is checked to be one of ours before a core sees it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

from walkit.errors import MissingExtraError, WalkitError
from walkit.format.checksum import crc32c
from walkit.format.layout import LSN_MAX, POSITION_MAX
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.messages import (
    BATCH_BYTES_MAX,
    CHUNK_BYTES_MAX,
    CODECS_MAX,
    ID_BYTES,
    LINEAGE_EPOCHS_MAX,
    PLAN_FILES_MAX,
    Ack,
    Batch,
    Chunk,
    Fetch,
    FromPublisher,
    FromSubscriber,
    Heartbeat,
    Hello,
    Nack,
    Plan,
    Refusal,
    Welcome,
)

try:
    from google.protobuf.message import DecodeError

    from walkit.replication.protocol import walkit_pb2
except ImportError as error:
    raise MissingExtraError("replication", "protobuf") from error

pb: Any = walkit_pb2

METHOD = "/walkit.replication.Replication/Follow"
CRC_TAG = b"\x7d"
"""How the field `crc` begins: number 15, a fixed32. The checksum follows, and nothing after it."""
CRC_BYTES = 5
BATCH_TAG, DATA_TAG = b"\x1a", b"\x62"
"""How the fields `batch` (3) of a PublisherMessage and `data` (12) of a Batch begin: both are counted bytes."""
EPOCH_BYTES = 4 * 8 + 4
WORDS_BYTES = 64 << 10
"""Room in a message for all that is neither frames nor lineage."""
SUBSCRIBER_BYTES_MAX = LINEAGE_EPOCHS_MAX * EPOCH_BYTES + WORDS_BYTES
"""The largest message to a publisher, which is a hello with the longest lineage."""
REPLY_BYTES_MAX = 256
"""The largest message to a publisher after the hello."""
TEXT_CHARS_MAX = 4096
"""The longest text in a message to a subscriber: why it is refused. A longer one is cut short before it is sent."""


def publisher_bytes_max(frame_bytes_max: int) -> int:
    """Return the size of the largest message to a subscriber that takes frames of up to so many bytes."""
    return max(frame_bytes_max, BATCH_BYTES_MAX) + SUBSCRIBER_BYTES_MAX


class WireError(WalkitError):
    """Bytes from the network are not a message of this protocol."""

    code = "wire"


class DamagedMessageError(WireError):
    """A message came without its checksum, or with another one: it was damaged on its way. Nothing of it was used."""

    code = "wire-damaged"


def encode_from_subscriber(message: FromSubscriber) -> bytes:
    """Return the bytes of a SubscriberMessage."""
    if isinstance(message, Hello):
        hello = pb.Hello(
            name=message.name,
            version_min=message.version_min,
            version_max=message.version_max,
            log_id=message.log_id,
            lineage=_lineage_out(message.lineage),
            end=_end_out(message.end),
            codecs=message.codecs,
            frame_bytes_max=message.frame_bytes_max,
            id=message.id,
            bootstrap=message.bootstrap,
        )
        outer = pb.SubscriberMessage(hello=hello)
    elif isinstance(message, Fetch):
        outer = pb.SubscriberMessage(fetch=pb.Fetch(**_facts(message, _FETCH_FACTS)))
    elif isinstance(message, Ack):
        outer = pb.SubscriberMessage(ack=pb.Ack(end=_end_out(message.end)))
    else:
        outer = pb.SubscriberMessage(nack=pb.Nack(end=_end_out(message.end)))
    return sealed(outer)


def decode_from_subscriber(data: bytes, epochs_max: int = LINEAGE_EPOCHS_MAX) -> FromSubscriber:
    """Return the message; WireError if it is not one, DamagedMessageError if its checksum is wrong.

    Of a lineage at most the first `epochs_max` epochs are taken: one more than a publisher has is enough to decide.
    """
    outer = parsed(pb.SubscriberMessage, data)
    kind = outer.WhichOneof("message")
    if kind == "hello":
        m = outer.hello
        if len(m.codecs) > CODECS_MAX:
            raise WireError(f"a hello with {len(m.codecs):,} codecs: {CODECS_MAX} is the most")
        if len(m.id) not in (0, ID_BYTES):
            raise WireError(f"the id of a replica of {len(m.id):,} bytes: it has {ID_BYTES}")
        return Hello(
            name=m.name,
            version_min=m.version_min,
            version_max=m.version_max,
            log_id=m.log_id,
            lineage=_lineage_in(m.lineage, epochs_max),
            end=_end_in(m.end),
            codecs=tuple(m.codecs),
            frame_bytes_max=m.frame_bytes_max,
            id=m.id,
            bootstrap=m.bootstrap,
        )
    if kind == "fetch":
        return Fetch(**_facts(outer.fetch, _FETCH_FACTS))
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
        return _batch_out(message)
    if isinstance(message, Heartbeat):
        outer = pb.PublisherMessage(heartbeat=pb.Heartbeat(**_facts(message, _HEARTBEAT_FACTS)))
    elif isinstance(message, Welcome):
        outer = pb.PublisherMessage(welcome=pb.Welcome(**_facts(message, _WELCOME_FACTS)))
    elif isinstance(message, Chunk):
        outer = pb.PublisherMessage(chunk=pb.Chunk(**_facts(message, _CHUNK_FACTS)))
    elif isinstance(message, Plan):
        outer = pb.PublisherMessage(plan=pb.Plan(**_facts(message, _PLAN_FACTS)))
    else:
        facts = _facts(message, _REFUSAL_FACTS)
        text = message.message.encode("utf-8", "backslashreplace").decode()  # a path in it may be no UTF-8
        facts["message"] = text[:TEXT_CHARS_MAX]
        outer = pb.PublisherMessage(refusal=pb.Refusal(**facts))
    return sealed(outer)


def decode_from_publisher(data: bytes) -> FromPublisher:
    """Return the message; WireError if it is not one, DamagedMessageError if its checksum is wrong."""
    outer = parsed(pb.PublisherMessage, data)
    kind = outer.WhichOneof("message")
    if kind == "batch":
        m = outer.batch
        return Batch(**_facts_in(m, _BATCH_FACTS), lineage=_lineage_in(m.lineage), data=m.data)
    if kind == "heartbeat":
        return Heartbeat(**_facts_in(outer.heartbeat, _HEARTBEAT_FACTS))
    if kind == "welcome":
        return Welcome(**_facts_in(outer.welcome, _WELCOME_FACTS))
    if kind == "chunk":
        if len(outer.chunk.data) > CHUNK_BYTES_MAX:
            raise WireError(f"a chunk of {len(outer.chunk.data):,} bytes: {CHUNK_BYTES_MAX:,} is the most")
        return Chunk(**_facts(outer.chunk, _CHUNK_FACTS))
    if kind == "plan":
        if len(outer.plan.sizes) > PLAN_FILES_MAX:
            raise WireError(f"a plan of {len(outer.plan.sizes):,} files: {PLAN_FILES_MAX:,} is the most")
        return Plan(**_facts(outer.plan, _PLAN_FACTS) | {"sizes": tuple(outer.plan.sizes)})
    if kind == "refusal":
        return Refusal(**_facts_in(outer.refusal, _REFUSAL_FACTS))
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
_FETCH_FACTS = ("file", "offset", "size")
_CHUNK_FACTS = ("file", "offset", "data")
_PLAN_FACTS = ("manifest", "sizes", "snapshot_lsn")
_HEARTBEAT_FACTS = ("sent_position", "source_lsn", "source_position")
_WELCOME_FACTS = (
    "version",
    "log_id",
    "created_us",
    "ack_order",
    "source_lsn",
    "source_position",
)
_REFUSAL_FACTS = ("reason", "message", "lsn", "other_lsn", "version_min", "version_max")


def _facts(message: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names}


def _facts_in(message: Any, names: tuple[str, ...]) -> dict[str, Any]:
    facts = _facts(message, names)
    longest = max((len(value) for value in facts.values() if isinstance(value, str)), default=0)
    if longest > TEXT_CHARS_MAX:
        raise WireError(f"a text of {longest:,} characters: {TEXT_CHARS_MAX:,} is the most")
    return facts


def sealed(message: Any) -> bytes:
    """Return the bytes of a message with its checksum after them."""
    data: bytes = message.SerializeToString()
    return b"".join((data, CRC_TAG, crc32c(data).to_bytes(4, "little")))


def _batch_out(message: Batch) -> bytes:
    """Return the bytes of a batch, its frames copied once: protobuf would copy them into its memory and out."""
    facts = pb.Batch(
        **_facts(message, _BATCH_FACTS), lineage=_lineage_out(message.lineage)
    ).SerializeToString()
    start = DATA_TAG + _varint(len(message.data)) if message.data else b""
    size = len(facts) + len(start) + len(message.data)
    head = b"".join((BATCH_TAG, _varint(size), facts, start))
    crc = crc32c(message.data, crc32c(head))
    return b"".join((head, message.data, CRC_TAG, crc.to_bytes(4, "little")))


def _varint(number: int) -> bytes:
    """Return a number as protobuf writes it: 7 bits a byte, the lowest first."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def parsed(kind: Any, data: bytes) -> Any:
    """Return the message of this kind; DamagedMessageError for another checksum, WireError for other bytes."""
    content = memoryview(data)[:-CRC_BYTES]
    if data[-CRC_BYTES : 1 - CRC_BYTES] != CRC_TAG:
        raise DamagedMessageError(f"a message of {len(data):,} bytes came without its checksum")
    found, computed = int.from_bytes(data[1 - CRC_BYTES :], "little"), crc32c(content)
    if found != computed:
        raise DamagedMessageError(
            f"a message of {len(data):,} bytes came with checksum {found:#010x}, and its content has {computed:#010x}"
        )
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise WireError(
            f"{len(data):,} bytes from the network are not a message of this protocol: {error}"
        ) from error
    return message


def _lineage_out(epochs: tuple[EpochRecord, ...]) -> Any:
    _refuse_long(len(epochs))
    return pb.Lineage(
        number=[e.number for e in epochs],
        id=[e.id for e in epochs],
        first_lsn=[e.first_lsn for e in epochs],
        position=[e.position for e in epochs],
        chain=[e.chain for e in epochs],
    )


def _lineage_in(lineage: Any, epochs_max: int = LINEAGE_EPOCHS_MAX) -> tuple[EpochRecord, ...]:
    columns = (lineage.number, lineage.id, lineage.first_lsn, lineage.position, lineage.chain)
    lengths = {len(column) for column in columns}
    _refuse_long(max(lengths))
    if len(lengths) > 1:
        raise WireError("a lineage whose epochs are incomplete")
    epochs = tuple(
        EpochRecord(number=number, id=epoch_id, first_lsn=first_lsn, position=position, chain=chain)
        for number, epoch_id, first_lsn, position, chain in islice(zip(*columns, strict=True), epochs_max)
    )
    if any(epoch.first_lsn > LSN_MAX or epoch.position > POSITION_MAX for epoch in epochs):
        raise WireError("an epoch begins beyond the largest position")
    return epochs


def _refuse_long(epochs: int) -> None:
    if epochs > LINEAGE_EPOCHS_MAX:
        raise WireError(f"a lineage of {epochs:,} epochs: {LINEAGE_EPOCHS_MAX:,} is the most")


def _end_out(end: LogEnd) -> Any:
    return pb.LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain)


def _end_in(end: Any) -> LogEnd:
    if end.last_lsn > LSN_MAX or end.position > POSITION_MAX:
        raise WireError(f"LSN {end.last_lsn:,} at position {end.position:,} is in no log")
    return LogEnd(last_lsn=end.last_lsn, position=end.position, chain=end.chain)
