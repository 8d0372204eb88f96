"""Messages that no honest side sends: prepared answers of a primary over gRPC, and mutations of any message."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tests.replication.blocking_callers import UNLIMITED, flipped, sealed
from tests.replication.frame_history import History
from walkit.format.manifest import EpochRecord
from walkit.replication.core.subscriber import Subscriber
from walkit.replication.protocol import walkit_pb2
from walkit.replication.protocol.messages import Batch, FromPublisher, Hello, Welcome
from walkit.replication.protocol.wire import METHOD, decode_from_subscriber, encode_from_publisher
from walkit.replication.transport.grpc_common import grpc
from walkit.replication.transport.threads import DaemonExecutor

pb: Any = walkit_pb2
Answer = Callable[[Hello], Sequence[FromPublisher]]
NUMBERS = (0, 1, 63, 64, 65, 1 << 20, (1 << 31) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
TEXTS = (
    "",
    "a\n",
    "\x00",
    "x" * 129,
    "é" * 128,
    "y" * 100_000,
    "zstd",
    "lzma",
    "append",
    "completion",
    "closed",
    "gap",
)
CRC_BYTES = 5


@contextmanager
def forged_primary(answer: Answer) -> Iterator[str]:
    """Serve on the loopback address, and yield the address: each hello gets the messages that `answer` returns.

    A call stays open until the replica ends it.
    """

    def follow(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        hello = decode_from_subscriber(next(requests))
        assert isinstance(hello, Hello)
        for message in answer(hello):
            yield encode_from_publisher(message)
        for _ in requests:
            pass

    with serving(METHOD, grpc.stream_stream_rpc_method_handler(follow)) as address:
        yield address


@contextmanager
def serving_bytes(*answers: bytes) -> Iterator[str]:
    """Serve on the loopback address, and yield the address: each call gets these bytes, whatever is said."""

    def follow(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        next(requests, None)
        yield from answers
        for _ in requests:
            pass

    with serving(METHOD, grpc.stream_stream_rpc_method_handler(follow)) as address:
        yield address


@contextmanager
def serving(path: str, handler: Any) -> Iterator[str]:
    """Serve one call, named by its path, on the loopback address, and yield that."""
    server = grpc.server(DaemonExecutor(), options=UNLIMITED)
    _, service, name = path.split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def welcome(history: History, **changes: Any) -> Welcome:
    """The welcome of a primary with this history, with these fields changed."""
    end = history.end()
    facts: dict[str, Any] = {
        "version": 4,
        "log_id": history.manifest.log_id,
        "created_us": 1,
        "ack_order": "append",
        "source_lsn": end.last_lsn,
        "source_position": end.position,
    }
    return Welcome(**(facts | changes))


def welcomed(history: History, **facts: Any) -> Subscriber:
    """A subscriber with these facts that a primary with this history has welcomed."""
    subscriber = Subscriber("r", **facts)
    subscriber.start(0)
    subscriber.connected(0)
    subscriber.receive(welcome(history), 0)
    return subscriber


def first_batch(history: History, frames: int = 2, **changes: Any) -> Batch:
    """The first frames of a history as a primary sends them, with these fields changed."""
    group = history.frames[:frames]
    segment, end = group[0][0], history.end(frames)
    lineage: tuple[EpochRecord, ...] = history.manifest.lineage[:1]
    facts: dict[str, Any] = {
        "after_position": 0,
        "start_position": 0,
        "end_position": end.position,
        "epoch": segment.epoch,
        "epoch_id": segment.epoch_id,
        "alignment": segment.alignment,
        "frame_bytes_max": segment.frame_bytes_max,
        "source_lsn": history.end().last_lsn,
        "source_position": history.end().position,
        "lineage": lineage,
        "data": b"".join(frame[2] for frame in group),
    }
    return Batch(**(facts | changes))


class Mutator:
    """Changes messages of either side: fields to anything that the wire can carry, then bytes, then the checksum."""

    def __init__(self, seed: int, *, longest: int = 5_000) -> None:
        self.random = random.Random(seed)
        self.longest = longest
        """So many times as long as it should be is the longest list."""

    def __call__(self, kind: Any, data: bytes) -> bytes:
        """Return a message of this protobuf kind with something changed, mostly under a right checksum."""
        chance, message = self.random, kind.FromString(data[:-CRC_BYTES])
        for _ in range(chance.choice((0, 1, 1, 1, 2, 4))):
            self._change(message)
        content, fate = message.SerializeToString(), chance.randrange(24)
        if fate == 0 and content:
            content = flipped(content, chance.randrange(len(content) * 8))
        elif fate == 1:
            content = content[: chance.randrange(len(content) + 1)]
        elif fate == 2:
            content += chance.randbytes(chance.choice((1, 30, 3_000_000)))
        elif fate == 3:
            return chance.randbytes(chance.randrange(200))
        data = sealed(_Encoded(content))
        return flipped(data, chance.randrange(len(data) * 8)) if fate == 4 else data

    def _change(self, message: Any) -> None:
        """Change one field, mostly one that has a value."""
        chance = self.random
        fields = [field for field, _ in message.ListFields()]
        if not fields or not chance.randrange(4):
            fields = [field for field in message.DESCRIPTOR.fields if field.name != "crc"]
        field = chance.choice(fields)
        value = getattr(message, field.name)
        if field.is_repeated:
            items = list(value)
            kept = items * chance.choice((0, 2, self.longest)) or items[1:]
            message.ClearField(field.name)
            getattr(message, field.name).extend(chance.choice((kept, items[1:], items[::-1])))
        elif field.message_type is None:
            setattr(message, field.name, self._other(field, value))
        elif chance.randrange(8):
            self._change(value)
        else:
            message.ClearField(field.name)

    def _other(self, field: Any, value: Any) -> Any:
        """Return another value of a field: near its own, or anything."""
        chance = self.random
        if isinstance(value, str):
            return chance.choice(TEXTS)
        if isinstance(value, bytes):
            other = (flipped(value, chance.randrange(len(value) * 8)), value[1:], value * 2) if value else ()
            return chance.choice((*other, b"", chance.randbytes(16), bytes(5_000)))
        if isinstance(value, bool | float):
            return not value
        near = (value ^ 1, value + 64, *NUMBERS[:6])
        bits = 32 if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_INT32) else 64
        return chance.choice(near if chance.randrange(3) else NUMBERS) % (1 << bits)


class _Encoded:
    """Bytes instead of a protobuf message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # noqa: N802 - protobuf's name
        return self._data
