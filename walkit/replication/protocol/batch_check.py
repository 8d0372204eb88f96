"""Whether the frames of a batch are intact and follow what a subscriber has. Pure."""

from __future__ import annotations

from walkit.errors import FormatVersionError
from walkit.format.frame import FrameFault, FrameIdentity
from walkit.format.manifest import LogEnd
from walkit.replication.protocol.codecs import unpack
from walkit.replication.protocol.frame_batch import FrameLimits, FrameRun, check_run
from walkit.replication.protocol.messages import BATCH_BYTES_MAX, Batch


def checked_run(
    batch: Batch, log_id: int, after: LogEnd, frame_bytes_max: int
) -> tuple[FrameRun | None, FrameFault | None]:
    """Unpack and verify what follows `after` of a batch; what is there already is cut off.

    Returns the run, or None and what is wrong. Nothing larger than `frame_bytes_max` or a batch is unpacked.
    """
    size = batch.end_position - batch.start_position
    limit = max(min(batch.frame_bytes_max, frame_bytes_max), BATCH_BYTES_MAX)
    data = unpack(batch.data, batch.codec, size) if size <= limit else None
    if data is None or not batch.after_position <= batch.start_position:
        return None, FrameFault.SHORT
    start, at = batch.start_position, after.position
    if at > start:
        data, start = data[at - start :], at
    elif at != batch.after_position:
        return None, FrameFault.POSITION
    identity = FrameIdentity(log_id, batch.epoch, batch.epoch_id)
    limits = FrameLimits(batch.alignment, batch.frame_bytes_max)
    try:
        run, fault, _ = check_run(data, identity, limits, after, start)
    except FormatVersionError:
        return None, FrameFault.HEADER
    return run, fault
