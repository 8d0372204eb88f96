"""Whether what a publisher says can be: its messages are checked before a subscriber uses them. Pure."""

from __future__ import annotations

from walkit.format.layout import LSN_MAX, POSITION_MAX
from walkit.format.manifest import EpochRecord
from walkit.replication.protocol.codecs import CODECS
from walkit.replication.protocol.failures import ProtocolError
from walkit.replication.protocol.messages import Batch, FromPublisher, Heartbeat, Welcome

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
    """Return what the other side said as one line of bounded length, without what a terminal acts upon."""
    line = "".join(c if c.isprintable() else " " for c in text[:TEXT_MAX])
    return line + "..." if len(text) > TEXT_MAX else line
