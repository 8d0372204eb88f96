"""Checks a publisher's messages: values, frames, and the error of a lasting refusal. Pure."""

from __future__ import annotations

from walkit.errors import DivergenceError, FormatVersionError, GapError, OptionsError, WalkitError
from walkit.format.frame import FrameFault, FrameIdentity
from walkit.format.layout import LSN_MAX, POSITION_MAX
from walkit.format.manifest import EpochRecord, LogEnd
from walkit.replication.protocol.codecs import CODECS, unpack
from walkit.replication.protocol.failures import IdentityError, ProtocolError
from walkit.replication.protocol.frame_run import FrameLimits, FrameRun, check_run
from walkit.replication.protocol.messages import (
    BATCH_BYTES_MAX,
    Batch,
    FromPublisher,
    Heartbeat,
    Refusal,
    Welcome,
)

ACK_ORDERS = ("append", "completion")
CREATED_US_MAX = 253_402_300_799_999_999
"""The end of the year 9999, the last one that a date can have."""
TEXT_MAX = 400


def check_content(message: FromPublisher) -> None:
    """Raise ProtocolError for a value that no publisher of an intact log sends.

    A refusal is not checked: it only ends the connection, and its text is cut by `plain_text`.
    """
    if isinstance(message, Welcome):
        _check_welcome(message)
    if isinstance(message, Welcome | Heartbeat | Batch):
        _check_range("source_lsn", message.source_lsn, 0, LSN_MAX)
        _check_range("source_position", message.source_position, 0, POSITION_MAX)
    if isinstance(message, Heartbeat):
        _check_range("sent_position", message.sent_position, 0, POSITION_MAX)
    if isinstance(message, Batch):
        _check_batch(message)


def _check_welcome(welcome: Welcome) -> None:
    if welcome.log_id == 0:
        raise _wrong("log_id", 0, "no log has it")
    if welcome.ack_order not in ACK_ORDERS:
        raise _wrong("ack_order", welcome.ack_order, "it is 'append' or 'completion'")
    _check_range("created_us", welcome.created_us, 0, CREATED_US_MAX)


def _check_batch(batch: Batch) -> None:
    for name in ("after_position", "start_position", "end_position"):
        _check_range(name, getattr(batch, name), 0, POSITION_MAX)
    if not batch.after_position <= batch.start_position < batch.end_position:
        said = (batch.after_position, batch.start_position, batch.end_position)
        raise _wrong("end_position", said, "the frames lie after the position that they follow")
    if batch.codec not in ("", *CODECS):
        raise _wrong("codec", batch.codec, f"it is '' or one of {', '.join(CODECS)}")
    _check_lineage(batch.lineage)


def _check_lineage(lineage: tuple[EpochRecord, ...]) -> None:
    number = 0
    for epoch in lineage:
        if epoch.number <= number:
            raise _wrong("lineage", epoch.number, "the numbers of epochs grow, and none is given twice")
        number = epoch.number
        _check_range("first_lsn", epoch.first_lsn, 1, LSN_MAX)
        _check_range("position", epoch.position, 0, POSITION_MAX)


def _check_range(field: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise _wrong(field, value, f"it is from {low} to {high}")


def _wrong(field: str, found: object, rule: str) -> ProtocolError:
    return ProtocolError(
        f"the primary sent {field}={found!r:.80}: {rule}. Nothing of the message was used",
        field=field,
        found=found,
    )


def plain_text(text: str) -> str:
    """Return the other side's text as one line of bounded length, without terminal escapes."""
    line = "".join(c if c.isprintable() else " " for c in text[:TEXT_MAX])
    return line + "..." if len(text) > TEXT_MAX else line


def checked_run(
    batch: Batch, log_id: int, after: LogEnd, frame_bytes_max: int
) -> tuple[FrameRun | None, FrameFault | None]:
    """Unpack and verify the frames of a batch that follow `after`; frames that are here already are cut off.

    Returns the run, or None and the fault. Nothing larger than `frame_bytes_max` or a batch is unpacked.
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


def lasting_error(refusal: Refusal, versions: tuple[int, int]) -> WalkitError:
    """Return the error of a refusal that a retry does not fix."""
    said = plain_text(refusal.message)
    if refusal.reason == "divergence":
        text = f"{said}. The first difference is LSN {refusal.lsn:,}; nothing was merged"
        return DivergenceError(text, first_lsn=refusal.lsn)
    if refusal.reason == "rewound":
        text = f"the primary refused this replica: {said}. With new_identity=True (walkit follow --new-identity) "
        return IdentityError(f"{text}it follows as another one, with the data it has", reason=refusal.reason)
    if refusal.reason == "gap":
        return GapError(refusal.lsn, refusal.other_lsn)
    if refusal.reason == "version":
        return unknown_version(refusal.version_min, refusal.version_max, versions)
    option = {"frame": "frame_bytes_max"}.get(refusal.reason, refusal.reason)
    return OptionsError(f"the primary refused this replica: {said}", option=option)


def unknown_version(low: int, high: int, versions: tuple[int, int]) -> FormatVersionError:
    """Return the error of a publisher that speaks other versions of the protocol."""
    ours = f"{versions[0]} to {versions[1]}"
    return FormatVersionError(
        "the publisher's replication protocol", found=f"{low} to {high}", supported=ours
    )


def first_difference(ours: tuple[EpochRecord, ...], theirs: tuple[EpochRecord, ...]) -> int:
    """Return the first LSN at which two lineages differ."""
    for mine, other in zip(ours, theirs, strict=False):
        if mine != other:
            return min(mine.first_lsn, other.first_lsn)
    return 1
