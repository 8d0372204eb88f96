"""How messages of a world are damaged, and which of them are made up for when they are lost."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any

from walkit.errors import WalkitError
from walkit.replication.delta.messages import PollAnswer
from walkit.replication.delta.wire import decode_reply, encode_reply
from walkit.replication.protocol.messages import Ack, Batch, Heartbeat, Nack
from walkit.replication.protocol.wire import (
    decode_from_publisher,
    decode_from_subscriber,
    encode_from_publisher,
)


def is_asked_for_again(data: Any) -> bool:
    """Say whether the cores make up for the loss of a message by themselves: of frames, or of a sign of life."""
    for decode in (decode_from_publisher, decode_from_subscriber):
        with suppress(WalkitError):
            return isinstance(decode(data), Batch | Heartbeat | Ack | Nack)
    return False


def corrupted(data: bytes, random: Random, *, answer: bool) -> bytes:
    """Return a message with a flipped bit: anywhere, so that its checksum shows it, or in frames before that."""
    if not answer or random.random() < 0.5:
        return _flipped(data, random)
    try:
        batch = decode_from_publisher(data)
        if isinstance(batch, Batch) and batch.data:
            return encode_from_publisher(replace(batch, data=_flipped(batch.data, random)))
    except WalkitError:
        pass
    try:
        reply = decode_reply(data)
        if isinstance(reply, PollAnswer) and reply.delta:
            return encode_reply(replace(reply, delta=_flipped(reply.delta, random)))
    except WalkitError:
        pass
    return _flipped(data, random)


def _flipped(data: bytes, random: Random) -> bytes:
    at, bit = random.randrange(len(data)), 1 << random.randrange(8)
    return data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :]
