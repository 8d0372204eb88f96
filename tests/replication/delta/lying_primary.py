"""A primary that lies to delta readers: real answers of a real log, over real gRPC, changed on their way out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Self

import walkit
from tests.replication.forged_messages import serving
from walkit.format.checksum import crc32c
from walkit.format.frame import FrameHeader, FrameIdentity, PreparedBody, seal_frame
from walkit.format.layout import ALIGNMENT_BUFFERED
from walkit.replication.delta.feed import DeltaFeed
from walkit.replication.delta.messages import PollAnswer, PollRefusal, PollRequest, checksum_of
from walkit.replication.delta.polls import DeltaOptions
from walkit.replication.delta.wire import POLL_METHOD, decode_poll, encode_reply
from walkit.replication.transport.grpc_common import grpc

Said = PollAnswer | PollRefusal | bytes | None
Lie = Callable[[PollAnswer, PollRequest], Said]
"""Makes of the right answer what is said: another one, a refusal, bytes, or None for nothing at all."""


class LyingPrimary:
    """Answers polls of an open log with what `lie` makes of the answers; `lie` may be replaced at any time."""

    def __init__(self, log: walkit.WriteAheadLog, lie: Lie, options: DeltaOptions | None = None) -> None:
        self.feed = DeltaFeed(log, options)
        self.lie = lie
        self.lies = 0
        """Answers that were not the right one."""
        self._served = serving(POLL_METHOD, grpc.unary_stream_rpc_method_handler(self._poll))
        self.address = ""

    def _poll(self, data: bytes, context: Any) -> Iterator[bytes]:
        request = decode_poll(data)
        call = self.feed.begin(request)
        context.add_callback(lambda: self.feed.on_disconnect(call))
        answer = self.feed.wait(call)
        said = self.lie(answer, request) if isinstance(answer, PollAnswer) else answer
        self.lies += said is not answer
        if said is None:
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer")
            return
        yield said if isinstance(said, bytes) else encode_reply(said)

    def __enter__(self) -> Self:
        self.address = self._served.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.feed.stop()
        self._served.__exit__(None, None, None)


def frame_of(header: FrameHeader, body: bytes, count: int) -> bytes:
    """Return an intact frame to replace another one: with this body, which may be invalid, of so many records."""
    prepared = PreparedBody(count, header.flags, 0, [body], len(body), len(body), crc32c(body))
    buffers, _, _ = seal_frame(
        prepared,
        FrameIdentity(header.log_id, header.epoch, header.epoch_id),
        position=header.position,
        first_lsn=header.first_lsn,
        durable_position=header.durable_position,
        chain=header.chain,
        sealed_us=header.sealed_us,
        alignment=ALIGNMENT_BUFFERED,
    )
    return b"".join(buffers)


def sealed(answer: PollAnswer, **facts: Any) -> PollAnswer:
    """Return the answer with other facts, under the checksum that is right for them."""
    changed = replace(answer, **facts)
    return (
        changed
        if changed.delta is None or changed.first is None
        else replace(changed, crc=checksum_of(changed))
    )
