"""A poll and its reply as protobuf bytes, and back.

Fields are written in the order of their numbers, without maps, so equal messages are equal bytes: a reader that asks
for one answer twice gets the same bytes twice. An absent delta and an empty one are kept apart.
"""

from __future__ import annotations

import math
from typing import Any

from walkit.format.layout import LSN_MAX, POSITION_MAX
from walkit.replication.delta.messages import DeltaEnd, PollAnswer, PollRefusal, PollRequest
from walkit.replication.protocol.wire import TEXT_CHARS_MAX, WireError, parsed, pb, sealed

POLL_METHOD = "/walkit.replication.Replication/Poll"
POLL_BYTES_MAX = 256
"""The largest poll: it holds numbers alone."""
ANSWER_WORDS_BYTES = 32 << 10
"""Room in a reply for all that is not the delta."""


def encode_poll(request: PollRequest) -> bytes:
    """Return the bytes of a poll."""
    return sealed(
        pb.PollQuestion(
            session_id=request.session_id,
            session_epoch=request.session_epoch,
            applied=_end_out(request.applied),
            version=request.version,
            wait_ms=request.wait_ms,
            leave=request.leave,
        )
    )


def decode_poll(data: bytes) -> PollRequest:
    """Return the poll; WireError if it is not a poll, DamagedMessageError if its checksum is wrong."""
    if len(data) > POLL_BYTES_MAX:
        raise WireError(f"a poll of {len(data):,} bytes: {POLL_BYTES_MAX} is the most")
    m = parsed(pb.PollQuestion, data)
    wait_ms = m.wait_ms if m.HasField("wait_ms") else None
    if wait_ms is not None and not math.isfinite(wait_ms):
        raise WireError(f"a poll that waits {wait_ms} ms")
    return PollRequest(
        session_id=m.session_id,
        session_epoch=m.session_epoch,
        applied=_end_in(m.applied),
        version=m.version,
        wait_ms=wait_ms,
        leave=m.leave,
    )


def encode_reply(reply: PollAnswer | PollRefusal) -> bytes:
    """Return the bytes of a reply to a poll; equal replies give equal bytes."""
    if isinstance(reply, PollRefusal):
        text = reply.message.encode("utf-8", "backslashreplace").decode()  # a path in it may be no UTF-8
        refusal = pb.PollRefusal(reason=reply.reason, message=text[:TEXT_CHARS_MAX])
        return sealed(pb.PollReply(refusal=refusal))
    answer = pb.PollAnswer(
        version=reply.version,
        session_id=reply.session_id,
        session_epoch=reply.session_epoch,
        end=_end_out(reply.end),
        log_id=reply.log_id,
        epoch_id=reply.epoch_id,
        first=None if reply.first is None else _end_out(reply.first),
        delta=reply.delta,
        delta_crc=reply.crc,
    )
    return sealed(pb.PollReply(answer=answer))


def decode_reply(data: bytes) -> PollAnswer | PollRefusal:
    """Return the reply; WireError if it is not a reply, DamagedMessageError if its checksum is wrong."""
    m = parsed(pb.PollReply, data)
    kind = m.WhichOneof("reply")
    if kind == "refusal":
        refusal = m.refusal
        if max(len(refusal.reason), len(refusal.message)) > TEXT_CHARS_MAX:
            raise WireError(f"a refusal of more than {TEXT_CHARS_MAX:,} characters")
        return PollRefusal(reason=refusal.reason, message=refusal.message)
    if kind != "answer":
        raise WireError("a poll was answered without content, or with fields that this version does not know")
    a = m.answer
    return PollAnswer(
        version=a.version,
        session_id=a.session_id,
        session_epoch=a.session_epoch,
        end=_end_in(a.end),
        log_id=a.log_id,
        epoch_id=a.epoch_id,
        first=_end_in(a.first) if a.HasField("first") else None,
        delta=_optional(a, "delta"),
        crc=_optional(a, "delta_crc"),
    )


def _optional(message: Any, name: str) -> Any:
    """Return a field's value; None if it is absent, which differs from zero or empty."""
    return getattr(message, name) if message.HasField(name) else None


def _end_out(end: DeltaEnd) -> Any:
    return pb.DeltaEnd(lsn=end.lsn, position=end.position)


def _end_in(end: Any) -> DeltaEnd:
    if end.lsn > LSN_MAX or end.position > POSITION_MAX:
        raise WireError(f"LSN {end.lsn:,} at position {end.position:,} is in no log")
    return DeltaEnd(end.lsn, end.position)
