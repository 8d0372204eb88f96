"""Makes a publisher's answers from the facts of its session. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.core.lag import Lag
from walkit.replication.protocol.frame_run import FrameRun
from walkit.replication.protocol.lineage import PrimaryState
from walkit.replication.protocol.messages import Batch, Fetch, FromSubscriber, Hello, Nack, Refusal, Welcome


def welcome_of(primary: PrimaryState, version: int) -> Welcome:
    """Return the welcome of a subscriber."""
    return Welcome(
        version=version,
        log_id=primary.log_id,
        created_us=primary.created_us,
        ack_order=primary.ack_order,
        source_lsn=primary.durable_lsn,
        source_position=primary.durable_position,
    )


def batch_of(run: FrameRun, lineage: tuple[EpochRecord, ...], codec: str, data: bytes, lag: Lag) -> Batch:
    """Return the message of these frames, whose bytes are `data` in this codec."""
    return Batch(
        after_position=run.after.position,
        start_position=run.start_position,
        end_position=run.end.position,
        epoch=run.identity.epoch,
        epoch_id=run.identity.epoch_id,
        alignment=run.limits.alignment,
        frame_bytes_max=run.limits.frame_bytes_max,
        source_lsn=lag.source_lsn,
        source_position=lag.source_position,
        lineage=lineage,
        codec=codec,
        data=data,
    )


def frame_too_large(run: FrameRun, limit: int) -> Refusal | None:
    """Return the refusal of a run with a frame of more bytes than the subscriber takes, or None."""
    if len(run.data) <= limit or (size := max(h.footprint for h in run.headers)) <= limit:
        return None
    text = (
        f"the log has a frame of {size:,} bytes after LSN {run.after.last_lsn:,}, and the replica takes "
        f"{limit:,}: give it options=LogOptions(frame_bytes_max=...) of at least that"
    )
    return Refusal(reason="frame", message=text, lsn=run.first_lsn)


def index_of(ends: Sequence[LogEnd], end: LogEnd) -> int:
    """Return the index of the end at this position, or its insertion point."""
    return bisect_left(ends, end.position, key=lambda sent: sent.position)


def wrong_after_hello(message: FromSubscriber, ends: Sequence[LogEnd], acked: LogEnd, furthest: int) -> str:
    """Return the fault of a message after the hello, in words; "" if it fits the frames sent.

    `ends` are the ends sent and not acknowledged, `furthest` is the last position ever sent.
    """
    if isinstance(message, Hello):
        return "says hello a second time"
    if isinstance(message, Fetch):
        return "fetches of a plan that it was not sent"
    end, nack = message.end, isinstance(message, Nack)
    what = (
        f"{'asks again from' if nack else 'acknowledges'} LSN {end.last_lsn:,} at position {end.position:,}"
    )
    index = index_of(ends, end)
    if end.position < acked.position:
        return f"{what}, and it has acknowledged position {acked.position:,} before"
    if index == len(ends) or ends[index] != end:
        return f"{what}, which was never sent to it: the last was {ends[-1]}"
    if nack and end.position == furthest:
        return f"{what}, after which nothing was ever sent to it"
    return ""
